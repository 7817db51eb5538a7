"""Build a machine's folder and start its pid 1, detached from everything that calls us."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path

from providers.errors import Refused
from providers.local_machine import nvidia_smi, pid1
from providers.local_machine.folder import Record, read_text, write_atomic
from providers.local_machine.isolation import Inside, Mode, base_python, inside, lay_out, wrap
from providers.local_machine.process import Process, parse_identity
from providers.local_machine.programs import find, need

HOST = "127.0.0.1"
START_TIMEOUT_S = 15.0  # to pid 1's first word; 40 ms where nothing else runs, a second with 50 starting at once
BACKLOG = 128
MARKER = "GPUJOB_LOCAL_MACHINE"
NOTICE_FILE = "~/.spot-notice.json"
BOOT_LOG = "~/.boot-hook.log"

# Cheap key exchanges first: sshd's post-quantum sntrup761 costs 140 ms of CPU on each side of a connection.
# mlkem768 is as strong and cheap, where sshd has it; without it new clients warn.
_KEX = (
    "mlkem768x25519-sha256",
    "curve25519-sha256",
    "curve25519-sha256@libssh.org",
    "ecdh-sha2-nistp256",
    "diffie-hellman-group14-sha256",
)
# A proxy or a private authority is a property of the host, so of its machines; everything else stays outside.
NETWORK_VARIABLES = (
    *(f"{scheme}_proxy" for scheme in ("http", "https", "no", "all")),
    *(f"{scheme}_PROXY" for scheme in ("HTTP", "HTTPS", "NO", "ALL")),
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)
_CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,aes128-ctr,aes256-ctr"
_SFTP = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")


def listen(port: int = 0) -> socket.socket:
    """A listening loopback socket; the kernel gives each machine another port, however many ask at once."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def host_key(folder: Path) -> str:
    """Make the machine's own ed25519 key; returns its public line without the comment."""
    path = folder / "etc/host_key"
    command = [need("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "local", "-f", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise Refused("ssh-keygen failed", provider="local", what="create", evidence=done.stderr[-500:])
    return " ".join((folder / "etc/host_key.pub").read_text(encoding="ascii").split()[:2])


@cache
def _kex() -> str:
    """Those of our key exchanges that this OpenSSH knows: an unknown name stops sshd."""
    ssh = find("ssh")
    if ssh is None:
        return ",".join(_KEX[1:])
    known = subprocess.run([ssh, "-Q", "kex"], capture_output=True, text=True, check=False).stdout.split()
    return ",".join(name for name in _KEX if name in known) or ",".join(_KEX[1:])


def environment(seen: Inside, machine_id: str) -> dict[str, str]:
    """What every process of the machine starts with: of the caller's, only how this host reaches the network."""
    ours = os.path.dirname(base_python())  # last: wins only where the host has no python3 of its own
    return {
        "HOME": seen.home,
        "USER": seen.user,
        "LOGNAME": seen.user,
        "SHELL": seen.shell,
        "PATH": f"{seen.etc}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{ours}",
        "LANG": "C.UTF-8",
        "TMPDIR": seen.tmp,
        "TMUX_TMPDIR": seen.tmp,
        MARKER: machine_id,
        **{name: os.environ[name] for name in NETWORK_VARIABLES if _plain(os.environ.get(name))},
    }


def _plain(value: str | None) -> bool:
    """True for a value that sshd_config can carry between quotes."""
    return bool(value) and '"' not in str(value) and "\n" not in str(value)


def build(folder: Path, final: Path, mode: Mode, machine_id: str, hook: str, public_key: str) -> Inside:
    """Fill a machine's folder, which will be renamed to `final`."""
    seen = inside(mode, final)
    lay_out(folder, seen)
    env = environment(seen, machine_id)
    etc = folder / "etc"
    shutil.copyfile(pid1.__file__, etc / "pid1.py")
    (etc / "hook.sh").write_text(hook, encoding="utf-8")
    (etc / "authorized_keys").write_text(public_key.strip() + "\n", encoding="utf-8")
    (etc / "sshd_config").write_text(_sshd_config(seen, env, mode), encoding="utf-8")
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    enter = etc / "enter.sh"  # for sessions without namespaces: passwd's home and /etc/profile are the host's
    enter.write_text(
        f'#!/bin/bash\n{exports}cd "$HOME" || exit 1\n'
        'if [ -n "$SSH_ORIGINAL_COMMAND" ]; then exec bash -c "$SSH_ORIGINAL_COMMAND"; fi\n'
        "exec bash --login\n",
        encoding="utf-8",
    )
    enter.chmod(0o700)
    # Login shells, which tmux starts too, read /etc/profile, and that sets another PATH.
    profile = folder / "root/home/.profile"
    profile.write_text(
        f'export PATH="{env["PATH"]}" TMUX_TMPDIR="{seen.tmp}"\nPS1=\'\\u@' + machine_id[-6:] + ":\\w\\$ '\n",
        encoding="utf-8",
    )
    return seen


def _sshd_config(seen: Inside, env: dict[str, str], mode: Mode) -> str:
    sftp = next((path for path in _SFTP if os.path.exists(path)), "internal-sftp")
    lines = [
        f"HostKey {seen.etc}/host_key",
        f"AuthorizedKeysFile {seen.etc}/authorized_keys",
        "StrictModes no",  # inside a user namespace the folders above belong to nobody we could name
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        f"KexAlgorithms {_kex()}",
        f"Ciphers {_CIPHERS}",
        "MaxSessions 500",  # the default of 10 is below what one controller and a few `gpujob ssh` open
        "MaxStartups 500",
        "UseDNS no",
        "PrintMotd no",
        "PrintLastLog no",
        "PidFile none",
        "LogLevel ERROR",
        "AcceptEnv LANG LC_*",
        f"Subsystem sftp {sftp}",
        "SetEnv " + " ".join(f'{name}="{value}"' for name, value in env.items()),
    ]
    if mode == "subreaper":
        lines.append(f"ForceCommand {seen.etc}/enter.sh")
    return "\n".join(lines) + "\n"


def stand_in_gpus(folder: Path, machine_id: str, gpu: str, vram_gb: int, count: int) -> None:
    """Give the machine an imitation of `nvidia-smi` and the file that drives it."""
    program = folder / "etc/bin/nvidia-smi"
    source = Path(nvidia_smi.__file__).read_text(encoding="utf-8")
    program.write_text(f"#!{base_python()} -IS\n{source}", encoding="utf-8")
    program.chmod(0o755)
    write_atomic(folder / "etc/gpus.json", nvidia_smi.describe(machine_id, gpu, vram_gb, count))


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def start(folder: Path, record: Record, mode: Mode, listener: socket.socket) -> tuple[Process, ...]:
    """Start pid 1 and wait for its first word, not for its sshd. It hangs on no process of ours.

    Raises `Refused` when it does not come up; then nothing runs and nothing will.
    """
    if mode == "subreaper" and os.getuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # sshd as root refuses to run without it
    seen = inside(mode, folder)
    with contextlib.ExitStack() as opened:
        fds = [opened.enter_context(_opened(path)) for path in (folder / "ctl", "/proc")]
        fds.append(listener.fileno())
        # The host's files are in reach of a machine only where its reclaim waits for one of them.
        if (read_text(folder / "ctl/reclaim") or "").startswith("file "):
            fds.append(opened.enter_context(_opened("/")))
        words = zip_longest(("--ctl", "--proc", "--listen", "--root"), map(str, fds), fillvalue="-1")
        command = [base_python(), "-I", "-S", f"{seen.etc}/pid1.py", *(w for pair in words for w in pair)]
        command += ["--mode", mode, "--etc", seen.etc, "--sshd", need("sshd")]
        argv, env = wrap(mode, folder, command, environment(seen, record.id))
        with open(folder / "ctl/launch.log", "ab") as log:
            # --fork: init becomes its parent, so no terminal and no controller is left in its life.
            subprocess.run(
                [need("setsid"), "--fork", *argv],
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                check=False,
            )
    return _first_word(folder)


def _first_word(folder: Path) -> tuple[Process, ...]:
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        text = read_text(folder / "ctl/pid")
        if text is not None:
            return parse_identity(text)
        if not folder.exists():
            raise Refused("destroyed while it started", provider="local", what="create")
        time.sleep(0.003)
    raise Refused(
        f"the machine's first process did not start within {START_TIMEOUT_S:.0f} s",
        provider="local",
        what="create",
        evidence=(read_text(folder / "ctl/launch.log") or "")[-500:],
    )
