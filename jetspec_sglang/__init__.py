"""JetSpec tree speculative decoding for an unmodified SGLang."""

__version__ = "0.1.0"
