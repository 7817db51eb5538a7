"""The machine side of gpujob: one file, standard library only, Python 3.8 or newer, Linux.

It is pushed to a rented machine and runs there in three roles: short commands (JSON in, JSON out), the supervisor
(dead-man, launches, checkpoints, samples) and one wrapper for each run (stages, output, exit codes).
The contract is docs/concepts/machine-side.md.

Rules
- Files are the only state, each written by rename or by link: any process here may be killed at any moment.
- A (task, n) starts at most once: its wrapper must create `claim`, by link, and a claim is never removed.
- A run is over when `ended.json` is there; it is written once, by link, after every process of the run is gone.
- The dead-man acts at the end whatever else fails: it needs no disk space, no network, no controller.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROTOCOL = 1
STAGES = ("setup", "smoke", "run")

LOG_LIMIT = 2 << 30  # bytes of one stage's log; a runaway print loop must not fill the disk of the checkpoints
CHUNK = 32 << 10  # bytes of log in one line of `follow`
LINE_LIMIT = 60 << 10  # a status line of `follow` is shortened to this, under the promised 64 KiB
WRAPPER_TICK_S = 0.1  # how soon a signal file is obeyed
TREE_S = 5.0  # how often a wrapper writes down its descendants, for whoever must end them if it is killed
SCAN_S = 2.0  # checkpoints: two equal looks this far apart mean that it has settled
SAMPLE_S = 10.0
LEFTOVER_S = 3.0  # between TERM and KILL for what a finished stage left behind
CLOSE_S = 10.0  # how long `close` waits for the dead
LAUNCH_AGAIN_S = 5.0  # a wrapper that has not claimed its run by then is started again
LAUNCHES = 5
NOT_STARTED_RC = 125  # of a run that we could not start; 137 is a run whose wrapper was killed
STREAM_S = 5.0  # no byte from a controller for this long: nobody is there to decide
NOTICE_SPARE_S = 2.0  # kept free before a reclaim, so that KILL comes from us and the exit is recorded
NOTICE_UNKNOWN_S = 30.0  # a notice that does not say when
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")

CONTROL = os.path.dirname(os.path.abspath(__file__))  # ~/.gpujob, where this file was pushed to
HOME = os.path.dirname(CONTROL)


def control(*names: str) -> str:
    """A path in the control folder."""
    return os.path.join(CONTROL, *names)


class Refusal(Exception):
    """An answer with ok: false; `error` is one of the contract's closed list."""

    def __init__(self, error: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.answer = {"ok": False, "error": error, "detail": detail, **more}


# --- files -------------------------------------------------------------------------------------------


def sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write and fsync; leaves nothing behind when it fails."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def replace(path: str, data: bytes) -> None:
    """Atomic and durable: a reader sees the old bytes or the new, also after a power cut."""
    part = "%s.%d.%d.tmp" % (path, os.getpid(), threading.get_ident())
    write_whole(part, data)
    os.rename(part, path)
    sync_folder(os.path.dirname(path))


def jot(path: str, data: bytes) -> None:
    """As `replace`, for what may be lost with the power or with the disk's last byte."""
    try:
        with open(path + ".tmp", "wb") as file:
            file.write(data)
        os.rename(path + ".tmp", path)
    except OSError as error:
        note("%s: %s" % (path, error))


def create_once(path: str, data: bytes) -> bool:
    """Atomic, durable, and only the first caller ever succeeds."""
    part = "%s.%d.%d.tmp" % (path, os.getpid(), threading.get_ident())
    write_whole(part, data)
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        try:  # no hard links on this file system: exclusive still, though not whole at once
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        os.rename(part, path)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    sync_folder(os.path.dirname(path))
    return True


def read_text(path: str) -> str:
    """The file's text, or "" where it is not there."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def read_json(path: str) -> dict[str, Any] | None:
    try:
        value = json.loads(read_text(path))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def to_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode("utf-8", "surrogateescape")


def list_names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


@contextlib.contextmanager
def command_lock() -> Iterator[None]:
    """Admissions are one at a time; held for file operations only, never while waiting for processes."""
    fd = os.open(control("lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def note(message: str) -> None:
    """A line in agent.log; a full disk or a folder that is gone must not stop whoever tells it."""
    with contextlib.suppress(OSError):
        fd = os.open(control("agent.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, ("%s %d %s\n" % (time.strftime("%F %T"), os.getpid(), message)).encode())
        finally:
            os.close(fd)


def record_event(kind: str, **fields: Any) -> None:
    """Append one line. A line that does not fit on the disk is dropped whole; status stays the truth."""
    line = json.dumps({"t": kind, "at": time.time(), "boot": uptime(), **fields}).encode() + b"\n"
    try:
        fd = os.open(control("events.jsonl"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        note("event %s: %s" % (kind, error))
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line  # somebody was killed in the middle of a line
        if os.write(fd, line) < len(line):
            os.ftruncate(fd, size)
    except OSError as error:
        note("event %s: %s" % (kind, error))
    finally:
        os.close(fd)


# --- time and the end --------------------------------------------------------------------------------


def uptime() -> float:
    """CLOCK_BOOTTIME as the boot hook sees it: both must compare the same clock."""
    with open("/proc/uptime", encoding="ascii") as file:
        return float(file.read().split()[0])


def boot_id() -> str:
    return read_text("/proc/sys/kernel/random/boot_id").strip()


class Deadline(NamedTuple):
    """The `deadline` file; see "Ends" in the contract."""

    end: float
    boot_id: str
    boot_now: float
    boot_end: float
    grace: float
    action: str
    confirmed: bool

    @classmethod
    def load(cls) -> Deadline | None:
        pairs = dict(line.split("=", 1) for line in read_text(control("deadline")).splitlines() if "=" in line)
        try:
            return cls(
                float(pairs["end"]),
                pairs["boot_id"],
                float(pairs.get("boot_now", 0)),
                float(pairs["boot_end"]),
                float(pairs["grace"]),
                pairs["action"],
                pairs.get("confirmed") == "1",
            )
        except (KeyError, ValueError):
            return None

    def save(self) -> None:
        lines = [
            "end=%.1f" % self.end,
            "boot_id=" + self.boot_id,
            "boot_now=%.1f" % self.boot_now,
            "boot_end=%.1f" % self.boot_end,
            "grace=%d" % self.grace,
            "action=" + self.action,
            "confirmed=%d" % self.confirmed,
        ]
        replace(control("deadline"), "".join(line + "\n" for line in lines).encode())

    def remaining(self) -> float:
        """Seconds to the end. In a container started again, uptime may run backwards within one boot id."""
        up = uptime()
        if self.boot_id == boot_id() and up >= self.boot_now:
            return self.boot_end - up
        return self.end - time.time()


# --- processes ---------------------------------------------------------------------------------------


class Proc(NamedTuple):
    parent: int
    group: int
    start: int  # clock ticks since boot; with the pid it names a process for good
    zombie: bool


def look_at(pid: int) -> Proc | None:
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return Proc(int(fields[1]), int(fields[2]), int(fields[19]), fields[0] in "ZX")


def look_at_all() -> dict[int, Proc]:
    found = ((int(name), look_at(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: proc for pid, proc in found if proc is not None and not proc.zombie}


def is_alive(pid: int, start: int) -> bool:
    proc = look_at(pid)
    return proc is not None and proc.start == start and not proc.zombie


def below(procs: dict[int, Proc], roots: set[int]) -> set[int]:
    """The roots and all their descendants."""
    children: dict[int, list[int]] = {}
    for pid, proc in procs.items():
        children.setdefault(proc.parent, []).append(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return found


def carries(pid: int, *marks: str) -> bool:
    """The process was started with all these `NAME=value` in its environment."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            environ = file.read().split(b"\0")
    except OSError:
        return False
    return all(mark.encode() in environ for mark in marks)


def send(pid: int, start: int, number: int) -> None:
    """Signal that very process; the second look keeps a reused pid from being hit."""
    if is_alive(pid, start):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_all(victims: Callable[[], dict[int, int]], seconds: float, pump: Callable[[], None]) -> bool:
    """End everything that `victims` (pid -> start) finds. Stopped first, so that nothing can fork away."""
    until = uptime() + seconds
    while True:
        stopped: dict[int, int] = {}
        for _round in range(20):
            fresh = {pid: start for pid, start in victims().items() if stopped.get(pid) != start}
            if not fresh:
                break
            for pid, start in fresh.items():
                send(pid, start, signal.SIGSTOP)
            stopped.update(fresh)
        for pid, start in stopped.items():
            send(pid, start, signal.SIGKILL)
        if not stopped:
            return True
        if uptime() > until:
            return False
        pump()


def machine_mark() -> str:
    """What every process of ours carries in its environment. The boot hook knows it too, so it is not the nonce."""
    return hashlib.sha256(read_text(control("nonce")).strip().encode()).hexdigest()[:16]


def become_subreaper() -> None:
    """Orphans of the run become our children instead of init's, so none gets away. Linux 3.4+."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError) as error:
        note("no subreaper: %s" % error)


def spare_from_oom(score: int) -> None:
    """The kernel should end the trainer that ate the memory, not its keeper; lowering needs root."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(score))


# --- runs --------------------------------------------------------------------------------------------


class Run:
    """One folder runs/<task>.<n>/ and the processes that belong to it."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.folder = control("runs", key)
        self._order: dict[str, Any] | None = None

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    @property
    def order(self) -> dict[str, Any] | None:
        """The order without its secrets; it never changes once there."""
        if self._order is None:
            self._order = read_json(self.path("order.json"))
        return self._order

    @property
    def ended(self) -> dict[str, Any] | None:
        return read_json(self.path("ended.json"))

    @property
    def closed(self) -> bool:
        return os.path.exists(self.path("closed"))

    @property
    def signalled(self) -> dict[str, Any] | None:
        return read_json(self.path("signalled"))

    def claim(self) -> dict[str, Any] | None:
        """Who runs it. An empty claim (see create_once) belongs to a wrapper that died in the making."""
        found = read_json(self.path("claim"))
        if found is None and os.path.exists(self.path("claim")):
            return {"pid": 0, "start": 0, "boot_id": "", "at": 0.0}
        return found

    def wrapper(self) -> tuple[int, int] | None:
        """(pid, start) of the living wrapper."""
        claim = self.claim()
        if claim and claim["boot_id"] == boot_id() and is_alive(claim["pid"], claim["start"]):
            return claim["pid"], claim["start"]
        return None

    def rc(self, stage: str) -> int | None:
        text = read_text(self.path(stage + ".rc")).strip()
        return int(text) if text else None

    def folders(self) -> dict[str, str]:
        """Absolute paths of the job's folders as this run sees them."""
        assert self.order is not None
        root = job_folder(self.order["job"])
        own = self.order.get("workspace") == "own"
        return {
            "code": os.path.join(root, "code"),
            "base": os.path.join(root, "work", "base"),
            "work": os.path.join(root, "work", self.key if own else "base"),
            "data": os.path.join(root, "data"),
            "ckpt": os.path.join(root, "ckpt", self.key),
            "out": os.path.join(root, "out", self.key),
            "resume": os.path.join(root, "resume", self.key),
        }

    def pids(self) -> dict[int, int]:
        """pid -> start of everything of this run but its wrapper: descendants, remembered ones, marked ones."""
        procs = look_at_all()
        wrapper = self.wrapper()
        roots = {wrapper[0]} if wrapper else set()
        claim = self.claim()
        if claim and claim["boot_id"] == boot_id():
            for line in read_text(self.path("tree")).splitlines():
                pid, start = (int(word) for word in line.split())
                if pid in procs and procs[pid].start == start:
                    roots.add(pid)
        marks = ("GPUJOB_RUN=" + self.key, "GPUJOB_MACHINE=" + machine_mark())
        roots |= {pid for pid in procs if pid not in roots and carries(pid, *marks)}
        found = below(procs, roots) - {os.getpid(), 1} - ({wrapper[0]} if wrapper else set())
        return {pid: procs[pid].start for pid in found if pid in procs}

    def kill(self, seconds: float, pump: Callable[[], None] = lambda: time.sleep(0.05)) -> bool:
        return kill_all(self.pids, seconds, pump)

    def finish(self, **fields: Any) -> bool:
        """Write ended.json (once); False where somebody else had."""
        self.forget_secrets()
        signalled = fields.pop("signalled", None)
        ended = {"stage": None, "rc": None, "signalled": signalled, "at": time.time(), "dead": True, **fields}
        first = create_once(self.path("ended.json"), to_json(ended))
        wake_supervisor()
        return first

    def forget_secrets(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("secrets"))

    def state(self) -> tuple[str, str | None]:
        """(state, stage) of the contract."""
        order, ended = self.order, self.ended
        if ended is not None or order is None:
            return "exited", ended["stage"] if ended else None
        if self.claim() is None:
            return "queued", None
        names = [stage["name"] for stage in order["stages"]]
        open_stages = [name for name in names if self.rc(name) is None]
        stage = open_stages[0] if open_stages else names[-1]
        return stage, stage

    def outcome(self) -> dict[str, Any]:
        """What is known of a run whose wrapper is gone: an exit code that was written stays true, else 137."""
        signalled, claim = self.signalled, self.claim()
        stage = self.state()[1] if claim else None
        codes = [(item["name"], self.rc(item["name"])) for item in (self.order or {"stages": []})["stages"]]
        failed = [(name, code) for name, code in codes if code]
        rc: int | None = None
        if failed:
            stage, rc = failed[0]
        elif claim:
            rc = 0 if codes and all(code == 0 for _, code in codes) else 137
        return {"stage": stage, "rc": rc, "signalled": signalled and signalled["why"]}

    def checkpoints(self) -> list[dict[str, Any]]:
        """The supervisor's last look; of a dead run always the final one, made here if need be."""
        kept = read_json(self.path("checkpoints.json"))
        if self.order is not None and self.ended is not None and not (kept and kept["final"]):
            return CheckpointScan(self).look(dead=True)
        return kept["list"] if kept else []

    def status(self) -> dict[str, Any]:
        state, stage = self.state()
        ended, claim, signalled = self.ended, self.claim(), self.signalled
        logs = [name for name in STAGES if os.path.exists(self.path(name + ".log"))]
        answer = {
            "state": state,
            "stage": stage,
            "rc": ended["rc"] if ended else None,
            "signalled": ended["signalled"] if ended else signalled and signalled["why"],
            "dead": ended is not None,
            "closed": self.closed,
            "started": claim["at"] if claim else 0.0,
            "logs": {name: size_of(self.path(name + ".log")) for name in logs},
            "checkpoints": self.checkpoints(),
        }
        if ended:
            answer.update((key, ended[key]) for key in ("lost", "rebooted", "detail") if key in ended)
        return answer


def all_runs() -> list[Run]:
    return [Run(name) for name in list_names(control("runs")) if "." in name and not name.startswith(".")]


def job_folder(job: str) -> str:
    return os.path.join(read_text(control("base")).strip() or HOME, "gpujob", job)


def request_signal(run: Run, why: str, grace_s: float) -> dict[str, Any]:
    """Leave the order for the wrapper. The first one stands; only grace 0 (kill now) can make it sooner."""
    old = run.signalled
    if old is not None and grace_s > 0:
        return old
    new = {"why": old["why"] if old else why, "at": time.time(), "kill_at": uptime() + grace_s}
    replace(run.path("signalled"), to_json(new))
    return new


def end_run(run: Run, seconds: float, **fields: Any) -> bool:
    """Kill a run from outside and see it ended; its wrapper gets the chance to write the true exit code."""
    until = uptime() + seconds
    run.kill(seconds)
    patience = uptime() + min(seconds, 2.0)
    while run.ended is None and run.wrapper() and uptime() < patience:
        time.sleep(0.02)
    wrapper = run.wrapper() if run.ended is None else None
    if wrapper:
        send(wrapper[0], wrapper[1], signal.SIGKILL)
    dead = run.kill(max(0.5, until - uptime()))
    if dead and run.ended is None:
        run.finish(**{**run.outcome(), **fields})
    return dead


# --- checkpoints -------------------------------------------------------------------------------------

TEMPORARY = re.compile(r"(\..*|tmp-.*|.*\.(tmp|part|incomplete))\Z")
NUMBER = re.compile(r"\d+")


def step_pattern(pattern: str) -> re.Pattern[str]:
    """`step_{n}.npz` -> a regex whose group 1 is the step; `*` and `?` as in a shell. Empty: any name."""
    parts = {"{n}": r"(\d+)", "*": ".*", "?": "."}
    pieces = re.split(r"(\{n\}|\*|\?)", pattern or "*")
    return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces) + r"\Z")


