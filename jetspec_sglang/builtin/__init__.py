"""The built-in model: a small real chat model as target, and the trained heads shipped for it."""

BUILTIN = "builtin"  # its name as a target, for training and `jetspec check`
