"""Notifications by apprise to real servers on loopback: a webhook that takes, refuses and hangs, and a mail server."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from orchestrator import targets
from orchestrator.targets import NotSent, Target, send

pytest.importorskip("apprise")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # apprise's own


class Hook(ThreadingHTTPServer):
    """Keeps what was posted; answers with `status`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[dict[str, Any]] = []
        self.status = 200
        self.hang = threading.Event()
        self.hang.set()


class _Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        self.server.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.hang.wait(20.0)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.hang.set()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("scheme", ["json", "http"])
def test_a_webhook_gets_the_message(hook: Hook, scheme: str) -> None:
    send(Target(url=f"{scheme}://127.0.0.1:{hook.server_port}/hook"), "train is done", "results: here\nsee")
    (posted,) = hook.posted
    assert (posted["title"], posted["message"]) == ("train is done", "results: here\nsee")


def test_a_webhook_that_refuses_is_told_with_its_code_and_without_its_address(hook: Hook) -> None:
    hook.status = 500
    with pytest.raises(NotSent) as caught:
        send(Target(url=f"json://user:t0psecret@127.0.0.1:{hook.server_port}/t0psecret"), "t", "b")
    assert str(caught.value) == "it answered HTTP 500"


def test_a_webhook_that_hangs_or_is_not_there_is_no_connection(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "ANSWER_S", 0.3)
    hook.hang.clear()
    with pytest.raises(NotSent, match="did not answer in time"):
        send(Target(url=f"json://127.0.0.1:{hook.server_port}"), "t", "b")
    with pytest.raises(NotSent, match="no connection"):
        send(Target(url="json://127.0.0.1:1"), "t", "b")


class Mail(socketserver.ThreadingTCPServer):
    """As much of SMTP as takes one message."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.letters: list[str] = []


class _Session(socketserver.StreamRequestHandler):
    server: Mail

    def handle(self) -> None:
        self.say("220 here")
        for raw in self.rfile:
            word = raw.split()[0].upper() if raw.split() else b""
            if word == b"DATA":
                self.say("354 go on")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.letters.append(b"".join(lines).decode())
                self.say("250 taken")
            elif word == b"QUIT":
                self.say("221 bye")
                return
            else:
                self.say("250 ok")

    def say(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")


def test_a_mail_goes_out() -> None:
    with Mail() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        port = server.server_address[1]
        address = f"mailto://127.0.0.1:{port}?from=gpujob@example.org&to=me@example.org&mode=insecure&smtp=127.0.0.1"
        try:
            send(Target(url=address), "train: stalled", "no step for 31m")
        finally:
            server.shutdown()
            thread.join()
    (letter,) = server.letters
    assert "Subject: train: stalled" in letter
    assert "me@example.org" in letter
