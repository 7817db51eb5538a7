"""The process in the tmux pane: runs the stages of one run and writes what became of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
import traceback
from typing import TYPE_CHECKING, Any

from orchestrator.agent.afterlook import EX_CONFIG, EnvironmentLook
from orchestrator.agent.container import Container, container_program
from orchestrator.agent.ends import Deadline, boot_id, uptime
from orchestrator.agent.events import record_event
from orchestrator.agent.files import create_once, jot, note, read_text, replace, to_json
from orchestrator.agent.layout import control
from orchestrator.agent.machine import cpu_count, free_port, gpu_rows
from orchestrator.agent.processes import (
    become_subreaper,
    kill_all,
    look_at,
    look_at_all,
    machine_mark,
    send,
    spare_from_oom,
)
from orchestrator.agent.runs import CLOSE_S, NOT_STARTED_RC, Run
from orchestrator.agent.smoke import SmokeWatch, extrapolated
from orchestrator.agent.stage_log import LOG_LIMIT, StageLog

if TYPE_CHECKING:
    from collections.abc import Callable

WRAPPER_TICK_S = 0.1  # how soon a signal file is obeyed
TREE_S = 5.0  # how often a wrapper writes down its descendants, for whoever must end them if it is killed
LEFTOVER_S = 3.0  # between TERM and KILL for what a finished stage left behind


def fresh_process() -> None:
    """Before exec of a stage: the wrapper's ignored signals must not be inherited by user code."""
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)  # ours is 077, and not the user's business
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
        self.look: EnvironmentLook | None = None
        self.smoke: SmokeWatch | None = None
        self.box: Container | None = None
        self.told_image = False

    def main(self) -> None:
        stage: str | None = None
        rc, detail = NOT_STARTED_RC, {}
        try:
            env = self.environment(json.loads(read_text(self.run.path("secrets")) or "{}"))
            self.run.forget_secrets()
            self.make_folders()
            if self.order.get("container"):
                program = container_program()
                if program is None:
                    raise RuntimeError("this machine has no docker that its login may use: leave `image` out there")
                self.box = Container(self.run, self.order["container"], program)
            for spec in self.order["stages"]:
                if spec["name"] != "setup" and stage in (None, "setup"):
                    rc = self.look_around(env, stage or spec["name"])
                    if rc != 0:
                        stage = stage or spec["name"]
                        break
                stage = spec["name"]
                rc = self.stage(spec, env)
                if stage == "smoke" and self.smoke is not None:
                    rc = self.judge_smoke(rc)
                if rc != 0 or self.run.closed:
                    break
        except Exception as error:  # whatever went wrong here must end as a recorded exit
            note(traceback.format_exc())
            detail = {"detail": "%s: %s" % (type(error).__name__, error)}
        if self.look is not None:
            self.look.end()
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
        """work/base from code/, once for each code; the run's own folders; the checkpoint to resume from."""
        at = self.run.folders()
        for name in ("data", "ckpt", "out"):
            os.makedirs(at[name], exist_ok=True)
        code, mark = self.order.get("code") or "", at["base"] + ".code"
        if code != read_text(mark).strip():  # the mark first: killed in between, the copy is made by the next run
            shutil.rmtree(at["base"], ignore_errors=True)
            os.makedirs(os.path.dirname(mark), exist_ok=True)
            replace(mark, code.encode() + b"\n")
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
        given = {name: self.run.path("given." + file["name"]) for name, file in order.get("files", {}).items()}
        if "GPUJOB_ITEMS" in given:
            given.update({"GPUJOB_DONE": self.run.log_path("done"), "GPUJOB_FAILED": self.run.log_path("failed")})
        return {
            **({} if order.get("container") else base),  # an image brings its own PATH and libraries
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
            "GPUJOB_METRICS": self.run.log_path("metrics"),
            "GPUJOB_RESUME_FROM": resume,
            "GPUJOB_NUM_GPUS": str(gpus),
            "GPUJOB_CPUS": str(cpu_count()),
            "GPUJOB_DEADLINE": str(int(deadline.end)) if deadline else "",
            **given,
        }

    def stage(self, spec: dict[str, Any], env: dict[str, str]) -> int:
        """One stage from start to the last of its processes; returns its exit code, which is on disk by then."""
        run, name = self.run, spec["name"]
        # What setup did to an image is gone with the container of that run.
        once = None if self.box is not None else spec.get("once") or None
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

    def look_around(self, env: dict[str, str], stage: str) -> int:
        """After setup: whether the job's Python sees its cards. Waited for only where that may stop the run."""
        wanted, at = self.order.get("look"), self.run.folders()
        about = self.environment_mark()
        if not isinstance(wanted, dict) or read_text(control("setup.looked")) == about:
            return 0
        if not os.path.isdir(at["work"]):
            self.copy(at["base"], at["work"])
        inside = None
        if self.box is not None:
            if not os.path.exists(self.run.path("started")):
                return 0  # its container starts with the first stage
            inside = self.box.inside(at["work"], env)
        self.insist(lambda: replace(control("setup.looked"), about.encode()))
        look = self.look = EnvironmentLook(self.run.key, at["work"], env, wanted, inside)
        while look.stops and not look.done() and not self.obey():
            time.sleep(0.02)
        if not look.stops:
            return 0  # `pump` hears it out
        self.look = None
        return self.stopped(stage, "config", [one for one in look.end() if one["klass"] in ("config", "bad-host")])

    def environment_mark(self) -> str:
        """What the look was about: the same code, setup and job have the same environment on this machine."""
        once = [stage.get("once") for stage in self.order["stages"] if stage["name"] == "setup"]
        return to_json({"job": self.order["job"], "code": self.order.get("code"), "setup": once}).decode()

    def judge_smoke(self, rc: int) -> int:
        """What the trial says of the whole run, to the controller; EX_CONFIG where the run could only be waste."""
        plan, smoke = self.order.get("smoke"), self.smoke
        self.smoke = None
        if smoke is None or not isinstance(plan, dict) or (rc != 0 and not smoke.told):
            return rc
        measured = smoke.measured()
        if smoke.told:
            self.insist(lambda: replace(self.run.path("smoke.rc"), b"%d\n" % EX_CONFIG))
            return EX_CONFIG
        whole, findings = extrapolated(
            measured, plan, max(0.0, time.time() - float(self.order.get("at") or time.time()))
        )
        seconds = measured["seconds"]
        record_event("smoke", run=self.run.key, seconds=seconds, facts={**measured, **whole}, findings=findings)
        return self.stopped("smoke", "smoke", [one for one in findings if one["klass"] == "config"])

    def stopped(self, stage: str, kind: str, findings: list[dict[str, str]]) -> int:
        """Write why the run is not worth starting into the stage's log; its exit code, 0 without a reason."""
        if not findings:
            return 0
        lines = []
        for one in findings:
            word = kind if one["klass"] == "config" else one["klass"]
            advice = ": " + one["next"] if one["next"] else ""
            lines.append("gpujob: [%s] %s, %s%s\n" % (word, one["measured"], one["wanted"], advice))
        with open(self.run.path(stage + ".log"), "ab") as log:
            log.write("".join(lines).encode("utf-8", "replace"))
        self.insist(lambda: replace(self.run.path(stage + ".rc"), b"%d\n" % EX_CONFIG))
        return EX_CONFIG

    def overdue(self, smoke: SmokeWatch) -> None:
        """A trial that does not end is no trial."""
        if self.leader is not None and self.log is not None and not smoke.told:
            smoke.told = True
            minutes = (uptime() - smoke.began) / 60
            words = "gpujob: [smoke] it still runs after %.0f min: make it a short trial (fewer steps)\n" % minutes
            self.log.write(words.encode())
            for pid, start in self.run.pids().items():
                send(pid, start, signal.SIGKILL)

    def execute(self, name: str, env: dict[str, str]) -> int:
        run, at = self.run, self.run.folders()
        if name != "setup" and not os.path.isdir(at["work"]):
            self.copy(at["base"], at["work"])
        plan, deadline = self.order.get("smoke"), Deadline.load()
        if name == "smoke" and isinstance(plan, dict):
            self.smoke = SmokeWatch(plan, deadline.remaining() if deadline else 0.0)
        if name != "setup" and not os.path.exists(run.path("prepared")):
            time.sleep(0.02)  # file times come from the kernel's tick of up to 10 ms
            self.insist(lambda: replace(run.path("prepared"), b""))  # `changed` counts from here, by ctime
        self.log = log = StageLog(run.path(name + ".log"), self.order.get("log_limit") or LOG_LIMIT)
        argv, folder = ["bash", "-eo", "pipefail", run.path(name + ".sh")], at["base" if name == "setup" else "work"]
        if self.box is None:
            self.read_fd, write_fd = os.pipe()
        else:
            argv, env = self.box.stage(name, folder, env), dict(os.environ)
            # Open both ways, so that it never ends while the container starts.
            self.read_fd = os.open(self.box.pipe(name), os.O_RDWR)
            write_fd = os.open(self.box.pipe(name), os.O_WRONLY)
        self.silent, self.pause = False, 0.001
        os.set_blocking(self.read_fd, False)
        leader = self.leader = subprocess.Popen(
            argv,
            cwd=folder,
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
        if self.box is not None:
            self.box.forget(name)
        if self.box is not None and not self.told_image:
            self.told_image = True
            record_event("image", run=run.key, **self.box.image())
        # bash dies of a signal while the program it started is still saving: the grace is the group's
        while self.kill_at is not None and self.group_lives(self.target(leader)) and uptime() < self.kill_at:
            self.pump()
        self.end_leftovers()
        while self.drain():
            pass
        log.close()
        os.close(self.read_fd)
        self.log, self.read_fd, self.leader = None, -1, None
        return exit_code(leader.returncode)

    def target(self, leader: subprocess.Popen[bytes]) -> int:
        """The process group that a signal is for: the stage's own, inside its container once it is there."""
        inner = self.box.group() if self.box is not None else None
        return leader.pid if inner is None else inner

    def left(self) -> dict[int, int]:
        """What is left of a stage: everything of the run, but for the container that its next stage needs."""
        return self.others() if self.box is None else self.run.marked()

    def group_lives(self, group: int) -> bool:
        return any(proc.group == group for proc in look_at_all().values())

    def end_leftovers(self) -> None:
        """Whatever the stage left running, polite first."""
        left = self.left()
        for pid, start in left.items():
            send(pid, start, signal.SIGTERM)
        until = uptime() + (0.0 if self.kill_at is not None or self.run.closed else LEFTOVER_S)
        while left and uptime() < until:
            self.pump()
            left = self.left()
        while left and not kill_all(self.left, CLOSE_S, self.pump):
            note("%s: some processes do not die" % self.run.key)
        self.reap()

    def others(self) -> dict[int, int]:
        """What the stage left behind; our own look goes on beside the stages."""
        found = self.run.pids()
        if self.look is not None and self.look.process is not None:
            found.pop(self.look.process.pid, None)
        return found

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
            if self.look is not None and self.look.done():
                self.look.end()
                self.look = None
            if self.smoke is not None:
                self.smoke.tick()
                if now >= self.smoke.until:
                    self.overdue(self.smoke)
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
            if self.smoke is not None:
                self.smoke.feed(data)
        self.silent = not data
        return bool(data)

    def obey(self) -> bool:
        """Deliver a requested signal once, and KILL when its grace is over. True: the run is to end."""
        request = self.run.signalled
        leader = self.leader
        if request and self.delivered is None and (leader is None or self.group_lives(self.target(leader))):
            self.delivered = request["why"]  # one that exits by itself was not ended by us
            record_event("signal", run=self.run.key, why=self.delivered)
            if leader and uptime() < request["kill_at"]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.target(leader), self.signal_number())
        if request:
            self.kill_at = request["kill_at"]
        closed = self.run.closed
        if leader and (closed or (self.kill_at is not None and uptime() >= self.kill_at)):
            for pid, start in self.left().items():
                send(pid, start, signal.SIGKILL)
        return closed or request is not None

    def signal_number(self) -> int:
        return int(getattr(signal, "SIG" + (self.order.get("signal") or "TERM")))

    def remember(self) -> None:
        """Write down the descendants."""
        found = self.run.pids()
        tree = "".join("%d %d\n" % pair for pair in sorted(found.items()))
        if tree != self.tree:
            jot(self.run.path("tree"), tree.encode())
            self.tree = tree
        self.reap()

    def reap(self) -> None:
        """Take in the dead among our adopted children; the leader is Popen's."""
        for pid, proc in look_at_all(zombies=True).items():
            if proc.zombie and proc.parent == os.getpid() and not (self.leader and pid == self.leader.pid):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


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
