"""Runs inside a docker image: exit codes, output, environment, signals and the end of the tree, as without one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_machine import Machine, all_pids, is_alive, kill, pid_in, wait_for
from docker_here import IMAGE, install, podman_works

BOX = {"image": IMAGE, "gpus": 0, "shm_bytes": 64 << 20, "mounts": []}


@pytest.fixture(scope="module", params=["podman", "stand-in"])
def docker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("docker")
    if request.param == "podman" and not podman_works(folder):
        pytest.skip("podman cannot start a container on this host")
    yield install(request.param, folder / request.param)
    subprocess.run([folder / request.param / "bin" / "docker", "rm", "-fa"], capture_output=True, check=False)


@pytest.fixture
def quick(docker: Path) -> None:
    """For tests whose answer does not hang on a real container: podman takes seconds for each."""
    if is_real(docker):
        pytest.skip("with the stand-in only")


@pytest.fixture
def machine(docker: Path, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, started=False)
    made.path = f"{docker}:{made.path}"
    with made:
        yield made.start()


def is_real(docker: Path) -> bool:
    return "podman" in docker.parts


def running(command: str) -> list[int]:
    """Living processes of exactly this command line."""
    found = []
    for pid in all_pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
        if words == command and is_alive(pid):
            found.append(pid)
    return found


def containers(docker: Path) -> list[str]:
    done = subprocess.run([docker / "docker", "ps", "-aq"], capture_output=True, text=True, check=False)
    return done.stdout.split() if is_real(docker) else []


def test_stages_share_one_container_and_exit_codes_are_true(machine: Machine, docker: Path) -> None:
    if is_real(docker):
        machine.order({"setup": "touch /made-by-setup; echo set up", "run": "ls /made-by-setup; exit 3"}, container=BOX)
        assert machine.ended()["rc"] == 3
        assert machine.log("run") == b"/made-by-setup\n"
        assert not os.path.exists("/made-by-setup")
    else:
        machine.order({"setup": "echo set up", "run": "exit 3"}, container=BOX)
        assert machine.ended()["rc"] == 3
    (told,) = machine.events("image")
    assert (told["run"], told["image"]) == ("t0.1", IMAGE)
    assert told["id"]
    assert "@sha256:" in told["digest"]
    record = machine.do("environment", job="digits")["image"]
    assert record == {"id": told["id"], "digest": told["digest"]}
    said = machine.log("setup")
    assert said.startswith(b"gpujob: the image " + IMAGE.encode())
    assert b"the copy that is on this machine is used\n" in said
    assert said.endswith(b"set up\n")
    machine.order({"run": "kill -SEGV $$"}, n=2, container=BOX)
    assert machine.ended(2)["rc"] == 128 + 11
    machine.order({"setup": "exit 4", "run": "echo never"}, n=3, container=BOX)
    assert (machine.ended(3)["stage"], machine.run(3)["rc"]) == ("setup", 4)
    wait_for(lambda: containers(docker) == [], "no container is left")


def test_the_environment_is_the_images_and_the_jobs_and_not_the_machines(machine: Machine, docker: Path) -> None:
    names = "$PATH|$SEED|$TOKEN|$GPUJOB_OUT|$GPUJOB_ATTEMPT|${PIP_CERT-none}|$PWD|$(id -u)"
    script = f'echo "{names}"; echo made > "$GPUJOB_OUT/x"'
    machine.order(script, container=BOX, env={"SEED": "4'2\n3"}, secrets={"TOKEN": "hush"})
    assert machine.ended()["rc"] == 0
    said = machine.log().decode()
    path, seed, token, out, attempt, pip, folder, user = (
        said[said.rindex("this machine is used") :].partition("\n")[2].strip().split("|")
    )
    assert "pyenv" not in path
    assert (seed, token, attempt, pip, user) == ("4'2\n3", "hush", "1", "none", str(os.getuid()))
    assert out == str(machine.job / "out" / "t0.1")
    assert folder == str(machine.job / "work" / "base")
    assert (machine.job / "out" / "t0.1" / "x").read_text() == "made\n"
    assert not list(machine.folder().glob("*.env"))  # the secrets went with the first line that was run


def test_a_signal_reaches_the_job_and_its_grace_holds(machine: Machine) -> None:
    script = "trap 'echo saving; sleep 0.3; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    machine.order(script, container=BOX)
    machine.wait_log(b"up")
    machine.do("signal", task="t0", n=1, why="interruption", grace_s=20)
    run = machine.ended()
    assert (run["rc"], run["signalled"]) == (0, "interruption")
    assert machine.log().endswith(b"saving\nsaved\n")


@pytest.mark.usefixtures("quick")
def test_a_program_that_ignores_its_signal_is_killed_when_the_grace_is_over(machine: Machine) -> None:
    machine.order("trap '' TERM; echo up; while :; do sleep 0.1; done", container=BOX)
    machine.wait_log(b"up")
    machine.do("signal", task="t0", n=1, why="cancel", grace_s=0.5)
    run = machine.ended()
    assert (run["rc"], run["signalled"]) == (137, "cancel")


def test_the_whole_tree_ends_with_the_run_also_what_shed_its_marks(machine: Machine, docker: Path) -> None:
    shed = "env -i setsid sleep 98761 &" if is_real(docker) else ""  # only a container holds what hides so
    machine.order(f"setsid sleep 98762 & {shed} sleep 98763 & echo up; wait", container=BOX)
    machine.wait_log(b"up")
    wait_for(lambda: running("sleep 98762") and running("sleep 98763"), "its children run")
    assert machine.do("close", task="t0", n=1)["dead"] is True
    for number in (98761, 98762, 98763):
        assert running(f"sleep {number}") == []
    assert containers(docker) == []


def test_a_wrapper_that_is_killed_leaves_no_container(machine: Machine, docker: Path) -> None:
    machine.order("sleep 98764 & echo $$ > $GPUJOB_OUT/pid; wait", container=BOX)
    pid_in(machine.job / "out" / "t0.1" / "pid")
    wait_for(lambda: running("sleep 98764"), "the job runs")
    kill(machine.wrapper())
    run = machine.ended()
    assert (run["rc"], run["lost"]) == (137, True)
    assert running("sleep 98764") == []
    wait_for(lambda: containers(docker) == [], "the container is gone")


@pytest.mark.usefixtures("quick")
def test_output_after_the_shells_end_is_kept(machine: Machine) -> None:
    machine.order("(trap '' TERM; sleep 0.5; echo late) & echo early", container=BOX)
    assert machine.ended()["rc"] == 0
    assert machine.log().endswith(b"early\nlate\n")


@pytest.mark.usefixtures("quick")
def test_an_image_that_cannot_be_had_is_said(machine: Machine) -> None:
    machine.order({"setup": "true", "run": "true"}, container={**BOX, "image": "localhost/nowhere:9"})
    run = machine.ended()
    assert (run["stage"], run["rc"]) == ("setup", 125)
    assert b"gpujob: the image cannot be had\n" in machine.log("setup")
    assert not (machine.folder(1) / "setup.env").exists(), "its variables, secrets among them, stay nowhere"


def test_a_machine_without_docker_says_so(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "tmux", "cp", "sleep", "python3"):
        for place in ("/usr/bin", "/bin"):
            if os.path.exists(f"{place}/{name}") and not (programs / name).exists():
                (programs / name).symlink_to(f"{place}/{name}")
    made = Machine(tmp_path / "home", started=False)
    made.path = str(programs)
    with made:
        made.start().order("true", container=BOX)
        run = made.ended()
        assert run["rc"] == 125
        assert "no docker" in run["detail"]


@pytest.mark.parametrize(
    "wrong", [{"image": ""}, {"image": "-v /:/"}, {"gpus": "all"}, {"mounts": ["data"]}, {"mounts": ["/a:/b"]}]
)
def test_a_container_that_is_asked_for_wrongly_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with Machine(tmp_path) as machine:
        answer = machine.ask("order", **machine.order_of("true", container={**BOX, **wrong}))
        assert (answer["ok"], answer["error"]) == (False, "invalid")
