"""`ssh`, `attach` and `forward`: openssh itself, with the ssh_config that belongs to the rental.

Rules: we replace ourselves by ssh, so that the terminal, signals and exit codes are its own. They work while the
job runs and while a failed one is held. Leaving a shell, a look or a forward never touches the job.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrator.cli import exits, stage
from orchestrator.cli.commands import Command, add_job
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import local_time, say, span
from orchestrator.cli.reading import View, open_view
from orchestrator.home import Home
from orchestrator.model import Rental, RentalPhase

SESSION = "run"  # the agent's tmux session, in a server of its own for each run


def _add_ssh(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help="run this instead of a shell")


def _add_attach(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--read-only", action="store_true", help="look only: no key reaches the job")


def _add_forward(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("ports", metavar="[LOCAL:]PORT", nargs="*", help="default: the `ports` of the spec")


def usable_rental(view: View) -> Rental:
    """The machine that one can log in to now. Raises CliError that says what the job is doing instead."""
    usable = [
        rental
        for rental in view.rentals
        if rental.phase is RentalPhase.LIVE and rental.ready_at is not None and rental.quiesced_at is None
    ]
    if usable:
        return usable[-1]
    words = view.words
    when = f" ({local_time(words.next_at)})" if words.next_at else ""
    raise CliError(
        f"{view.job.name} has no machine to log in to: {words.state} {words.reason}".rstrip(),
        where=view.job.id,
        why=words.detail,
        next=f"{words.next}{when}; its files: gpujob pull {view.job.name}, its log: gpujob logs {view.job.name}",
        code=exits.JOB_FAILED,
    )


def ssh_command(config: Path, rental: str, *options: str) -> list[str]:
    """`ssh -F CONFIG OPTIONS RENTAL`. Raises CliError when ssh or the rental's config is not there."""
    if shutil.which("ssh") is None:
        raise CliError("there is no ssh on this computer", next="gpujob doctor names the package")
    if not config.exists():
        raise CliError(
            "the machine's ssh_config is not there yet",
            where=str(config),
            next="try again in some seconds; gpujob controller status",
            code=exits.PROVIDER,
        )
    return ["ssh", "-F", str(config), *options, rental]


def _target(args: argparse.Namespace) -> tuple[View, Rental, Path]:
    home = Home.from_env()
    view = open_view(home, args.job)
    rental = usable_rental(view)
    return view, rental, home.rental(rental.id) / "ssh_config"


def _become(command: list[str]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    if stage.current is None:
        os.execvp(command[0], command)
    # For another computer we stay: only we would see it go, which must end ssh too
    process = subprocess.Popen(command)
    try:
        return process.wait()
    finally:
        process.terminate()


def run_ssh(args: argparse.Namespace) -> int:
    """A shell on the machine, or one command there."""
    view, rental, config = _target(args)
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        for line in greeting(Home.from_env(), view, rental, time.time()):
            say(line)
        say(f"machine {rental.id}; `exit` or Enter ~ . leaves it, the job goes on")
        return _become(ssh_command(config, rental.id))
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    # One word is shell text, as with ssh itself; several are one command whose words are kept.
    text = words[0] if len(words) == 1 else shlex.join(words)
    return _become([*ssh_command(config, rental.id, *terminal), text])


def greeting(home: Home, view: View, rental: Rental, now: float) -> Iterator[str]:
    """What the machine did last, as far as it is known here: nobody has to type nvidia-smi first."""
    from orchestrator.cli.vitals import card_words, cpu_words, disk_words, pace_words, vitals_of

    found = vitals_of(home, view.job.id, rental.id, now)
    words = view.words
    yield f"{view.job.name} is {words.state}{f': {words.detail}' if words.detail else ''}"
    if found is None:
        return
    yield f"{span(now - found.last.at)} ago:"
    for index, card in enumerate(found.last.cards):
        yield f"  GPU {index}  {card_words(card)}"
    if found.last.step == found.last.step:
        yield f"  step {found.last.step:g}  {pace_words(found.pace)}"
    yield f"  CPU {cpu_words(found.last)}; disk {disk_words(found.last)}"
    alarms = view.current_progress.alarms if view.current_progress is not None else ()
    yield from (f"  alarm {alarm.get('kind')}: {alarm.get('text')}" for alarm in alarms)


def run_attach(args: argparse.Namespace) -> int:
    """The run's own terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CliError("attach needs a terminal", next=f"gpujob logs {args.job} -f works without one")
    view, rental, config = _target(args)
    current = view.current
    if current is None or current.rental != rental.id or current.ordered_at is None:
        raise CliError(
            f"{view.job.name} has not been started on {rental.id} yet",
            next=f"gpujob ssh {view.job.name}, or gpujob logs {view.job.name} -f",
            code=exits.JOB_FAILED,
        )
    if current.exit is not None:
        raise CliError(
            f"the program of {view.job.name} has ended with {current.exit.rc}",
            next=f"gpujob ssh {view.job.name} while it is held; gpujob logs {view.job.name}",
            code=exits.JOB_FAILED,
        )
    say("Ctrl-b d leaves (the job goes on) · Ctrl-b [ scrolls, q ends scrolling · Ctrl-C reaches the program itself")
    return _become([*ssh_command(config, rental.id, "-t"), attach_text(current.key, args.read_only)])


def attach_text(run: str, read_only: bool) -> str:
    """The remote command: tmux on the run's own socket, under a TERM that the machine knows."""
    look = " -r" if read_only else ""
    socket = f".gpujob/runs/{run}/tmux.sock"
    term = "infocmp >/dev/null 2>&1 || export TERM=xterm-256color"
    return f"cd; {term}; exec tmux -S {shlex.quote(socket)} attach{look} -t {SESSION}"


def forwards(ports: list[str]) -> list[tuple[int, int]]:
    """`8888` and `8080:80` as (local, machine). Raises CliError for anything else."""
    pairs = []
    for text in ports:
        local, _, machine = text.partition(":")
        numbers = [local, machine or local]
        if not all(n.isascii() and n.isdigit() and 1 <= int(n) <= 65535 for n in numbers):
            raise CliError(f"{text!r} is not a port", next="write 8888 or LOCAL:MACHINE, as 8080:80")
        pairs.append((int(numbers[0]), int(numbers[1])))
    return pairs


def run_forward(args: argparse.Namespace) -> int:
    """Ports of the machine on this computer's loopback, until Ctrl-C."""
    view, rental, config = _target(args)
    pairs = forwards(args.ports or [str(port) for port in view.job.spec.get("ports", [])])
    if not pairs:
        raise CliError(
            f"{view.job.name} names no ports",
            next=f"gpujob forward {view.job.name} 8888, or `ports: [8888]` in the spec",
        )
    # A connection of its own: through the shared master the forwards would outlive this command.
    options = ["-N", "-T", "-o", "ControlPath=none", "-o", "ControlMaster=no", "-o", "ExitOnForwardFailure=yes"]
    for local, machine in pairs:
        options += ["-L", f"127.0.0.1:{local}:127.0.0.1:{machine}"]
        if stage.current is None:  # else the client says which of its own ports leads here
            say(f"http://127.0.0.1:{local}  ->  port {machine} of {rental.id}")
    say("Ctrl-C ends the forwarding; the job goes on")
    return _become(ssh_command(config, rental.id, *options))


COMMANDS = {
    "ssh": Command(_add_ssh, run_ssh, rest=True),
    "attach": Command(_add_attach, run_attach),
    "forward": Command(_add_forward, run_forward),
}
