"""A provider plugin whose machines are those of this host, with a line to each that can turn into a black hole.

The lines are proxies in the benchmark's own process: the plugin, in the controller's, asks for one over a unix socket.
A controller finds the plugin as it finds any: by the entry point of an installed distribution.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from pathlib import Path

from providers.base import Boot, Endpoint, Instance, Offer, ProviderConfig, Tag
from providers.local import LocalProvider

NAME = "stalling"
PROXIED = "proxied"  # while this file is in the state folder, fresh machines are reached through a proxy
CREATED = "created"  # one line a create call: monotonic seconds, job
LINES = "lines.sock"


class StallingProvider(LocalProvider):
    """`local` by another name; says when its create is called."""

    name = NAME
    account = NAME

    def __init__(self, config: ProviderConfig) -> None:
        super().__init__(config)
        self._state = config.home
        self._ports: dict[str, int] = {}  # machine -> the port that leads to it

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        with (self._state / CREATED).open("a") as calls:
            calls.write(f"{time.monotonic():.4f} {tag.job}\n")
        through_proxy = (self._state / PROXIED).exists()
        made = super().create(offer, tag, end, boot)  # shown without an address while its line is unknown
        record = self.world.record(made.ref.id)
        assert record is not None
        self._ports[made.ref.id] = self._line(record.port) if through_proxy else record.port
        return dataclasses.replace(made, endpoint=Endpoint("127.0.0.1", self._ports[made.ref.id], record.user))

    def _line(self, port: int) -> int:
        """A port that leads to `port`."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.connect(str(self._state / LINES))
            asking.sendall(b"%d\n" % port)
            return int(asking.recv(16))

    def _instance(self, record, status: str) -> Instance:  # type: ignore[no-untyped-def]
        return self._shown(super()._instance(record, status))

    def _shown(self, instance: Instance) -> Instance:
        endpoint = instance.endpoint
        if endpoint is None:
            return instance
        port = self._ports.get(instance.ref.id)
        shown = None if port is None else Endpoint(endpoint.host, port, endpoint.user)
        return dataclasses.replace(instance, endpoint=shown)


def install(folder: Path) -> tuple[Path, Path]:
    """Make a distribution that registers the provider; both folders belong on PYTHONPATH."""
    info = folder / "gpujob_stalling-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gpujob-stalling\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gpujob.providers]\n{NAME} = _stalling:StallingProvider\n")
    return folder, Path(__file__).parent


class Line:
    """A TCP proxy to one port. Stalled, it takes connections and bytes and brings nothing on, not even an end."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._passing = threading.Event()
        self._passing.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        self._passing.clear()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            _shut(each)
        self._passing.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._passing.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self.target), timeout=5.0)
        except OSError:
            _shut(near)
            return
        far.settimeout(None)
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(far)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passing.wait()
                sink.sendall(data)
        self._passing.wait()  # the end of a connection is swallowed as well
        _shut(source)
        _shut(sink)


class Lines:
    """Answers the plugin's questions with new proxies."""

    def __init__(self, state: Path) -> None:
        self.made: list[Line] = []
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(state / LINES))
        self._server.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def to(self, port: int) -> Line:
        """The line that leads to a machine's own port."""
        return next(line for line in self.made if line.target == port)

    def close(self) -> None:
        self._server.close()
        for line in self.made:
            line.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                asking, _ = self._server.accept()
                with asking:
                    line = Line(int(asking.recv(16)))
                    self.made.append(line)
                    asking.sendall(b"%d\n" % line.port)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
