"""GPUJOB_LOCAL_RECLAIM: what it means, and that a wrong one is refused with its part named."""

from __future__ import annotations

import pytest

from providers.errors import Invalid
from providers.local_machine.reclaim import parse

NOW = 1_000_000.0


def plan(text: str, *, job: str = "j", ordinal: int = 1) -> dict[str, str]:
    script = parse(text)
    assert script is not None
    return dict(line.split(" ", 1) for line in script.plan(NOW, job, ordinal).splitlines())


@pytest.mark.parametrize("text", ["", "  "])
def test_nothing_is_no_reclaim(text: str) -> None:
    assert parse(text) is None


def test_after_is_when_it_is_announced_and_notice_when_it_is_taken() -> None:
    assert plan("after=20s,notice=5s") == {"at": "1000020.000", "notice": "5.0"}
    assert plan("after=1.5m") == {"at": "1000090.000", "notice": "0.0"}
    assert plan(" notice=2m , after=1h ") == {"at": "1003600.000", "notice": "120.0"}


def test_attempt_picks_one_of_a_jobs_spot_machines() -> None:
    text = "attempt=2,after=20s,notice=30s"
    assert plan(text, ordinal=1) == {}
    assert plan(text, ordinal=2) == {"at": "1000020.000", "notice": "30.0"}
    assert plan(text, ordinal=3) == {}


def test_a_file_can_give_the_sign() -> None:
    assert plan("at-file=/tmp/go now,notice=0s") == {"file": "/tmp/go now", "notice": "0.0"}


def test_a_random_reclaim_repeats_with_its_seed_and_differs_by_machine() -> None:
    text = "rate=0.5/h,seed=7,notice=120s"
    first = plan(text)
    assert first == plan(text)
    assert first["notice"] == "120.0"
    others = [plan(text, ordinal=2), plan(text, job="k"), plan("rate=0.5/h,seed=8,notice=120s")]
    assert len({first["at"], *(other["at"] for other in others)}) == 4


def test_a_random_reclaim_keeps_its_rate() -> None:
    waits = [float(plan("rate=6/h,seed=1", ordinal=n)["at"]) - NOW for n in range(1, 401)]
    assert all(wait > 0 for wait in waits)
    assert 520 < sum(waits) / len(waits) < 680, "six an hour is one in 600 s on average"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("after=20", "'20'"),
        ("after=-5s", "'-5s'"),
        ("after=20s,wait=3s", "wait=3s: use after, at-file, rate, notice, attempt, seed"),
        ("after=20s,after=30s", "after=30s: given twice"),
        ("notice=5s", "give exactly one of after=, at-file=, rate="),
        ("after=1s,rate=1/h", "give exactly one of after=, at-file=, rate="),
        ("rate=0/h", "'0/h'"),
        ("rate=1/day", "'1/day'"),
        ("rate=often/h", "often"),
        ("after=5s,attempt=first", "first"),
        ("yes", "yes: use after"),
    ],
)
def test_a_wrong_setting_names_its_part(text: str, why: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(text)
    assert why in str(refused.value)
    assert f"GPUJOB_LOCAL_RECLAIM={text!r}" in str(refused.value)