def step_of(name: str, pattern: re.Pattern[str]) -> int | None:
    """The step in the name, or None where the name is not a checkpoint's."""
    match = pattern.match(name)
    if not match or TEMPORARY.match(name):
        return None
    if pattern.groups:
        return int(match.group(1))
    numbers = NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


def is_whole_file(path: str) -> bool:
    """False only where the format shows that bytes are missing."""
    import zipfile

    size = size_of(path)
    if not size:
        return False
    with open(path, "rb") as file:
        head = file.read(8)
        if path.endswith(".safetensors"):
            if len(head) < 8 or int.from_bytes(head, "little") > min(size, 100 << 20):
                return False
            length = int.from_bytes(head, "little")
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return size == 8 + length + max(ends, default=0)
    if head.startswith(b"PK") or path.endswith((".npz", ".zip")):
        with zipfile.ZipFile(path):  # reads the directory at the end of the archive
            return True
    return True  # .pt and .pth were plain pickles before torch 1.6


def is_whole(path: str) -> bool:
    try:
        if not os.path.isdir(path):
            return is_whole_file(path)
        if os.path.exists(os.path.join(path, "COMPLETE")):
            return True
        files = [os.path.join(top, name) for top, _, names in os.walk(path) for name in names]
        sharded = any(name.endswith(".distcp") for name in files)
        if sharded and not os.path.exists(os.path.join(path, ".metadata")):
            return False  # torch.distributed writes it last
        kinds = (".pt", ".pth", ".npz", ".zip", ".safetensors")
        if any(name.endswith((".tmp", ".part", ".incomplete")) for name in files):
            return False
        return bool(files) and all(is_whole_file(name) for name in files if name.endswith(kinds))
    except Exception as error:  # parsers of damaged bytes raise whatever they like: it is not whole
        note("checkpoint %s: %s: %s" % (path, type(error).__name__, error))
        return False


