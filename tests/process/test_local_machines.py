"""Local machines with real clients: ssh, rsync, tmux, paramiko, fabric, in each of the three isolations."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fabric
import paramiko
import pytest

from providers.base import Ask, Boot, DestroyAck, GpuRow, GpuWish, Instance, ProviderConfig, Ref, Tag
from providers.errors import Invalid
from providers.local import LocalProvider
from providers.local_machine import launch
from providers.local_machine.isolation import MODES, Mode

GPUS = (GpuRow("RTX-4090", 24),)
HOOK = 'echo "boot $$ $HOME" >> "$HOME/boots"; echo said; while :; do sleep 1000; done'
GUESS_TIME_S = 20.0  # a wait longer than this is a failure; most take some ten ms


class Desk:
    """One user's keys, provider and clients, in one isolation."""

    def __init__(self, home: Path, mode: Mode) -> None:
        self.home, self.mode = home, mode
        self.key = home / "id"
        if not self.key.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)
        self.provider = LocalProvider(ProviderConfig("dep", home, GPUS))

    def create(self, rental: str = "r-1", *, spot: bool = False, end_in: float = 300.0) -> Instance:
        ask = Ask(gpus=(GpuWish("RTX-4090", 24, 1),), spot=spot)
        boot = Boot(HOOK, self.key.with_suffix(".pub").read_text())
        return self.provider.create(
            self.provider.offers(ask)[0], Tag("dep", rental, "job-1"), time.time() + end_in, boot
        )

    def ready(self, made: Instance) -> Instance:
        until("the machine is ready", lambda: self.see(made).ready)
        return self.see(made)

    def see(self, made: Instance) -> Instance:
        seen = self.provider.get(made.ref)
        assert seen is not None
        return seen

    def status(self, made: Instance) -> str:
        return self.see(made).status

    def ssh_options(self, machine: Instance) -> list[str]:
        """As gpujob connects: the machine's own key pinned under its own name."""
        assert machine.endpoint is not None
        known = self.home / f"known-{machine.ref.id}"
        known.write_text("".join(f"{machine.ref.id} {key}\n" for key in machine.host_keys))
        options = {
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": known,
            "HostKeyAlias": machine.ref.id,
            "BatchMode": "yes",
            "Port": machine.endpoint.port,
            "IdentityFile": self.key,
            "IdentitiesOnly": "yes",
        }
        return ["-F", "/dev/null", *(word for k, v in options.items() for word in ("-o", f"{k}={v}"))]

    def ssh(self, machine: Instance, command: str, *options: str) -> str:
        assert machine.endpoint is not None
        target = f"{machine.endpoint.user}@{machine.endpoint.host}"
        done = subprocess.run(
            ["ssh", *self.ssh_options(machine), *options, target, command],
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout.strip()

    def home_of(self, machine: Instance) -> Path:
        return self.provider.folder(machine.ref) / "root/home"


def until(what: str, look: Callable[[], bool]) -> None:
    stop = time.monotonic() + GUESS_TIME_S
    while not look():
        assert time.monotonic() < stop, f"not in time: {what}"
        time.sleep(0.01)


def running(words: str) -> list[int]:
    """Pids on this host whose command line contains `words`, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if words in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A short path: tmux sockets of machines without namespaces must fit below it."""
    folder = Path(tempfile.mkdtemp(prefix="gj-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=MODES)
def desk(request: pytest.FixtureRequest, base: Path) -> Iterator[Desk]:
    mode: Mode = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUJOB_LOCAL_ISOLATION", mode)
        patch.delenv("GPUJOB_LOCAL_RECLAIM", raising=False)
        patch.delenv("GPUJOB_LOCAL_HOME", raising=False)
        home = base / mode
        home.mkdir()
        desk = Desk(home, mode)
        yield desk
        for instance in desk.provider.list("here").instances:
            desk.provider.destroy(instance.ref)
        assert not running(str(home)), "a process outlived the tests"
        left = [str(path.relative_to(home)) for path in (home / "local").rglob("*") if path.is_file()]
        known = ("local/lock", "local/spot-count.json", "local/dead/")
        assert [path for path in left if not path.startswith(known)] == [], "a file outlived the tests"


@pytest.fixture(scope="module")
def machine(desk: Desk) -> Instance:
    return desk.ready(desk.create("shared"))


def test_the_asked_isolation_is_used(desk: Desk, machine: Instance) -> None:
    assert machine.raw["mode"] == desk.mode


def test_openssh_lands_in_the_machines_home_with_its_tools(desk: Desk, machine: Instance) -> None:
    said = desk.ssh(machine, "pwd; echo $HOME; echo $GPUJOB_LOCAL_MACHINE; touch proof; command -v nvidia-smi")
    here, home, marker, smi = said.split("\n")
    assert here == home
    assert marker == machine.ref.id
    assert "/bin/nvidia-smi" in smi
    assert (desk.home_of(machine) / "proof").exists()
    desk.ssh(machine, "python3 -c 'import ssl, json, tempfile; tempfile.TemporaryFile()' && rsync --version")


def test_exit_codes_and_environment_come_through(desk: Desk, machine: Instance) -> None:
    with pytest.raises(AssertionError):
        desk.ssh(machine, "exit 7")
    assert desk.ssh(machine, "env -i /bin/sh -c 'echo $HOME'") == ""
    assert "SSH_AUTH_SOCK" not in desk.ssh(machine, "env"), "the caller's environment leaked in"


def test_a_strangers_key_is_refused(desk: Desk, machine: Instance) -> None:
    other = desk.home / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    honest, desk.key = desk.key, other
    try:
        with pytest.raises(AssertionError, match="Permission denied"):
            desk.ssh(machine, "true")
    finally:
        desk.key = honest


def test_terminals_work(desk: Desk, machine: Instance) -> None:
    if desk.mode == "subreaper" and os.getuid() != 0:
        pytest.skip("whether an ordinary user's sshd may give a terminal away is the host's devpts option")
    assert desk.ssh(machine, "tty", "-tt").startswith("/dev/pts/")


def test_paramiko_and_fabric(desk: Desk, machine: Instance) -> None:
    assert machine.endpoint is not None
    where = machine.endpoint
    key = paramiko.Ed25519Key.from_private_key_file(str(desk.key))
    connection = fabric.Connection(
        where.host, user=where.user, port=where.port, connect_kwargs={"pkey": key, "look_for_keys": False}
    )
    with connection:
        pty = desk.mode != "subreaper" or os.getuid() == 0
        assert connection.run("echo from fabric", hide=True, pty=pty, in_stream=False).stdout.strip() == "from fabric"
        connection.put(io.BytesIO(b"by sftp"), "sent.txt")
    assert (desk.home_of(machine) / "sent.txt").read_bytes() == b"by sftp"
    with paramiko.SSHClient() as client:
        line = machine.host_keys[0].split()
        expected = paramiko.PKey.from_type_string(line[0], base64.b64decode(line[1]))
        client.get_host_keys().add(f"[{where.host}]:{where.port}", line[0], expected)
        client.connect(where.host, where.port, where.user, pkey=key, look_for_keys=False, allow_agent=False)
        channels = [client.exec_command("cat")[:2] for _ in range(20)]  # more than sshd's default of ten
        for number, (stdin, _) in enumerate(channels):
            stdin.write(f"{number}\n")
            stdin.channel.shutdown_write()
        assert [out.read() for _, out in channels] == [f"{n}\n".encode() for n in range(20)]


def test_rsync_there_and_back(desk: Desk, machine: Instance, tmp_path: Path) -> None:
    assert machine.endpoint is not None
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "deep").mkdir(parents=True)
    (source / "deep/blob").write_bytes(os.urandom(3_000_000))
    (source / "name with blanks").write_text("x")
    shell = " ".join(["ssh", *desk.ssh_options(machine)])
    remote = f"{machine.endpoint.user}@{machine.endpoint.host}:sent/"
    subprocess.run(["rsync", "-a", "-e", shell, f"{source}/", remote], check=True, timeout=30)
    subprocess.run(["rsync", "-a", "-e", shell, remote, f"{back}/"], check=True, timeout=30)
    assert (back / "deep/blob").read_bytes() == (source / "deep/blob").read_bytes()
    assert (back / "name with blanks").read_text() == "x"


def test_tmux_outlives_the_session_and_is_the_machines_own(desk: Desk, machine: Instance) -> None:
    desk.ssh(machine, "tmux new-session -d -s train 'sleep 86101'")
    assert desk.ssh(machine, "tmux ls -F '#{session_name}'") == "train"
    desk.ssh(machine, "tmux new-session -d -s look 'command -v nvidia-smi > where; echo $HOME >> where'")
    until("a tmux window ran", lambda: (desk.home_of(machine) / "where").exists())
    until("it said both", lambda: (desk.home_of(machine) / "where").read_text().count("\n") == 2)
    smi, home = (desk.home_of(machine) / "where").read_text().split()
    assert smi == desk.ssh(machine, "command -v nvidia-smi"), "a login shell lost the machine's PATH"
    assert home == desk.ssh(machine, "echo $HOME")
    other = desk.ready(desk.create("shared"))  # the same name on purpose: the id is what counts
    assert desk.ssh(other, "tmux ls 2>&1 || true").find("train") == -1
    assert desk.ssh(other, "ls") == "boots"
    if desk.mode != "subreaper":
        assert desk.ssh(other, "ps ax | grep -c '[s]leep 86101' || true") == "0"
        desk.ssh(machine, "touch /tmp/mine")
        assert desk.ssh(other, "test -e /tmp/mine || echo none") == "none", "the machines share /tmp"
        assert not Path("/tmp/mine").exists()
    desk.provider.destroy(other.ref)
    assert desk.ssh(machine, "tmux ls -F '#{session_name}'") == "train", "another machine's end took ours along"


def test_the_stand_in_gpu_answers_and_can_be_broken(desk: Desk, machine: Instance) -> None:
    query = "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits"
    assert desk.ssh(machine, query) == "RTX-4090 (stand-in), 24576"
    state = desk.provider.folder(machine.ref) / "etc/gpus.json"
    world = json.loads(state.read_text())
    world["fail"] = "Unable to determine the device handle for GPU 0000:01:00.0: Unknown Error"
    state.write_text(json.dumps(world))
    assert desk.ssh(machine, "nvidia-smi || echo rc=$?").endswith("Unknown Error\nrc=9")


def test_the_boot_hook_ran_as_the_login_user(desk: Desk, machine: Instance) -> None:
    boots = (desk.home_of(machine) / "boots").read_text().split()
    assert boots[0] == "boot"
    assert boots[2] == desk.ssh(machine, "echo $HOME")
    assert (desk.home_of(machine) / ".boot-hook.log").read_text() == "said\n"


def test_a_reboot_keeps_files_kills_processes_and_runs_the_hook_again(desk: Desk) -> None:
    made = desk.ready(desk.create("r-boot"))
    desk.ssh(made, "echo kept > file; tmux new-session -d -s s 'sleep 86102'; touch $TMPDIR/gone")
    desk.provider.reboot(made.ref)
    again = desk.ready(made)
    assert not running("sleep 86102")
    assert desk.ssh(again, "cat file; test -e $TMPDIR/gone || echo none") == "kept\nnone"
    assert (desk.home_of(made) / "boots").read_text().count("boot") == 2
    assert again.host_keys == made.host_keys
    desk.provider.destroy(made.ref)


def test_destroy_leaves_no_process_and_no_file(desk: Desk) -> None:
    made = desk.ready(desk.create("r-destroy"))
    desk.ssh(
        made,
        "tmux new-session -d 'sleep 86103'; setsid nohup sleep 86103 >/dev/null 2>&1 & "
        "env -i setsid sh -c 'while :; do sleep 86103 & wait; done' >/dev/null 2>&1 & "
        "mkdir -p locked/in && touch locked/in/file && chmod 500 locked/in && chmod 0 locked; sleep 0.1",
    )
    until("the orphans run", lambda: len(running("sleep 86103")) >= 3)
    folder = desk.provider.folder(made.ref)
    assert desk.provider.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert running("sleep 86103") == []
    assert running(made.ref.id) == []
    assert not folder.exists()
    assert list((desk.home / "local/trash").iterdir()) == []
    assert desk.status(made) == "terminated"
    assert desk.see(made).endpoint is None
    assert desk.provider.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert made.ref.id in {i.ref.id for i in desk.provider.list("here").instances}, "dead machines stay listed"


def test_a_murdered_pid_1_is_seen_at_once_and_leaves_nothing(desk: Desk) -> None:
    for victim in range(2 if desk.mode == "subreaper" else 1):
        made = desk.ready(desk.create(f"r-crash-{victim}"))
        desk.ssh(made, "env -i setsid sleep 86104 >/dev/null 2>&1 & tmux new-session -d 'sleep 86104'")
        until("the orphans run", lambda: len(running("sleep 86104")) >= 2)
        identity = (desk.provider.folder(made.ref) / "ctl/pid").read_text().split("\n")
        pids = [int(line.split()[0]) for line in identity[1:] if line]
        os.kill(pids[victim], signal.SIGKILL)
        until("it is seen dead", lambda made=made: desk.status(made) != "running")  # type: ignore[misc]
        assert desk.status(made) in ("crashed", "terminated"), "a guard's death is an orderly one"
        assert running("sleep 86104") == []
        assert not desk.provider.folder(made.ref).exists()


def test_the_end_comes_without_its_creator(desk: Desk) -> None:
    script = (
        "import os, signal, sys, time, pathlib; sys.path[:0] = sys.argv[1:3]\n"
        "from test_local_machines import Desk\n"
        "desk = Desk(pathlib.Path(sys.argv[3]), sys.argv[4])\n"
        "print(desk.create('r-end', end_in=1.5).ref.id, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    here = Path(__file__).parent
    words = [str(here.parents[1]), str(here), str(desk.home), desk.mode]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == -signal.SIGKILL, done.stderr
    ref = Ref("local", "local", "here", done.stdout.strip())
    made = desk.provider.get(ref)
    assert made is not None
    assert made.status in ("starting", "running")
    until("it ended by itself", lambda: desk.status(made) == "ended")
    assert running(ref.id) == []
    assert not desk.provider.folder(ref).exists()


def test_an_end_can_be_moved_out_and_in(desk: Desk) -> None:
    made = desk.create("r-extend", end_in=1.0)
    later = time.time() + 500
    desk.provider.set_expiry(made.ref, later)
    assert desk.see(made).ends_at == later
    desk.ready(made)
    time.sleep(max(0.0, made.ends_at + 0.3 - time.time()) if made.ends_at else 0)
    assert desk.status(made) == "running", "the old end still held"
    desk.provider.set_expiry(made.ref, time.time() - 5)
    until("it ended", lambda: desk.status(made) == "ended")
    with pytest.raises(Invalid, match="is ended: no end to move"):
        desk.provider.set_expiry(made.ref, later)


def test_a_scripted_reclaim_is_announced_and_then_real(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUJOB_LOCAL_RECLAIM", f"at-file={desk.home}/now,notice=1s")
    spot, steady = desk.ready(desk.create("r-spot", spot=True)), desk.create("r-steady")
    notice = desk.home_of(spot) / Path(launch.NOTICE_FILE).name
    assert spot.notice is None
    assert not notice.exists()
    asked = time.time()
    (desk.home / "now").touch()
    until("the notice is given", lambda: desk.see(spot).notice is not None)
    announced = desk.see(spot).notice
    assert announced is not None
    assert asked < announced.at < asked + 60
    seen = json.loads(desk.ssh(spot, f"cat {launch.NOTICE_FILE}"))
    assert (seen["action"], seen["at"]) == ("terminate", announced.at)
    assert seen["time"] == time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(announced.at))
    assert desk.status(spot) == "running", "the notice is a warning, not the end"
    until("it is taken", lambda: desk.status(spot) == "interrupted")
    assert time.time() >= announced.at - 0.1
    assert desk.status(steady) in ("starting", "running"), "only spot machines are reclaimed"
    desk.provider.destroy(steady.ref)
    (desk.home / "now").unlink()


def test_only_the_asked_attempt_is_reclaimed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk.home / "local/spot-count.json").unlink(missing_ok=True)
    monkeypatch.setenv("GPUJOB_LOCAL_RECLAIM", "attempt=1,after=0s,notice=0s")
    first = desk.create("r-one", spot=True)
    second = desk.create("r-two", spot=True)
    until("the first is taken", lambda: desk.status(first) == "interrupted")
    assert not (desk.provider.folder(second.ref) / "ctl/reclaim").exists()
    desk.ready(second)
    desk.provider.reclaim(second.ref)
    until("the second is taken by hand", lambda: desk.status(second) == "interrupted")


def test_deleting_the_state_folder_ends_the_machines(desk: Desk) -> None:
    made = desk.ready(desk.create("r-deleted"))
    shutil.rmtree(desk.provider.folder(made.ref))
    until("nothing runs", lambda: running(made.ref.id) == [])


def test_destroying_while_it_starts_leaves_nothing(desk: Desk) -> None:
    """A destroy that comes between the listing and the first process must not lose the machine."""
    before = {i.ref.id for i in desk.provider.list("here").instances}
    caught: list[str] = []

    def destroy_what_appears() -> None:
        stop = time.monotonic() + GUESS_TIME_S
        while not caught and time.monotonic() < stop:
            for machine_id in desk.provider.world.ids():
                if machine_id not in before:
                    caught.append(machine_id)
                    desk.provider.destroy(Ref("local", "local", "here", machine_id))

    thread = threading.Thread(target=destroy_what_appears)
    thread.start()
    try:
        desk.create("r-race")
    except Exception as problem:
        assert "destroyed while it started" in str(problem)  # noqa: PT017 - either outcome is right
    thread.join()
    until("nothing runs", lambda: running(caught[0]) == [])
    assert not desk.provider.world.folder(caught[0]).exists()


def test_another_process_sees_and_ends_the_same_machines(desk: Desk) -> None:
    made = desk.create("r-other")
    script = (
        "import sys, pathlib; sys.path[:0] = sys.argv[1:3]\n"
        "from test_local_machines import Desk\n"
        "provider = Desk(pathlib.Path(sys.argv[3]), sys.argv[4]).provider\n"
        "seen = {i.ref.id: i for i in provider.list('here').instances}[sys.argv[5]]\n"
        "print(seen.tag, provider.destroy(seen.ref))\n"
    )
    here = Path(__file__).parent
    words = [str(here.parents[1]), str(here), str(desk.home), desk.mode, made.ref.id]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == f"{made.tag} DestroyAck.ACKNOWLEDGED", done.stderr
    assert desk.status(made) == "terminated"


def test_another_boot_of_the_host_left_nobody_running(desk: Desk) -> None:
    """After a power cut the folder says a pid that now belongs to somebody else."""
    made = desk.ready(desk.create("r-power"))
    ctl = desk.provider.folder(made.ref) / "ctl"
    honest = (ctl / "pid").read_text()
    (ctl / "pid").write_text("another-boot\n" + honest.split("\n", 1)[1])
    twin = dataclasses.replace(made.ref, id="m-twin")
    shutil.copytree(desk.provider.folder(made.ref), desk.provider.folder(twin), symlinks=True)
    (ctl / "pid").write_text(honest)
    record = json.loads((desk.provider.folder(twin) / "machine.json").read_text())
    (desk.provider.folder(twin) / "machine.json").write_text(json.dumps({**record, "id": "m-twin"}))
    seen = desk.provider.get(twin)
    assert seen is not None
    assert seen.status == "crashed"
    assert desk.status(made) == "running", "a stranger's process was touched"
    desk.provider.destroy(made.ref)
