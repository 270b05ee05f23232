"""Real SGLang servers on the CPU, shared by the tests of a module."""

from collections.abc import Callable, Iterator

import pytest
import tiny

from jetspec_sglang.serving import Server


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, str]:
    """Paths of a tiny random target and head."""
    folder = tmp_path_factory.mktemp("tiny")
    return {
        "target": str(tiny.tiny_target(folder / "target")),
        "head": str(tiny.tiny_head(folder / "head")),
    }


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Server]]:
    """Start servers that end with the module."""
    servers = []

    def start(*args: str, **how) -> Server:
        server = Server(args, **how)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop()
        server.log.unlink(missing_ok=True)