def fingerprint(path: str) -> tuple[int, int, int]:
    """(bytes, newest mtime_ns, number of entries): equal twice means that nobody wrote in between."""
    info = os.lstat(path)
    size, newest, count = info.st_size, info.st_mtime_ns, 1
    if stat.S_ISDIR(info.st_mode):
        size = 0
        for top, folders, names in os.walk(path):
            for name in folders + names:
                info = os.lstat(os.path.join(top, name))
                size += info.st_size if stat.S_ISREG(info.st_mode) else 0
                newest, count = max(newest, info.st_mtime_ns), count + 1
    return size, newest, count


def written_by(pids: dict[int, int], folder: str) -> set[str]:
    """Paths below `folder` that one of the processes holds open for writing."""
    found = set()
    for pid in pids:
        try:
            fds = os.listdir("/proc/%d/fd" % pid)
        except OSError:
            continue
        for fd in fds:
            try:
                path = os.readlink("/proc/%d/fd/%s" % (pid, fd))
                if not path.startswith(folder + "/"):
                    continue
                flags = re.search(r"flags:\s+([0-7]+)", read_text("/proc/%d/fdinfo/%s" % (pid, fd)))
            except OSError:
                continue  # closed meanwhile
            if flags and int(flags.group(1), 8) & (os.O_WRONLY | os.O_RDWR):
                found.add(path)
    return found


class CheckpointScan:
    """Looks at one run's checkpoint folder again and again and says which entries are complete."""

    def __init__(self, run: Run) -> None:
        assert run.order is not None
        wanted = run.order.get("checkpoint") or {}
        self.run = run
        self.folder = os.path.normpath(os.path.join(run.folders()["ckpt"], wanted.get("path") or ""))
        self.pattern = step_pattern(wanted.get("pattern") or "")
        # name -> fingerprint, boottime of its first sight, complete, structurally whole (None: not looked yet)
        self.seen: dict[str, tuple[tuple[int, int, int], float, bool, bool | None]] = {}

    def look(self, dead: bool = False) -> list[dict[str, Any]]:
        """All entries, oldest step first; `dead`: nobody can write any more, so what is whole is complete."""
        found = []
        now = uptime()
        seen, self.seen = self.seen, {}
        open_paths: set[str] | None = None
        for name in list_names(self.folder):
            path = os.path.join(self.folder, name)
            step = step_of(name, self.pattern)
            if step is None or os.path.islink(path):
                continue
            try:
                mark = fingerprint(path)
                mtime = os.stat(path).st_mtime
            except OSError:
                continue  # removed meanwhile, or being renamed
            before, since, complete, whole = seen.get(name, (None, now, False, None))
            if before != mark:
                since, complete, whole = now, False, None
            marked = os.path.exists(os.path.join(path, "COMPLETE"))
            if not complete and (dead or marked or now - since >= SCAN_S):
                if open_paths is None:
                    open_paths = set() if dead else written_by(self.run.pids(), os.path.realpath(self.folder))
                inside = os.path.realpath(path)
                busy = any(item == inside or item.startswith(inside + "/") for item in open_paths)
                if marked or not busy:
                    whole = is_whole(path) if whole is None else whole
                    complete = whole
            self.seen[name] = (mark, since, complete, whole)
            found.append({"name": name, "step": step, "bytes": mark[0], "complete": complete, "mtime": mtime})
        return sorted(found, key=lambda item: (item["step"], item["name"]))


# --- the machine -------------------------------------------------------------------------------------

GPU_FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "power.draw")
GPU_KEYS = ("index", "util", "mem_used", "mem_total", "temp", "power")


def nvidia_smi() -> str | None:
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/bin:/usr/local/nvidia/bin:/opt/bin")


def output_of(argv: list[str], seconds: float, cwd: str | None = None) -> str:
    """What a program prints, "" where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=seconds, cwd=cwd
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def gpu_query() -> list[str] | None:
    program = nvidia_smi()
    if program is None:
        return None
    return [program, "--query-gpu=" + ",".join(GPU_FIELDS), "--format=csv,noheader,nounits"]


def gpu_rows(text: str | None = None) -> list[dict[str, float | None]]:
    """One dict a card; what the driver cannot tell ("[N/A]") is None. Memory in MiB, power in W."""
    if text is None:
        query = gpu_query()
        text = output_of(query, 30.0) if query else ""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(GPU_KEYS) and cells[0].isdigit():
            row: dict[str, float | None] = {}
            for position, key in enumerate(GPU_KEYS):
                try:
                    row[key] = int(cells[0]) if key == "index" else float(cells[position])
                except ValueError:
                    row[key] = None
            rows.append(row)
    return rows


def free_port() -> int:
    """A port for MASTER_PORT below the kernel's own range, where no outgoing connection takes it meanwhile."""
    import random
    import socket

    for _ in range(50):
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    return 29500


def cpu_count() -> int:
    """Usable CPUs: affinity, and a container's quota where it is smaller."""
    cpus = len(os.sched_getaffinity(0))
    quota = read_text("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cpus = min(cpus, max(1, int(quota[0]) // int(quota[1])))
    return cpus


def memory() -> tuple[int, int]:
    """(used, total) bytes, of the container where that is limited."""
    pairs = dict(line.split(":", 1) for line in read_text("/proc/meminfo").splitlines() if ":" in line)
    total = int(pairs["MemTotal"].split()[0]) << 10
    used = total - (int(pairs.get("MemAvailable", "0").split()[0]) << 10)
    limit, current = (read_text("/sys/fs/cgroup/memory." + name).strip() for name in ("max", "current"))
    if limit.isdigit() and int(limit) < total:
        return int(current or 0), int(limit)
    return used, total


def disk() -> dict[str, int]:
    base = read_text(control("base")).strip() or HOME
    try:
        info = os.statvfs(base)
    except OSError:
        return {"free": 0, "total": 0, "inodes_free": 0}
    return {
        "free": info.f_bavail * info.f_frsize,
        "total": info.f_blocks * info.f_frsize,
        "inodes_free": info.f_favail,
    }


# --- the wrapper of one run --------------------------------------------------------------------------


class StageLog:
    """The log file first, the tmux pane second. Neither a full disk nor a dead pane stops the job."""

    def __init__(self, path: str, limit: int) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.room = limit - os.fstat(self.fd).st_size
        self.limit = limit
        self.lost = 0
        self.pane: int | None = 1

    def write(self, data: bytes) -> None:
        if self.room > 0:
            keep = data[: self.room]
            self.room -= len(keep)
            gap = b"\n[gpujob] %d bytes of output are lost: the disk was full\n" % self.lost if self.lost else b""
            if not gap or self.append(gap) == len(gap):
                self.lost = len(keep) - self.append(keep)
            else:
                self.lost += len(keep)
            if self.room <= 0:
                self.append(b"\n[gpujob] the log's limit of %d bytes is reached; nothing more is kept\n" % self.limit)
        self.show(data)

    def append(self, data: bytes) -> int:
        try:
            return os.write(self.fd, data)
        except OSError:
            return 0

    def show(self, data: bytes) -> None:
        """The pane is non-blocking: what a paused terminal does not take is only not shown."""
        if self.pane is not None:
            try:
                os.write(self.pane, data)
            except BlockingIOError:
                return
            except OSError:
                self.pane = None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self.fd)
        os.close(self.fd)


def fresh_process() -> None:
    """Before exec of a stage: the wrapper's ignored signals must not be inherited by user code."""
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    spare_from_oom(0)


def exit_code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode


