"""The built-in model: a small real chat model as target, and the trained head shipped for it."""
