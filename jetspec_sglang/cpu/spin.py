"""How long an OpenMP thread without work spins before it sleeps."""

import os

# By default it spins for about a millisecond, several matrix products long, which is right on an otherwise idle
# machine and ruinous on a busy one: the scheduler takes it for the hog and lets the thread that all wait for wait,
# too. Short spins cost nothing measurable when idle.
SPIN_COUNT = "1000"


def spin_little() -> None:
    """For this process, if torch isn't loaded yet, and for those that it starts. What the user set stays."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