class Wrapper:
    """Runs the stages of one run, one after another, and writes what became of them."""

    def __init__(self, run: Run, order: dict[str, Any]) -> None:
        self.run = run
        self.order = order
        self.delivered: str | None = None  # why the signal was sent that really reached a process
        self.kill_at: float | None = None
        self.read_fd = -1
        self.log: StageLog | None = None
        self.leader: subprocess.Popen[bytes] | None = None
        self.silent, self.pause = False, 0.001
        self.looked = self.treed = 0.0
        self.tree = ""

    def main(self) -> None:
        stage: str | None = None
        rc, detail = NOT_STARTED_RC, {}
        try:
            env = self.environment(json.loads(read_text(self.run.path("secrets")) or "{}"))
            self.run.forget_secrets()
            self.make_folders()
            for spec in self.order["stages"]:
                stage = spec["name"]
                rc = self.stage(spec, env)
                if rc != 0 or self.run.closed:
                    break
        except Exception as error:  # whatever went wrong here must end as a recorded exit
            note(traceback.format_exc())
            detail = {"detail": "%s: %s" % (type(error).__name__, error)}
        while not self.run.kill(CLOSE_S, self.pump):
            note("%s: some processes do not die" % self.run.key)
        self.insist(lambda: self.run.finish(stage=stage, rc=rc, signalled=self.delivered, **detail))

    def insist(self, write: Callable[[], object]) -> None:
        """An exit code is never lost to a full disk: give the reserve back, then try until it fits."""
        told = False
        while True:
            try:
                write()
                return
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.unlink(self.run.path("reserve"))
                if not told:
                    note("%s: %s" % (self.run.key, error))
                told = True
                time.sleep(0.2)

    def make_folders(self) -> None:
        """work/base from code/, once; the run's own folders; the checkpoint to resume from."""
        at = self.run.folders()
        for name in ("data", "ckpt", "out"):
            os.makedirs(at[name], exist_ok=True)
        if not os.path.isdir(at["base"]):
            self.copy(at["code"], at["base"])
        if self.order.get("resume_from") and self.order.get("resume_mode") == "folder":
            source = os.path.join(at["resume"], self.order["resume_from"])
            os.rename(source, os.path.join(at["ckpt"], self.order["resume_from"]))

    def copy(self, source: str, target: str) -> None:
        part = target + ".part"
        shutil.rmtree(part, ignore_errors=True)
        os.makedirs(part)
        subprocess.run(["cp", "-a", "--reflink=auto", source + "/.", part], check=True)
        os.rename(part, target)

    def environment(self, secrets: dict[str, str]) -> dict[str, str]:
        """The contract's variables over the user's over the machine's."""
        at, order = self.run.folders(), self.order
        dropped = ("TMUX", "TMUX_PANE", "CUDA_VISIBLE_DEVICES", "XDG_SESSION_ID", "OLDPWD")
        base = {k: v for k, v in os.environ.items() if k not in dropped and not k.startswith("SSH_")}
        user = {**order.get("env", {}), **secrets}
        deadline = Deadline.load()
        resume = order.get("resume_from") or ""
        if resume:
            resume = os.path.join(at["ckpt" if order.get("resume_mode") == "folder" else "resume"], resume)
        cards: str | None = user.get("CUDA_VISIBLE_DEVICES")
        gpus = len([c for c in cards.split(",") if c.strip()]) if cards is not None else len(gpu_rows())
        return {
            **base,
            "PYTHONUNBUFFERED": "1",
            "MASTER_PORT": str(free_port()),
            **user,
            "GPUJOB_JOB_ID": order["job"],
            "GPUJOB_ATTEMPT": str(order["n"]),
            "GPUJOB_TASK": order["task"],
            "GPUJOB_RUN": self.run.key,
            "GPUJOB_MACHINE": machine_mark(),
            "GPUJOB_DATA": at["data"],
            "GPUJOB_CKPT": at["ckpt"],
            "GPUJOB_OUT": at["out"],
            "GPUJOB_METRICS": os.path.join(at["out"], "metrics.jsonl"),
            "GPUJOB_RESUME_FROM": resume,
            "GPUJOB_NUM_GPUS": str(gpus),
            "GPUJOB_CPUS": str(cpu_count()),
            "GPUJOB_DEADLINE": str(int(deadline.end)) if deadline else "",
        }

    def stage(self, spec: dict[str, Any], env: dict[str, str]) -> int:
        """One stage from start to the last of its processes; returns its exit code, which is on disk by then."""
        run, name, once = self.run, spec["name"], spec.get("once") or None
        if self.obey() or run.closed:
            return exit_code(-self.signal_number())
        began = uptime()
        record_event("stage", run=run.key, stage=name, state="start", rc=None, seconds=0.0)
        skipped = once is not None and os.path.exists(control("setup." + once))
        rc = 0 if skipped else self.execute(name, env)
        if once and rc == 0 and not skipped:
            marker = to_json({"job": self.order["job"], "at": time.time()})
            self.insist(lambda: replace(control("setup." + once), marker))
        self.insist(lambda: replace(run.path(name + ".rc"), b"%d\n" % rc))
        seconds = round(uptime() - began, 3)
        more = {"skipped": True} if skipped else {}
        record_event("stage", run=run.key, stage=name, state="end", rc=rc, seconds=seconds, **more)
        return rc

    def execute(self, name: str, env: dict[str, str]) -> int:
        run, at = self.run, self.run.folders()
        if name != "setup" and not os.path.isdir(at["work"]):
            self.copy(at["base"], at["work"])
        if name != "setup" and not os.path.exists(run.path("prepared")):
            time.sleep(0.02)  # file times come from the kernel's tick of up to 10 ms
            self.insist(lambda: replace(run.path("prepared"), b""))  # `changed` counts from here, by ctime
        self.log = log = StageLog(run.path(name + ".log"), self.order.get("log_limit") or LOG_LIMIT)
        self.read_fd, write_fd = os.pipe()
        self.silent, self.pause = False, 0.001
        os.set_blocking(self.read_fd, False)
        leader = self.leader = subprocess.Popen(
            ["bash", "-eo", "pipefail", run.path(name + ".sh")],
            cwd=at["base"] if name == "setup" else at["work"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=write_fd,
            stderr=write_fd,
            start_new_session=True,
            preexec_fn=fresh_process,
        )
        os.close(write_fd)
        proc = look_at(leader.pid)
        self.insist(lambda: replace(run.path(name + ".pid"), b"%d %d\n" % (leader.pid, proc.start if proc else 0)))
        while leader.poll() is None:
            self.pump()
        # bash dies of a signal while the program it started is still saving: the grace is the group's
        while self.kill_at is not None and self.group_lives(leader.pid) and uptime() < self.kill_at:
            self.pump()
        self.end_leftovers()
        while self.drain():
            pass
        log.close()
        os.close(self.read_fd)
        self.log, self.read_fd, self.leader = None, -1, None
        return exit_code(leader.returncode)

    def group_lives(self, group: int) -> bool:
        return any(proc.group == group for proc in look_at_all().values())

    def end_leftovers(self) -> None:
        """Whatever the stage left running, polite first."""
        left = self.run.pids()
        for pid, start in left.items():
            send(pid, start, signal.SIGTERM)
        until = uptime() + (0.0 if self.kill_at is not None else LEFTOVER_S)
        while left and uptime() < until:
            self.pump()
            left = self.run.pids()
        while left and not self.run.kill(CLOSE_S, self.pump):
            note("%s: some processes do not die" % self.run.key)

    def pump(self) -> None:
        """Wait a moment for output, copy it, and look after the signals and the orphans."""
        if self.read_fd >= 0 and not self.silent:
            select.select([self.read_fd], [], [], WRAPPER_TICK_S)
            self.drain()
        else:  # every writer has closed it: most often the end, and the next look should be soon
            self.pause = min(WRAPPER_TICK_S, self.pause * 2)
            time.sleep(self.pause)
        now = uptime()
        if now - self.looked >= WRAPPER_TICK_S:
            self.looked = now
            self.obey()
        if now - self.treed >= TREE_S:
            self.treed = now
            self.remember()

    def drain(self) -> bool:
        """Copy one piece of output; False when there was none."""
        try:
            data = os.read(self.read_fd, 1 << 16)
        except BlockingIOError:
            return False
        if data and self.log:
            self.log.write(data)
        self.silent = not data
        return bool(data)

    def obey(self) -> bool:
        """Deliver a requested signal once, and KILL when its grace is over. True: the run is to end."""
        request = self.run.signalled
        leader = self.leader
        if request and self.delivered is None and (leader is None or self.group_lives(leader.pid)):
            self.delivered = request["why"]  # one that exits by itself was not ended by us
            record_event("signal", run=self.run.key, why=self.delivered)
            if leader and uptime() < request["kill_at"]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(leader.pid, self.signal_number())
        if request:
            self.kill_at = request["kill_at"]
        closed = self.run.closed
        if leader and (closed or (self.kill_at is not None and uptime() >= self.kill_at)):
            for pid, start in self.run.pids().items():
                send(pid, start, signal.SIGKILL)
        return closed or request is not None

    def signal_number(self) -> int:
        return int(getattr(signal, "SIG" + (self.order.get("signal") or "TERM")))

    def remember(self) -> None:
        """Write down the descendants, and take in the dead among our adopted children."""
        found = self.run.pids()
        tree = "".join("%d %d\n" % pair for pair in sorted(found.items()))
        if tree != self.tree:
            jot(self.run.path("tree"), tree.encode())
            self.tree = tree
        own = os.getpid()
        for name in os.listdir("/proc"):
            proc = look_at(int(name)) if name.isdigit() else None
            if proc and proc.zombie and proc.parent == own and not (self.leader and int(name) == self.leader.pid):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(int(name), os.WNOHANG)


def wrap(key: str) -> int:
    """The process in the tmux pane."""
    for name in ("HUP", "INT", "QUIT", "TERM", "TSTP", "TTIN", "TTOU", "USR1", "USR2", "PIPE"):
        signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)
    run, me = Run(key), look_at(os.getpid())
    if run.order is None or me is None or run.ended is not None:
        return 1
    claim = {"pid": os.getpid(), "start": me.start, "boot_id": boot_id(), "at": time.time()}
    if not create_once(run.path("claim"), to_json(claim)):
        return 1  # somebody runs it, or has: never twice
    become_subreaper()
    spare_from_oom(-500)
    with contextlib.suppress(OSError):
        os.set_blocking(1, False)
    Wrapper(run, run.order).main()
    return 0


