"""Pid 1 of a local machine: accepts SSH, holds the machine's end, plays the spot market, reaps.

Copied into each machine and run there as `python -I -S`, so: standard library only, nothing of ours.

Rules
- The machine lives exactly as long as this process. In a pid namespace the kernel sees to it; as a subreaper
  a guard (the parent) and this process each kill everything when the other dies.
- It depends on no other process: nobody has to be alive for the end or a reclaim to happen.
- Its own files are reached through a folder descriptor opened before the sandbox closed, so they lie outside
  the machine's root: `end` (UTC epoch s), `reclaim`, `doom` come in; `pid`, `up`, `notice`, `fate` go out.
- The end is an absolute UTC time; it is armed on CLOCK_BOOTTIME when the file changes, so neither a step of
  the wall clock nor a suspended host moves it.
- The listening socket is inherited: no port is ever free between being chosen and being used.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

TICK_S = 0.5  # how late a moved end or an ordered reclaim may be noticed without a SIGHUP
PROBE_AGAIN_S = 1.0
MAX_SESSIONS = 500  # connections at once: far above any user, far below what would take the host down
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_at(folder: int, name: str) -> str:
    """A small file's text, empty when there is none."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    with os.fdopen(fd, encoding="utf-8") as file:
        return file.read()


def write_at(folder: int, name: str, text: str) -> None:
    """Write a small file as a whole: readers see the old one or the new one."""
    fd = os.open("." + name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644, dir_fd=folder)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.rename("." + name, name, src_dir_fd=folder, dst_dir_fd=folder)


def identity(proc: int, who: str = "self") -> str:
    """`pid start` of a process as the host numbers it: `proc` is the host's /proc, opened outside."""
    text = read_at(proc, who + "/stat")
    return text.split(" ", 1)[0] + " " + text.rpartition(")")[2].split()[19]


def spawn(argv: list[str], stdin: int, stdout: int, stderr: int, cwd: str | None = None) -> int:
    """Start a program in a session of its own, with default signals and nothing but the three descriptors."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        if cwd is not None:
            os.chdir(cwd)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.execv(argv[0], argv)
    finally:
        os._exit(127)


class Machine:
    """The loop. `reclaim` reads `at <epoch>` or `file <host path>`, and `notice <seconds>`, one a line."""

    def __init__(self, ctl: int, root: int, listener: socket.socket, etc: str, sshd: str, alone: bool) -> None:
        self.ctl, self.root, self.listener = ctl, root, listener
        self.etc, self.sshd, self.alone = etc, sshd, alone
        self.home = os.environ["HOME"]
        self.end_text = self.reclaim_text = ""
        self.ends: float | None = None  # boottime
        self.notice_at: float | None = None  # boottime
        self.reclaimed: float | None = None  # boottime
        self.reclaim_file, self.notice_s, self.noticed = "", 0.0, False
        self.sessions: set[int] = set()
        self.probe: socket.socket | None = None
        self.probe_at: float | None = boottime()
        self.log = os.open("sshd.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600, dir_fd=ctl)

    def run_hook(self) -> None:
        """What a rented machine does at every boot, before anybody logs in."""
        out = os.open(self.home + "/.boot-hook.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        spawn(["/bin/sh", self.etc + "/hook.sh"], null, out, out, cwd=self.home)
        os.close(out)
        os.close(null)

    def die(self, fate: str) -> None:
        """The machine is over: say why, kill everything, be gone, whatever the disk has to say about it."""
        try:
            write_at(self.ctl, "fate", f"{fate} {time.time():.3f}\n")
            if not self.alone:
                kill_everything_below()
        finally:
            os._exit(0)

    def read_orders(self) -> None:
        """Arm again whatever changed in the files; an unreadable value keeps the old arming."""
        if read_at(self.ctl, "doom") or os.fstat(self.ctl).st_nlink == 0:
            self.die("terminated")  # ordered, or somebody deleted the folder: no listing would show us again
        now, utc = boottime(), time.time()
        text = read_at(self.ctl, "end")
        if text and text != self.end_text:
            self.end_text, self.ends = text, now + (float(text) - utc)
        text = read_at(self.ctl, "reclaim")
        if text and text != self.reclaim_text:
            self.reclaim_text = text
            plan = dict(line.split(" ", 1) for line in text.splitlines())
            self.notice_s, self.reclaim_file = float(plan.get("notice", "0")), plan.get("file", "")
            self.notice_at = now + (float(plan["at"]) - utc) if "at" in plan else None
            self.reclaimed, self.noticed = None, False
        if self.reclaim_file and self.notice_at is None and self.root >= 0:
            try:
                os.stat(self.reclaim_file.lstrip("/"), dir_fd=self.root)
            except OSError:
                return
            self.notice_at = now

    def keep_time(self) -> float:
        """Do what is due; returns the seconds until the next thing is, at most a tick."""
        now = boottime()
        if self.ends is not None and now >= self.ends:
            self.die("ended")
        if self.notice_at is not None and self.reclaimed is None and now >= self.notice_at:
            self.reclaimed = self.notice_at + self.notice_s
        if self.reclaimed is not None:
            if now >= self.reclaimed:
                self.die("interrupted")
            if not self.noticed:
                self.give_notice(time.time() + (self.reclaimed - now))
        due = [t for t in (self.ends, self.reclaimed or self.notice_at, self.probe_at) if t is not None]
        return max(0.0, min([TICK_S, *(t - now for t in due)]))

    def give_notice(self, at: float) -> None:
        """Announce the reclaim where the machine reads it, and to the provider's books."""
        self.noticed = True
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
        home = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        write_at(home, ".spot-notice.json", f'{{"action": "terminate", "time": "{when}", "at": {at:.3f}}}\n')
        os.close(home)
        write_at(self.ctl, "notice", f"{at:.3f}\n")

    def accept(self) -> None:
        """One sshd a connection (`sshd -i`): costs what sshd's own re-exec costs, and none idles."""
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return
        with connection:
            if len(self.sessions) < MAX_SESSIONS:
                fd = connection.fileno()
                connection.setblocking(True)
                # sshd sets this late; until then each side waits 40 ms for the other's delayed ACK, twice a login.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                argv = [self.sshd, "-i", "-e", "-f", self.etc + "/sshd_config"]
                self.sessions.add(spawn(argv, fd, fd, self.log))

    def ask_ourselves(self) -> None:
        """Ready is what a client would see: connect to our own port and wait for an SSH banner."""
        self.probe_at = boottime() + PROBE_AGAIN_S
        if self.probe is not None:
            self.probe.close()
        self.probe = socket.socket()
        self.probe.setblocking(False)
        self.probe.connect_ex(self.listener.getsockname())

    def hear_ourselves(self) -> None:
        assert self.probe is not None
        try:
            heard = self.probe.recv(64)
        except OSError:
            heard = b""
        self.probe.close()
        self.probe = None
        if heard.startswith(b"SSH-"):
            self.probe_at = None
            write_at(self.ctl, "up", f"{time.time():.3f}\n")

    def reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.sessions.discard(pid)

    def loop(self, wakeup: int) -> None:
        """For ever: a signal, a connection or the clock. A failed order or fork must not end the machine."""
        while True:
            try:
                self.read_orders()
                timeout = self.keep_time()
                watched = [self.listener.fileno(), wakeup]
                if self.probe is not None:
                    watched.append(self.probe.fileno())
                for fd in select.select(watched, [], [], timeout)[0]:
                    if fd == wakeup:
                        os.read(wakeup, 512)
                        self.reap()
                    elif fd == self.listener.fileno():
                        self.accept()
                    else:
                        self.hear_ourselves()
                if self.probe_at is not None and boottime() >= self.probe_at:
                    self.ask_ourselves()
            except (OSError, ValueError, KeyError) as problem:
                self.complain(problem)
                time.sleep(TICK_S)

    def complain(self, problem: Exception) -> None:
        """Into the log, unless the disk is full: then the machine lives on without the complaint."""
        try:
            os.write(self.log, f"pid1: {problem!r}\n".encode())
        except OSError:
            pass


