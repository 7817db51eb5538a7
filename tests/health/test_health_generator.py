"""What the rules are worth on generated logs: wordings they were written with, and wordings kept out of sight."""

from __future__ import annotations

from collections import Counter

import generator
import health_cases
import pytest

from orchestrator.diagnosis import Circumstances, diagnose

HELD_AT_LEAST = 0.98
EACH = 2


def outcome(which: str, seed: int) -> tuple[int, list[str], list[str]]:
    """How many logs, those that were judged wrong, and the user's own failures that would be started again."""
    count, wrong, relaunched = 0, [], []
    for case in generator.cases(which, EACH, lines=250, first_seed=seed):
        found = health_cases.told(case)
        count += 1
        if not generator.right(found, case):
            wrong.append(f"{case.name} ({case.scene}): {found.klass} {found.reaction.where} {found.line[:80]}")
        if case.klass == "user-code" and case.relaunch == "no" and found.reaction.relaunch:
            relaunched.append(case.name)
    return count, wrong, relaunched


@pytest.mark.parametrize(("which", "seed"), [("seen", 100), ("held", 0)])
def test_generated_logs(which: str, seed: int) -> None:
    count, wrong, relaunched = outcome(which, seed)
    assert count >= 300
    assert 1 - len(wrong) / count >= HELD_AT_LEAST, wrong
    assert relaunched == []


def test_no_wording_is_in_both_sets() -> None:
    seen, held = ({wording.text for wording in generator.wordings(which)} for which in ("seen", "held"))
    assert {text for text in seen & held if text != "Killed"} == set()  # bare words have no other wording
    assert len(held) >= 100


def test_the_generator_makes_every_scene_of_every_class() -> None:
    scenes: Counter[str] = Counter()
    classes = set()
    for case in generator.cases("seen", 3, lines=60):
        scenes[case.scene.partition("+")[0]] += 1
        classes.add(case.klass)
    assert set(scenes) == {"alone", "caught", "ranks", "launcher"}
    assert len(classes) >= 16
    first = next(generator.cases("seen", 1, lines=60))
    assert first.log == next(generator.cases("seen", 1, lines=60)).log  # the same seed, the same log


@pytest.mark.parametrize("entry", health_cases.table("field"), ids=lambda entry: entry["name"])
def test_logs_in_the_shapes_of_public_reports(entry: dict[str, str]) -> None:
    code = entry["exit"]
    found = diagnose([entry["log"].encode()], Circumstances(exit_code=None if code is None else int(code)))
    assert (found.klass, generator.reaction_of(found.reaction)) == (entry["class"], entry["again"])
    assert entry["line"] in found.line


@pytest.mark.parametrize(("name", "least"), [("fresh", 100), ("fresh_later", 36)])
def test_logs_written_without_a_look_at_the_rules(name: str, least: int) -> None:
    found = health_cases.fresh(name)
    wrong = [
        f"{entry['name']}: {told.klass} {told.line[:80]}"
        for entry, told in found
        if not health_cases.as_labelled(entry, told)
    ]
    again = [entry["name"] for entry, told in found if entry["class"] == "user-code" and told.reaction.relaunch]
    assert (wrong, again) == ([], [])
    assert len(found) >= least


MISTAKE = "Traceback (most recent call last):\n  File 'a.py', line 1, in f\nKeyError: 'lr'\n"


@pytest.mark.parametrize("words", ["Exception ignored in: <function Loader.__del__ at 0x7f>", "--- Logging error ---"])
def test_a_traceback_that_python_went_on_after_is_no_failure(words: str) -> None:
    shrugged = words + "\n" + MISTAKE
    assert diagnose([shrugged.encode()], Circumstances(exit_code=1)).klass == "unknown"
    assert diagnose([(shrugged + MISTAKE).encode()], Circumstances(exit_code=1)).line_number == 7
    far = words + "\none\ntwo\nthree\n" + MISTAKE  # the words speak of what is right below them only
    assert diagnose([far.encode()], Circumstances(exit_code=1)).line == "KeyError: 'lr'"


def test_a_message_that_begins_below_its_exception_is_read() -> None:
    log = "Traceback (most recent call last):\n  File 'a.py'\nRuntimeError: \n----\n   {}\nstep 3\n"
    told = diagnose([log.format("CUDA Setup failed despite GPU being available.").encode()])
    assert (told.klass, told.line) == ("config-env", "RuntimeError: CUDA Setup failed despite GPU being available.")
    assert diagnose([log.format("the loader is empty").encode()]).line == "RuntimeError: the loader is empty"
    two = "Traceback (most recent call last):\n  File 'a.py'\nRuntimeError:\n" + MISTAKE
    assert diagnose([two.encode()]).line == "RuntimeError:"  # the next traceback is not its message


def test_an_exception_that_says_little_yields_to_its_own_cause_and_to_no_echo() -> None:
    outer = "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset\n"
    torn = (
        "Traceback (most recent call last):\n  File 'b.py'\npyarrow.lib.ArrowInvalid: Parquet magic bytes not found\n"
    )
    chain = "\nThe above exception was the direct cause of the following exception:\n\n"
    raised = "Traceback (most recent call last):\n  File 'a.py'\n" + outer
    assert diagnose([(torn + chain + raised).encode()]).line.startswith("pyarrow.lib.ArrowInvalid")
    broken = ("Traceback (most recent call last):", "  File 'a.py'", "BrokenPipeError: [Errno 32] Broken pipe")
    echo = "".join(f"[rank1]: {line}\n" for line in broken)
    alone = diagnose([(raised + echo).encode()])
    assert (alone.klass, alone.reaction.relaunch) == ("data", False)
    assert alone.line + "\n" == outer


def test_what_is_only_printed_of_memory_yields_to_a_mistake_and_to_nothing_else() -> None:
    printed = "batch 64: CUDA out of memory. Tried to allocate 2.00 GiB, trying 32\n"
    assert diagnose([(printed + MISTAKE).encode()]).klass == "user-code"
    wrapped = printed + MISTAKE.replace("KeyError: 'lr'", "RuntimeError: training failed")
    assert diagnose([wrapped.encode()]).klass == "config-memory"
    raised = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert diagnose([(raised + MISTAKE).encode()]).klass == "config-memory"


def test_a_traceback_that_a_program_shows_indented_is_not_its_own() -> None:
    quoted = "task 12 FAILED\n" + "".join(f"    {line}\n" for line in MISTAKE.splitlines())
    raised = "Traceback (most recent call last):\n  File 'eval.py'\nIndexError: no results\n"
    assert diagnose([(quoted + raised).encode()]).line == "IndexError: no results"
    assert diagnose([quoted.encode()]).line == "KeyError: 'lr'", "alone it is all that is known"