# --- the supervisor ----------------------------------------------------------------------------------


def supervisor_pid() -> tuple[int, int, str] | None:
    """(pid, start, version) of the living supervisor."""
    words = read_text(control("agent.pid")).split()
    if len(words) == 3 and is_alive(int(words[0]), int(words[1])):
        return int(words[0]), int(words[1]), words[2]
    return None


def wake_supervisor() -> None:
    found = supervisor_pid()
    if found:
        send(found[0], found[1], signal.SIGUSR1)


def own_version() -> str:
    with open(os.path.abspath(__file__), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


class DeadMan(threading.Thread):
    """Watches the end and the reclaim notice. A thread of its own: a slow disk or driver must not hold it up."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.known: Deadline | None = None  # survives a deadline file that cannot be read any more
        self.saving_for: float | None = None
        self.over = False
        self.notice = current_notice()
        self.notice_tick = 0.0

    def run(self) -> None:
        while True:
            for duty in (self.mind_the_end, self.mind_the_notice):
                try:
                    duty()
                except Exception:  # whatever happened to one look, the next one must come
                    note(traceback.format_exc())
            time.sleep(0.5)

    def mind_the_end(self) -> None:
        self.known = known = Deadline.load() or self.known
        if known is None:
            return
        left = known.remaining()
        if left <= 0:
            self.end_everything(known)
        elif left <= known.grace and self.saving_for != known.end:
            self.saving_for = known.end
            self.report("saving", left=round(left, 1))
            self.signal_all("ttl", left)

    def report(self, kind: str, **fields: Any) -> None:
        threading.Thread(target=record_event, args=(kind,), kwargs=fields, daemon=True).start()

    def signal_all(self, why: str, grace_s: float) -> None:
        for run in all_runs():
            if run.order is not None and run.ended is None:
                try:
                    request_signal(run, why, grace_s)
                except OSError as error:  # no room for the request: the signal itself needs none
                    note("%s: %s" % (run.key, error))
                    self.signal_directly(run)

    def signal_directly(self, run: Run) -> None:
        stage = run.state()[1]
        words = read_text(run.path("%s.pid" % stage)).split()
        if len(words) == 2 and is_alive(int(words[0]), int(words[1])):
            name = (run.order or {}).get("signal") or "TERM"
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(words[0]), getattr(signal, "SIG" + name))

    def end_everything(self, deadline: Deadline) -> NoReturn:
        """The end wins: kill, record what can be recorded, power off where that is ours to do, and stop."""
        self.over = True  # nothing is launched from here on
        self.report("ending", action=deadline.action)
        self.signal_all("ttl", 0.0)
        for run in all_runs():
            if run.ended is None:
                try:
                    end_run(run, 3.0)
                except Exception:  # the next run must still be ended
                    note(traceback.format_exc())
        mark = "GPUJOB_MACHINE=" + machine_mark()

        def ours() -> dict[int, int]:
            procs = look_at_all()
            found = below(procs, {pid for pid in procs if carries(pid, mark)}) - {os.getpid(), os.getppid(), 1}
            return {pid: procs[pid].start for pid in found}

        kill_all(ours, 5.0, lambda: time.sleep(0.05))
        while deadline.action == "poweroff":
            power_off()
        os._exit(0)

    def mind_the_notice(self) -> None:
        if self.notice is None and uptime() - self.notice_tick >= 1.0:
            self.notice_tick = uptime()
            self.notice = read_notice(read_text(control("notice_file")).strip())
            if self.notice is not None:
                jot(control("notice.json"), to_json(self.notice))
                self.report("notice", until=self.notice["at"], action=self.notice["action"])
        if self.notice is not None:
            left = self.notice["boot_at"] - uptime()
            heard = uptime() - float(read_text(control("stream")).strip() or 0)
            if heard < 0 or heard > STREAM_S:  # nobody is there to decide; before a reboot counts as nobody
                self.signal_all("interruption", max(1.0, left - NOTICE_SPARE_S))


def read_notice(path: str) -> dict[str, Any] | None:
    """A provider's reclaim file: JSON with `at` (epoch) or `time` (RFC 3339), or just there."""
    path = os.path.expanduser(path)
    if not path or not os.path.exists(path):
        return None
    text = read_text(path)
    try:
        value = json.loads(text)
    except ValueError:
        value = {}
    value = value if isinstance(value, dict) else {}
    at = value.get("at")
    if not isinstance(at, (int, float)):
        try:
            from calendar import timegm

            at = float(timegm(time.strptime(str(value.get("time"))[:19], "%Y-%m-%dT%H:%M:%S")))
        except ValueError:
            at = time.time() + NOTICE_UNKNOWN_S
    boot_at = uptime() + (at - time.time())
    return {"at": at, "action": str(value.get("action", "terminate")), "boot_at": boot_at, "boot_id": boot_id()}


def current_notice() -> dict[str, Any] | None:
    """The notice of this boot; a machine that was stopped and started again has survived its own."""
    notice = read_json(control("notice.json"))
    return notice if notice and notice["boot_id"] == boot_id() else None


def power_off() -> None:
    """One round of everything that may switch a machine off, as root, by sudo, or in a container."""
    for argv in (["poweroff"], ["sudo", "-n", "poweroff"], ["shutdown", "-h", "now"], ["systemctl", "poweroff", "-i"]):
        output_of(argv, 20.0)
    for number in (signal.SIGTERM, signal.SIGINT):  # a container's first process
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(1, number)
    time.sleep(3.0)


class Sampler:
    """Every 10 s: cards, CPU, memory, disk. nvidia-smi can hang for minutes, so it is never waited for."""

    def __init__(self) -> None:
        self.due = 0.0
        self.query: subprocess.Popen[bytes] | None = None
        self.times = self.cpu_times()

    @staticmethod
    def cpu_times() -> tuple[int, int]:
        numbers = [int(word) for word in read_text("/proc/stat").split("\n", 1)[0].split()[1:9]]
        return sum(numbers) - numbers[3] - numbers[4], sum(numbers)

    def tick(self) -> None:
        if self.query is None and uptime() >= self.due:
            self.due = uptime() + SAMPLE_S
            argv = gpu_query()
            if argv is None:
                self.record([])
                return
            null = subprocess.DEVNULL
            self.query = subprocess.Popen(argv, stdin=null, stdout=subprocess.PIPE, stderr=null)
        if self.query is not None and self.query.poll() is not None:
            assert self.query.stdout is not None
            with self.query.stdout as pipe:
                self.record(gpu_rows(pipe.read().decode("utf-8", "replace")))
            self.query = None

    def record(self, gpus: list[dict[str, float | None]]) -> None:
        busy, total = self.cpu_times()
        spent = total - self.times[1]
        cpu = round(100.0 * (busy - self.times[0]) / spent, 1) if spent > 0 else 0.0
        self.times = (busy, total)
        used, size = memory()
        record_event("sample", gpus=gpus, cpu=cpu, mem_used=used, mem_total=size, disk_free=disk()["free"])


class Supervisor:
    """Launches what was ordered, records how runs end, looks at checkpoints. It may die at any point."""

    def __init__(self) -> None:
        self.deadman = DeadMan()
        self.done: set[str] = set()
        self.scans: dict[str, tuple[CheckpointScan, float]] = {}  # and the boottime of the next look
        self.known: dict[str, list[dict[str, Any]]] = {}
        self.launches: dict[str, tuple[int, float]] = {}  # times, boottime of the last
        self.stopping = False

    def main(self) -> None:
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        for name in ("HUP", "INT", "PIPE"):
            signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)
        self.deadman.start()
        record_event("agent", pid=os.getpid(), version=own_version(), protocol=PROTOCOL)
        sampler = Sampler()
        while not self.stopping:
            busy = False
            for run in all_runs():
                if run.key not in self.done:
                    busy = True
                    self.try_duty(self.tend, run)
            self.try_duty(sampler.tick)
            select.select([wake_read], [], [], 0.25 if busy or sampler.query else 1.0)
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)

    def try_duty(self, duty: Callable[..., None], *args: Any) -> None:
        try:
            duty(*args)
        except Exception:  # a full disk, a damaged folder: the other runs and the next look still count
            note(traceback.format_exc())
            time.sleep(0.5)

    def tend(self, run: Run) -> None:
        ended = run.ended
        if ended is not None:
            self.report_end(run, ended)
        elif run.order is None:
            return
        elif run.closed:
            end_run(run, CLOSE_S)
        elif run.order["boot_id"] != boot_id():
            run.finish(**{**run.outcome(), "rebooted": True, "lost": True})
        elif run.claim() is None:
            self.launch(run)
        elif run.wrapper() is None:
            outcome = run.outcome()
            if run.kill(CLOSE_S) and run.ended is None:
                run.finish(**{**outcome, "lost": outcome["rc"] == 137})
        else:
            self.watch(run)

    def launch(self, run: Run) -> None:
        """Start the wrapper in tmux; without a tmux that works, beside it. `claim` decides who really runs."""
        times, last = self.launches.get(run.key, (0, 0.0))
        if self.deadman.over or (times and uptime() - last < LAUNCH_AGAIN_S):
            return
        if times >= LAUNCHES:
            run.finish(rc=NOT_STARTED_RC, detail="the run's wrapper did not start; see agent.log")
            return
        self.launches[run.key] = (times + 1, uptime())
        argv = [sys.executable or "python3", os.path.abspath(__file__), "_wrap", run.key]
        if not start_in_tmux(run, argv):
            spawn_detached(argv)

    def watch(self, run: Run) -> None:
        request = run.signalled
        if request and uptime() > request["kill_at"] + 5.0:
            run.kill(1.0)  # its wrapper should have; stopped or stuck
        scan, due = self.scans.get(run.key) or (CheckpointScan(run), 0.0)
        if uptime() >= due:
            self.scans[run.key] = (scan, uptime() + SCAN_S)
            self.compare(run, scan.look(), final=False)

    def compare(self, run: Run, found: list[dict[str, Any]], final: bool) -> None:
        """Keep the look for `status`, and tell of each checkpoint that became complete."""
        if run.key not in self.known:
            kept = read_json(run.path("checkpoints.json"))
            self.known[run.key] = kept["list"] if kept else []
        before = self.known[run.key]
        if final or found != before:
            jot(run.path("checkpoints.json"), to_json({"final": final, "list": found}))
        told = {(item["name"], item["mtime"]) for item in before if item["complete"]}
        for item in found:
            if item["complete"] and (item["name"], item["mtime"]) not in told:
                fields = {key: item[key] for key in ("name", "step", "bytes")}
                record_event("checkpoint", run=run.key, **fields)
        self.known[run.key] = found

    def report_end(self, run: Run, ended: dict[str, Any]) -> None:
        run.forget_secrets()  # a repeat: who ended it may have been killed before this
        if run.order is not None and not os.path.exists(run.path("reported")):
            self.compare(run, CheckpointScan(run).look(dead=True), final=True)
            told = {key: value for key, value in ended.items() if key not in ("at", "dead")}
            record_event("exit", run=run.key, **told)
            replace(run.path("reported"), b"")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(run.path("reserve"))
        self.done.add(run.key)
        self.scans.pop(run.key, None)
        self.known.pop(run.key, None)


