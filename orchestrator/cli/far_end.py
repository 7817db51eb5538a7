"""The end of `GPUJOB_CONTROLLER=ssh://HOST` that runs on HOST: `gpujob _remote open` and `gpujob _remote call`.

`open` reads one JSON question on stdin and answers it on stdout: it keeps small files of the client, makes room for the
folders that rsync brings, and lays a verb down under a token. `call` runs that verb as if it had been typed here.
It is no verb for people, so it stands in no list.

Rules
- Everything of a client lies in one folder (0700) of its own, `stage`; names that leave it are refused.
- A laid-down verb is read once and gone. The controller that it may start does not get the client's environment.
- When the client goes away, the verb ends as by Ctrl-C: jobs go on.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.cli import client, exits, stage
from orchestrator.cli.exits import CliError
from orchestrator.cli.remote_link import MARKER, NOT_TAKEN, PROTOCOL
from orchestrator.home import Home
from orchestrator.ssh_files import write_private

FORGOTTEN_S = 24 * 3600.0  # a verb that nobody called, because the connection broke before
HANGUP_LOOK_MS = 1000
_NAME = re.compile(r"[0-9a-f]{8,64}")


def run(words: list[str]) -> int:
    """`open`, or `call CLIENT TOKEN`."""
    if words == ["open"]:
        return _open(json.loads(sys.stdin.buffer.read()))
    if len(words) == 3 and words[0] == "call" and all(_NAME.fullmatch(word) for word in words[1:]):
        return _call(words[1], words[2])
    raise CliError("_remote is for gpujob on another computer", next="gpujob --help")


def _open(question: Mapping[str, Any]) -> int:
    """Answer one question; a refusal is an answer too."""
    from orchestrator.version import installed

    ours = {"protocol": PROTOCOL, "version": installed(), "now": time.time()}
    try:
        answer = {"ok": True, **ours, **_answer(question)}
    except CliError as error:
        answer = {
            "ok": False, **ours, "error": error.what, "where": error.where, "why": error.why, "next": error.next,
            "code": error.code,
        }  # fmt: skip
    sys.stdout.write(f"{MARKER}\n{json.dumps(answer)}\n")
    return exits.OK


def _answer(question: Mapping[str, Any]) -> dict[str, Any]:
    if question.get("protocol") != PROTOCOL:
        raise CliError(
            "the two versions of gpujob cannot talk to each other; nothing was done", code=exits.PROVIDER,
            next="install the same version on both: uv tool install . in the checkout",
        )  # fmt: skip
    home = Home.from_env().make()
    if not _NAME.fullmatch(str(question.get("client"))):
        raise CliError("that is no name of a client")
    place = _place(home, str(question["client"]))
    place.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    (place.root / "pages").mkdir(exist_ok=True, mode=0o700)
    answer: dict[str, Any] = {"stage": str(place.root)}
    if question.get("defaults"):
        from orchestrator.config import load_config

        answer["defaults"] = dict(load_config(home).defaults)
    for path, data in question.get("files", {}).items():
        write_private(place.of(path), base64.b64decode(data))
    for root in question.get("roots", ()):
        settle(place, root["kind"], root["path"], root["names"])
    if "call" in question:
        answer["token"] = _lay_down(place, question["call"])
    if "ports_of" in question:
        answer["ports"] = _ports(home, question["ports_of"])
    if "free_ports" in question:
        answer["free_ports"] = _free_ports(int(question["free_ports"]))
    if "accepted" in question:
        answer["accepted"] = _accepted(home, question["accepted"], float(question["since"]))
    for name in question.get("forget", ()):
        shutil.rmtree(_below(place.root, name), ignore_errors=True)
    if "page" in question:
        page = _below(place.root, question["page"])
        answer["page"] = base64.b64encode(page.read_bytes()).decode()
        page.unlink()
    return answer


def _place(home: Home, client_name: str) -> stage.Stage:
    """The client's folder, by its real path, as the working folder will be told."""
    return stage.Stage(Path(os.path.realpath(home.client(client_name))))


def _below(root: Path, name: str) -> Path:
    if not re.fullmatch(r"(pulls|pages)/[0-9a-f]+", name):
        raise CliError(f"{name!r} is no name of ours")
    return root / name


