"""The parts of diagnosis: the table and what it refuses, the stream, what is weighed beside the log, the advice."""

from __future__ import annotations

import copy
import io
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import causes, diagnosis
from orchestrator.diagnosis import Circumstances, Diagnosis, diagnose, scan, the_end_of
from orchestrator.diagnosis.lines import LINE_MAX, clean
from orchestrator.diagnosis.table import compiled, shapes, table

DOCUMENT = yaml.safe_load(Path(scan.__file__).with_name("signatures.yaml").read_text(encoding="utf-8"))
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
STEPS = b"".join(b"step=%d loss=0.%d\n" % (n, n) for n in range(200))
KERNEL = "[ 812.5] Out of memory: Killed process 25315 (python3) total-vm:53312244kB, anon-rss:31451456kB"


def of(*blocks: bytes, **known: Any) -> Diagnosis:
    return diagnose(blocks, Circumstances(**known))


# --- table ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "change", "complaint"),
    [
        ("signatures", {"class": "bad-hosts"}, "no class 'bad-hosts'"),
        ("signatures", {"advice": "pray"}, "no advice 'pray'"),
        ("signatures", {"relaunch": "maybe"}, "relaunch is 'maybe'"),
        ("signatures", {"wraper": True}, "unknown wraper"),
        ("signatures", {"find": ["a1"]}, "three characters"),
        ("notices", {"advice": "pray"}, "no advice 'pray'"),
    ],
)
def test_an_entry_that_nobody_could_act_on_is_refused(section: str, change: dict[str, Any], complaint: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    document[section][0] |= change
    with pytest.raises(ValueError, match=complaint):
        compiled(document)


def test_every_entry_is_named_once_and_says_where_it_is_from() -> None:
    ids = [one.id for one in table().signatures]
    assert len(set(ids)) == len(ids)
    assert all(one.sources and one.find for one in table().signatures)
    assert {one.kind.name for one in table().signatures} | {"unknown"} == set(table().kinds)


def test_texts_are_compared_without_numbers_and_without_those_that_another_covers() -> None:
    assert shapes(["Errno 28", "[Errno 28]", "exit 1.5 now"]) == (b"Errno ", b"exit  now")


@pytest.mark.parametrize(
    ("topic", "order"),
    [
        ("oom", ["batch", "accumulation", "checkpointing", "BF16", "LoRA", "bigger card", "empty_cache"]),
        ("cuda-mismatch", ["image", "wheel", "newer driver", "never install a driver"]),
        ("no-gpu", ["+cpu", "CUDA_VISIBLE_DEVICES", "newer than the driver", "reinstall"]),
        ("nccl", ["visible cards", "interconnect", "/dev/shm"]),
        ("low-use", ["data loader", "CPU next", ".item()", "batch", "DistributedDataParallel"]),
        ("disk", ["df -h", "fewer checkpoints", "larger disk"]),
    ],
)
def test_advice_is_in_the_order_in_which_it_is_worth_trying(topic: str, order: list[str]) -> None:
    text = "\n".join(diagnosis.advice(topic)).replace("a CUDA far newer than the driver", "newer than the driver")
    places = [text.index(word) for word in order]
    assert places == sorted(places)


def test_emptying_the_cache_is_called_a_symptom_and_comes_last() -> None:
    assert "only the symptom" in diagnosis.advice("oom")[-1]


# --- stream -----------------------------------------------------------------------------------------------------------

MIXED = (
    STEPS + b"\x1b[31mUserWarning: error_rate is high\x1b[0m\r\n" + b" 10%|#  | 1/10 [00:01<00:09, 1.0it/s]\r" * 30
    + b"Traceback (most recent call last):\n  File \"a.py\", line 3\n" + OOM
    + b"\xff\xfe bytes\nmake: *** [train] Error 1"
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(MIXED)), max_size=12))
def test_where_blocks_are_cut_changes_nothing(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(MIXED)]
    found = diagnose([MIXED[a:b] for a, b in pairwise(at)])
    assert found == diagnose([MIXED])
    assert (found.klass, found.line_number) == ("config-memory", 204)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes_are_a_log(data: bytes) -> None:
    assert diagnose([data]).klass in table().kinds


def test_files_streams_and_blocks_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(MIXED)
    with path.open("rb") as file:
        assert diagnose(path) == diagnose(file) == diagnose(io.BytesIO(MIXED)) == diagnose([MIXED])
    assert b"".join(the_end_of(path, 30)) == b"make: *** [train] Error 1"
    assert list(the_end_of(tmp_path / "missing", 40)) == []
    with pytest.raises(FileNotFoundError):
        diagnose(tmp_path / "missing")


def test_a_line_of_megabytes_is_neither_kept_nor_in_the_way() -> None:
    scanner = scan.Scanner(table())
    for _ in range(64):
        scanner.feed(b"0.25, " * 20_000)
        assert len(scanner._rest) <= scan.LINE_HELD
    scanner.feed(b"\n" + OOM)
    (sighting,) = scanner.close().sightings
    assert sighting.text == OOM.decode().strip()
    long = clean(b"KeyError: " + b"x" * 1_000_000 + b" the end")
    assert len(long.text) < LINE_MAX + 10
    assert long.text.endswith("the end")


