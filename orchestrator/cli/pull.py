"""`pull`: copy files of a job to this computer: from its results when they are home, else from the machine that runs
it.

Rules
- Only reads from the machine, with a bar on stderr where that is a terminal. GLOB is relative to $GPUJOB_OUT; an
  absolute one names files of the machine.
- A file appears under its name when it is whole; a cut one goes on from where it was, an unchanged one is not sent.
- Files of this computer are replaced by newer bytes of the same name, never removed; nothing is written through a link,
  and no link of the machine's that leads out of its folder is taken.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_job, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import colourful, counted, moved, print_json, put, say, size
from orchestrator.cli.reading import View, open_view
from orchestrator.home import Home
from orchestrator.model import Rental, RentalPhase

# One line of the whole copy's progress a second, in plain bytes, with the total known from the beginning
TRIES = 3  # a connection that breaks is no reason to begin again by hand
AGAIN_S = 2.0
CONNECTION_CODES = (10, 12, 30, 35, 255)  # rsync's and ssh's own: the connection, not the files
NOTES_MAX = 1 << 20
UNSAFE = re.compile(r"ignoring unsafe symlink \"?(.+?)\"? -> ")
RSYNC = (
    "rsync", "-rltE", "--safe-links", "--no-owner", "--no-group", "--no-perms", "--no-devices", "--no-specials",
    "--protect-args", "--partial-dir=.gpujob-partial", "--timeout=60", "--info=symsafe",
)  # fmt: skip
PROGRESS = ("--info=progress2", "--no-human-readable", "--no-inc-recursive", "--outbuf=N")


def _add(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("glob", metavar="GLOB", nargs="?", default="", help="which files: *.png, logs/*; default: all")
    parser.add_argument("--to", metavar="DIR", help="into this folder; default: ./NAME")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Copy, and say what came."""
    home = Home.from_env()
    view = open_view(home, args.job)
    dest = Path(args.to or (f"{view.job.name}/{view.leg.id}" if view.leg is not None else view.job.name))
    rental = reachable(view)
    brought = Brought(dest)
    if rental is not None and view.current is not None and view.current.rental == rental.id:
        _from_machine(home, view, rental, args.glob, dest)
    else:
        _from_results(home, view, args.glob, dest)
    # rsync is silent about it; what an earlier pull brought counts as found
    if args.glob and not args.glob.startswith("/") and not any(wanted(path, args.glob) for path in _stamps(dest)):
        raise CliError(f"no file of {view.job.name} matches {args.glob!r} so far", next=f"gpujob pull {view.job.name}")
    brought.say(args.output)
    return exits.OK


class Brought:
    """What comes into a folder from now on."""

    def __init__(self, dest: Path) -> None:
        self.dest = dest
        self.before = _stamps(dest)

    def say(self, output: str) -> None:
        """How much came, as a line or as JSON."""
        fresh = {path: stamp for path, stamp in _stamps(self.dest).items() if self.before.get(path) != stamp}
        if output == "json":
            files = [{"path": path, "bytes": stamp[0]} for path, stamp in sorted(fresh.items())]
            print_json({"to": str(self.dest.absolute()), "files": files})
        else:
            put(f"{counted(len(fresh), 'file')}, {size(sum(stamp[0] for stamp in fresh.values()))} -> {self.dest}")


def reachable(view: View) -> Rental | None:
    """The machine that holds the newest run and can be logged in to."""
    live = [r for r in view.rentals if r.phase is RentalPhase.LIVE and r.ready_at is not None and r.quiesced_at is None]
    return live[-1] if live else None


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    if not folder.is_dir():
        return {}
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not any(part.startswith(".gpujob-") for part in path.relative_to(folder).parts):
            info = path.stat()
            found[str(path.relative_to(folder))] = (info.st_size, info.st_mtime_ns)
    return found


def _from_results(home: Home, view: View, glob: str, dest: Path) -> None:
    """From the published results, or what had arrived of a run that is over."""
    if "://" in view.job.results_dir and any(run.results_at is not None for run in view.runs):
        from orchestrator.cli.pull_store import from_store

        from_store(home, view.job.name, view.job.results_dir, lambda name: wanted(name, glob), dest)
        return
    source, published = _source(home, view)
    if source is None:
        words = view.words
        raise CliError(
            f"{view.job.name} has nothing to pull: {words.state} {words.reason}".rstrip(),
            where=view.job.id,
            next=words.next,
            code=exits.JOB_FAILED,
        )
    if dest.resolve() == source.resolve():
        say(f"the results are there already: {source}")
        return
    if not published:
        say(f"what had arrived of {view.job.name} is copied; it was not verified at its end")
    matched = 0
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        ours = any(part.startswith(".gpujob-") for part in path.relative_to(source).parts)
        if not path.is_file() or ours or not _inside(path, source) or not wanted(name, glob):
            continue
        _copy(path, dest, name)
        matched += 1
    if not matched:
        raise CliError(f"no file of {source} matches {glob!r}", next=f"gpujob pull {view.job.name}")


def _source(home: Home, view: View) -> tuple[Path | None, bool]:
    """The folder to copy from, and whether it is the published one. Of runs that were cut off, the newest that had
    anything."""
    from orchestrator.publish import owner_of

    published = Path(view.results_dir or ".")
    if (
        view.results_dir
        and published.is_dir()
        and owner_of(published) in ("", view.job.id, view.leg.kept_from if view.leg else "")
    ):
        return published, True
    current = [view.current] if view.current is not None else []
    for run in [*current, *reversed(view.runs)]:
        staged = home.results(view.job.id, run.task, run.n)
        place = staged / "out" if (staged / "out").is_dir() else staged
        if place.is_dir() and any(place.iterdir()):
            return place, False
    return None, False


