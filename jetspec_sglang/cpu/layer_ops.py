"""Layer operations with fewer torch calls than SGLang's native ones.

At batch 1 a layer's small operations cost more in dispatch than in arithmetic. Each function below takes
the place of one `forward_native` through SGLang's out-of-tree seam, computes the same numbers (fp32: to
rounding of the last bit; tests hold it), and hands any variant that it does not know back to the original.
"""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm, silu


def register() -> None:
    """Register the operations under the platform's dispatch key; called before any model is built."""
    from sglang.kernels.fused_op import BaseFusedOp
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
    from sglang.srt.platforms import current_platform

    # Only these exact classes are replaced; a subclass with other arithmetic keeps its own.
    for op, function in ((RMSNorm, rms_norm_forward), (SiluAndMul, silu_and_mul), (RotaryEmbedding, rotate)):
        BaseFusedOp.register_oot_forward(op, function, current_platform.get_dispatch_key_name())


def rms_norm_forward(self, x, residual=None, post_residual_addition=None, quant_linear=None):
    """RMSNorm over the last dimension, in fp32, after adding the residual.

    `x`, `residual`: `[..., hidden]` of one dtype. Returns the normalised tensor in that dtype, and with a
    residual also the sum, rounded to that dtype; the norm itself sees the unrounded sum, as SGLang's does.
    """
    if (
        post_residual_addition is not None
        or self.variance_size_override is not None
        or self.override_orig_dtype is not None
        or self.cast_x_before_out_mul
        or self.fp32_residual
    ):
        return self.forward_native(x, residual, post_residual_addition)
    dtype = x.dtype
    wide = x if dtype == torch.float32 else x.float()
    if residual is not None:
        wide = wide + residual
    out = rms_norm(wide, (self.hidden_size,), None, self.variance_epsilon).mul_(self.weight)
    if dtype != torch.float32:
        out = out.to(dtype)
    return out if residual is None else (out, wide.to(dtype))


def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
    """`[..., 2 * d]` -> `[..., d]`: SiLU of the first half times the second half."""
    gate, up = x.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def rotate(self, positions, query, key, offsets=None, fused_set_kv_buffer_arg=None):
    """Rotary embedding of `query [tokens, q_heads * d]` and `key [tokens, kv_heads * d]`.

    Both are rotated in one go where they lie side by side in one projection. Returns new tensors of the
    same shapes.
    """
    if (
        not self.is_neox_style
        or self.rotary_dim != self.head_size
        or offsets is not None
        or fused_set_kv_buffer_arg is not None
        or query.dim() != 2
        or hasattr(self, "sin_cos_cache")
    ):
        return self.forward_native(positions, query, key, offsets, fused_set_kv_buffer_arg)
    cos, sin = rotation_tables(self, positions, query.dtype)
    tokens, width = query.shape
    if side_by_side(query, key):
        both = query.as_strided((tokens, width + key.shape[1]), (query.stride(0), 1))
        turned = rotate_heads(both, cos, sin, self.head_size)
        return turned[:, :width], turned[:, width:]
    return rotate_heads(query, cos, sin, self.head_size), rotate_heads(key, cos, sin, self.head_size)


def rotate_heads(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_size: int) -> torch.Tensor:
    """Rotate every head of `x [tokens, heads * head_size]` by the tables `[tokens, 1, head_size]`."""
    heads = x.view(x.shape[0], x.shape[1] // head_size, head_size)
    # (x1, x2) -> (x1, x2) * cos + (x2, x1) * (-sin, sin)
    out = heads * cos
    out.addcmul_(heads.roll(head_size // 2, dims=-1), sin)
    return out.view(x.shape)


def side_by_side(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether the key's columns follow the query's in the same rows of one storage."""
    return bool(
        query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
        and query.stride() == key.stride()
        and query.stride(1) == 1
        and key.storage_offset() == query.storage_offset() + query.shape[1]
    )


def rotation_tables(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`(cos, cos)` and `(-sin, sin)` of each token, `[tokens, 1, head_size]`, gathered once a forward.

    All layers pass the same positions object. It is held here, so its identity cannot be taken over by
    another tensor, and its version tells whether it was written to since.
    """
    memo = self.__dict__.get("_jetspec_tables")
    version = None if positions.is_inference() else positions._version
    if memo is not None and memo[0] is positions and version is not None and memo[1] == (version, dtype):
        return memo[2]
    cos, sin = self.cos_sin_cache.index_select(0, positions.flatten()).to(dtype).chunk(2, dim=-1)
    tables = (torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1))
    self.__dict__["_jetspec_tables"] = (positions, (version, dtype), tables)
    return tables
