"""The guard in conftest.py works, so that the other unit tests may rely on it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("method", ["connect", "connect_ex", "bind"])
def test_an_ip_socket_is_refused(method: str) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock,
        pytest.raises(AssertionError, match="unit test"),
    ):
        getattr(sock, method)(("127.0.0.1", 9))


def test_a_name_lookup_is_refused() -> None:
    with pytest.raises(AssertionError, match="getaddrinfo"):
        socket.create_connection(("localhost", 9))


def test_a_unix_socket_is_allowed(tmp_path: Path) -> None:
    address = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(address)
        server.listen()
        client.connect(address)
        client.sendall(b"hello")
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(5) == b"hello"


@given(st.integers(min_value=1, max_value=65535))
def test_the_guard_holds_under_hypothesis(port: int) -> None:
    with socket.socket(socket.AF_INET) as sock, pytest.raises(AssertionError, match="unit test"):
        sock.connect(("127.0.0.1", port))
