"""Drafting without a model: what followed when the text stood here before."""
