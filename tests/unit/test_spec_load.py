"""Reading spec files: every trap of YAML is read as meant or refused by name, at its place, all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobspecs.load import load_file, load_located, load_spec
from jobspecs.problems import Problem, SpecErrors
from jobspecs.schema import JobSpec
from jobspecs.units import Duration, parse_money

SPECS = Path(__file__).parent / "data" / "specs"
BASE = "name: a\ngpu: none\nrun: x\n"  # the next line is line 4


def problems(text: str | bytes, **arguments: Any) -> list[Problem]:
    with pytest.raises(SpecErrors) as caught:
        load_spec(text, "job.yaml", **arguments)
    return caught.value.problems


def only(text: str | bytes, **arguments: Any) -> Problem:
    found = problems(text, **arguments)
    assert len(found) == 1, found
    return found[0]


def load(text: str | bytes, **arguments: Any) -> JobSpec:
    return load_spec(text, "job.yaml", **arguments)


def test_a_full_spec_keeps_everything() -> None:
    spec = load_file(SPECS / "full.yaml").spec
    assert [str(choice) for choice in spec.gpu.choices] == ["RTX-4090", "A100-80GB"]
    assert spec.regions == ("EU-NO-1", "runpod/US-TX-3")
    assert spec.env == {"SEED": "42", "LR": "1e-4", "VERSION": "3.10"}
    assert spec.budget == parse_money("15 USD")
    assert spec.grace.time == Duration(90)
    assert spec.retry.exit_codes == (1, 75)
    assert spec.resumable


def test_all_problems_are_reported_at_once_with_place_key_reason_and_hint() -> None:
    with pytest.raises(SpecErrors) as caught:
        load_spec((SPECS / "broken.yaml").read_bytes(), "broken.yaml")
    assert str(caught.value) + "\n" == (SPECS / "broken.txt").read_text()


# --- whole files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "is empty"),
        ("# only a comment\n", 1, "is empty"),
        ("---\n", 1, "is empty"),
        ("- name: a\n- name: b\n", 1, "is a list"),
        ("python train.py\n", 1, "a ':' is missing"),
        (BASE + "---\nname: b\n", 4, "a second document starts here"),
        ("a: " * 20 + "b", 1, "is not YAML: mapping values are not allowed here"),
        ("[" * 100_000, 1, "is nested deeper than 24 levels"),
        ("{a: " * 1000, 1, "is nested deeper than 24 levels"),
        ("x" * (1 << 18) + "y", 1, "is larger than 256 KiB"),
        ("a: &a [*a]\n", 1, "the alias *a refers to itself"),
        ("a: *b\n", 1, "the alias *b is not defined above"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00", 1, "a binary file"),
        (b"PK\x03\x04\x14\x00\x00\x00\x08\x00", 1, "a binary file"),
        (b"name: caf\xe9\n", 1, "is not UTF-8 text"),
        (b"\xff\xfe\x00", 1, "is not UTF-16 text"),
        ("name: a\u200b\ngpu: none\n\u00a0run: x\n", 3, "invisible space U+00A0"),
        ("name: a\x07\n", 1, "invisible character U+0007"),
        ("name: a\ngpu: none\u2028run: x\n", 2, "invisible character U+2028"),
    ],
)
def test_files_that_are_no_spec(text: str | bytes, line: int, reason: str) -> None:
    problem = only(text)
    assert (problem.line, problem.file) == (line, "job.yaml")
    assert reason in problem.reason


@pytest.mark.parametrize("line", ['run: "a\\0b"', 'env: {A: "x\\0y"}'])
def test_a_nul_written_as_an_escape_is_refused_where_it_stands(line: str) -> None:
    problem = only(f"name: a\ngpu: none\nsetup: x\n{line}\n")
    assert (problem.line, problem.reason) == (4, "contains a NUL character")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_every_unicode_encoding_is_read(encoding: str) -> None:
    text = "name: a\ngpu: none\nlabels: {who: 张}\nrun: echo é\n"
    assert load(text.encode(encoding)) == load(text)


def test_crlf_becomes_lf_even_inside_a_block() -> None:
    assert load(b"name: a\r\ngpu: none\r\nrun: |\r\n  cd x\r\n  make\r\n").run == "cd x\nmake\n"


def test_a_tab_that_belongs_to_a_command_is_kept() -> None:
    assert load("name: a\ngpu: none\nrun: |\n  cat <<-E\n  \tx\n  E\n").run == "cat <<-E\n\tx\nE\n"


def test_an_alias_bomb_is_refused_by_its_expanded_size() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    problem = only("\n".join(lines))
    assert "more than 10000 values, aliases expanded" in problem.reason
    assert problem.line <= 5


def test_aliases_that_nest_deeply_are_refused() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 500)]
    assert "nested deeper" in only("\n".join(lines)).reason


def test_anchors_aliases_and_merge_keys_are_followed() -> None:
    spec = load(BASE + "env: &e {A: 1}\nlabels:\n  <<: *e\n  B: x\n")
    assert spec.labels == {"A": "1", "B": "x"}
    assert spec.env == {"A": "1"}


def test_a_merged_key_does_not_win_over_one_that_is_written() -> None:
    assert load(BASE + "env: &e {A: 1}\nlabels: {<<: *e, A: 2}\n").labels == {"A": "2"}


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system [ls]", "!foo x", "!!str 5", "!!binary aGk=", "! x"])
def test_tags_are_refused_by_name(tag: str) -> None:
    problem = problems(BASE + f"labels: {{a: {tag}}}\n")[-1]
    assert tag.split()[0] in problem.reason
    assert (problem.line, problem.column) == (4, 13)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_an_error_not_a_command(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecErrors) as caught:
        load_file(tmp_path / name)
    expected = {"missing.yaml": "there is no such file", ".": "is a folder"}
    assert expected[name] in str(caught.value)


def test_a_file_name_with_a_nul_is_an_error() -> None:
    with pytest.raises(SpecErrors, match="cannot be read"):
        load_file(Path("a\0b"))


# --- syntax -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("name: x\ngpu A100\nrun: y\n", 2, 1, "a ':' is missing after the key"),  # B002
        ("name x\ngpu: A100\nrun: y\n", 1, 1, "a ':' is missing after the key"),
        ("name: x\nenv:\n  A 1\n  B: 2\n", 3, 3, "a ':' is missing after the key"),
        ("name: x\nenv:\n\tA: 1\n", 3, 1, "a tab where"),  # B014
        ("name: x\nttl: 12h\t\n", 2, 9, "a tab where"),  # B014
        ("name:\tx\n", 1, 6, "a tab where"),
        ("name: x\nrun: echo 'a': b\n", 2, 14, "mapping values are not allowed here"),
        ("name: 'x\nrun: y\n", 1, 7, "a quote is never closed"),
        ("name: x\ngpu: [a, b\nrun: y\n", 3, 4, "expected ',' or ']'"),
        ("name: x\nrun: @a\n", 2, 6, "found character '@'"),
        ('name: x\nrun: "a" b\n', 2, 10, "expected <block end>"),
        ('name: x\nrun: "a \\q"\n', 2, 10, "unknown escape character"),
        (BASE + 'env: {A: "\\ud800"}\n', 4, 10, "surrogate"),
        (BASE + 'env: {A: "\\UFFFFFFFF"}\n', 1, 1, "is not YAML"),
        (BASE + "[a]: b\n", 4, 1, "a list or mapping as a key"),
        (BASE + "~: b\n", 4, 1, "no key before ':'"),
        (BASE + "env: {<<: 5}\n", 4, 7, "<< merges only mappings"),
        ("name：x\ngpu：A100\n", 1, 1, "a ':' is missing"),
    ],
)
def test_syntax_errors_have_place_and_reason(text: str, line: int, column: int, said: str) -> None:
    problem = only(text)
    assert said in problem.reason
    assert (problem.line, problem.column) == (line, column)
    assert str(problem).startswith(f"job.yaml:{line}:{column}: ")


# --- keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("checkpont: {every: 15m}", "did you mean checkpoint?"),  # B001
        ("gpus_per_node: 2", "gpu: NAME:COUNT"),  # B001
        ("num_workers: 2", "one machine"),  # B001
        ("artifact: x", "did you mean artifacts?"),
        ("max-price: 1", "did you mean max_price?"),
        ("TTL: 1h", "did you mean ttl?"),
        ("accelerators: A100", "`gpu`"),
        ("use_spot: true", "`spot`"),
        ("spot_policy: spot", "`spot`"),
        ("num_nodes: 2", "one machine"),
        ("file_mounts: {}", "`data`"),
        ("envs: {}", "`env`"),
        ("resources:\n  gpu: 24GB", "at the top level"),
        ("max_duration: 1h", "`ttl`"),
        ("backends: [runpod]", "`providers`"),
        ("commands: [x]", "`run`"),
        ("image_id: x", "`image`"),
        ("max_hourly_cost: 1", "`max_price`"),
        ("job_recovery: x", "retry"),
        ("autostop: 10", "released at the job's end"),
        ("disk_size: 10", "`disk`"),
        ("on: push", "boolean"),
        ("true: 1", "boolean"),
        ("1: 2", "gpujob schema"),
        ("zzz: 2", "gpujob schema"),
    ],
)
def test_unknown_keys_are_answered_with_the_right_one(line: str, hint: str) -> None:
    problem = only(BASE + line + "\n")
    key = line.split(":")[0]
    assert problem.reason == f"there is no key {key!r}"
    assert hint in problem.hint
    assert (problem.line, problem.column, problem.key) == (4, 1, key)


@pytest.mark.parametrize(
    ("line", "key", "hint"),
    [
        ("data: {uri: x, from: y}", "data.uri", "`from`"),
        ("artifacts: {path: x, on: failure}", "artifacts.on", "`when`"),
        ("checkpoint: {evry: 1m}", "checkpoint.evry", "did you mean every?"),
        ("retry: {on_exit_codes: [1]}", "retry.on_exit_codes", "`exit_codes`"),
        ("disk: {foo: 1GB}", "disk.foo", "the keys in disk are system, data"),
        ("artifacts: [{path: x}, {path: y, fro: z}]", "artifacts[1].fro", "in artifacts are path, to, when"),
        ("grace: {tim: 2m}", "grace.tim", "did you mean time?"),
    ],
)
def test_unknown_keys_further_down(line: str, key: str, hint: str) -> None:
    problem = only(BASE + line + "\n")
    assert problem.key == key
    assert hint in problem.hint


def test_duplicate_keys_name_both_lines() -> None:  # B015
    problem = only(BASE + "ttl: 1h\nttl: 200h\n")
    assert (problem.line, problem.key) == (5, "ttl")
    assert "first in line 4" in problem.reason


def test_duplicate_variables_are_refused_too() -> None:
    assert only(BASE + "env:\n  A: 1\n  B: 2\n  A: 3\n").line == 7


def test_required_keys_are_named_with_an_example() -> None:
    found = problems("workdir: .\n")
    assert [problem.key for problem in found] == ["gpu", "name", "run"]
    assert all(problem.reason == "is required" and "add a line like" in problem.hint for problem in found)


# --- values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed",
    ["42", "0.1", "1e-4", "3.10", "010", "0x1F", "12:30", "1_000", "yes", "NO", "off", "true", "2026-01-01", ".inf",
     "2026-12-01T09:00:00Z", "1.", "+5", "=", "a:b", "a#x"],
)  # fmt: skip
def test_values_of_env_keep_the_characters_that_were_typed(typed: str) -> None:  # B006, B008
    assert load(BASE + f"env:\n  X: {typed}\n").env == {"X": typed}


def test_other_text_keeps_its_characters_as_well() -> None:  # B010
    spec = load("name: 1e4\ngpu: 4090\nimage: 2.10\nregions: [SE, NO, on]\nlabels: {v: 010}\nrun: true\n")
    assert (spec.name, spec.image, spec.run) == ("1e4", "2.10", "true")
    assert spec.regions == ("SE", "NO", "on")
    assert spec.labels == {"v": "010"}


def test_a_count_after_a_colon_is_no_base_60_number() -> None:
    assert str(load("name: a\ngpu: 4090:2\nrun: x\n").gpu) == "RTX-4090:2"


def test_sweep_values_keep_their_text_and_bounds_are_numbers() -> None:  # B008
    values = "{lr: [1e-4, 2e-5], wd: 1e-2, x: {log_uniform: [1e-5, 1e-2]}}"
    text = BASE + f"sweep: {{budget: 5, search: {{trials: 4}}, parameters: {values}}}\n"
    sweep = load(text).sweep
    assert sweep is not None
    assert sweep.parameters is not None
    assert sweep.parameters["lr"].values == ("1e-4", "2e-5")
    assert sweep.parameters["wd"].values == ("1e-2",)
    assert sweep.parameters["x"].log_uniform == (1e-5, 1e-2)


@pytest.mark.parametrize(
    ("line", "key", "said"),
    [
        ("spot: off", "spot", "boolean only in YAML 1.1"),
        ("spot: yes", "spot", "boolean only in YAML 1.1"),
        ("spot: on-demand", "spot", "expected auto, true or false"),
        ("ttl: 12:30", "ttl", "sexagesimal"),
        ("ttl: 12", "ttl", "no unit"),
        ("budget: 1_000", "budget", "underscores"),
        ("budget: 010", "budget", "octal"),
        ("budget: .nan", "budget", "finite"),
        ("retry: {max: 010}", "retry.max", "octal"),
        ("retry: {max: 1e1}", "retry.max", "whole number"),
        ("retry: {exit_codes: [1, 256]}", "retry.exit_codes[1]", "255 or less"),
        ("retry: {exit_codes: 0}", "retry.exit_codes", "1 or more"),
        ("ports: 70000", "ports", "65535 or less"),
        ("ports: [a]", "ports[0]", "whole number"),
        ("cpus: 4:00", "cpus", "sexagesimal"),
        ("memory: 32", "memory", "no unit"),
        ("finish_by: 2026-12-01", "finish_by", "date and time"),
        ("finish_by: 2026-12-01T09:00:00", "finish_by", "no offset"),
        ("workload: training", "workload", "expected one of train, batch, serve"),
        ("checkpoint: 15m", "checkpoint", "expected a mapping, got '15m'"),
        ("labels: x", "labels", "expected a mapping"),
        ("regions: [a, null]", "regions[1]", "expected text, got nothing"),
        ("regions: {a: b}", "regions", "expected text, got a mapping"),
        ("env: {A: [1]}", "env.A", "expected text, got a list"),
        ("env: {1A: x}", "env.1A", "cannot name an environment variable"),
        ("env: {GPUJOB_CKPT: x}", "env.GPUJOB_CKPT", "set by gpujob itself"),
        ("notify: [https://hooks.example/x]", "notify[0]", "never addresses"),
        ("providers: [RunPod]", "providers[0]", "not a provider's name"),
        ("progress: {regex: step=}", "progress.regex", "captures nothing"),
        ("progress: {regex: '('}", "progress.regex", "not a regular expression"),
        ("allow: [everything]", "allow[0]", "expected one of cross-region"),
        ("workdir: {git: x}", "workdir.ref", "is required"),
        ("artifacts: {path: a, to: 'out/{date}'}", "artifacts.to", "unknown field {date}"),
        ("name2: a", "name2", "no key"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(line: str, key: str, said: str) -> None:
    found = [problem for problem in problems(BASE + line + "\n") if problem.key == key]
    assert len(found) == 1, found
    assert said in found[0].reason
    assert found[0].line == 4


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "a" * 41, "naïve", "../x"])
def test_names_that_are_none(name: str) -> None:
    assert only(f'name: "{name}"\ngpu: none\nrun: x\n').key == "name"


def test_a_single_value_stands_for_a_list() -> None:
    spec = load(BASE + "providers: runpod\ndata: ./d/set\nartifacts: {path: x}\nports: 8080\nsecrets: A\n")
    assert spec.providers == ("runpod",)
    assert [(entry.source, entry.path) for entry in spec.data] == [("./d/set", "set")]
    assert [artifact.path for artifact in spec.artifacts or ()] == ["x"]  # type: ignore[union-attr]
    assert [str(port) for port in spec.ports] == ["8080"]


def test_artifacts_none_turns_them_off_and_is_no_path() -> None:
    assert load(BASE + "artifacts: none\n").artifacts == "none"
    assert load(BASE).artifacts is None


# --- nothing there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["checkpoint", "env", "retry", "data", "artifacts", "labels", "regions", "grace"])
def test_a_block_with_only_comments_is_absent(key: str) -> None:  # B004
    assert load(BASE + f"{key}:\n  # keep: 3\n") == load(BASE)


@pytest.mark.parametrize("key", ["budget", "ttl", "spot", "image", "workdir", "setup", "max_price", "expected"])
def test_a_value_that_is_missing_is_refused(key: str) -> None:
    problem = only(BASE + f"{key}:\n")
    assert (problem.key, problem.reason, problem.line) == (key, "is empty", 4)


def test_a_value_that_a_comment_took_away_says_so() -> None:
    assert "is a comment" in only(BASE + "budget: # 15 USD\n").hint
    assert "is a comment" in only(BASE + "env: {}\nimage: #x\n").hint
    assert "is a comment" in only(BASE + "env:\n  COLOR: #ff0000\n").hint


def test_an_empty_required_key_is_not_called_missing_as_well() -> None:
    assert only("name: a\ngpu: none\nrun:\n").reason == "is empty"


@pytest.mark.parametrize(
    "line",
    [
        "run: echo a #b",
        "run: python t.py --tag #1 --lr 2",
        'run: echo "a # b"',
        "run: grep ' # x' file",
        "run: x $(cat # y)",
        "run: a | # b",
        "run: a &&   # b",
        "setup: sh -c 'pip # y'",
        "run: echo a\n  'b # c'",
    ],
)
def test_a_comment_that_cuts_a_command_is_refused(line: str) -> None:
    text = line if line.startswith("run") else f"run: x\n{line}"
    problem = only(f"name: a\ngpu: none\n{text}\n")
    assert "cuts the command" in problem.reason
    assert f"`{line.split(':')[0]}: |`" in problem.hint


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ('run: "echo a # b"', "echo a # b"),
        ("run: |\n  echo a # b", "echo a # b\n"),
        ("run: echo a#b", "echo a#b"),
        ("run: python a.py --lr 1 # a note, as bash sees it too", "python a.py --lr 1"),
        ("run: echo 'a'    #   b", "echo 'a'"),
        ("run: x\n# a comment of its own", "x"),
        ("run: >-\n  python a.py\n  --x 1", "python a.py --x 1"),
        ("run: python a.py\n  --x 1", "python a.py --x 1"),
    ],
)
def test_commands_reach_the_job_as_they_are(typed: str, command: str) -> None:
    assert load(f"name: a\ngpu: none\n{typed}\n").run == command


def test_nothing_is_expanded_on_this_computer(monkeypatch: pytest.MonkeyPatch) -> None:  # B019
    monkeypatch.setenv("HOSTNAME", "laptop")
    command = "echo $HOSTNAME-$GPUJOB_JOB_ID ${X:-{{ y }}} `id` ~ {job}"
    assert load(f"name: a\ngpu: none\nrun: '{command}'\n").run == command
    assert load(BASE, overrides=[("run", command)]).run == command


# --- variables and secrets --------------------------------------------------------------------------------------


def test_a_variable_without_a_value_must_be_given() -> None:  # B005
    text = BASE + "env: {WANDB_PROJECT: }\n"
    problem = only(text)
    assert (problem.key, problem.line) == ("env.WANDB_PROJECT", 4)
    assert "--env WANDB_PROJECT=VALUE" in problem.hint
    assert load(text, env={"WANDB_PROJECT": "p"}).env == {"WANDB_PROJECT": "p"}
    assert load(text, environ={"WANDB_PROJECT": "q"}).env == {"WANDB_PROJECT": "q"}


def test_the_list_form_of_env() -> None:
    text = BASE + "env: [A=1, B, C=x=y, D: 5]\n"
    assert only(text).key == "env.B"
    assert load(text, env={"B": "2"}).env == {"A": "1", "B": "2", "C": "x=y", "D": "5"}
    assert load(text, overrides=[("env.B", "3")]).env["B"] == "3"
    assert only(BASE + "env: [[A]]\n").reason == "expected NAME=VALUE or NAME, got a list"


def test_the_environment_fills_gaps_and_never_overrides() -> None:
    spec = load(BASE + "env: {A: 1, B: }\n", environ={"A": "9", "B": "2", "C": "3"})
    assert spec.env == {"A": "1", "B": "2"}


def test_filling_a_variable_does_not_change_another_block_through_an_alias() -> None:
    spec = load(BASE + "env: &e {A: 1, B: x}\nlabels: *e\n", env={"A": "9"})
    assert spec.env == {"A": "9", "B": "x"}
    assert spec.labels == {"A": "1", "B": "x"}


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("env: {HF_TOKEN: abc}", "env.HF_TOKEN"),
        ("env: {HF_TOKEN: }", "env.HF_TOKEN"),
        ("env: {DB_PASSWORD: x}", "env.DB_PASSWORD"),
        ("env: {AWS_SECRET_ACCESS_KEY: x}", "env.AWS_SECRET_ACCESS_KEY"),
        ("env: {WANDB_API_KEY: x}", "env.WANDB_API_KEY"),
        ("env: {SAFE: hf_abcdefghijklmnopqrstuvwxyz}", "env.SAFE"),
        ("env: {SAFE: ghp_abcdefghijklmnopqrstuvwxyz}", "env.SAFE"),
        ("setup: export T=sk-abcdefghijklmnopqrstuvwxyz", "setup"),
        ("labels: {a: AKIA" + "ABCDEFGHIJKLMNOP}", "labels.a"),
        ("data: {from: 'https://me:secret99@host/x', path: x}", "data.from"),
    ],
)
def test_what_looks_like_a_secret_is_sent_to_secrets_and_never_printed(line: str, key: str) -> None:
    problem = only(BASE + line + "\n")
    assert problem.key == key
    assert "move it to secrets" in problem.hint
    for value in ("hf_abc", "ghp_abc", "sk-abc", "AKIAABC", "secret99"):
        assert value not in str(problem)


@pytest.mark.parametrize(
    "pair",
    ["TOKENIZERS_PARALLELISM: false", "MAX_TOKENS: 4096", "PAD_TOKEN: <pad>", "SORT_KEY: a", "COMMIT: " + "a" * 40],
)
def test_settings_that_only_sound_like_secrets_are_kept(pair: str) -> None:
    name, value = pair.split(": ")
    assert load(BASE + f"env: {{{pair}}}\n").env == {name: value}


def test_a_secret_given_on_the_command_line_is_refused_with_its_name() -> None:
    problem = only(BASE, env={"HF_TOKEN": "abc"})
    assert (problem.file, problem.line) == ("--env", 0)
    assert "HF_TOKEN looks like a secret" in problem.reason


# --- values from elsewhere --------------------------------------------------------------------------------------


def test_overrides_win_and_are_read_like_the_file() -> None:
    given = [("ttl", "3h"), ("retry.max", "2"), ("env.X", "yes"), ("gpu", "[4090, A100]"), ("budget", "")]
    spec = load(BASE + "ttl: 1h\nbudget: 5\nenv: {X: 1}\n", overrides=given)
    assert spec.ttl == Duration(10_800)
    assert spec.retry.max == 2
    assert spec.env == {"X": "yes"}
    assert len(spec.gpu.choices) == 2
    assert spec.budget is None


def test_overrides_reach_into_lists() -> None:
    text = BASE + "artifacts: [{path: a}, {path: b}]\n"
    spec = load(text, overrides=[("artifacts.1.when", "failure")])
    assert [artifact.when for artifact in spec.artifacts or ()] == ["always", "failure"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (("foo", "1"), "--set foo: foo: there is no key 'foo'"),
        (("ttl", "12:30"), "--set ttl: ttl: '12:30' is a sexagesimal trap"),
        (("name.x", "1"), "--set name.x: there is nothing below 'name'"),
        (("gpu", "[a"), "--set gpu:1:"),
        (("", "1"), "--set : there is no key ''"),
    ],
)
def test_overrides_that_are_wrong_say_which(override: tuple[str, str], said: str) -> None:
    assert said in "\n".join(map(str, problems(BASE, overrides=[override])))


def test_defaults_of_the_config_are_merged_and_their_origin_is_known() -> None:  # B022
    located = load_located(
        BASE + "spot: false\nbudget: 5\n",
        "job.yaml",
        defaults={
            "ttl": "3h",
            "spot": True,
            "providers": ["runpod"],
            "alarms": {"gpu_util_below": {"percent": 70, "for": "15m"}},
        },
        overrides=[("budget", "6")],
    )
    assert located.spec.ttl == Duration(10_800)
    assert located.spec.spot is False
    assert located.spec.providers == ("runpod",)
    assert located.spec.alarms is not None
    assert {key: located.origins.get(key, "built-in") for key in ("ttl", "spot", "budget", "wait")} == {
        "ttl": "config", "spot": "spec", "budget": "--set", "wait": "built-in",
    }  # fmt: skip


def test_a_default_fills_an_empty_block_and_hides_no_empty_value() -> None:
    assert load(BASE + "providers:\n", defaults={"providers": ["runpod"]}).providers == ("runpod",)
    held = {"hold_on_failure": "20m"}
    assert str(load(BASE, defaults=held).hold_on_failure) == "20m"
    assert load(BASE + "replicas: 3\nbudget: 5\n", defaults=held).hold_on_failure.seconds == 0
    assert only(BASE + "replicas: 3\nbudget: 5\nhold_on_failure: 20m\n", defaults=held).key == "hold_on_failure"
    assert only(BASE + "budget:\n", defaults={"budget": "5"}).reason == "is empty"


def test_a_wrong_default_is_blamed_on_the_config() -> None:
    assert only(BASE, defaults={"colour": "red"}).file == "config: defaults"
    assert str(only(BASE, defaults={"ttl": "12"})).startswith("config: defaults: ttl: '12' has no unit")


def test_a_problem_found_later_is_put_at_its_key() -> None:
    located = load_located(BASE + "data:\n  - {from: s3://b/x, path: x}\nnotify: [me]\n", "job.yaml")
    later = [Problem("", 0, 0, key, "found later") for key in ("data[0].from", "notify")]
    placed = [located.place(problem) for problem in later]
    assert sorted((problem.line, problem.column, problem.key) for problem in placed) == [
        (5, 6, "data[0].from"), (6, 1, "notify"),
    ]  # fmt: skip
    assert all(problem.file == "job.yaml" for problem in placed)


def test_rules_across_keys_are_told_even_when_another_key_is_wrong() -> None:
    found = problems("gpu: 4091\nrun: x\nexpected: 13h\nspot: true\n")
    assert [(problem.line, problem.key) for problem in found] == [(1, "gpu"), (1, "name"), (3, "expected"), (4, "spot")]


def test_rules_across_keys_keep_quiet_about_a_key_that_could_not_be_read() -> None:
    assert [problem.key for problem in problems("name: a\ngpu: none\nrun: [x]\nspot: true\n")] == ["run"]