def test_what_is_remembered_of_lines_is_bounded() -> None:
    scanner = scan.Scanner(table())
    rng = random.Random(1)
    for _ in range(60):
        words = (bytes(rng.choices(b"abcdefghij", k=120)) for _ in range(2000))
        scanner.feed(b"\n".join(words) + b"\n")
        assert scanner._harmless_bytes <= scan.SHAPES_BYTES + 2000 * 220
    for n in range(3000):
        scanner.feed(f"ValueError: bad {chr(97 + n % 26) * (n // 26 + 1)}\n".encode())
    assert len(scanner.close().sightings) <= scan.SIGHTINGS_MAX


def test_a_traceback_that_is_cut_off_does_not_swallow_the_log() -> None:
    found = of(b"Traceback (most recent call last):\n" + b'  File "x"\n' * (scan.FRAMES_MAX + 5) + STEPS + OOM)
    assert found.klass == "config-memory"


# --- what decides -----------------------------------------------------------------------------------------------------


def test_what_the_job_survived_is_not_the_cause() -> None:
    caught = b"Traceback (most recent call last):\n  File 'x'\nConnectionResetError: [Errno 104] reset\n"
    assert of(caught + STEPS + b"KeyError: 'x'\n").line == "KeyError: 'x'"
    assert of(caught + b"KeyError: 'x'\n").klass == "user-code"  # an echo, beside an error of the program
    only = of(caught + STEPS, exit_code=3)
    assert (only.klass, only.confidence, only.reaction.relaunch) == ("unknown", "low", False)
    assert "long after" in only.says


@pytest.mark.parametrize(
    "passing",
    [
        b"Connection timed out: retry 1 of 3\nHTTP 429 Client Error: Too Many Requests, sleeping\n",
        b"Traceback (most recent call last):\n\nsocket.gaierror: [Errno -3] Temporary failure in name resolution\n",
        b"[W socket.cpp:436] [c10d] The server socket has failed to bind (errno: 98 - Address already in use).\n",
    ],
)
def test_a_network_that_was_survived_does_not_have_the_users_own_error_repeated(passing: bytes) -> None:
    found = of(passing + b"Traceback (most recent call last):\n  File 'x'\nKeyError: 'x'\n", exit_code=1)
    assert (found.klass, found.reaction.relaunch, found.line) == ("user-code", False, "KeyError: 'x'")
    assert of(passing, exit_code=1).reaction.where == "same"


def test_a_programs_own_mistake_is_not_repeated_whatever_its_words_sound_like() -> None:
    said = b"Connection reset by peer, No space left on device, Failed to initialize NVML, got signal: 1"
    for name in (b"ValueError", b"KeyError", b"AssertionError", b"TypeError"):
        found = of(b"Traceback (most recent call last):\n  File 'x'\n" + name + b": " + said + b"\n", exit_code=1)
        assert (found.klass, found.reaction.relaunch) == ("user-code", False)
    assert of(b"AssertionError: Torch not compiled with CUDA enabled\n").klass == "config-env"


def test_ranks_are_told_apart_while_their_tracebacks_mix() -> None:
    text = (
        b"[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n"
        b'[rank0]:   File "a"\n[rank1]:   File "a"\n[rank1]: KeyError: 3\n'
        b"[rank0]: torch.distributed.DistBackendError: NCCL error in: x, remote process exited\n"
    )
    found = of(text, exit_code=1)
    assert (found.klass, found.rank, found.line, found.line_number) == ("user-code", 1, "KeyError: 3", 5)


def test_the_root_cause_of_the_launcher_decides_between_ranks() -> None:
    text = (
        b"[rank2]: ValueError: second to print\n[rank0]: KeyError: 'first to fail'\n"
        b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        b"Root Cause (first observed failure):\n[0]:\n  time      : x\n  rank      : 0 (local_rank: 0)\n"
    )
    assert of(text).line == "KeyError: 'first to fail'"


def test_an_inner_signal_outranks_the_launchers_exit_code() -> None:
    api = "ERROR:torch.distributed.elastic.multiprocessing.api"
    words = api + ":failed (exitcode: {}) local_rank: 0 (pid: 33) of binary: p\n"
    tail = b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    by_code = {code: of(words.format(code).encode() + tail, exit_code=1).klass for code in (-7, -9, -11, 1)}
    assert by_code == {-7: "config-memory", -9: "ambiguous", -11: "user-code", 1: "user-code"}
    assert of(words.format(1).encode() + tail, exit_code=1).confidence == "low"


