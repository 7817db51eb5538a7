"""Threads that keep looking: one per open machine over its kept connection, one per account and region.

Rules
- A watcher reports by a message and never decides; only the loop writes to the books.
- A lost connection is reported at once, so that the provider can be asked in the same second; silence counts as loss.
- Nothing but the agent's file goes to a machine before it has proved the rental's nonce under the pinned host key.
- Log bytes go straight to their files at their offsets: a repeat is harmless, the cursor is the file's size. Only of
  runs that were committed on this rental: a machine writes nothing into another one's logs.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import structlog

from orchestrator import ssh
from orchestrator.clock import Clock
from orchestrator.home import Home
from orchestrator.log_lines import Progress, metrics
from orchestrator.logs import LogGap, LogWriter, progress
from orchestrator.messages import (
    EventSeen,
    Listed,
    Lost,
    Message,
    Noted,
    PointSeen,
    ProgressSeen,
    Reached,
    StatusSeen,
)
from orchestrator.model import Unknown
from orchestrator.recorder import Recorder
from orchestrator.ssh_errors import AgentRefused, BadStream, KeyRejected, SshError, Unreachable
from providers.base import Provider
from providers.errors import ProviderError

BEAT_S = 2.0  # the agent's heartbeat on the stream
SILENCE_S = 9.0  # four beats missed: the line is dead or swallowed (the bar is 15 s to the next create)
CONNECT_S = 8.0  # time for one attempt to connect and log in
RETRY_FIRST_S = 0.2  # a fresh machine answers within its first second or two
RETRY_MAX_S = 10.0
WRITERS_OPEN = 24  # log files of one machine at one time: four runs with all their logs
UNHEARD_MAX = 1000  # names of runs that a machine may make us remember
SAMPLE_KEPT_S = 45.0  # among the events; all of them are in the series, which grows no further
ATTEMPT_MAX_S = 60.0  # no attempt takes longer with its pause: what is above is time in which we were stopped
STAGES = ("setup", "smoke", "run", "metrics", "done", "failed")
RUN = re.compile(r"[a-z0-9-]{1,60}\.[0-9]{1,9}")

log = structlog.get_logger()

Post = Callable[[Message], None]


class NotOurs(SshError):
    """A machine answered under the pinned key without the rental's nonce."""


