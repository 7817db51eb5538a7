"""The entry point: verbs, redirections, errors in words, and never a traceback."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from orchestrator.cli import commands, exits, main, trouble
from orchestrator.cli.commands import REDIRECTIONS, VERBS
from orchestrator.cli.exits import CliError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GPUJOB_CONFIG", raising=False)
    return tmp_path / "home"


def test_help_lists_every_verb_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert [verb for verb in VERBS if f"\n  {verb} " not in out] == []
    assert [code for code, text in exits.MEANINGS.items() if f"\n  {code:<3} {text}\n" not in out] == []


def test_no_verb_prints_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 2
    assert "usage: gpujob" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gpujob ")


@pytest.mark.parametrize("word", "stop delete rm launch submit status queue exec up".split())
def test_a_redirection_names_the_right_command_and_does_nothing(
    word: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([word, "job", "--anything"]) == 2
    err = capsys.readouterr().err
    assert "nothing was done" in err
    assert REDIRECTIONS[word].split()[1] in VERBS
    assert REDIRECTIONS[word] in err
    assert not home.exists()


@pytest.mark.parametrize(
    ("word", "answer"),
    [("aply", "gpujob apply"), ("desribe", "gpujob describe"), ("job.yaml", "gpujob apply job.yaml"), ("xq", "--help")],
)
def test_a_typo_gets_the_nearest_verb(word: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([word]) == 2
    assert answer in capsys.readouterr().err


def test_a_wrong_option_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["ps", "--wathc"]) == 2
    assert "did you mean --watch?" in capsys.readouterr().err


def test_every_verb_has_a_parser_with_help_for_each_argument() -> None:
    silent = []
    for verb in VERBS:
        parser, command = commands.parser_of(verb)
        assert callable(command.run)
        silent += [
            f"{verb} {a.dest}" for a in parser._actions if not a.help and not a.choices
        ]  # fmt: skip
    assert silent == []


def _failing(error: BaseException) -> object:
    def load(verb: str) -> commands.Command:
        def run(_: object) -> int:
            raise error

        return commands.Command(lambda parser: None, run)

    return load


def test_an_error_says_what_where_why_and_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = CliError("no bread", where="kitchen:3", why="eaten", next="bake", code=4)
    monkeypatch.setattr(commands, "load", _failing(error))
    assert main.main(["ps"]) == 4
    assert capsys.readouterr().err.splitlines() == ["gpujob: kitchen:3: no bread", "  why: eaten", "  next: bake"]


def test_a_bug_is_one_line_and_a_private_report_without_secrets(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "load", _failing(ValueError("token=s3cr3t-value")))
    assert main.main(["ps"]) == 3
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "s3cr3t" not in err
    (report,) = (home / "crashes").iterdir()
    assert str(report) in err
    assert report.stat().st_mode & 0o777 == 0o600
    text = report.read_text()
    assert "s3cr3t" not in text
    assert "test_cli_main.py" in text
    assert "ValueError" in text


def test_crash_reports_do_not_pile_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / "crashes"
    folder.mkdir(parents=True)
    for number in range(30):
        (folder / f"20200101T0000{number:02d}Z-1.txt").write_text("old")
    trouble.explain(KeyError("x"), "ps")
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 21
    assert names[-1].startswith("202")
    assert "20200101T000000Z-1.txt" not in names


def test_ctrl_c_says_that_the_job_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(commands, "load", _failing(KeyboardInterrupt()))
    assert main.main(["logs"]) == 130
    assert "goes on" in capsys.readouterr().err


def test_closed_streams_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main.main(["schema"]) == 0
    assert main.main(["no-such-verb"]) == 2
    sys.stdout.close()
    sys.stderr.close()


@pytest.mark.parametrize("content", [b"\x7fELF\xff", b"A=x\0y\n"])
def test_an_env_file_that_is_no_text_is_named(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "env").write_bytes(content)
    (tmp_path / "x.yaml").write_text("name: a\ngpu: none\nrun: echo hi\n")
    assert main.main(["validate", str(tmp_path / "x.yaml"), "--env-file", str(tmp_path / "env")]) == 2
    assert f"{tmp_path / 'env'}: this is not UTF-8 text" in capsys.readouterr().err


def test_errors_of_providers_keep_their_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    from providers.errors import AuthFailed, NoCapacity

    lines, code = trouble.explain(NoCapacity("none free", provider="p"), "plan")
    assert (code, lines[0]) == (4, "gpujob: p: none free")
    lines, code = trouble.explain(AuthFailed("bad key", provider="p"), "plan")
    assert code == 3
    assert any("next: " in line for line in lines)


def test_all_problems_of_a_spec_are_printed_with_their_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: x\ngpu: RTX-4099\nrnu: python train.py\n")
    assert main.main(["validate", str(spec)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith(f"{spec}:2:")]
    assert [line for line in lines if line.startswith(f"{spec}:3:") and "run" in line]
    assert lines[-1].startswith("gpujob: 3 problems")


def test_validate_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: x\ngpu: none\nrun: echo hi\nttl: 12\n")
    assert main.main(["validate", "-o", "json", str(spec)]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["valid"] is False
    assert [(p["line"], p["key"]) for p in found["problems"]] == [(4, "ttl")]
    assert main.main(["validate", "-o", "json", str(spec), "--set", "ttl=2h"]) == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True


def test_validate_strict_turns_advice_into_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: x\ngpu: none\nrun: nohup python -c 1\n")
    assert main.main(["validate", str(spec)]) == 0
    assert main.main(["validate", "--strict", str(spec)]) == 2
    assert "detaches itself" in capsys.readouterr().err


def test_a_variable_that_is_given_at_apply_does_not_stop_validate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SEED", raising=False)
    spec = tmp_path / "job.yaml"
    spec.write_text("name: x\ngpu: none\nrun: echo hi\nenv:\n  SEED:\n")
    assert main.main(["validate", str(spec)]) == 0
    assert "given at apply: SEED" in capsys.readouterr().err


def test_init_writes_a_valid_spec_and_never_over_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my-net"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert main.main(["init"]) == 0
    text = (folder / "gpujob.yaml").read_text()
    assert "name: my-net " in text
    assert "\n  python3 train.py\n" in text
    assert text.endswith("./results\n")
    (folder / "train.py").write_text("")
    assert main.main(["validate", "gpujob.yaml"]) == 0
    assert main.main(["init"]) == 2
    assert (folder / "gpujob.yaml").read_text() == text
    assert "was not changed" in capsys.readouterr().err


def test_init_converts_a_slurm_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH --job-name=tune\n#SBATCH --time=02:00:00\npython -c 1\n")
    assert main.main(["init", "out.yaml", "--from", "job.sh"]) == 0
    assert "name: tune" in Path("out.yaml").read_text()


def test_the_schema_names_the_required_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["schema"]) == 0
    assert set(json.loads(capsys.readouterr().out)["required"]) == {"name", "gpu", "run"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_knows_verbs_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "describe" in out
    assert "max-cost" in out
