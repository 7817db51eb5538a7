"""Stored logs: offsets, masking, reading back; the decisive line and the step of a log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.logs import (
    LogGap,
    LogWriter,
    Progress,
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