def kill_everything_below() -> None:
    """As a subreaper: SIGKILL all descendants, again and again, until not even a zombie is left."""
    while True:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # already gone
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def descendants(ancestor: int) -> list[int]:
    """Pids below `ancestor`, by one pass over /proc; orphans come home to the subreaper: none is lost."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found, queue = [], [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def become_subreaper() -> None:
    """Without namespaces: the parent becomes a guard that outlives us and kills what we leave; we go on."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
        while True:
            try:
                pid, _ = os.waitpid(-1, 0)
            except ChildProcessError:
                os._exit(0)
            if pid == child:
                kill_everything_below()
                os._exit(0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main(argv: list[str]) -> None:
    words = dict(zip(argv[1::2], argv[2::2], strict=True))
    ctl, proc, listen, root = (int(words[name]) for name in ("--ctl", "--proc", "--listen", "--root"))
    alone = words["--mode"] != "subreaper"
    os.umask(0o022)
    if not alone:
        become_subreaper()
    for fd in (ctl, proc, listen, *([root] if root >= 0 else [])):
        os.set_inheritable(fd, False)
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for signum in (signal.SIGCHLD, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    listener = socket.socket(fileno=listen)
    listener.setblocking(False)
    machine = Machine(ctl, root, listener, words["--etc"], words["--sshd"], alone)
    signal.signal(signal.SIGTERM, lambda *_: machine.die("terminated") if not alone else None)
    lines = [read_at(proc, "sys/kernel/random/boot_id").strip(), identity(proc)]
    if not alone:
        lines.append(identity(proc, str(os.getppid())))
    write_at(ctl, "pid", "\n".join(lines) + "\n")
    os.close(proc)
    machine.read_orders()  # destroyed before it started: then not even the hook runs
    machine.run_hook()
    machine.loop(read_end)


if __name__ == "__main__":
    main(sys.argv)
