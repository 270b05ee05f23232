"""Load tests of a running server. HTTP only."""
