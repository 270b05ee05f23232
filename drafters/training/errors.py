"""What can go wrong in training for a reason that the user can do something about."""


class TrainError(ValueError):
    """A setting, a target or a folder that training cannot work with; the message says what to do instead."""