def settle(place: stage.Stage, kind: str, path: str, names: Iterable[str]) -> None:
    """Make room for the files `names` below the client's folder `path`; `kind` tells apart who asks for that folder.

    What an earlier copy brought and is no longer there goes, unless another one that was sent has it too. Nothing
    else is touched: results of earlier jobs lie in between.
    """
    here = place.of(path)
    here.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = place.roots / hashlib.sha256(os.fsencode(f"{kind} {path}")).hexdigest()
    wanted = set(names)
    others: set[str] = set()
    before: set[str] = set()
    for each in place.roots.glob("*") if place.roots.is_dir() else ():
        known = json.loads(each.read_bytes())
        if each == kept:
            before = set(known["names"])
        else:
            others |= {os.path.join(known["path"], name) for name in known["names"]}
    for name in sorted(before - wanted, reverse=True):
        if os.path.join(path, name) not in others:
            _remove(place, here, name)
    write_private(kept, json.dumps({"path": path, "names": sorted(wanted)}).encode())


def _remove(place: stage.Stage, folder: Path, name: str) -> None:
    """One file, link or empty folder, and the folders above it that it leaves empty; through no link."""
    target = folder / name
    if not target.parent.resolve().is_relative_to(place.files.resolve()):
        return
    with contextlib.suppress(OSError):  # it is gone, or something of ours lies in it
        if target.is_dir() and not target.is_symlink():
            target.rmdir()
        else:
            target.unlink()
        for above in target.parents:
            if above == folder:
                break
            above.rmdir()


def _lay_down(place: stage.Stage, call: Mapping[str, Any]) -> str:
    """Keep a verb until it is called, and drop those that never were."""
    token = secrets.token_hex(16)
    if place.calls.is_dir():
        for old in place.calls.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if old.stat().st_mtime < time.time() - FORGOTTEN_S:
                    old.unlink()
    write_private(place.calls / token, json.dumps(call).encode())
    return token


def _ports(home: Home, job: str) -> list[str]:
    from orchestrator.cli.reading import open_view

    return [str(port) for port in open_view(home, job).job.spec.get("ports", [])]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]


def _accepted(home: Home, names: Iterable[str], since: float) -> list[str]:
    """NAME.RUN of those jobs that were made from then on."""
    from orchestrator.cli.reading import reader

    if not home.database.exists():
        return []
    with reader(home) as store:
        found = [store.newest_of(name) for name in names]
    return [f"{job.name}.{job.run}" for job in found if job is not None and job.created_at >= since]


def _call(name: str, token: str) -> int:
    """Run a laid-down verb in the client's folder, with what it needs of the client's environment."""
    from orchestrator.cli.main import main

    place = _place(Home.from_env(), name)
    path = place.calls / token
    try:
        call = json.loads(path.read_bytes())
        path.unlink()
    except FileNotFoundError:
        raise CliError("this verb was called already, or a day ago; nothing was done", code=exits.PROVIDER) from None
    stage.current = stage.Stage(place.root, call["host"], call["surveys"])
    client.own_environment = dict(os.environ)
    os.environ.update({name: value for name, value in call["env"].items() if not NOT_TAKEN.fullmatch(name)})
    os.environ["GPUJOB_CONTROLLER"] = "here"
    folder = place.root / call["folder"] if call.get("folder") else place.of(call["cwd"])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chdir(folder)
    if call.get("stdin") is not None:
        _become_stdin(base64.b64decode(call["stdin"]))
    signal.signal(signal.SIGHUP, _gone)
    signal.signal(signal.SIGTERM, _gone)
    if not sys.stdout.isatty():  # a terminal that goes away sends SIGHUP by itself
        threading.Thread(target=_watch, daemon=True).start()
    return main(call["words"])


def _become_stdin(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        os.dup2(file.fileno(), 0)
        os.lseek(0, 0, os.SEEK_SET)


def _gone(*_: object) -> None:
    raise KeyboardInterrupt


def _watch() -> None:
    """End this verb when the other side of stdout is closed, which a silent one would never see."""
    import select

    poller = select.poll()
    poller.register(1, 0)  # errors and the hang-up are always told
    while not poller.poll(HANGUP_LOOK_MS):
        pass
    os.kill(os.getpid(), signal.SIGHUP)