def start_in_tmux(run: Run, argv: list[str]) -> bool:
    """Detached, with a socket of its own and nobody's configuration; the shell only execs."""
    tmux = shutil.which("tmux")
    if tmux is None:
        return False
    socket = run.path("tmux.sock")
    # A socket's path ends at 107 bytes; whoever attaches goes into the folder first
    socket = socket if len(os.fsencode(socket)) < 100 else "tmux.sock"
    command = "exec " + " ".join(shlex.quote(word) for word in argv)
    options = ["start-server", ";", "set", "-g", "history-limit", "20000", ";", "set", "-g", "default-shell", "/bin/sh"]
    session = ["new-session", "-d", "-s", "run", "-x", "200", "-y", "50", command]
    env = {key: value for key, value in os.environ.items() if key not in ("TMUX", "TMUX_PANE")}
    env["GPUJOB_MACHINE"] = machine_mark()
    try:
        done = subprocess.run(
            [tmux, "-S", socket, "-f", "/dev/null", *options, ";", *session],
            cwd=run.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20.0,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        note("tmux: %s" % error)
        return False
    if done.returncode:
        note("tmux: %s" % done.stdout.decode("utf-8", "replace").strip())
    return done.returncode == 0


def spawn_detached(argv: list[str]) -> None:
    with open(control("agent.log"), "ab") as log:
        subprocess.Popen(
            argv,
            cwd="/",
            env={**os.environ, "GPUJOB_MACHINE": machine_mark()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def supervise() -> int:
    """The long-lived process. The lock, not the pid file, makes it the only one."""
    fd = os.open(control("agent.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(40):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.05)
    else:
        return 0
    me = look_at(os.getpid())
    assert me is not None
    spare_from_oom(-500)
    identity = "%d %d %s\n" % (os.getpid(), me.start, own_version())
    try:
        replace(control("agent.pid"), identity.encode())
    except OSError as error:  # a full disk: the dead-man matters more than being found
        note("agent.pid: %s" % error)
    Supervisor().main()
    return 0


# --- commands ----------------------------------------------------------------------------------------


def admit(ask: dict[str, Any]) -> None:
    """Right machine, and no controller of the past. Under the command lock."""
    prove_machine(ask)
    epoch = need(ask, "epoch", int)
    stored = int(read_text(control("epoch")).strip() or 0)
    if epoch < stored:
        raise Refusal("epoch", "a newer controller has taken over", epoch=stored)
    if epoch > stored:
        replace(control("epoch"), b"%d\n" % epoch)


def prove_machine(ask: dict[str, Any]) -> None:
    nonce = read_text(control("nonce")).strip()
    if not nonce or ask.get("nonce") != nonce:
        raise Refusal("nonce", "this is not the machine that was rented" if nonce else "this machine has no nonce yet")


def need(ask: dict[str, Any], key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    value = ask.get(key, default)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Refusal("invalid", "%s: %r is not what is expected" % (key, value))
    return value


def need_name(ask: dict[str, Any], key: str) -> str:
    value: str = need(ask, key, str)
    if not NAME.match(value):
        raise Refusal("invalid", "%s: %r is not a plain name" % (key, value))
    return value


def need_run(ask: dict[str, Any]) -> Run:
    n = need(ask, "n", int)
    if n < 0:
        raise Refusal("invalid", "n: %d is negative" % n)
    return Run("%s.%d" % (need_name(ask, "task"), n))


def start_command(_ask: dict[str, Any]) -> dict[str, Any]:
    """One living supervisor of this very version. Runs are not touched: their wrappers stand alone."""
    found = supervisor_pid()
    if found and found[2] == own_version():
        return {"ok": True, "pid": found[0]}
    if found:
        until = uptime() + 5.0
        send(found[0], found[1], signal.SIGTERM)
        while is_alive(found[0], found[1]):
            time.sleep(0.02)
            if uptime() > until:
                send(found[0], found[1], signal.SIGKILL)
    spawn_detached([sys.executable or "python3", os.path.abspath(__file__), "_supervise"])
    until = uptime() + 15.0
    while uptime() < until:
        found = supervisor_pid()
        if found:
            return {"ok": True, "pid": found[0]}
        time.sleep(0.02)
    raise Refusal("io", "the supervisor did not start; see ~/.gpujob/agent.log")


def status_command(_ask: dict[str, Any]) -> dict[str, Any]:
    deadline, notice = Deadline.load(), current_notice()
    return {
        "ok": True,
        "protocol": PROTOCOL,
        "version": own_version(),
        "nonce": read_text(control("nonce")).strip(),
        "epoch": int(read_text(control("epoch")).strip() or 0),
        "now": time.time(),
        "boottime": uptime(),
        "boot_id": boot_id(),
        "supervisor": supervisor_pid() is not None,
        "deadline": deadline
        and {
            "end": deadline.end,
            "grace": int(deadline.grace),
            "action": deadline.action,
            "confirmed": deadline.confirmed,
        },
        "notice": notice and {"at": notice["at"], "action": notice["action"]},
        "events": size_of(control("events.jsonl")),
        "setups": [name[6:] for name in list_names(CONTROL) if name.startswith("setup.") and not name.endswith(".tmp")],
        "disk": disk(),
        "runs": {run.key: run.status() for run in all_runs()},
    }


def arm_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Move the end. `now` is the controller's clock: with it a machine whose clock is wrong still ends in time."""
    end, grace = float(need(ask, "end", (int, float))), float(need(ask, "grace_s", (int, float)))
    action = need(ask, "action", str)
    if action not in ("kill", "poweroff"):
        raise Refusal("invalid", "action: %r is neither kill nor poweroff" % action)
    now = float(need(ask, "now", (int, float), time.time()))
    with command_lock():
        admit(ask)
        up = uptime()
        Deadline(end, boot_id(), up, up + end - now, grace, action, True).save()
        if "notice_file" in ask:
            replace(control("notice_file"), need(ask, "notice_file", str).encode() + b"\n")
    start_command({})
    return {"ok": True, "end": end}


def prepare_command(ask: dict[str, Any]) -> dict[str, Any]:
    job, mount = need_name(ask, "job"), need(ask, "data_mount", str, "")
    with command_lock():
        admit(ask)
        known = read_text(control("base")).strip()
        if mount and known and mount != known:
            raise Refusal("conflict", "this machine's data is already below %s" % known)
        if mount and not os.path.isdir(mount):
            raise Refusal("missing", "the data disk %s is not there" % mount)
        if mount and not known:
            replace(control("base"), mount.encode() + b"\n")
    root = job_folder(job)
    names = ("code", "work", "data", "ckpt", "out", "resume")
    for name in names:
        os.makedirs(os.path.join(root, name), exist_ok=True)
    at = {name: os.path.join(root, name) for name in names}
    return {
        "ok": True,
        "base": root,
        "home": HOME,
        "control": CONTROL,
        "code": at["code"],
        "data": at["data"],
        "work_root": at["work"],
        "ckpt_root": at["ckpt"],
        "out_root": at["out"],
        "resume_root": at["resume"],
    }


def check_order(ask: dict[str, Any]) -> dict[str, Any]:
    """The order as it is kept: everything but epoch, nonce, scripts and the values of the secrets."""
    stages = need(ask, "stages", list)
    names = [stage.get("name") if isinstance(stage, dict) else None for stage in stages]
    if not names or names != [name for name in STAGES if name in names]:
        raise Refusal("invalid", "stages: %r are not some of %s in this order" % (names, ", ".join(STAGES)))
    for stage in stages:
        need(stage, "script", str)
        if stage.get("once"):
            need_name(stage, "once")
    for key in ("env", "secrets"):
        for name, value in need(ask, key, dict, {}).items():
            if not isinstance(value, str) or "\0" in name + value or not name or "=" in name:
                raise Refusal("invalid", "%s.%s: not a variable's name and text" % (key, name))
    if not hasattr(signal, "SIG" + need(ask, "signal", str, "TERM")):
        raise Refusal("invalid", "signal: %r is not known here" % ask["signal"])
    if ask.get("workspace", "base") not in ("base", "own") or ask.get("resume_mode", "env") not in ("env", "folder"):
        raise Refusal("invalid", "workspace is base or own, resume_mode is env or folder")
    if ask.get("resume_from"):
        need_name(ask, "resume_from")
    digest = [{**stage, "script": hashlib.sha256(stage["script"].encode()).hexdigest()} for stage in stages]
    hidden = ("epoch", "nonce", "secrets", "stages")
    kept = {key: value for key, value in ask.items() if key not in hidden}
    return {**kept, "stages": digest, "secret_names": sorted(ask.get("secrets", {}))}


def order_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Admit one run. `order.json` comes last: with it everything else of the run is there."""
    run, job = need_run(ask), need_name(ask, "job")
    order = check_order(ask)
    with command_lock():
        admit(ask)
        if run.closed:
            raise Refusal("closed", "%s is closed: it never starts again" % run.key)
        if run.order is not None:
            if {key: value for key, value in run.order.items() if key not in ("boot_id", "at")} != order:
                raise Refusal("conflict", "%s was ordered before, with other contents" % run.key)
            answer = {"ok": True, "already": True}
        else:
            for other in all_runs():
                if other.order is not None and other.ended is None:
                    raise Refusal("busy", "%s is not yet dead" % other.key)
            deadline = Deadline.load()
            if deadline and deadline.remaining() <= 0:
                raise Refusal("closed", "the machine's end has passed")
            if not os.path.isdir(os.path.join(job_folder(job), "code")):
                raise Refusal("missing", "the job's folders are not there: prepare comes first")
            resume = ask.get("resume_from")
            if resume and not os.path.exists(os.path.join(job_folder(job), "resume", run.key, resume)):
                raise Refusal("missing", "resume/%s/%s is not there" % (run.key, resume))
            admit_order(run, ask, order)
            answer = {"ok": True, "already": False}
    if run.ended is None:
        start_command({})
        wake_supervisor()
    return answer


def admit_order(run: Run, ask: dict[str, Any], order: dict[str, Any]) -> None:
    os.makedirs(run.folder, mode=0o700, exist_ok=True)
    for stage in ask["stages"]:
        write_whole(run.path(stage["name"] + ".sh"), stage["script"].encode("utf-8", "surrogateescape"))
    write_whole(run.path("reserve"), os.urandom(64 << 10))  # room for the exit code on a full disk
    if ask.get("secrets"):
        write_whole(run.path("secrets"), to_json(ask["secrets"]))
    replace(run.path("order.json"), to_json({**order, "boot_id": boot_id(), "at": time.time()}))


def signal_command(ask: dict[str, Any]) -> dict[str, Any]:
    run, why, grace = need_run(ask), need(ask, "why", str), float(need(ask, "grace_s", (int, float)))
    with command_lock():
        admit(ask)
        if run.order is None and not run.closed:
            raise Refusal("missing", "%s was never ordered" % run.key)
        if run.ended is not None or run.closed:
            return {"ok": True, "already": True, "ended": run.ended is not None}
        before = run.signalled
        request = request_signal(run, why, grace)
    if grace <= 0:
        end_run(run, CLOSE_S)
    left = max(0.0, round(request["kill_at"] - uptime(), 1))
    return {"ok": True, "already": before is not None, "why": request["why"], "grace_left": left}


def close_command(ask: dict[str, Any]) -> dict[str, Any]:
    """First the key, then the processes: whatever happens in between, nothing can start any more."""
    run = need_run(ask)
    with command_lock():
        admit(ask)
        close_key(run)
    return {"ok": True, "dead": run.ended is not None or end_run(run, CLOSE_S)}


def close_key(run: Run) -> None:
    os.makedirs(run.folder, mode=0o700, exist_ok=True)
    if not run.closed:
        replace(run.path("closed"), b"")


def manifest_command(ask: dict[str, Any]) -> dict[str, Any]:
    import fnmatch

    top, pattern = need(ask, "path", str), need(ask, "pattern", str, "") or "*"
    if not os.path.isabs(top):
        raise Refusal("invalid", "path: %r is not absolute" % top)
    if not os.path.lexists(top):
        raise Refusal("missing", "%s is not there" % top)
    files = [entry for entry in walk_files(top) if fnmatch.fnmatchcase(entry["path"], pattern)]
    if ask.get("hash"):
        base = top if os.path.isdir(top) and not os.path.islink(top) else os.path.dirname(top)
        read = (entry if "link" in entry else hashed(os.path.join(base, entry["path"]), entry) for entry in files)
        files = [entry for entry in read if entry is not None]
    return {"ok": True, "files": files}


def walk_files(top: str, skip: Callable[[str], bool] = lambda name: False) -> Iterator[dict[str, Any]]:
    """Files and links below a folder by relative path; a single file or link by its name."""
    if os.path.islink(top) or not os.path.isdir(top):
        names = [(os.path.basename(top), top)]
    else:
        names = []
        for folder, folders, files in os.walk(top):
            folders[:] = sorted(name for name in folders if not skip(name))
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            paths = [os.path.join(folder, name) for name in sorted(files + links) if not skip(name)]
            names += [(os.path.relpath(path, top), path) for path in paths]
    for name, path in names:
        try:
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                yield {"path": name, "link": os.readlink(path)}
            elif stat.S_ISREG(info.st_mode):
                yield {"path": name, "size": info.st_size, "mtime_ns": info.st_mtime_ns}
        except FileNotFoundError:
            continue


def hashed(path: str, entry: dict[str, Any]) -> dict[str, Any] | None:
    """The entry with its sha256; null where the file was written to meanwhile, None where it went away."""
    try:
        with open(path, "rb") as file:
            before, digest = os.fstat(file.fileno()), hashlib.sha256()
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
            after = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    found = {"size": after.st_size, "mtime_ns": after.st_mtime_ns, "sha256": digest.hexdigest() if same else None}
    return {**entry, **found}


CACHES = re.compile(
    r"(__pycache__|\.cache|\.git|\.venv|venv|node_modules|\.ipynb_checkpoints|\.\w+_cache|.*\.pyc|\.DS_Store)\Z"
)


def changed_command(ask: dict[str, Any]) -> dict[str, Any]:
    run, job = need_run(ask), need_name(ask, "job")
    if run.order is None or run.order["job"] != job:
        raise Refusal("missing", "%s was never ordered for %s" % (run.key, job))
    top = run.folders()["work"]
    try:
        since = os.stat(run.path("prepared")).st_ctime_ns
    except FileNotFoundError:
        return {"ok": True, "base": top, "files": []}  # nothing of the job itself has run
    files = []
    for entry in walk_files(top, lambda name: CACHES.match(name) is not None):
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(os.path.join(top, entry["path"])).st_ctime_ns >= since:
                files.append(entry)
    return {"ok": True, "base": top, "files": files}


def environment_command(ask: dict[str, Any]) -> dict[str, Any]:
    """What results depend on. With `job`, torch and the packages are those of the job's own virtual environment."""
    work = os.path.join(job_folder(need_name(ask, "job")), "work", "base") if ask.get("job") else HOME
    candidates = [os.path.join(work, name, "bin", "python") for name in (".venv", "venv")]
    python = next((path for path in candidates if os.path.exists(path)), shutil.which("python3") or sys.executable)
    smi = nvidia_smi()
    fields = "--query-gpu=name,memory.total,driver_version,uuid"
    names = ("name", "memory_mib", "driver", "uuid")
    text = output_of([smi, fields, "--format=csv,noheader,nounits"], 30.0) if smi else ""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    gpus = [{name: row[i] for i, name in enumerate(names)} for row in rows if len(row) == len(names)]
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", output_of([smi], 30.0)) if smi else None
    probe = (
        "import json, torch; c = torch.cuda; print(json.dumps({'version': torch.__version__,"
        " 'cuda': torch.version.cuda, 'available': c.is_available(), 'devices': c.device_count()}))"
    )
    torch = output_of([python, "-c", probe], 60.0).strip()
    used, total = memory()
    return {
        "ok": True,
        "driver": gpus[0]["driver"] if gpus else None,
        "cuda": cuda.group(1) if cuda else None,  # the newest that the driver can serve, not a toolkit
        "gpus": gpus,
        "torch": json.loads(torch.splitlines()[-1]) if torch else None,
        "pip": output_of([python, "-m", "pip", "freeze"], 60.0).splitlines(),
        "python": output_of([python, "-c", "import platform; print(platform.python_version())"], 20.0).strip(),
        "kernel": os.uname().release,
        "hostname": os.uname().nodename,
        "cpus": cpu_count(),
        "memory": {"used": used, "total": total},
        "disk": disk(),
    }


def wipe_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Nothing of the job stays but its closed keys: what has run here never runs again."""
    job = need_name(ask, "job")
    with command_lock():
        admit(ask)
        runs = [run for run in all_runs() if run.order is not None and run.order["job"] == job]
        for run in runs:
            close_key(run)
    left = ["run " + run.key for run in runs if run.ended is None and not end_run(run, CLOSE_S)]
    keep = ("closed", "ended.json", "reported", "claim")
    for run in runs:
        if run.ended is not None:
            remove([run.path(name) for name in list_names(run.folder) if name not in keep])
    setups = [control(name) for name in list_names(CONTROL) if name.startswith("setup.")]
    remove([path for path in setups if (read_json(path) or {}).get("job") == job])
    return {"ok": True, "left": left + remove([job_folder(job)])}


def remove(paths: list[str]) -> list[str]:
    """Delete files and folders, also write-protected ones; returns what is still there."""
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
            for folder, _, _ in os.walk(path):
                with contextlib.suppress(OSError):
                    os.chmod(folder, 0o700)
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
    return [path for path in paths if os.path.lexists(path)]


# --- the stream --------------------------------------------------------------------------------------


class Stream:
    """`follow`: everything new since the cursors, until stdin closes."""

    def __init__(self, ask: dict[str, Any]) -> None:
        prove_machine(ask)
        self.events = min(need(ask, "events", int, 0), size_of(control("events.jsonl")))
        self.logs = {str(name): int(offset) for name, offset in need(ask, "logs", dict, {}).items()}
        self.beat_s = max(0.2, float(need(ask, "beat_s", (int, float), 2)))
        self.shown = b""
        self.stamp: tuple[float, ...] = ()

    def main(self) -> None:
        self.heard()
        status = status_command({})
        self.shown = self.essence(status)
        self.stamp = self.touched()
        self.say({"t": "hello", "status": shortened(status)})
        beat = uptime()
        idle = 0.05
        while True:
            busy = self.send_events() | self.send_logs()
            if uptime() - beat >= self.beat_s:
                beat = uptime()
                self.say({"t": "beat", "at": time.time(), "boot": beat})
                self.stamp = ()  # also sees what touches no folder, as a supervisor that died
            stamp = self.touched()
            if stamp != self.stamp:
                self.stamp = stamp
                self.send_status()
            idle = 0.05 if busy else min(0.4, idle * 1.5)
            ready, _, _ = select.select([0], [], [], 0.0 if busy else idle)
            if ready:
                if not os.read(0, 4096):
                    return
                self.heard()

    def heard(self) -> None:
        """A controller is awake at the other end: the dead-man leaves a reclaim notice to it."""
        jot(control("stream"), b"%.2f\n" % uptime())

    def say(self, value: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    def touched(self) -> tuple[float, ...]:
        """Every change of state renames or makes a file, which shows in its folder's time."""
        paths = [control("deadline"), control("notice.json"), control("agent.pid"), control("runs")]
        paths += [run.folder for run in all_runs()]
        return tuple(os.stat(path).st_mtime_ns if os.path.exists(path) else 0 for path in paths)

    @staticmethod
    def essence(status: dict[str, Any]) -> bytes:
        runs = {key: {**run, "logs": None} for key, run in status["runs"].items()}
        return to_json([runs, *(status[key] for key in ("deadline", "notice", "supervisor", "setups"))])

    def send_status(self) -> None:
        status = status_command({})
        essence = self.essence(status)
        if essence != self.shown:
            self.shown = essence
            self.say({"t": "status", "status": shortened(status)})

    def send_events(self) -> bool:
        path = control("events.jsonl")
        if size_of(path) <= self.events:
            return False
        with open(path, "rb") as file:
            file.seek(self.events)
            block = file.read(1 << 18)
        whole = block.rfind(b"\n") + 1
        for line in block[:whole].splitlines(keepends=True):
            self.events += len(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue  # cut off by a kill in the middle
            self.say({"t": "event", "next": self.events, "event": event})
        return bool(whole)

    def send_logs(self) -> bool:
        """One round over all logs, so that a long backlog of one does not hold up the others."""
        import base64

        busy = False
        for run in all_runs():
            for stage in STAGES:
                name = "%s/%s" % (run.key, stage)
                path, offset = run.path(stage + ".log"), self.logs.get(name, 0)
                if size_of(path) <= offset:
                    continue
                with open(path, "rb") as file:
                    file.seek(offset)
                    data = file.read(CHUNK)
                text = base64.b64encode(data).decode("ascii")
                self.say({"t": "log", "run": run.key, "stage": stage, "offset": offset, "data": text})
                self.logs[name] = offset + len(data)
                busy = True
        return busy


def shortened(status: dict[str, Any]) -> dict[str, Any]:
    """A status that fits a line: the newest checkpoints of each run, then without the oldest closed runs."""
    for keep in (50, 10, 3):
        if len(to_json(status)) <= LINE_LIMIT:
            return status
        runs = {key: {**run, "checkpoints": run["checkpoints"][-keep:]} for key, run in status["runs"].items()}
        status = {**status, "runs": runs}
    closed = sorted((run["started"], key) for key, run in status["runs"].items() if run["closed"])
    for _, key in closed:
        if len(to_json(status)) <= LINE_LIMIT:
            break
        status = {**status, "runs": {name: run for name, run in status["runs"].items() if name != key}}
    return status


def follow(ask: dict[str, Any]) -> None:
    """Nothing may write into the closed pipe of a controller that is gone and call it an error."""
    try:
        Stream(ask).main()
    except BrokenPipeError:
        os._exit(0)


# --- the door ----------------------------------------------------------------------------------------

COMMANDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "start": start_command,
    "status": status_command,
    "arm": arm_command,
    "prepare": prepare_command,
    "order": order_command,
    "signal": signal_command,
    "close": close_command,
    "manifest": manifest_command,
    "changed": changed_command,
    "environment": environment_command,
    "wipe": wipe_command,
}
WITHOUT_INPUT = ("start", "status")


def read_ask() -> dict[str, Any]:
    """One JSON object, up to its end or to the end of stdin, whichever comes first."""
    text = b""
    while True:
        block = os.read(0, 1 << 16)
        text += block
        if not block or text.rstrip().endswith(b"}"):
            try:
                value = json.loads(text or b"{}")
            except ValueError as error:
                if block:
                    continue
                raise Refusal("invalid", "the input is not JSON: %s" % error) from None
            if not isinstance(value, dict):
                raise Refusal("invalid", "the input is not a JSON object")
            return value


def main(argv: list[str]) -> int:
    os.umask(0o077)
    name = argv[1] if len(argv) > 1 else ""
    if name == "_supervise":
        return supervise()
    if name == "_wrap":
        return wrap(argv[2])
    try:
        if name != "follow" and name not in COMMANDS:
            raise Refusal("invalid", "there is no command %r; protocol %d" % (name, PROTOCOL))
        ask = {} if name in WITHOUT_INPUT else read_ask()
        if name == "follow":
            follow(ask)
            return 0
        answer = COMMANDS[name](ask)
    except Refusal as refusal:
        answer = refusal.answer
    except OSError as error:
        answer = {"ok": False, "error": "io", "detail": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
