"""One real moto server process for all tests of this process; each fake account of it is apart from the others."""

from __future__ import annotations

import atexit
import ctypes
import http.client
import signal
import socket
import subprocess
import sys
import time
from functools import cache

START_S = 90.0  # only reached by a host that is very busy
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@cache
def moto_port() -> int:
    """The port of the server, which is started by the first call and ends with this process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,
    )
    atexit.register(_end, process)
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return port
        except OSError:
            assert process.poll() is None, "moto ended as soon as it was started"
            time.sleep(0.05)
    raise AssertionError(f"moto did not listen within {START_S:.0f} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def ask_moto(method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", moto_port(), timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()
