"""Draft heads: contract, registry, checkpoint reader, models and training."""
