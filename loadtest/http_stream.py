"""Server-sent events and small requests over the standard library's HTTP client, each on a connection of its own.

A kept-alive connection may be closed by the server just when it is used again; a fresh one costs a fraction of a
millisecond on the same machine, and it is what a new user costs the server.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from .answers import AnswerError

API_KEY = "LOADTEST_API_KEY"  # environment variable; sent as a bearer token and never recorded


def events(url: str, body: dict[str, Any], timeout: float) -> Iterator[tuple[float, dict[str, Any]]]:
    """POST `body` and yield `(arrival by time.monotonic(), event)` until the stream's end.

    `timeout` (seconds) is for the whole answer.

    Raises:
        AnswerError: no connection, an answer other than 200, a broken stream, or too slow.
    """
    deadline = time.monotonic() + timeout
    status = None
    connection = None
    try:
        connection = _connect(url, timeout)
        stream = connection.sock  # the connection forgets it once the answer begins
        connection.request("POST", urlsplit(url).path, json.dumps(body).encode(), _headers())
        response = connection.getresponse()
        status = response.status
        if status != 200:
            raise AnswerError(response.read(2000).decode(errors="replace"), status)
        while line := response.readline():
            now = time.monotonic()
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield now, json.loads(data)
            if now >= deadline:
                raise TimeoutError
            stream.settimeout(deadline - now)
        raise AnswerError("the stream was broken off", status)
    except TimeoutError as error:
        raise AnswerError(f"not complete after {timeout:g} s", status) from error
    except (OSError, HTTPException, ValueError) as error:
        raise AnswerError(f"{type(error).__name__}: {error}", status) from error
    finally:
        if connection is not None:
            connection.close()


def request_json(url: str, method: str = "GET", timeout: float = 60) -> Any:
    """The JSON answer of a small request; its text if it is no JSON.

    Raises:
        AnswerError: no connection, or an answer other than 200.
    """
    parts = urlsplit(url)
    connection = None
    try:
        connection = _connect(url, timeout)
        connection.request(method, f"{parts.path}?{parts.query}", headers=_headers())
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise AnswerError(f"{type(error).__name__}: {error}") from error
    finally:
        if connection is not None:
            connection.close()
    if response.status != 200:
        raise AnswerError(text[:2000], response.status)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _connect(url: str, timeout: float) -> HTTPConnection:
    """Raises OSError: nobody answers at any of the host's addresses."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        secure = HTTPSConnection(host, parts.port, timeout=timeout)
        secure.connect()
        return secure
    connection = HTTPConnection(host, parts.port, timeout=timeout)
    connection.sock = _open(_addresses(host, connection.port), timeout)
    return connection


@cache
def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    """Looked up once: gevent does it in a thread, which on a busy machine holds everybody up while it waits."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def _open(addresses: list[tuple[socket.AddressFamily, Any]], timeout: float) -> socket.socket:
    """A connection to the first address that takes one."""
    refusal: OSError | None = None
    for family, address in addresses:
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.settimeout(timeout)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.connect(address)
        except OSError as error:
            opened.close()
            refusal = error
        else:
            return opened
    raise refusal or OSError("the host has no address")


def _headers() -> dict[str, str]:
    key = os.environ.get(API_KEY)
    return {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
