"""`pull`: copy files of a job to this computer: from its results when they are home, else from the machine that runs
it.

Rules: only reads from the machine, with a bar on stderr where that is a terminal. GLOB is relative to $GPUJOB_OUT; an
absolute one names files of the machine.
Files of this computer are replaced only by newer bytes of the same name, never removed.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_job, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import colourful, moved, print_json, say, size
from orchestrator.cli.reading import View, open_view
from orchestrator.home import Home
from orchestrator.model import Rental, RentalPhase

# One line of the whole copy's progress a second, in plain bytes, with the total known from the beginning
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
    dest = Path(args.to or view.job.name)
    rental = reachable(view)
    before = _stamps(dest)
    if rental is not None and view.current is not None and view.current.rental == rental.id:
        _from_machine(home, view, rental, args.glob, dest)
    else:
        _from_results(home, view, args.glob, dest)
    after = _stamps(dest)
    # rsync is silent about it; what an earlier pull brought counts as found
    if args.glob and not args.glob.startswith("/") and not any(wanted(path, args.glob) for path in after):
        raise CliError(f"no file of {view.job.name} matches {args.glob!r} so far", next=f"gpujob pull {view.job.name}")
    fresh = {path: stamp for path, stamp in after.items() if before.get(path) != stamp}
    if args.output == "json":
        print_json(
            {"to": str(dest.absolute()), "files": [{"path": p, "bytes": s[0]} for p, s in sorted(fresh.items())]}
        )
    else:
        total = sum(stamp[0] for stamp in fresh.values())
        print(f"{len(fresh)} files, {size(total)} -> {dest}")
    return exits.OK


def reachable(view: View) -> Rental | None:
    """The machine that holds the newest run and can be logged in to."""
    live = [r for r in view.rentals if r.phase is RentalPhase.LIVE and r.ready_at is not None and r.quiesced_at is None]
    return live[-1] if live else None


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    if not folder.is_dir():
        return {}
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            info = path.stat()
            found[str(path.relative_to(folder))] = (info.st_size, info.st_mtime_ns)
    return found


def _from_results(home: Home, view: View, glob: str, dest: Path) -> None:
    """From the published results, or what had arrived of a run that is over."""
    run = view.current
    from orchestrator.publish import owner_of

    published = Path(view.job.results_dir or ".")
    places = [published] if view.job.results_dir and owner_of(published) in ("", view.job.id) else []
    if run is not None:
        places.append(home.results(view.job.id, run.task, run.n))
    source = next((place for place in places if place.is_dir()), None)
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
    matched = 0
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if not path.is_file() or not wanted(name, glob):
            continue
        target = dest / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
        matched += 1
    if not matched:
        raise CliError(f"no file of {source} matches {glob!r}", next=f"gpujob pull {view.job.name}")


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
    command = [
        "rsync",
        "-rtL",
        "--partial",
        "-e",
        f"ssh -F '{config}'",
        *filters(glob),
        f"{rental.id}:{source}",
        f"{dest}/",
    ]
    code, words = _with_bar(command) if colourful(sys.stderr) else _quietly(command)
    if code != 0:
        raise CliError(
            f"rsync from {rental.id} ended with {code}",
            why=(words.strip().splitlines() or ["it said nothing"])[-1],
            next=f"gpujob ssh {view.job.name} looks there",
            code=exits.PROVIDER,
        )


def _quietly(command: list[str]) -> tuple[int, str]:
    """rsync's exit code and what it said on stderr."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stderr


def _with_bar(command: list[str]) -> tuple[int, str]:
    """As `_quietly`, with a bar on stderr while it lasts."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from orchestrator.sync import how_far

    bar = Progress(
        TextColumn("pull"), BarColumn(bar_width=20), TextColumn("{task.fields[moved]}"),
        console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    task, text = bar.add_task("", total=None, moved=""), b""
    began = time.monotonic()
    command = [*command[:1], *PROGRESS, *command[1:]]
    # stderr into a file: nobody reads it while the copy goes on, and a full pipe would stop rsync
    with tempfile.TemporaryFile() as errors, bar:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as child:
            assert child.stdout is not None
            while data := os.read(child.stdout.fileno(), 65536):
                text = (text + data)[-4096:]
                found = how_far(text)
                if found is not None:
                    done, total = found
                    rate = done / max(time.monotonic() - began, 0.001)
                    bar.update(task, completed=done, total=total, moved=moved(done, total, rate), refresh=True)
        errors.seek(0)
        return child.returncode, errors.read().decode("utf-8", "replace")


def data_mount(home: Home, rental: Rental) -> str:
    """The folder of the data disk on the machine; empty for the login's home."""
    from orchestrator.cli.quotes import provider_config
    from orchestrator.config import load_config
    from providers.registry import get_provider

    name = rental.offer.provider
    return get_provider(name, provider_config(home, load_config(home), name)).caps.data_mount


def machine_source(mount: str, job: str, run: str, glob: str) -> str:
    """The remote side for rsync: the run's $GPUJOB_OUT, or the absolute path that was asked for."""
    if glob.startswith("/"):
        return glob
    base = f"{mount.rstrip('/')}/" if mount else ""
    return f"{base}gpujob/{job}/out/{run}/"


def filters(glob: str) -> list[str]:
    """rsync's options for one glob below the source."""
    if not glob or glob.startswith("/"):
        return []
    plain = glob.rstrip("/")
    return ["--prune-empty-dirs", "--include=*/", f"--include={plain}", f"--include={plain}/**", "--exclude=*"]


COMMANDS = {"pull": Command(_add, run)}
