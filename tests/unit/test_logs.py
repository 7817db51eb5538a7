"""Stored logs: offsets, masking, reading back; the decisive line and the step of a log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.log_lines import clean, decisive_in
from orchestrator.logs import (
    LogGap,
    LogWriter,
    Progress,
    decisive_line,
    follow,
    mask_bytes,
    maskable,
    progress,
    read_from,
    tail,
)

SECRET = "s3cr3t-value"


def write_all(path: Path, chunks: list[bytes], secrets: list[str]) -> bytes:
    writer = LogWriter(path, secrets)
    offset = 0
    for chunk in chunks:
        writer.write(offset, chunk)
        offset += len(chunk)
    writer.finish()
    writer.close()
    return path.read_bytes()


def test_chunks_land_at_their_offsets_and_repeats_are_harmless(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "logs" / "run.log")
    writer.write(0, b"hello ")
    writer.write(0, b"hello world")
    writer.write(3, b"lo")
    assert writer.cursor == 11
    with pytest.raises(LogGap, match="bytes 11 to 20 are missing"):
        writer.write(20, b"later")
    writer.close()
    assert (tmp_path / "logs" / "run.log").read_bytes() == b"hello world"
    again = LogWriter(tmp_path / "logs" / "run.log")
    assert again.cursor == 11
    again.write(11, b"!")
    again.close()
    assert read_from(tmp_path / "logs" / "run.log", 6) == b"world!"


def test_a_secret_is_masked_with_its_length_even_across_chunks(tmp_path: Path) -> None:
    text = f"token={SECRET} done\n".encode()
    for cut in range(len(text)):
        stored = write_all(tmp_path / str(cut), [text[:cut], text[cut:]], [SECRET])
        assert stored == b"token=" + b"*" * len(SECRET) + b" done\n"


def test_only_what_may_become_a_secret_is_held_back(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log", [SECRET])
    writer.write(0, b"step 1\n")
    assert writer.cursor == 7  # nothing of it begins a secret: seen at once
    writer.write(7, b"x s3cr")
    assert writer.cursor == 9
    writer.write(13, b"umb\n")
    assert writer.cursor == 17
    writer.close()
    assert (tmp_path / "log").read_bytes() == b"step 1\nx s3crumb\n"


def test_a_restart_never_leaves_half_a_secret(tmp_path: Path) -> None:
    text = f"a{SECRET}b".encode()
    for cut in range(1, len(text)):
        path = tmp_path / str(cut)
        first = LogWriter(path, [SECRET])
        first.write(0, text[:cut])
        first.close()  # killed here: what was held is lost
        second = LogWriter(path, [SECRET])
        second.write(second.cursor, text[second.cursor :])
        second.finish()
        second.close()
        assert path.read_bytes() == b"a" + b"*" * len(SECRET) + b"b"


def test_overlapping_and_nested_secrets_leave_nothing(tmp_path: Path) -> None:
    stored = write_all(tmp_path / "log", [b"abcd", b"efgh", b"zz abcdef"], ["abcde", "defgh", "abcdefgh"])
    assert stored == b"********zz *****f"


@given(
    st.lists(st.text("abc", min_size=4, max_size=7), min_size=1, max_size=3),
    st.lists(st.binary(max_size=6).map(lambda b: bytes(97 + x % 4 for x in b)), max_size=12),
)
def test_masking_does_not_depend_on_how_the_bytes_arrive(
    tmp_path_factory: pytest.TempPathFactory, secrets: list[str], chunks: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    whole = b"".join(chunks)
    stored = write_all(path, chunks, secrets)
    assert len(stored) == len(whole)
    assert not any(secret.encode() in stored for secret in secrets)
    assert stored == mask_bytes(whole, maskable(secrets))


def test_short_values_are_left_and_long_lines_of_a_key_are_masked() -> None:
    key = "-----BEGIN-----\nMIIEvQIBADANBgkq\nshort\n"
    assert maskable(["ab", "", "  "]) == ()
    wanted = maskable([key])
    assert mask_bytes(b"x MIIEvQIBADANBgkq y short", wanted) == b"x **************** y short"


def test_tail_reads_whole_lines_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%06d %s\n" % (n, b"x" * 50) for n in range(20_000)) + b"unfinished")
    assert tail(path, 2) == b"019999 " + b"x" * 50 + b"\nunfinished"
    assert tail(path, 0) == b""
    assert len(tail(path, 30_000).splitlines()) == 20_001
    assert tail(tmp_path / "missing", 5) == b""


def test_follow_hands_over_what_was_written_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    answers = iter([False, True, True])

    def ended() -> bool:
        if (answer := next(answers)) and path.stat().st_size == 4:
            with path.open("ab") as file:
                file.write(b"two\n")
        return answer

    assert b"".join(follow(path, 0, ended, threading.Event())) == b"one\ntwo\n"
    stop = threading.Event()
    stop.set()
    assert list(follow(path, 0, lambda: False, stop)) == []


PLAIN = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
  File "train.py", line 5, in main
    raise ValueError("learning rate is negative")
ValueError: learning rate is negative
"""
TORCHRUN = (
    """[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 40, in <module>
[rank1]:     loss.backward()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB.
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 1 (pid: 99) of binary: python
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
    + "=" * 60
    + "\ntrain.py FAILED\n"
)
CHAINED = """Traceback (most recent call last):
  File "a.py", line 2, in load
    return table[name]
KeyError: 'lr'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 4, in load
    raise ConfigError(f"no {name} in config.yaml")
a.ConfigError: no lr in config.yaml
"""
SURVIVED = PLAIN + "".join(f"step={n} loss=0.{n}\n" for n in range(40)) + "Killed\n"
TQDM = (
    "\rEpoch 0:  18%|## | 1600/8573 [11:20:11<50:31:02, 26.05s/it, loss=0.281]"
    "\rEpoch 0:  19%|## | 1610/8573 [11:25:45<50:22:32, 26.05s/it, loss=0.279]\n"
    "Traceback (most recent call last):\n"
    '  File "t.py", line 1, in <module>\n'
    "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    "\rEpoch 0:  19%|## | 1610/8573 [11:25:46<50:22:32, 26.05s/it, loss=0.279]\n"
)
WRAPPED_ONLY = """some output
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 33) of binary: python
"""
SYNTAX = """  File "train.py", line 3
    if x
        ^