@pytest.mark.parametrize(
    ("known", "klass", "where"),
    [
        ({}, "ambiguous", "any"),
        ({"dmesg": (KERNEL,)}, "config-memory", "no"),
        ({"dmesg": (KERNEL,), "disk_full": True, "provider": "gone"}, "config-memory", "no"),
        ({"disk_full": True}, "disk", "any"),
        ({"disk_full": False, "provider": "gone"}, "interrupted", "any"),
        ({"provider": "noticed"}, "interrupted", "any"),
        ({"provider": "alive"}, "ambiguous", "any"),
        ({"rebooted": True}, "interrupted", "any"),
    ],
)
def test_killed_is_weighed_with_kernel_disk_and_provider(known: dict[str, Any], klass: str, where: str) -> None:
    for log in (STEPS + b"Killed\n", STEPS):  # the word may be missing: the exit code says the same
        found = of(log, exit_code=137, **known)
        assert (found.klass, found.reaction.where) == (klass, where)


def test_killed_is_a_whole_line_and_not_a_word() -> None:
    assert of(b"Killed 3 stale workers\n", exit_code=1).klass == "unknown"


def test_the_kernel_outranks_a_vague_message_and_no_plain_one() -> None:
    xid = "[9.9] NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus."
    assert of(b"RuntimeError: CUDA error: unspecified launch failure\n", dmesg=(xid,)).klass == "bad-host"
    assert of(b"KeyError: 'x'\n", dmesg=(xid,)).klass == "user-code"
    own = "[9.9] NVRM: Xid (PCI:0000:06:00): 13, pid=4, name=python3, Graphics Exception"
    assert of(b"RuntimeError: CUDA error: device-side assert triggered\n", dmesg=(own,)).klass == "user-code"


def test_memory_taken_by_others_is_the_hosts_fault() -> None:
    assert not of(OOM, foreign_processes=False).reaction.relaunch
    assert of(OOM, foreign_processes=True).reaction.where == "other"


def test_of_a_chain_the_last_counts_unless_it_explains_nothing() -> None:
    first = b"Traceback (most recent call last):\n  File 'a'\nOSError: [Errno 28] No space left on device\n\n"
    last = b"Traceback (most recent call last):\n  File 'a'\nRuntimeError: saving failed\n"
    cause = b"The above exception was the direct cause of the following exception:\n\n"
    context = b"During handling of the above exception, another exception occurred:\n\n"
    assert of(first + cause + last).klass == "disk"
    assert of(first + context + last).klass == "user-code"  # what would be repeated needs more than a context
    oom = b"Traceback (most recent call last):\n  File 'a'\n" + OOM + b"\n"
    assert of(oom + context + last).klass == "config-memory"


@pytest.mark.parametrize(
    ("code", "klass", "where"),
    [(7, "unknown", "no"), (1, "unknown", "no"), (2, "user-code", "no"), (129, "interrupted", "any"),
     (130, "user-code", "no"), (134, "user-code", "no"), (139, "user-code", "any"), (132, "unknown", "other")],
)  # fmt: skip
def test_without_a_message_the_exit_code_speaks(code: int, klass: str, where: str) -> None:
    found = of(b"goodbye\n", exit_code=code)
    assert (found.klass, found.reaction.where, found.line) == (klass, where, "goodbye")


def test_an_unknown_failure_keeps_its_evidence() -> None:
    found = of(STEPS + b"the flux is out of alignment\n", exit_code=9)
    assert found.line == "the flux is out of alignment"
    assert found.evidence[0] == "exit code 9"
    assert sum(one.startswith("end of the log: ") for one in found.evidence) == scan.LAST_LINES


# --- what a machine says ----------------------------------------------------------------------------------------------


def test_what_a_machine_says_after_a_failure() -> None:
    mark = causes.SECTION
    text = (
        f"1000.5 4000\n{mark}\n[ 99.0] NVRM: Xid (PCI:0): 79, long ago\n"
        f"[ 950.0] Out of memory: Killed process 7 (p)\n{mark}\n"
        "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/a 100 99 1 99% /data\n"
        f"/dev/b 100 3 97 3% /\n{mark}\n12\n4096\n"
    )
    assert causes.parse(text, 100.0) == {
        "dmesg": ("[ 950.0] Out of memory: Killed process 7 (p)",),
        "disk_full": True,
        "foreign_processes": True,
    }
    quiet = f"1000.5 4000\n{mark}\n{mark}\n{mark}\n"
    assert causes.parse(quiet, 100.0) == {"dmesg": (), "disk_full": None, "foreign_processes": None}
    assert causes.parse("bash: nothing works", 100.0) == {}


def test_the_stored_cause_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(STEPS + b"[rank3]: " + OOM)
    cause = causes.cause_of(log, 1, {"foreign_processes": False})
    assert (cause.klass, cause.signature, cause.rank, cause.where) == ("config-memory", "cuda-oom", 3, "no")
    assert causes.in_words(cause) == f"[config-memory] {OOM.decode().strip()}"
    assert causes.cause_of(tmp_path / "missing", 7).klass == "unknown"
    wrapper = tmp_path / "w.log"
    wrapper.write_bytes(b"Segmentation faults are discussed here\nerror: failed\n")
    assert causes.cause_of(wrapper, 1).where == "no"
