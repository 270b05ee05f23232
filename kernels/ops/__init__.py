"""Tree attention and KV operations: torch reference first, device kernels beside it."""