class MachineWatch:
    """Keeps one connection to one rental's machine and follows its agent until stopped."""

    def __init__(
        self,
        rental: str,
        job: str,
        nonce: str,
        home: Home,
        clock: Clock,
        post: Post,
        secrets: tuple[str, ...] = (),
        progress_regex: str | None = None,
        progress_total: float | None = None,
        noted: frozenset[str] = frozenset(),
    ) -> None:
        """`noted`: logs that something is read from, so that more of one is worth a word."""
        self.rental = rental
        self.connection: ssh.Connection | None = None
        self._job, self._nonce, self._home, self._clock, self._post = job, nonce, home, clock, post
        self._secrets, self._regex, self._total = secrets, progress_regex, progress_total
        self._noted = noted
        self._target: ssh.Target | None = None
        self._moved = threading.Event()
        self._stop = threading.Event()
        self._reached = False
        self._since: float | None = None  # awake time of the last report; the pause after it counts as well
        self._writers: dict[str, LogWriter] = {}  # in the order of their last use
        self._writing = threading.Lock()  # a worker thread flushes, this one opens and closes
        self._runs: frozenset[str] = frozenset()
        self._unheard: set[str] = set()  # runs that told a log before they were admitted
        self._recorder = Recorder(home.series(job, rental), clock.utc, lambda point: post(PointSeen(rental, point)))
        self._sample_kept = 0.0  # the machine's time of the last sample among the events
        self._thread = threading.Thread(target=self._run, name=f"watch-{rental}", daemon=True)

    def start(self) -> None:
        """Begin to connect; harmless before an address is known."""
        self._thread.start()

    def address(self, target: ssh.Target) -> None:
        """Where the machine answers now; a move ends the connection to the old address."""
        if target != self._target:
            moved = self._target is not None
            self._target = target
            self._moved.set()
            if moved and self.connection is not None:
                self.connection.close()

    def admit(self, runs: frozenset[str]) -> None:
        """The runs ("<task>.<n>") that were committed on this rental: whose logs it may tell."""
        self._runs = runs
        if self._unheard & runs:  # the machine was faster than we: what was left aside is asked for again
            self._unheard.clear()
            self.reconnect()

    def reconnect(self) -> None:
        """Begin the stream anew, from what is stored here."""
        if self.connection is not None:
            self.connection.close()

    @property
    def target(self) -> ssh.Target | None:
        """The newest address."""
        return self._target

    def stop(self) -> None:
        """End the connection and the thread; returns at once."""
        self._stop.set()
        self._moved.set()
        if self.connection is not None:
            self.connection.close()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout_s)

    def flush(self, run: str) -> None:
        """A run has ended: write what the log writers hold back."""
        with self._writing:
            for key, writer in self._writers.items():
                if key.startswith(f"{run}/"):
                    writer.finish()

    def received(self, run: str, stage: str) -> int:
        """Bytes of one stage's log that are stored here or held for a moment to mask a secret."""
        writer = self._writers.get(f"{run}/{stage}")
        if writer is not None:
            return writer.received
        task, _, n = run.rpartition(".")
        try:
            return self._home.log(self._job, task, int(n), stage).stat().st_size  # of an earlier life: all was here
        except FileNotFoundError:
            return 0

    def _run(self) -> None:
        pause = RETRY_FIRST_S
        while not self._stop.is_set():
            if self._target is None:
                self._moved.wait()
                continue
            self._moved.clear()
            self._reached = False
            try:
                self._follow_once(self._target)
            except SshError as error:
                self._report(error)
            except OSError as error:  # the disk of this computer: logs cannot be stored, so nothing is followed
                self._report(SshError(f"on this computer: {error.strerror or error} ({error.filename or 'log'})"))
            except Exception as error:  # whatever a stranger's machine can make a parser raise: never a dead watcher
                log.exception("watch", rental=self.rental)
                self._report(BadStream(f"{type(error).__name__}: {error}", where=self.rental))
            pause = RETRY_FIRST_S if self._reached else min(pause * 1.6, RETRY_MAX_S)
            self._stop.wait(pause)
        for writer in self._writers.values():
            writer.close()
        self._recorder.close()

    def _report(self, error: SshError) -> None:
        refused = isinstance(error, AgentRefused) and error.error == "epoch"
        words = "key not accepted" if isinstance(error, KeyRejected) else str(error)
        now = self._clock.awake()
        since = now if self._reached or self._since is None else self._since
        self._since = now
        if not self._stop.is_set():
            self._post(Lost(self.rental, words, min(now - since, ATTEMPT_MAX_S), refused))

    def _follow_once(self, target: ssh.Target) -> None:
        """One connection from its login to its loss; always ends by an error or by `stop`."""
        connection = ssh.connect(target, timeout_s=CONNECT_S)
        self.connection = connection
        try:
            self._prove(connection)
            connection.push_agent(timeout_s=20.0)
            payload = {"nonce": self._nonce, "events": self._cursor(), "logs": self._log_cursors(), "beat_s": BEAT_S}
            connection.follow(payload, self._line, self._stop, silence_s=SILENCE_S)
            if not self._stop.is_set():
                raise Unreachable("the stream ended", reason="ended", where=target.where)
        finally:
            self.connection = None
            connection.close()

    def _prove(self, connection: ssh.Connection) -> None:
        """The nonce that the boot hook planted must be there; a machine without it is not (or not yet) ours."""
        answer = connection.run("cat ~/.gpujob/nonce", timeout_s=CONNECT_S)
        if answer.out.strip().decode("ascii", "replace") != self._nonce:
            raise NotOurs("the machine does not know the rental's nonce (yet)", where=connection.target.where)

    # --- the stream ---------------------------------------------------------------------------------------------------

    def _line(self, line: Mapping[str, Any]) -> None:
        kind = line.get("t")
        if kind == "hello":
            self._reached = True
            self._recorder.status(_mapping(line.get("status")))
            self._post(Reached(self.rental, _mapping(line.get("status"))))
        elif kind == "status":
            self._recorder.status(_mapping(line.get("status")))
            self._post(StatusSeen(self.rental, _mapping(line.get("status"))))
        elif kind == "log":
            self._log(line)
        elif kind == "event":
            self._event(line)

    def _log(self, line: Mapping[str, Any]) -> None:
        run, stage, offset = str(line.get("run", "")), str(line.get("stage", "")), line.get("offset")
        try:
            data = base64.b64decode(str(line.get("data", "")), validate=True)
        except (binascii.Error, ValueError):
            return  # a machine that lies about its own log harms only its own log
        if not isinstance(offset, int) or offset < 0 or not RUN.fullmatch(run) or stage not in STAGES:
            return
        if run not in self._runs:
            if len(self._unheard) < UNHEARD_MAX:
                self._unheard.add(run)
            return  # another machine's run, or one whose commit this watcher has yet to hear of
        try:
            self._writer(run, stage).write(offset, data)
        except LogGap as gap:
            raise BadStream(str(gap), where=self.rental) from gap  # the next connection starts at our cursor
        if stage in self._noted:
            self._post(Noted(self.rental, run, stage))
        self._recorder.logged(len(data))
        text = data.decode("utf-8", "replace")
        seen = progress(text, self._regex, self._total) if stage == "run" else None
        said = metrics(text) if stage == "metrics" else None
        if said is not None:
            self._recorder.rate(run, said.rate if said.rate is not None else math.nan)
            seen = Progress(said.step, said.total or self._total) if said.step is not None else None
        if seen is not None:
            self._recorder.step(run, seen.step)
            self._post(ProgressSeen(self.rental, run, seen.step, seen.total))

    def _writer(self, run: str, stage: str) -> LogWriter:
        key = f"{run}/{stage}"
        with self._writing:
            writer = self._writers.pop(key, None)
            if writer is None:
                self._close_idle()
                task, _, n = run.rpartition(".")
                writer = LogWriter(self._home.log(self._job, task, int(n), stage), self._secrets)
            self._writers[key] = writer  # the last one is the one used last
        return writer

    def _close_idle(self) -> None:
        """A worker has hundreds of runs one after another: the files of those that are over are closed. One that still
        holds bytes back is not; a log that goes on after all is opened again at its end."""
        idle = [key for key, writer in self._writers.items() if writer.received == writer.cursor]
        for key in idle[: max(0, len(self._writers) - WRITERS_OPEN + 1)]:
            self._writers.pop(key).close()

    def _event(self, line: Mapping[str, Any]) -> None:
        event, after = _mapping(line.get("event")), line.get("next")
        if event.get("t") == "checkpoint":
            self._recorder.saved()
        elif event.get("t") == "sample":
            self._recorder.sample(event)
        if isinstance(after, int) and after >= 0:
            path = self._home.events(self._job, self.rental)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The event first: killed in between, it comes once more, which a timeline can bear and a gap it cannot
            if self._kept(event):
                with path.open("a", encoding="utf-8") as kept:
                    kept.write(json.dumps(event) + "\n")
            cursor = path.with_suffix(".cursor")
            beside = cursor.with_suffix(".cursor.new")
            beside.write_text(str(after))
            os.replace(beside, cursor)
        self._post(EventSeen(self.rental, event))

    def _kept(self, event: Mapping[str, Any]) -> bool:
        """Of the samples one a minute is enough to see later how long the cards computed."""
        at = event.get("at")
        if event.get("t") != "sample" or not isinstance(at, int | float):
            return True
        if 0 <= at - self._sample_kept < SAMPLE_KEPT_S:
            return False
        self._sample_kept = at
        return True

    def _cursor(self) -> int:
        try:
            return int(self._home.events(self._job, self.rental).with_suffix(".cursor").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _log_cursors(self) -> dict[str, int]:
        """Sizes of the stored logs of this job: what the machine need not send again."""
        cursors: dict[str, int] = {}
        for writer_key, writer in list(self._writers.items()):
            cursors[writer_key] = writer.cursor
        for path in (self._home.job(self._job) / "logs").glob("*/*.log"):
            key = f"{path.parent.name}/{path.stem}"
            if key not in cursors:
                cursors[key] = path.stat().st_size
        return cursors


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# --- accounts ---------------------------------------------------------------------------------------------------------


class Lister(Protocol):
    """Asks for listings; the simulator has its own."""

    def ask(self) -> None: ...
    def stop(self) -> None: ...


class RegionWatch:
    """Lists one account and region when asked, one call at a time, whatever the number of jobs."""

    def __init__(self, provider: Provider, region: str, clock: Clock, post: Post) -> None:
        self._provider, self._region, self._clock, self._post = provider, region, clock, post
        self._wanted = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"list-{provider.name}-{region}", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Make one listing as soon as the last one has answered."""
        self._wanted.set()

    def stop(self) -> None:
        """No further listing is made."""
        self._stopped = True
        self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopped:
                return
            began = self._clock.utc()
            provider = self._provider
            try:
                self._post(Listed(provider.name, provider.account, self._region, began, provider.list(self._region)))
            except ProviderError as error:
                self._failed(began, str(error))
            except Exception as error:  # an adapter's own bug: a look that failed, never an account nobody lists
                log.exception("list", provider=provider.name, region=self._region)
                self._failed(began, f"{type(error).__name__}: {error}")

    def _failed(self, began: float, why: str) -> None:
        provider = self._provider
        self._post(Listed(provider.name, provider.account, self._region, began, Unknown(why, began)))
