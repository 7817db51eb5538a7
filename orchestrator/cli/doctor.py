"""`doctor`: what of this computer gpujob needs, what is missing, and the command that brings it.

Rules: it only looks. A failure is what stops jobs (exit 2); a warning is what will hurt some of them. `local` needs
more programs than a rented machine does, so those are warnings.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from orchestrator.cli import client, exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.output import paint, print_json, put, size
from orchestrator.home import Home

OUR_PACKAGES = ("jobspecs", "orchestrator", "providers")
SPACE_WARN = 2 * 10**9  # checkpoints and results of one small job
# program -> (what for, needed by every job, package for apt, dnf, brew)
PROGRAMS: dict[str, tuple[str, bool, str, str, str]] = {
    "ssh": ("every connection", True, "openssh-client", "openssh-clients", "openssh"),
    "ssh-keygen": ("a key for each machine", True, "openssh-client", "openssh", "openssh"),
    "rsync": ("code, data and results", True, "rsync", "rsync", "rsync"),
    "sshd": ("machines of `local`", False, "openssh-server", "openssh-server", "openssh"),
    "tmux": ("machines of `local`", False, "tmux", "tmux", "tmux"),
    "bwrap": ("isolation of `local` machines", False, "bubblewrap", "bubblewrap", "-"),
}
# Folders of daemons, which an ordinary user's PATH often lacks.
_MORE_FOLDERS = "/usr/sbin:/sbin:/usr/local/sbin:/opt/homebrew/bin"

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, how it stands, and the next step where there is one."""

    check: str
    level: Level
    text: str
    next: str = ""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--notify", metavar="NAME", action="append", default=[], help="send a test to this target of the config"
    )
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print all findings; exit 2 when one of them stops jobs."""
    home = Home.from_env()
    findings = [*examine(home), *(try_target(home, name) for name in args.notify)]
    if args.output == "json":
        print_json([asdict(finding) for finding in findings])
    else:
        colours = {"ok": "green", "warn": "yellow", "fail": "red"}
        for finding in findings:
            mark = paint(f"{finding.level:<4}", colours[finding.level])
            put(f"{mark}  {finding.check:<12}  {finding.text}")
            if finding.next:
                put(f"      {'':<12}  next: {finding.next}")
    return exits.USAGE if any(finding.level == "fail" for finding in findings) else exits.OK


def examine(home: Home) -> Iterator[Finding]:
    """Every check in turn. A check that itself breaks is a finding, since a doctor must not die of the disease."""
    checks: tuple[Callable[[Home], Iterator[Finding]], ...] = (
        _python, _packages, _programs, _folders, _config, _keys, _notify, _stores, _books, _controller, _far_controller,
        _clock,
    )  # fmt: skip
    for check in checks:
        try:
            yield from check(home)
        except Exception as error:  # reported, with its type: never passed over
            yield Finding(
                check.__name__.strip("_"), "fail", f"the check itself failed: {type(error).__name__}: {error}"
            )


def _python(_: Home) -> Iterator[Finding]:
    from orchestrator.version import installed

    yield Finding("gpujob", "ok", f"{installed()}, Python {platform.python_version()}, {sys.executable}")
    if os.name == "nt":
        yield Finding(
            "system", "warn", "native Windows: init, validate, schema and plan only", "run gpujob inside WSL2"
        )
    else:
        yield Finding("system", "ok", f"{platform.system()} {platform.machine()}")


def _packages(_: Home) -> Iterator[Finding]:
    from importlib.metadata import packages_distributions

    yield from package_findings(packages_distributions())


def package_findings(owners: Mapping[str, list[str]]) -> Iterator[Finding]:
    """One finding for each of our top-level names that another distribution owns as well."""
    clash = False
    for name in OUR_PACKAGES:
        others = sorted(set(owners.get(name, ())) - {"gpujob"})
        if others:
            clash = True
            yield Finding(
                "packages", "fail", f"`import {name}` belongs to {', '.join(others)} too",
                "install gpujob into an environment of its own (pipx, uv tool)",
            )  # fmt: skip
    if not clash:
        yield Finding("packages", "ok", f"{', '.join(OUR_PACKAGES)} are ours alone")


def _programs(_: Home) -> Iterator[Finding]:
    path = os.environ.get("PATH", os.defpath) + os.pathsep + _MORE_FOLDERS
    yield from program_findings({name: shutil.which(name, path=path) for name in PROGRAMS})


def program_findings(found: dict[str, str | None]) -> Iterator[Finding]:
    """Programs that are there in one line, each missing one with its packages."""
    there = [name for name, place in found.items() if place]
    if there:
        yield Finding("programs", "ok", ", ".join(there))
    for name, place in found.items():
        if not place:
            purpose, needed, apt, dnf, brew = PROGRAMS[name]
            how = f"apt install {apt} · dnf install {dnf}" + (f" · brew install {brew}" if brew != "-" else "")
            yield Finding("programs", "fail" if needed else "warn", f"{name} is missing: {purpose}", how)


def _folders(home: Home) -> Iterator[Finding]:
    from orchestrator.store.place import network_filesystem

    place = next(folder for folder in (home.state, *home.state.parents) if folder.exists())
    kind = network_filesystem(place)
    if kind:
        yield Finding(
            "state", "fail", f"{home.state} is on a network file system ({kind})", "set GPUJOB_HOME to a local disk"
        )
        return
    if not os.access(place, os.W_OK):
        yield Finding("state", "fail", f"{place} cannot be written", "set GPUJOB_HOME, or change its owner")
        return
    free = shutil.disk_usage(place).free
    level: Level = "ok" if free >= SPACE_WARN else "warn"
    yield Finding("state", level, f"{home.state}, {size(free)} free", "" if level == "ok" else "free some space")


def _config(home: Home) -> Iterator[Finding]:
    if not home.config_file.exists():
        yield Finding("config", "ok", f"{home.config_file} is not there yet; built-in defaults hold")
        return
    from orchestrator.config import load_config

    try:
        load_config(home)
    except Exception as error:  # whatever is wrong with it is the finding
        yield Finding("config", "fail", str(error), f"correct {home.config_file}")
        return
    yield Finding("config", "ok", str(home.config_file))
    if home.config_file.stat().st_mode & 0o022:
        yield Finding("config", "warn", "others may write it", f"chmod 600 {home.config_file}")


def _keys(home: Home) -> Iterator[Finding]:
    """Whether each configured provider has its key; nothing is sent anywhere."""
    from jobspecs.problems import SpecErrors
    from orchestrator.config import load_config
    from orchestrator.credentials import lookup
    from providers.errors import AuthFailed
    from providers.registry import KEYS, OWN_WAYS

    try:
        configured = set(load_config(home).providers) & set(KEYS)
    except SpecErrors:
        return  # said by the check of the config
    find = lookup(home)
    for name in sorted(configured):
        try:
            found = bool(find(KEYS[name]))
        except AuthFailed as error:
            yield Finding("keys", "warn", f"{name}: {error}", "unlock the keyring")
            continue
        if found:
            yield Finding("keys", "ok", f"{name}: there is one, untried")
        elif name in OWN_WAYS:
            yield Finding(
                "keys", "ok", f"{name}: none is kept; its own variables, files and roles are looked at, untried"
            )
        else:
            yield Finding("keys", "warn", f"{name} is configured and has no key", f"gpujob login {name}")


def _stores(home: Home) -> Iterator[Finding]:
    """Whether each configured store is there and may be written: one small object, written, read and removed."""
    from jobspecs.problems import SpecErrors
    from orchestrator.config import load_config
    from orchestrator.objects.errors import StoreError
    from orchestrator.objects.probe import probe
    from orchestrator.objects.s3 import open_store
    from orchestrator.objects.settings import Location

    try:
        stores = load_config(home).stores
    except SpecErrors:
        return  # said by the check of the config
    for name, settings in sorted(stores.items()):
        if not settings.url.startswith("s3://"):
            yield Finding("stores", "ok", f"{name}: {settings.url}, for reading data only")
            continue
        try:
            probe(open_store(settings, home), Location(settings, settings.prefix))
        except StoreError as error:
            yield Finding("stores", "warn", f"{name}: {error}", error.next or "gpujob doctor")
            continue
        how = "short-lived parts of a role" if settings.role_arn else "presigned URLs"
        if settings.scoped_key:
            yield Finding(
                "stores", "warn", f"{name}: machines get its key itself", "leave scoped_key out, or give a role_arn"
            )
        else:
            yield Finding("stores", "ok", f"{name}: {settings.url} takes and gives back; machines get {how}")


def _notify(home: Home) -> Iterator[Finding]:
    """The targets of the config and how the last try of each ended; nothing is sent."""
    from jobspecs.problems import SpecErrors
    from orchestrator.config import load_config
    from orchestrator.store.errors import StoreError
    from orchestrator.targets import NotSent

    try:
        targets = load_config(home).notify
    except SpecErrors:
        return  # said by the check of the config
    last = {}
    if targets and home.database.exists():
        from orchestrator.store import Store

        with contextlib.suppress(StoreError), Store.open_reader(home) as store:  # said by the check of the books
            last = {notice.target: notice for notice in store.newest_notices()}
    for name, target in targets.items():
        notice = last.get(name)
        try:
            target.address()
        except NotSent as error:
            yield Finding("notify", "warn", f"{name}: {error}", f"export {target.url_env}, gpujob controller stop")
            continue
        if notice is not None and notice.error:
            yield Finding("notify", "warn", f"{name}: {notice.error}", f"gpujob doctor --notify {name}")
        else:
            yield Finding("notify", "ok", f"{name}: " + ("the last message was taken" if notice else "untried"))


def try_target(home: Home, name: str) -> Finding:
    """Send a test to one target, now and from here."""
    from orchestrator.config import load_config
    from orchestrator.targets import NoApprise, NotSent, send

    targets = load_config(home).notify
    if name not in targets:
        known = ", ".join(sorted(targets)) or "none"
        return Finding("notify", "fail", f"there is no target {name!r}", f"the config has {known}")
    try:
        send(targets[name], "gpujob: a test", "This is what an alarm or the end of a job looks like.")
    except NoApprise as error:
        return Finding("notify", "fail", f"{name}: {error}", "install it, then gpujob controller stop")
    except NotSent as error:
        return Finding("notify", "fail", f"{name}: {error}", f"correct notify.{name} in {home.config_file}")
    return Finding("notify", "ok", f"{name} took the test")


def _books(home: Home) -> Iterator[Finding]:
    if not home.database.exists():
        yield Finding("books", "ok", "none yet: no job was applied here")
        return
    from orchestrator.store import Store
    from orchestrator.store.errors import StoreError

    try:
        with Store.open_reader(home):
            counts = client.open_counts(home.database)
    except StoreError as error:
        yield Finding("books", "fail", str(error))
        return
    text = f"{counts['live_jobs']} live jobs, {counts['open_rentals']} open rentals"
    yield Finding("books", "ok", text)


def _controller(home: Home) -> Iterator[Finding]:
    if client.connected(home):
        yield Finding("controller", "ok", "alive")
    elif client.lock_held(home.lock):
        yield Finding(
            "controller",
            "warn",
            "holds its lock but does not listen",
            "gpujob controller status; " + str(home.controller_log),
        )
    elif home.database.exists() and (counts := client.read_counts(home.database)) is None:
        yield Finding("controller", "warn", "not running; what needs it is not known without the books", "gpujob audit")
    elif home.database.exists() and counts and any(counts.values()):
        yield Finding("controller", "fail", "not running while something is open", "gpujob ps starts it")
    else:
        yield Finding("controller", "ok", "not running; nothing needs it")


def _far_controller(home: Home) -> Iterator[Finding]:
    if os.environ.get("GPUJOB_CONTROLLER", "").startswith("ssh:"):
        from orchestrator.cli.remote import finding

        level, text, step = finding(home)
        yield Finding("far host", "ok" if level == "ok" else "fail", text, step)


def _clock(_: Home) -> Iterator[Finding]:
    # Without a network the only witness is our own file: a clock that stands before its date is wrong.
    built = Path(__file__).stat().st_mtime
    if time.time() < built - 86400:
        yield Finding(
            "clock", "fail", "the clock stands before the day on which gpujob was installed", "set the time (NTP)"
        )
    else:
        yield Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S%z"))


COMMANDS = {"doctor": Command(_add, run)}
