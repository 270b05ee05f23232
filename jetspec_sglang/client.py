"""JSON requests to a server, whose errors are one sentence for the user."""

from typing import Any

import requests

from .compare import CompareError, refusal

TIMEOUT = 3600  # seconds; a long answer on a slow machine is no error


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    """Raises CompareError if the server can't be reached or refuses."""
    return _json(url, "POST", path, json=body)


def server_info(url: str) -> dict[str, Any]:
    """As `post`."""
    return _json(url, "GET", "/server_info")


def jetspec_state(info: dict[str, Any], url: str) -> dict[str, Any]:
    """JETSPEC's part of a `server_info`. Raises CompareError if the server runs without it."""
    state = (info.get("internal_states") or [{}])[0].get("jetspec")
    if state is None:
        raise CompareError(f"{url} is no JETSPEC server; start one with --speculative-algorithm JETSPEC.")
    return state


def _json(url: str, method: str, path: str, **how: Any) -> Any:
    try:
        reply = requests.request(method, url.rstrip("/") + path, timeout=TIMEOUT, **how)
        if not reply.ok:
            raise CompareError(f"The server refused the request: {refusal(reply.text)}")
        return reply.json()
    except requests.RequestException as error:
        raise CompareError(f"{url} does not answer ({type(error).__name__}).") from error
