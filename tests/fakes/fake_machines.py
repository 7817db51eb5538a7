"""What answers at the address of a fake company's machine: a banner of SSH, or a real machine of this host."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from pathlib import Path
from typing import Protocol

from providers.base import Ask, Boot, GpuRow, GpuWish, ProviderConfig, Ref, Tag
from providers.local import LocalProvider
from providers.local_machine import lives
from providers.local_machine.isolation import inside
from providers.startup import unpacked

END_S = 900.0  # a machine that a killed test leaves behind ends itself after this

Place = tuple[str, int, str]  # host, port, login


class Machines(Protocol):
    """The machines behind a company."""

    def start(self, name: str, hook: str, public_key: str, gpu: str, count: int) -> str:
        """A handle of a new machine."""
        ...

    def place(self, handle: str) -> Place | None:
        """Where it answers now; None when it is dead."""
        ...

    def kill(self, handle: str) -> None:
        """It stops computing at once."""
        ...

    def close(self) -> None:
        """All end."""
        ...


def boot_of(script: str) -> tuple[str, str]:
    """(boot hook, public key) inside a container's start script; the rest of it is for a container alone."""
    packed = re.search(r"^echo (\S+) \| base64 -d", script, re.MULTILINE)
    key = re.search(r"^k='([^']*)'$", script, re.MULTILINE)
    return (unpacked(packed[1]) if packed else "", key[1] if key else "")


class Banner:
    """One socket that greets as sshd does, for all machines."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._dead: set[str] = set()
        self._made = 0
        self.started: dict[str, tuple[str, str]] = {}  # handle -> (hook, public key)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"SSH-2.0-fake\r\n")

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def start(self, name: str, hook: str, public_key: str, gpu: str, count: int) -> str:
        self._made += 1
        self.started[str(self._made)] = (hook, public_key)
        return str(self._made)

    def place(self, handle: str) -> Place | None:
        return None if handle in self._dead else ("127.0.0.1", self.port, "root")

    def kill(self, handle: str) -> None:
        self._dead.add(handle)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


class LocalMachines:
    """Machines of this host, each with its own sshd, in a folder of their own."""

    def __init__(self, home: Path, gpus: tuple[GpuRow, ...]) -> None:
        self.provider = LocalProvider(ProviderConfig("fakes", home, gpus))
        self._gpus = {row.name: row for row in gpus}
        self._made = 0

    def start(self, name: str, hook: str, public_key: str, gpu: str, count: int) -> str:
        self._made += 1
        row = self._gpus.get(gpu)
        ask = Ask(gpus=(GpuWish(row.name, row.vram_gb, count),) if row else (), spot=False)
        offer = min(self.provider.offers(ask), key=lambda each: each.hourly)
        tag = Tag("fakes", f"machine-{self._made}")
        return self.provider.create(offer, tag, time.time() + END_S, Boot(hook, public_key)).ref.id

    def own(self, name: str, public_key: str, gpu: str = "", count: int = 0) -> tuple[str, Path]:
        """A machine that heeds ~/.ssh/authorized_keys as a person's own does: its handle, and its home from here."""
        handle = self.start(name, "true", public_key, gpu, count)
        seen, folder = self.provider.get(self._ref(handle)), self.provider.folder(self._ref(handle))
        assert seen is not None
        home, keys = folder / "root" / "home", folder / "etc" / "authorized_keys"
        (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
        (home / ".ssh" / "authorized_keys").write_text(public_key)
        keys.unlink()
        keys.symlink_to(f"{inside(seen.raw['mode'], folder).home}/.ssh/authorized_keys")
        return handle, home

    def login(self) -> str:
        """Who logs in on machines of this host, as one of them says."""
        handle = self.start("login", "true", "", "", 0)
        place = self.place(handle)
        self.kill(handle)
        assert place is not None
        return place[2]

    def _ref(self, handle: str) -> Ref:
        return Ref("local", "local", "here", handle)

    def place(self, handle: str) -> Place | None:
        seen = self.provider.get(self._ref(handle))
        if seen is None or seen.status in lives.DEAD or seen.endpoint is None:
            return None
        return seen.endpoint.host, seen.endpoint.port, seen.endpoint.user

    def kill(self, handle: str) -> None:
        self.provider.destroy(self._ref(handle))

    def close(self) -> None:
        for instance in self.provider.list("here").instances:
            self.provider.destroy(instance.ref)
