"""apply and plan: what is refused before anything is asked, what is asked, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from cli_books import Books, home_at, writer
from cli_controller import ScriptedController

from orchestrator.cli import apply, client, main
from orchestrator.home import Home
from orchestrator.model import Outcome, Reason

Run = Callable[..., tuple[int, str, str]]
SPEC = """\
name: digits
gpu: RTX-4090
providers: [local]
workdir: .
run: |
  python train.py "$GPUJOB_RESUME_FROM"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("GPUJOB_NO_KEYRING", "1")
    for name in ("GPUJOB_CONTROLLER", "GPUJOB_CONFIG", "GPUJOB_LOCAL_HOME", *apply.CI_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client, "wake", lambda home: None)
    monkeypatch.setattr(apply, "CONTAINER_MARKS", ())
    return home_at(tmp_path / "h")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text("print('hi')\n")
    (folder / ".env").write_text("TOKEN=1\n")
    path = folder / "gpujob.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = main.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def made(args: Mapping[str, Any]) -> dict[str, Any]:
    return {"ok": True, "id": "digits-1-abcd", "name": args["job"]["name"], "run": 1, "unchanged": False}


def test_apply_asks_once_with_everything_that_the_controller_needs(home: Home, spec: Path, run: Run) -> None:
    with ScriptedController(home, {"apply": made}) as controller:
        code, out, err = run("apply", "-y", spec)
    assert (code, len(controller.asked)) == (0, 1)
    wish = controller.asked[0][1]
    assert (wish["mode"], wish["fresh"], wish["replace_name"], wish["max_cost"]) == ("new", False, "", None)
    job = wish["job"]
    assert job["spec"]["providers"] == ["local"]
    assert job["base_dir"] == str(spec.parent)
    assert job["play"] is True
    assert (home.snapshots / job["snapshot"]).exists()
    assert Decimal(job["price_cap"]) > 0
    assert Decimal(job["worst_case"]) > Decimal(job["price_cap"])
    assert job["results_dir"] == str(spec.parent / "gpujob-results" / "digits")
    assert "digits.1 applied" in out
    assert "at most" in err
    assert "(play)" in err


def test_plan_and_wish_name_the_data_and_what_of_it_is_sent(home: Home, spec: Path, run: Run) -> None:
    for number in range(10):
        (spec.parent / "set").mkdir(exist_ok=True)
        (spec.parent / "set" / f"{number}.txt").write_text("abc")
    spec.write_text(SPEC + "data: {from: set, sample: 20%}\n")
    code, out, _ = run("plan", spec)
    assert code == 0
    assert "data       set: 2 files, 6 bytes, 0.2 of the files, sent from this computer" in out.replace(
        " B,", " bytes,"
    )
    with ScriptedController(home, {"apply": made}) as controller:
        run("apply", "-y", spec)
    kept = controller.asked[0][1]["job"]["data_manifests"]["set"]
    assert (kept["kind"], kept["count"], kept["bytes"], kept["sample"]) == ("local", 2, 6, 0.2)
    assert (home.manifests / kept["hash"]).read_text().count("\n") == 2
    (spec.parent / "set" / "empty.txt").touch()
    spec.write_text(SPEC + "data: set\n")
    code, _, err = run("plan", spec)
    assert code == 2
    assert "empty.txt: zero-byte files" in err
    assert "allow_empty: true" in err


def test_what_an_ignore_file_keeps_back_is_said_also_to_those_who_do_not_look(home: Home, spec: Path, run: Run) -> None:
    """A folder `data` that .gitignore lists is missed only on the machine, when it is paid for (B054)."""
    (spec.parent / "data").mkdir()
    (spec.parent / "data" / "labels.csv").write_text("x" * 2000)
    (spec.parent / ".gitignore").write_text("data/\n*.log\n")
    (spec.parent / "a.log").write_text("x")
    with ScriptedController(home, {"apply": made}):
        _, _, err = run("apply", "-y", spec)
    assert "digits: not sent: data/ (.gitignore, 2.0 kB), a.log (.gitignore, 1 B); `gpujob plan` lists" in err
    assert ".env" not in err  # what is never sent is no surprise