def _inside(path: Path, folder: Path) -> bool:
    """Whether a file, also one that a link names, lies in the folder."""
    return path.resolve().is_relative_to(folder.resolve())


def _copy(path: Path, dest: Path, name: str) -> None:
    """One file to its name, whole or not at all; one with the same size and time stays as it is."""
    target = dest / name
    through = next((each for each in target.parents if dest in each.parents and each.is_symlink()), None)
    if through is not None:
        raise CliError(
            f"{name} would be written through a link", where=str(through), next="pull with --to another folder"
        )
    new = path.stat()
    if target.is_file() and not target.is_symlink():
        old = target.stat()
        if (old.st_size, old.st_mtime_ns) == (new.st_size, new.st_mtime_ns):
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".gpujob-{os.getpid()}-{target.name[:100]}")
    try:
        shutil.copy2(path, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def wanted(name: str, glob: str) -> bool:
    """Whether a relative path matches: the whole path, or its last part for a glob without a slash."""
    if not glob:
        return True
    if fnmatch.fnmatchcase(name, glob) or name.startswith(glob.rstrip("/") + "/"):
        return True
    return "/" not in glob and fnmatch.fnmatchcase(name.rpartition("/")[2], glob)


def _from_machine(home: Home, view: View, rental: Rental, glob: str, dest: Path) -> None:
    """By rsync over the rental's own ssh_config."""
    if shutil.which("rsync") is None:
        raise CliError("there is no rsync on this computer", next="gpujob doctor names the package")
    config = home.rental(rental.id) / "ssh_config"
    assert view.current is not None
    source = machine_source(data_mount(home, rental), view.job.id, view.current.key, glob)
    dest.mkdir(parents=True, exist_ok=True)
    command = [*RSYNC, "-e", f"ssh -F '{config}'", *filters(glob), f"{rental.id}:{source}", f"{dest}/"]
    copied(command, rental.id, view.job.name)


def copied(command: list[str], source: str, job: str) -> None:
    """Run rsync to its end, from where it was when the connection breaks. Raises CliError."""
    words, notes = "", ""
    for tries_left in reversed(range(TRIES)):
        code, words, notes = _with_bar(command) if colourful(sys.stderr) else _quietly(command)
        if code not in CONNECTION_CODES or not tries_left:
            break
        say("the connection broke; going on from here")
        time.sleep(AGAIN_S)
    for link in sorted(set(UNSAFE.findall(notes))):
        say(f"{link} is a link out of its folder, so it is not taken; pull where it leads by its absolute path")
    if code != 0:
        raise CliError(
            f"rsync from {source} ended with {code}",
            why=(words.strip().splitlines() or ["it said nothing"])[-1],
            next=f"gpujob pull {job} goes on from here; gpujob ssh {job} looks there",
            code=exits.PROVIDER,
        )


def _quietly(command: list[str]) -> tuple[int, str, str]:
    """rsync's exit code and what it said on stderr and stdout."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stderr, done.stdout


def _with_bar(command: list[str]) -> tuple[int, str, str]:
    """As `_quietly`, with a bar on stderr while it lasts."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from orchestrator.sync import how_far

    bar = Progress(
        TextColumn("pull"), BarColumn(bar_width=20), TextColumn("{task.fields[moved]}"),
        console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    task, text, notes = bar.add_task("", total=None, moved=""), b"", b""
    began = time.monotonic()
    command = [*command[:1], *PROGRESS, *command[1:]]
    # stderr into a file: nobody reads it while the copy goes on, and a full pipe would stop rsync
    with tempfile.TemporaryFile() as errors, bar:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as child:
            assert child.stdout is not None
            while data := os.read(child.stdout.fileno(), 65536):
                text, notes = (text + data)[-4096:], (notes + data)[-NOTES_MAX:]
                found = how_far(text)
                if found is not None:
                    done, total = found
                    rate = done / max(time.monotonic() - began, 0.001)
                    bar.update(task, completed=done, total=total, moved=moved(done, total, rate), refresh=True)
        errors.seek(0)
        return child.returncode, errors.read().decode("utf-8", "replace"), notes.decode("utf-8", "replace")


def data_mount(home: Home, rental: Rental) -> str:
    """The folder of the data disk on the machine; empty for the login's home."""
    from orchestrator.cli.quotes import provider_config
    from orchestrator.config import load_config
    from providers.registry import get_provider

    name = rental.offer.provider
    return get_provider(name, provider_config(home, load_config(home), name)).caps.data_mount


def machine_source(mount: str, job: str, run: str, glob: str) -> str:
    """The remote folder for rsync: the run's $GPUJOB_OUT, or where an absolute path lies."""
    if glob.startswith("/"):
        return _split(glob)[0].rstrip("/") + "/"
    base = f"{mount.rstrip('/')}/" if mount else ""
    return f"{base}gpujob/{job}/out/{run}/"


def _split(glob: str) -> tuple[str, str]:
    """An absolute glob as the folder to look into and the pattern below it."""
    from orchestrator.artifacts import split_absolute

    return split_absolute(glob)


def filters(glob: str) -> list[str]:
    """rsync's options for one glob below the source."""
    if not glob:
        return []
    plain = (_split(glob)[1] if glob.startswith("/") else glob).rstrip("/")
    below = ["--include=*/"] if "/" in plain.strip("/") or not plain.startswith("/") else []
    return ["--prune-empty-dirs", *below, f"--include={plain}", f"--include={plain}/**", "--exclude=*"]


COMMANDS = {"pull": Command(_add, run)}
