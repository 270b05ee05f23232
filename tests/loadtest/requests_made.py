"""Records made by hand, for tests of what is computed from them."""

from jetspec_sglang.loadtest.records import Request, Run


def made(due: float = 0.0, **changes) -> Request:
    """Due at `due`, sent 10 ms later, first token after another 90 ms, then two pieces of 2 and 1 tokens."""
    first = due + 0.1
    fields = {
        "id": "0.0",
        "cell": "cell",
        "method": "method",
        "phase": "measure",
        "api": "generate",
        "scheduled_s": due,
        "start_s": due + 0.01,
        "first_token_s": first,
        "chunks": [[first, 1], [first + 0.04, 2], [first + 0.1, 1]],
        "end_s": first + 0.12,
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "cached_tokens": 5,
    }
    return Request(**(fields | changes))


def failed(due: float = 0.0, **changes) -> Request:
    """Sent on time, and answered with an error 0.1 s later."""
    nothing = {"first_token_s": None, "chunks": [], "prompt_tokens": None, "completion_tokens": None}
    nothing |= {"cached_tokens": None, "end_s": due + 0.1, "start_s": due, "error": "no room", "status": 503}
    return made(due, **(nothing | changes))


def made_run(**changes) -> Run:
    """Measured from second 0 to 10."""
    fields = {
        "cell": "cell",
        "method": "method",
        "config": {},
        "workload": {},
        "zero_utc": "2026-01-01T00:00:00.000+00:00",
        "schedule_s": [0.5, 1.0],
        "window_s": [0.0, 10.0],
        "workers": 1,
        "lag": {},
        "loop": {},
        "valid": True,
        "reasons": [],
        "machine": {},
        "versions": {},
    }
    return Run(**(fields | changes))
