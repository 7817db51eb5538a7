"""The account's rate, one read for all who ask at once, and who is named by a card or a tag."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest

from jobspecs.gpu_table import GPU_CLASSES
from providers import rest
from providers.base import GpuRow, Instance, Listing, ProviderConfig, Ref, Tag
from providers.cards import identify
from providers.errors import AuthFailed, Invalid, RateLimited
from providers.fields import at, epoch, gigabytes, number, parsed, rows, whole
from providers.naming import check_tag, ours, read_tag_text, tag_text
from providers.rest import Answer, Rest, SharedRead, api_key

TABLE = tuple(GpuRow(gpu.name, gpu.vram_gb, gpu.spellings) for gpu in GPU_CLASSES)


class Clock:
    """The two calls of `time` that the module makes."""

    def __init__(self) -> None:
        self.at = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rest, "time", clock)
    return clock


def company(monkeypatch: pytest.MonkeyPatch, *answers: Answer, shared: bool = False) -> tuple[Rest, list[str]]:
    """A Rest whose sends are recorded and answered in turn; the last answer repeats."""
    sent: list[str] = []
    left = list(answers)

    def send(self: Rest, method: str, path: str, what: str, *_: object) -> Answer:
        sent.append(what)
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(Rest, "_send", send)
    found = Rest("acme", "http://x", lambda: "key", lambda a, w: None, per_second=2, burst=3, shared_limit=shared)
    return found, sent


OK = Answer(200, {"a": 1}, '{"a": 1}', {})
SLOW_DOWN = Answer(429, None, "slow", {"Retry-After": "20"})


def test_a_burst_is_free_and_then_calls_take_turns(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    api, sent = company(monkeypatch, OK)
    for _ in range(5):
        api.call("GET", "/", "list")
    assert clock.slept == [0.5, 0.5]
    assert len(sent) == 5
    clock.at += 60.0
    clock.slept.clear()
    for _ in range(3):
        api.call("GET", "/", "list")
    assert clock.slept == []


def test_a_long_queue_is_said_and_a_destroy_goes_through(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    api, sent = company(monkeypatch, OK)
    api._tokens = -20.0
    with pytest.raises(RateLimited) as late:
        api.call("GET", "/", "list")
    assert late.value.retry_after_s == 10.5
    api.call("DELETE", "/", "destroy")
    assert (sent, clock.slept) == (["destroy"], [])


def test_after_a_refusal_that_verb_rests_for_the_time_said(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    api, sent = company(monkeypatch, SLOW_DOWN, OK)
    for _ in range(2):
        with pytest.raises(RateLimited) as refused:
            api.call("GET", "/", "list")
        assert refused.value.retry_after_s == 20.0
    api.call("GET", "/", "get")
    clock.at += 20.0
    api.call("GET", "/", "list")
    assert sent == ["list", "get", "list"]


def test_where_the_limit_is_the_accounts_all_verbs_rest_but_destroy(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    api, sent = company(monkeypatch, SLOW_DOWN, OK, shared=True)
    for what in ("list", "get", "create"):
        with pytest.raises(RateLimited):
            api.call("GET", "/", what)
    api.call("DELETE", "/", "destroy")
    assert sent == ["list", "destroy"]


def test_everybody_gets_an_answer_that_was_asked_for_after_his_question() -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)
    reads: list[int] = []

    def read() -> int:
        reads.append(len(reads) + 1)
        number = reads[-1]
        begun.release()
        gate.wait(10)
        return number

    shared = SharedRead(read)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(shared.get)
        begun.acquire()
        late = [pool.submit(shared.get) for _ in range(8)]  # the first read began before they asked
        while len(shared._turn._waiters) < 8:  # type: ignore[attr-defined]
            pass
        gate.set()
        assert first.result() == 1
        assert [each.result() for each in late] == [2] * 8
    assert reads == [1, 2]


def test_a_read_that_fails_fails_for_all_who_waited_and_not_for_the_next() -> None:
    outcomes: list[Exception | str] = [Invalid("no"), "fine"]

    def read() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    shared = SharedRead(read)
    with pytest.raises(Invalid):
        shared.get()
    assert shared.get() == "fine"


def test_a_key_comes_from_the_way_that_the_registry_hands_in_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = ProviderConfig("dep", Path("."), (), {}, {"ACME_KEY": " kept \n"}.get)
    assert api_key(config, "acme", "ACME_KEY") == "kept"
    nothing = ProviderConfig("dep", Path("."), ())
    monkeypatch.delenv("ACME_KEY", raising=False)
    with pytest.raises(AuthFailed, match="run `gpujob login acme`, or export ACME_KEY"):
        api_key(nothing, "acme", "ACME_KEY")
    monkeypatch.setenv("ACME_KEY", "exported")
    assert api_key(nothing, "acme", "ACME_KEY") == "exported"
    monkeypatch.setenv("ACME_KEY", "two\nlines")
    with pytest.raises(AuthFailed, match="characters that no key has"):
        api_key(nothing, "acme", "ACME_KEY")


@pytest.mark.parametrize(
    ("name", "gb", "canonical"),
    [
        ("NVIDIA GeForce RTX 4090", 24, "RTX-4090"),
        ("RTX 4090", 24564 / 1024, "RTX-4090"),
        ("RTX 4090", 49140 / 1024, "RTX-4090-48GB"),
        ("NVIDIA H100 80GB HBM3", 80, "H100-SXM"),
        ("NVIDIA H100 PCIe", 80, "H100-PCIe"),
        ("NVIDIA H100 NVL", 94, "H100-NVL"),
        ("NVIDIA A100-SXM4-80GB", 80, "A100-80GB-SXM"),
        ("NVIDIA A100 80GB PCIe", 80, "A100-80GB-PCIe"),
        ("A100 SXM4", 80, "A100-80GB-SXM"),
        ("A100 SXM4", 40, "A100-40GB"),
        ("Tesla V100", 32, "V100-32GB"),
        ("RTX 6000Ada", 48, "RTX-6000-Ada"),
        ("NVIDIA RTX 6000 Ada Generation", 48, "RTX-6000-Ada"),
        ("Q RTX 6000", 24, "Quadro-RTX-6000"),
        ("NVIDIA B300 SXM6 AC", 288, "B300"),
        ("AMD Instinct MI300X OAM", 192, "MI300X"),
        ("B200 SXM6", 180, "B200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb", 24, None),
        ("RTX 6000", 24, None),
        ("RTX 4090", 80, None),
        ("Imaginary RTX 9999", 24, None),
        ("", 24, None),
    ],
)
def test_a_card_is_known_by_name_and_memory(name: str, gb: float, canonical: str | None) -> None:
    found = identify(name, gb, TABLE)
    assert (found.name if found else None) == canonical


def test_a_companys_own_name_is_given_to_the_card_with_that_memory() -> None:
    own = {"H200": "H200-SXM"}
    found = identify("NVIDIA H200", 141, TABLE, own)
    assert found is not None
    assert found.name == "H200-SXM"
    assert identify("H200", 80, TABLE, own) is None


def test_a_tag_as_a_name_comes_back_whole() -> None:
    for tag, region in ((Tag("dep", "r-1", "job", "me"), "US-KS-2"), (Tag("dep", "r-1"), ""), (Tag("d", "r"), "a.b")):
        assert read_tag_text(tag_text(tag, region)) == (tag, region)
    for text in ("", "gpujob", "gpujob.d.r.j.o", "gpujob..r.j.o.x", "other.d.r.j.o.x", "gpujob.D.r.j.o.x", None, 7):
        assert read_tag_text(text) is None


def test_a_tag_that_could_not_come_back_is_refused() -> None:
    config = ProviderConfig("dep", Path("."), ())
    check_tag(Tag("dep", "r-1", "job", "me"), config, "acme")
    for tag in (Tag("dep", "R"), Tag("dep", "r.1"), Tag("other", "r"), Tag("dep", "")):
        with pytest.raises(Invalid):
            check_tag(tag, config, "acme")


def test_ours_is_our_deployment_in_the_region_asked_for() -> None:
    def one(n: str, region: str, tag: Tag | None) -> Instance:
        return Instance(Ref("acme", "a", region, n), "up", tag)

    mine, theirs = Tag("dep", "r"), Tag("other", "r")
    listing = Listing((one("1", "x", mine), one("2", "y", mine), one("3", "x", theirs), one("4", "x", None)))
    assert [i.ref.id for i in ours(listing, "dep", "x").instances] == ["1"]


def test_odd_values_read_as_nothing() -> None:
    assert number("0.10") == Decimal("0.10")
    assert [number(odd) for odd in (True, None, "x", "NaN", "1e400", float("inf"), [], 10**30)] == [None] * 8
    assert (whole(-3), whole("7.9"), whole(None)) == (0, 7, 0)
    assert (at({"a": [1, {"b": 2}]}, "a", 1, "b"), at({"a": 1}, "a", "b"), at([1], 5)) == (2, None, None)
    assert (rows([{}]), rows([1]), rows({}), rows(None)) == ([{}], None, None, None)
    assert epoch("2026-06-01T12:00:00Z") == 1780315200.0
    assert (epoch("yesterday"), epoch(None)) == (None, None)
    assert parsed('{"price": 0.1}')["price"] == Decimal("0.1")
    assert (parsed("<html>"), parsed("[" * 100_000)) == (None, None)
    assert (gigabytes(10**9 + 1, 1), gigabytes(0, 40)) == (2, 40)
