"""The books against real processes: kill -9 in a transaction, readers beside a writer, 20 verbs at once (B184)."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.home import Home
from orchestrator.model import Job
from orchestrator.store import Fenced, Store

ROOT = Path(__file__).parent.parent.parent

PREAMBLE = """
import sys
from pathlib import Path
from orchestrator.home import Home
from orchestrator.model import Job, Task
from orchestrator.store import Store
home = Home(Path(sys.argv[1]) / "state", Path(sys.argv[1]) / "config")
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "state", tmp_path / "config")


def start(folder: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + code, str(folder), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def job_row(name: str) -> Job:
    return Job(f"{name}.1-ab12", name, 1, {"name": name}, "h", "", "/base", 10.0)


HALF_A_DECISION = """
store = Store.open_writer(home, 5, deployment="abc123")
store.add_job(Job("kept.1-ab12", "kept", 1, {}, "h", "", "/base", 10.0), [])
with store.transaction():
    store.add_job(Job("lost.1-ab12", "lost", 1, {"run": "x" * 500_000}, "h", "", "/base", 11.0), [])
    store.extend("kept.1-ab12", 60.0, 12.0)
    if sys.argv[2] == "inside":
        print("ready", flush=True)
        sys.stdin.read()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("where", "names", "extra"), [("inside", ["kept"], 0), ("after", ["kept", "lost"], 60)])
def test_a_kill_loses_the_open_transaction_and_nothing_else(
    tmp_path: Path, home: Home, where: str, names: list[str], extra: float
) -> None:
    process = start(tmp_path, HALF_A_DECISION, where)
    assert said(process) == "ready"
    kill(process)
    with Store.open_writer(home, 6) as store:
        assert sorted(job.name for job in store.jobs()) == names
        assert store.job("kept.1-ab12").ttl_extra_s == extra
        store.cancel("kept.1-ab12", 20.0)
        assert store.job("kept.1-ab12").cancel_at == 20.0


def test_a_kill_while_the_books_are_made_leaves_usable_books(tmp_path: Path, home: Home) -> None:
    code = """
from orchestrator.store import schema
def stop(*_):
    print("ready", flush=True)
    sys.stdin.read()
schema._publish = stop
Store.open_writer(home, 5)
"""
    process = start(tmp_path, code)
    assert said(process) == "ready"
    kill(process)
    with Store.open_requester(home) as verb:
        assert verb.ask("apply", {}, 10.0) == 1


def test_a_reader_works_while_a_writer_is_in_the_middle_of_a_decision(tmp_path: Path, home: Home) -> None:
    process = start(tmp_path, HALF_A_DECISION, "inside")
    assert said(process) == "ready"
    try:
        with Store.open_reader(home) as reader:
            assert [line.name for line in reader.summaries()] == ["kept"]
            assert reader.find("kept").job == "kept.1-ab12"
    finally:
        kill(process)


def test_a_controller_that_was_stopped_is_fenced_when_it_wakes(tmp_path: Path, home: Home) -> None:
    code = """
from orchestrator.store import Fenced
store = Store.open_writer(home, 5)
print("ready", flush=True)
sys.stdin.readline()
try:
    store.add_job(Job("zombie.1-ab12", "zombie", 1, {}, "h", "", "/base", 10.0), [])
except Fenced as fenced:
    print("fenced", flush=True)
"""
    process = start(tmp_path, code)
    assert said(process) == "ready"
    with Store.open_writer(home, 6) as store:
        store.add_job(job_row("mine"), [])
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert said(process) == "fenced"
        process.communicate()
        assert [job.name for job in store.jobs()] == ["mine"]
        with pytest.raises(Fenced):
            Store.open_writer(home, 5)


ASKING = """
print("ready", flush=True)
sys.stdin.readline()
with Store.open_requester(home) as verb:
    for number in range(10):
        verb.ask("note", {"who": sys.argv[2], "number": number}, float(number))
"""


def test_twenty_verbs_at_once_lose_no_request_not_even_the_first_that_make_the_books(
    tmp_path: Path, home: Home
) -> None:
    verbs = [start(tmp_path, ASKING, str(who)) for who in range(20)]
    assert {said(verb) for verb in verbs} == {"ready"}
    for verb in verbs:
        assert verb.stdin is not None
        verb.stdin.write("go\n")
        verb.stdin.flush()
    for verb in verbs:
        verb.communicate(timeout=60)
    assert [verb.returncode for verb in verbs] == [0] * 20
    with Store.open_writer(home, 5) as store:
        asked = sorted((int(one.args["who"]), one.args["number"]) for one in store.open_requests())
        assert asked == [(who, number) for who in range(20) for number in range(10)]
        for one in store.open_requests():
            store.answer(one.id, {"ok": True}, 20.0)
        assert store.open_requests() == ()
    assert [file.name for file in home.state.iterdir()] == ["gpujob.db"]


def test_writers_in_turn_lose_no_update(tmp_path: Path, home: Home) -> None:
    """One connection commits while others append: neither waits for ever nor overwrites."""
    with Store.open_writer(home, 5) as store:
        store.add_job(job_row("busy"), [])
        verbs = [start(tmp_path, ASKING, str(who)) for who in range(4)]
        assert {said(verb) for verb in verbs} == {"ready"}
        for verb in verbs:
            assert verb.stdin is not None
            verb.stdin.write("go\n")
            verb.stdin.flush()
        for _ in range(50):
            store.extend("busy.1-ab12", 1.0, 20.0)
        for verb in verbs:
            verb.communicate(timeout=60)
        assert store.job("busy.1-ab12").ttl_extra_s == 50.0
        assert len(store.open_requests()) == 40


def test_the_light_door_imports_nothing_heavy(tmp_path: Path, home: Home) -> None:
    with Store.open_writer(home, 5) as store:
        store.add_job(job_row("one"), [])
        assert store.spent("one.1-ab12") == Decimal(0)
    code = """
with Store.open_reader(home) as store:
    store.summaries()
    store.find("one")
heavy = {"pydantic", "yaml", "rich", "paramiko", "jobspecs.schema", "importlib.metadata", "asyncio", "difflib"}
print(sorted(heavy & set(sys.modules)), flush=True)
"""
    process = start(tmp_path, code)
    assert process.communicate()[0].strip() == "[]"
