"""What a container company's machine runs when it starts, run for real: in a sandbox, since it writes to /usr/local."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from providers import autodl, runpod, vast
from providers.startup import UNPACK, cloud_config, container_start, packed, unpacked

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX somebody's key".replace(
    "'", ""
)
HOOK = 'echo "$0 ran" >>"$HOME/hook.log"\n'


@pytest.fixture
def box(tmp_path: Path) -> Path:
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed")
    (tmp_path / "home").mkdir()
    return tmp_path


def run(box: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The script as root of a container would run it, with an own /usr/local/sbin that lasts."""
    sbin = box / "sbin"
    sbin.mkdir(exist_ok=True)
    names = [word for name, value in env.items() for word in ("--setenv", name, value)]
    home = str(box / "home")
    argv = ["bwrap", "--unshare-user", "--uid", "0", "--gid", "0", "--ro-bind", "/", "/", "--dev", "/dev"]
    argv += ["--tmpfs", "/tmp", "--bind", home, home, "--bind", str(sbin), "/usr/local/sbin", "--setenv", "HOME", home]
    return subprocess.run([*argv, *names, "sh", "-c", script], capture_output=True, text=True, timeout=30, check=False)


def until(path: Path, text: str) -> None:
    for _ in range(200):
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} never said {text!r}")


def test_hook_key_and_power_off_are_there_after_each_start(box: Path) -> None:
    script = container_start(HOOK, PUBLIC, "echo off $POD >>$HOME/off.log", serve_ssh=False)
    for _ in range(2):
        done = run(box, script, POD="pod-7")
        assert (done.returncode, done.stderr) == (0, "")
    home = box / "home"
    until(home / "hook.log", "ran\n" + f"{home}/.gpujob-boot.sh ran\n")
    assert (home / ".ssh/authorized_keys").read_text() == PUBLIC + "\n"
    assert (home / ".ssh/authorized_keys").stat().st_mode & 0o777 == 0o600
    poweroff = box / "sbin/poweroff"
    assert poweroff.stat().st_mode & 0o777 == 0o700
    # A login over SSH has none of the container's variables: they are in the text already.
    assert run(box, "env -i HOME=$HOME /usr/local/sbin/poweroff").returncode == 0
    assert (home / "off.log").read_text() == "off pod-7\n"


def test_runpods_power_off_removes_its_own_pod_with_its_own_key(box: Path) -> None:
    tool = box / "sbin" / "runpodctl"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$RUNPOD_API_KEY $*" >>"$HOME/ctl.log"\n[ "$1" != remove ]\n')
    tool.chmod(0o755)
    script = container_start(HOOK, PUBLIC, runpod.POWEROFF, serve_ssh=False)
    assert run(box, script, RUNPOD_API_KEY="pod-key", RUNPOD_POD_ID="pod7").returncode == 0
    assert run(box, "poweroff", PATH="/usr/local/sbin:/usr/bin:/bin").returncode == 0
    assert (box / "home/ctl.log").read_text() == "pod-key remove pod pod7\npod-key stop pod pod7\n"


@pytest.mark.parametrize("tool", ["curl", "wget", "python3"])
def test_vasts_power_off_deletes_its_own_contract_with_whatever_the_image_has(box: Path, tool: str) -> None:
    fake = box / "home" / "bin"
    fake.mkdir()
    (fake / tool).write_text('#!/bin/sh\nprintf "%s\\n" "$@" >>"$HOME/sent.log"\n')
    (fake / tool).chmod(0o755)
    for name in ("sh", "cat", "printf"):
        (fake / name).symlink_to(shutil.which(name) or name)
    script = container_start(HOOK, PUBLIC, vast.POWEROFF.format(url="https://vast.example"), serve_ssh=False)
    assert run(box, script, CONTAINER_ID="883", CONTAINER_API_KEY="own-key").returncode == 0
    done = run(box, f"PATH={fake} /usr/local/sbin/poweroff")
    assert done.returncode == 0, done.stderr
    sent = (box / "home/sent.log").read_text()
    assert "https://vast.example/api/v0/instances/883/" in sent
    assert "Authorization: Bearer own-key" in sent
    assert "DELETE" in sent


def test_the_image_s_own_start_goes_on_after_the_hook(box: Path) -> None:
    script = container_start(HOOK, PUBLIC, "true", serve_ssh=True)
    assert script.index(".gpujob-boot.sh") < script.index("/start.sh") < script.index("apt-get")
    done = subprocess.run(["sh", "-n", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_packing_is_lossless_and_stable() -> None:
    text = "line\n" * 1000 + "ünïcode 'quotes' \"double\" $x `y`\n"
    assert unpacked(packed(text)) == text
    assert packed(text) == packed(text)


def test_user_data_is_what_cloud_init_reads() -> None:
    import yaml

    said = yaml.safe_load(cloud_config(HOOK, "ubuntu"))
    files = {each["path"]: unpacked(each["content"]) for each in said["write_files"]}
    assert files["/usr/local/lib/gpujob/boot.sh"] == HOOK
    unit = files["/etc/systemd/system/gpujob-boot.service"]
    assert "User=ubuntu\n" in unit
    assert "KillMode=process\n" in unit
    assert "WantedBy=multi-user.target\n" in unit


def test_autodls_start_command_gives_logins_conda_and_a_data_disk_and_can_run_again(box: Path) -> None:
    home = box / "home"
    (home / ".bashrc").write_text("case $- in *i*) ;; *) return;; esac\nalias ll='ls -l'\n")
    before = autodl.BEFORE.format(mount=home / "autodl-tmp")
    script = before + container_start(HOOK, PUBLIC, autodl.POWEROFF, serve_ssh=False) + autodl.AFTER
    for _ in range(2):
        done = run(box, f"echo {packed(script)} | {UNPACK} >{autodl.START} && sh {autodl.START}")
        assert (done.returncode, done.stderr) == (0, "")
    until(home / "hook.log", "ran\n" + f"{home}/.gpujob-boot.sh ran\n")
    assert (home / "autodl-tmp").is_dir()
    # Debian's bash reads this for a command over SSH as well, and mostly leaves it in the second line.
    first, *others = (home / ".bashrc").read_text().splitlines()
    assert first == "PATH=/root/miniconda3/bin:$PATH; export PATH # gpujob-path"
    assert others == ["case $- in *i*) ;; *) return;; esac", "alias ll='ls -l'"]
    assert (box / "sbin/poweroff").read_text() == "#!/bin/sh\nexec /usr/bin/shutdown -h now\n"