def test_the_json_answer_is_one_object(home: Home, spec: Path, run: Run) -> None:
    with ScriptedController(home, {"apply": made}):
        code, out, _ = run("apply", "-y", "-o", "json", spec)
    found = json.loads(out)
    assert code == 0
    assert {"id", "name", "worst_case", "price_cap", "results"} <= set(found)
    assert found["worst_case"]["play"] is True


def test_without_a_terminal_and_without_yes_nothing_is_done(home: Home, spec: Path, run: Run) -> None:
    with ScriptedController(home, {"apply": made}) as controller:
        code, _, err = run("apply", spec)
    assert (code, controller.asked) == (2, [])
    assert "-y" in err


@pytest.mark.parametrize(("answer", "asked"), [("y\n", 1), ("\n", 1), ("n\n", 0), ("", 0)])
def test_the_question(
    answer: str, asked: int, home: Home, spec: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with ScriptedController(home, {"apply": made}) as controller:
        code, _, err = run("apply", spec)
    assert len(controller.asked) == asked
    assert code == (0 if asked else 2)
    assert "Proceed?" in err
    assert "worst case" in err


def test_in_ci_apply_without_follow_is_refused(
    home: Home, spec: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CI", "true")
    with ScriptedController(home, {"apply": made}) as controller:
        code, _, err = run("apply", "-y", spec)
        assert (code, controller.asked) == (2, [])
        assert "--follow" in err
        monkeypatch.setenv("GPUJOB_CONTROLLER", "here")
        assert run("apply", "-y", spec)[0] == 0
    monkeypatch.delenv("GPUJOB_CONTROLLER")
    monkeypatch.delenv("CI")
    mark = tmp_path / "mark"
    mark.touch()
    monkeypatch.setattr(apply, "CONTAINER_MARKS", (str(mark),))
    assert run("apply", "-y", spec)[0] == 2


def test_of_several_specs_one_bad_one_stops_all(home: Home, spec: Path, run: Run) -> None:
    bad = spec.parent / "bad.yaml"
    bad.write_text(SPEC.replace("digits", "other").replace("RTX-4090", "RTX-4099"))
    twin = spec.parent / "twin.yaml"
    twin.write_text(SPEC)
    with ScriptedController(home, {"apply": made}) as controller:
        code, _, err = run("apply", "-y", spec, bad)
        assert (code, controller.asked) == (2, [])
        assert f"{bad}:2:" in err
        assert run("apply", "-y", spec, twin)[0] == 2
        twin.write_text(SPEC.replace("digits", "other"))
        assert run("apply", "-y", "-f", spec, twin)[0] == 0
    assert [args["job"]["name"] for _, args in controller.asked] == ["digits", "other"]


def test_options_change_the_spec_for_this_call(
    home: Home, spec: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec.write_text(SPEC.replace("providers: [local]\n", "") + "env: {SEED: }\n")
    (spec.parent / "vars").write_text("# mine\nexport A='x y'\nB=2\n")
    monkeypatch.setenv("FROM_ME", "yes")
    with ScriptedController(home, {"apply": made}) as controller:
        assert run("apply", "-y", spec)[0] == 2
        code, _, err = run(
            "apply", "-y", spec, "--provider", "local", "--name", "tune", "--set", "ttl=3h", "--set", "retry.max=2",
            "--env", "SEED=7", "--env", "FROM_ME", "--env-file", str(spec.parent / "vars"),
        )  # fmt: skip
    assert code == 0, err
    document = controller.asked[0][1]["job"]["spec"]
    assert (document["name"], document["ttl"], document["retry"]["max"]) == ("tune", "3h", 2)
    assert document["env"] == {"SEED": "7", "A": "x y", "B": "2", "FROM_ME": "yes"}
    assert document["providers"] == ["local"]


def test_a_spec_from_stdin_counts_from_the_working_folder(
    home: Home, spec: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    from types import SimpleNamespace

    monkeypatch.chdir(spec.parent)
    stdin = SimpleNamespace(buffer=io.BytesIO(SPEC.encode()), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    with ScriptedController(home, {"apply": made}) as controller:
        assert run("apply", "-y", "-")[0] == 0
    assert controller.asked[0][1]["job"]["base_dir"] == str(spec.parent)


def test_a_missing_secret_is_named_before_anything_is_asked(
    home: Home, spec: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    spec.write_text(SPEC + "secrets: [HF_TOKEN]\n")
    values: list[bytes] = []

    def keep(args: Mapping[str, Any]) -> dict[str, Any]:
        values.append((home.secrets(args["job"]["spool"]) / "HF_TOKEN").read_bytes())
        return made(args)

    with ScriptedController(home, {"apply": keep}) as controller:
        code, _, err = run("apply", "-y", spec)
        assert (code, controller.asked) == (2, [])
        assert "gpujob secret set HF_TOKEN" in err
        monkeypatch.setenv("HF_TOKEN", "v4lue-of-it")
        assert run("apply", "-y", spec)[0] == 0
    assert values == [b"v4lue-of-it"]
    assert "v4lue" not in json.dumps(controller.asked[0][1])
    assert list((home.state / "secrets").iterdir()) == []


def test_a_refused_wish_leaves_no_secret_behind(
    home: Home, spec: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "v4lue-of-it")
    spec.write_text(SPEC + "secrets: [HF_TOKEN]\n")
    with ScriptedController(home, {"apply": lambda args: {"ok": False, "error": "no", "code": 2}}):
        assert run("apply", "-y", spec)[0] == 2
    assert list((home.state / "secrets").iterdir()) == []


def test_limits_of_the_config_stop_apply_even_with_yes(home: Home, spec: Path, run: Run) -> None:
    home.config_file.write_text("limits: {machines: 0}\n")
    with ScriptedController(home, {"apply": made}) as controller:
        code, _, err = run("apply", "-y", spec)
    assert (code, controller.asked) == (2, [])
    assert "limits.machines is 0" in err


def test_a_moment_that_is_past_is_refused_where_it_stands_before_anything_is_rented(
    home: Home, spec: Path, run: Run
) -> None:
    spec.write_text(SPEC + "finish_by: 2001-02-03T04:05:06+00:00\n")
    line = len(spec.read_text().splitlines())
    with ScriptedController(home, {"apply": made}) as controller:
        code, _, err = run("apply", "-y", spec)
    assert (code, controller.asked) == (2, []), err
    assert f"{spec}:{line}:1: finish_by: 2001-02-0" in err
    assert "is past, so nothing could be steered by it (a later moment, or none: `ttl` and `budget` alone" in err


def test_the_default_limits_are_written_at_first_use(home: Home, spec: Path, run: Run) -> None:
    with ScriptedController(home, {"apply": made}):
        assert run("apply", "-y", spec)[0] == 0
    assert "per_job: 50.00 USD" in home.config_file.read_text()


def test_a_price_cap_below_every_offer_waits_and_no_offer_without_a_cap_is_exit_4(
    home: Home, spec: Path, run: Run
) -> None:
    with ScriptedController(home, {"apply": made}) as controller:
        assert run("apply", "-y", spec, "--set", "max_price=0.01 USD")[0] == 0
        code, _, err = run("apply", "-y", spec, "--set", "memory=900TB")
    assert len(controller.asked) == 1
    assert code == 4
    assert "set max_price" in err


def test_the_same_spec_of_a_live_job_needs_no_question(
    home: Home, spec: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedController(home, {"apply": made}) as controller:
        run("apply", "-y", spec)
    job = controller.asked[0][1]["job"]
    with writer(home) as store:
        books = Books(store, "digits")
        store._db.execute(
            "UPDATE jobs SET spec_hash = ?, snapshot = ? WHERE id = ?", (job["spec_hash"], job["snapshot"], books.id)
        )
    answer = {"ok": True, "id": books.id, "name": "digits", "run": 1, "unchanged": True}
    with ScriptedController(home, {"apply": lambda args: answer}):
        code, out, err = run("apply", "-y", "-o", "table", spec)
        bare = run("apply", spec)
        monkeypatch.setenv("CI", "true")  # nothing is rented, so nobody need stay
        assert run("apply", "-y", "-o", "table", spec)[:2] == (0, out)
    assert code == 0
    assert "digits.1 unchanged" in out
    assert "at most" not in err
    assert (bare[0], bare[1]) == (0, out)
    assert "worst case" not in bare[2]


def test_a_changed_spec_of_a_live_job_needs_no_question_but_its_replacement_does(
    home: Home, spec: Path, run: Run
) -> None:
    with writer(home) as store:
        books = Books(store, "digits")
    answer = {"ok": True, "id": books.id, "name": "digits", "run": 1, "unchanged": False, "edited": ["ttl"]}
    with ScriptedController(home, {"apply": lambda args: answer}) as controller:
        code, out, err = run("apply", spec)
        assert (code, len(controller.asked)) == (0, 1)
        assert "digits.1 changed: ttl" in out
        assert "Proceed?" not in err
        code, _, err = run("apply", "--replace", spec)
        assert (code, len(controller.asked)) == (2, 1)
        assert "-y was not given" in err


def test_replace_says_what_is_thrown_away(home: Home, spec: Path, run: Run) -> None:
    from orchestrator.model import CheckpointRow

    with writer(home) as store:
        books = Books(store, "digits")
        rental = books.rent()
        books.run(rental)
        books.pay(rental, "0.25")
        store.checkpoint_durable(
            CheckpointRow(
                job=books.id, task="t0", n=1, name="step_250.npz", step=250, hash="c" * 64, bytes=10, parent="",
                verified_at=books.now,
            )
        )  # fmt: skip
    with ScriptedController(home, {"apply": made}) as controller:
        code, _, err = run("apply", "-y", "--replace", spec)
        assert code == 0
        assert "0.25 (play) were spent" in err
        assert "from its checkpoint of step 250, 50 steps are thrown away" in err
        _, _, err = run("apply", "-y", "--replace=digits", "--fresh", spec)
        assert "from the beginning, 300 steps are thrown away" in err
    wishes = [args for _, args in controller.asked]
    assert [(w["mode"], w["replace_name"], w["fresh"]) for w in wishes] == [
        ("replace", "", False), ("replace", "digits", True)
    ]  # fmt: skip


def test_flags_that_contradict_each_other(home: Home, spec: Path, run: Run) -> None:
    assert run("apply", "-y", "--again", "--replace", spec)[0] == 2
    assert run("apply", "-y", "--fresh", spec)[0] == 2
    assert run("apply")[0] == 2


def test_dry_run_is_plan(home: Home, spec: Path, run: Run) -> None:
    with ScriptedController(home, {}) as controller:
        code, out, _ = run("apply", "--dry-run", spec)
        also = run("apply", "--dryrun", spec)
    assert (code, also[0], controller.asked) == (0, 0, [])
    assert "worst case" in out


def test_following_an_ended_job_prints_the_summary_and_its_code(home: Home, spec: Path, run: Run) -> None:
    with writer(home) as store:
        books = Books(store, "digits")
        rental = books.rent()
        books.run(rental)
        books.pay(rental, "0.05")
        books.exit(rc=1)
        books.decide(Outcome.FAILED, Reason.FAILED, "KeyError: 'lr'", 1)
        books.finish(rental, Reason.FAILED)
    answer = {"ok": True, "id": books.id, "name": "digits", "run": 1, "unchanged": False}
    with ScriptedController(home, {"apply": lambda args: answer}):
        code, out, _ = run("apply", "-y", "--follow", spec)
    assert code == 1
    assert "digits: FAILED" in out
    assert "KeyError: 'lr'" in out
    assert "0.05 (play)" in out
    assert "nothing is billing" in out


# --- plan -----------------------------------------------------------------------------------------------


def test_plan_works_with_the_controller_dead_and_starts_none(home: Home, spec: Path, run: Run) -> None:
    code, out, _ = run("plan", spec)
    assert code == 0
    assert not home.socket.exists()
    assert max(len(line) for line in out.splitlines()) <= 120
    words = ["worst case", "price cap", "reserve", "controller       no", "provider         yes", "stand-in", "(play)"]
    words += ["NEEDS THIS COMPUTER AWAKE", "gpujob-results/digits", "not sent  .env"]
    assert [each for each in words if each not in out] == []


def test_plan_json(home: Home, spec: Path, run: Run) -> None:
    found = json.loads(run("plan", "-o", "json", spec, "--set", "ttl=1h")[1])
    assert found["chosen"]["provider"] == "local"
    assert found["chosen"]["stand_in"] is True
    values = {each["key"]: (each["value"], each["from"]) for each in found["values"]}
    assert values["ttl"] == ("1h", "flag")
    assert values["gpu"] == ("RTX-4090", "spec")
    assert values["wait"][1] == "built-in"
    assert [each["path"] for each in found["snapshot"]["left_out"]] == [".env"]
    assert {each["timer"]: each["binds"] for each in found["timers"]}["provider"] is True


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("sweep: {parameters: {cfg: {files: 'conf/*.yaml'}}, budget: 1}", "sweep.parameters.cfg.files"),
        ("batch: {items: 'frames/*.txt', slice: 2}", "batch.items"),
        ("batch: {items: '/etc/*.txt', slice: 2}", "batch.items"),
    ],
)
def test_a_pattern_that_names_no_file_is_shown_at_its_place(
    home: Home, spec: Path, run: Run, line: str, key: str
) -> None:
    spec.write_text(SPEC + line + "\n")
    code, _, err = run("plan", spec)
    assert code == 2
    column = line.index(f"{key.rpartition('.')[2]}:") + 1
    assert f"gpujob.yaml:{SPEC.count(chr(10)) + 1}:{column}: {key}: " in err


def test_local_is_only_asked_where_it_is_named(home: Home, spec: Path, run: Run) -> None:
    spec.write_text(SPEC.replace("providers: [local]\n", ""))
    code, _, err = run("plan", spec)
    assert code == 2
    assert "--provider local" in err
    assert run("plan", spec, "--provider", "local")[0] == 0
    assert run("plan", spec, "--provider", "lokal")[0] == 2


def test_plan_without_an_offer_is_exit_4(home: Home, spec: Path, run: Run) -> None:
    code, out, _ = run("plan", spec, "--set", "memory=900TB")
    assert code == 4
    assert "no offers satisfy the spec" in out


def test_origins_of_environment_and_config(home: Home, spec: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    home.config_file.write_text("defaults: {wait: 10m, ttl: 9h}\n")
    monkeypatch.setenv("GPUJOB_TTL", "5h")
    found = json.loads(run("plan", "-o", "json", spec)[1])
    values = {each["key"]: (each["value"], each["from"]) for each in found["values"]}
    assert values["wait"] == ("10m", "config")
    assert values["ttl"] == ("5h", "environment")


def test_providers_are_listed_with_what_ends_their_machines(home: Home, run: Run) -> None:
    (local,) = [each for each in json.loads(run("providers", "-o", "json")[1]) if each["name"] == "local"]
    assert local["play"] is True
    assert local["timers"] == ["provider"]
    out = run("providers")[1]
    assert "local" in out
    assert "(play)" in out