SyntaxError: expected ':'
"""
WARNINGS_AFTER = (
    "python: can't open file '/w/trian.py': [Errno 2] No such file or directory\n"
    "wandb: Network error (ConnectTimeout), entering retry loop.\n"
)
RANKS = """Traceback (most recent call last):
  File "t.py", line 3, in <module>
AssertionError: sample 17 is empty
Traceback (most recent call last):
  File "t.py", line 9, in <module>
torch.distributed.DistBackendError: NCCL communicator was aborted
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (PLAIN, "ValueError: learning rate is negative"),
        (TORCHRUN, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB."),
        (CHAINED, "a.ConfigError: no lr in config.yaml"),
        (SURVIVED, "Killed"),
        (TQDM, "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        (RANKS, "AssertionError: sample 17 is empty"),
        (WRAPPED_ONLY, WRAPPED_ONLY.splitlines()[1]),
        (SYNTAX, "SyntaxError: expected ':'"),
        (WARNINGS_AFTER, WARNINGS_AFTER.splitlines()[0]),
        (
            "step 1\n/x/run.sh: line 2: pyton: command not found\n",
            "/x/run.sh: line 2: pyton: command not found",
        ),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --lrr 1\n", None),
        ("\x1b[31mERROR: No matching distribution found for torhc\x1b[0m\r\n", None),
        ("loading\nconfig.yaml is empty, giving up\nepoch 1 loss 0.5\n", "config.yaml is empty, giving up"),
        ("/x/run.sh: line 4:   812 Segmentation fault      (core dumped) ./train\n", None),
    ],
)
def test_the_line_that_explains(text: str, wanted: str | None) -> None:
    lines = clean(text.encode())
    if wanted is None:  # the last line itself
        wanted = next(line for line in reversed(lines) if line)
    assert decisive_in(lines) == wanted


@pytest.mark.parametrize(
    "line",
    [
        "WARNING:torch.distributed.run: Setting OMP_NUM_THREADS environment variable for each process to be 1",
        "wandb: Network error (ConnectTimeout), entering retry loop.",
        "lib.py:3: UserWarning: You're resuming from a checkpoint that ended before the epoch ended.",
        "step=1200 word_error_rate=0.12 val_error=0.034 loss=0.91",
        "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount()",
        "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by 'ReadTimeoutError'",
        "Epoch 0: 19%|## | 1610/8573 [11:25:45<50:22:32, 26.05s/it, loss=0.279, step=1609]",
        "Found cached dataset parquet; Loading cached processed dataset at /c/cache-9a6f.arrow",
    ],
)
def test_look_alikes_are_never_the_explanation(line: str) -> None:
    assert decisive_in([line]) is None
    assert decisive_in(["train.py: error: bad flag", line]) == "train.py: error: bad flag"


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(b"ValueError: long ago\n")
        file.seek(3 * 1024**3)  # a hole: reading all of it would take for ever
        file.write(b"\nMemoryError\n")
    assert decisive_line(path) == "MemoryError"
    assert decisive_line(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("text", "regex", "total", "wanted"),
    [
        ("step=10 loss=1\nstep=20 loss=0.5\n", None, None, Progress(20, None)),
        ("step 20/300\n", None, None, Progress(20, 300)),
        ("step 20\n", None, 50, Progress(20, 50)),
        (" 19%|## | 1610/8573 [11:25<50:22]\r 20%|## | 1700/8573 [12:25<50:22]", None, None, Progress(1700, 8573)),
        ("Epoch 3 of 10: loss 0.1", None, None, Progress(3, 10)),
        ("Iteration: 7", None, None, Progress(7, None)),
        ("done 3 tiles\ndone 4 tiles", r"done (\d+) tiles", 9, Progress(4, 9)),
        ("\x1b[1mstep\x1b[0m 5", None, None, Progress(5, None)),
        ("nothing to see, timestep2vec", None, None, None),
        ("word: many", r"word: (\w+)", None, None),
    ],
)
def test_progress(text: str, regex: str | None, total: float | None, wanted: Progress | None) -> None:
    assert progress(text, regex, total) == wanted
