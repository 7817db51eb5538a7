"""Every alarm with what raises it, and what only looks like it. Healthy runs raise none; nothing crashes the rules."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from health_series import MINUTE, T0, card, healthy, hours, look_at, used
from hypothesis import given, settings
from hypothesis import strategies as st

from jobspecs.alarm_keys import Alarms
from orchestrator.alarms import examine
from orchestrator.health import Minutes
from orchestrator.look import KINDS, WASTE, Alarm, Before, Look, Rule
from orchestrator.points import CARD_COLUMNS, COLUMNS, RUNNING, Card, Point


def kinds(look: Look) -> list[str]:
    return [alarm.kind for alarm in examine(look)]


def the(look: Look, kind: str) -> Alarm:
    found = [alarm for alarm in examine(look) if alarm.kind == kind]
    assert found, [alarm.kind for alarm in examine(look)]
    return found[0]


def each(minute_from: int, change: Callable[[int, Point], Point]) -> Callable[[int, Point], Point]:
    return lambda minute, point: change(minute, point) if minute >= minute_from else point


# --- healthy ---------------------------------------------------------------------------------------------------------


def test_a_clean_run_of_24_hours_raises_nothing() -> None:
    rng = random.Random(7)
    points = [healthy(minute, cards=4, rng=rng) for minute in range(24 * 60)]
    for until in range(1, len(points) + 1):
        window = points[max(0, until - 240) : until]
        found = kinds(look_at(window, began_at=T0, every_s=1800.0, saved_at=None, total=43_000.0, end=T0 + 30 * 3600.0))
        assert found == [], f"minute {until}: {found}"


def lively(minute: int, point: Point, step: float, rng: random.Random) -> Point:
    """A healthy minute of a run whose pace and use waver, with an evaluation every two hours."""
    evaluates = minute > 30 and minute % 120 < 8
    cards = tuple(
        replace(c, util=rng.uniform(20, 60) if evaluates else min(100.0, rng.gauss(93, 3))) for c in point.cards
    )
    rate, net = 400 * math.exp(rng.gauss(0, 0.1)), 1e4 if minute % 60 else 5e7
    return replace(point, step=step, rate=rate, cards=cards, net_in=net)


def test_a_day_that_wavers_raises_nothing_however_it_is_compared() -> None:
    rng, points, done = random.Random(3), [], 0.0
    for minute in range(24 * 60):
        if minute >= 3 and not (minute > 30 and minute % 120 < 8):
            done += 30 * math.exp(rng.gauss(0, 0.12)) * (0.9 if minute % 300 < 60 else 1.0)  # an hour of longer samples
        step = round(done) if minute >= 3 else math.nan
        points.append(lively(minute, healthy(minute, cards=4, rng=rng), step, rng))
    before = Before(paces=(0.5, 0.52, 0.48), rates=((1, 105.0), (1, 98.0)))
    for until in range(1, len(points) + 1, 3):
        window = points[max(0, until - 240) : until]
        look = look_at(window, began_at=T0, every_s=1800.0, total=60_000.0, end=T0 + 40 * 3600.0, before=before)
        assert kinds(look) == [], f"minute {until}"


@given(
    seed=st.integers(0, 10**6), cards=st.integers(1, 4), pace=st.floats(2.0, 600.0), minutes=st.integers(1, 150),
    evaluation=st.integers(0, 8),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_no_healthy_series_raises_an_alarm(seed: int, cards: int, pace: float, minutes: int, evaluation: int) -> None:
    rng = random.Random(seed)
    points, done = [], 0
    for minute in range(minutes):
        point = healthy(minute, cards=cards, steps_a_minute=pace, rng=rng)
        if evaluation and minute > 30 and minute % 30 < evaluation:  # another phase: no step, other use
            point = replace(point, cards=tuple(replace(c, util=rng.uniform(20, 99)) for c in point.cards))
        else:
            done += 1
        points.append(replace(point, step=round((done - 2) * pace) if point.step == point.step else math.nan))
    assert kinds(look_at(points, every_s=1800.0)) == []


floats = st.one_of(st.just(math.nan), st.floats(-1e12, 1e12), st.integers(0, 100).map(float))


@st.composite
def any_point(draw: st.DrawFn) -> Point:
    rows = draw(st.lists(st.fixed_dictionaries(dict.fromkeys(CARD_COLUMNS, floats)), max_size=3))
    values = draw(st.fixed_dictionaries(dict.fromkeys(COLUMNS, floats)))
    values["stage"] = draw(st.sampled_from([RUNNING, RUNNING, RUNNING, 0.0, math.nan]))
    at = T0 + draw(st.integers(0, 300)) * MINUTE
    return Point(at=at, cards=tuple(Card(**row) for row in rows), **values)


@given(
    points=st.lists(any_point(), max_size=60), late=st.floats(0, 7200), every=st.one_of(st.none(), st.floats(1, 1e5))
)
@settings(max_examples=120, deadline=None)
def test_no_series_whatever_crashes_it(points: list[Point], late: float, every: float | None) -> None:
    points = sorted(points, key=lambda point: point.at) or [Point(at=T0)]
    look = look_at(points, now=points[-1].at + late, every_s=every, total=1000.0, budget=1.0, spent=0.9)
    for alarm in examine(look):
        assert alarm.kind in KINDS
        assert "nan" not in alarm.text.split()
        assert all((alarm.text, alarm.cause, alarm.next))


# --- use -------------------------------------------------------------------------------------------------------------


def test_69_percent_for_15_minutes_is_one_alarm_and_for_5_none() -> None:
    points = hours(60, used(69, 40))
    assert kinds(look_at(points[:45])) == []
    assert kinds(look_at(points[:54])) == []
    assert kinds(look_at(points[:56])) == ["gpu-util-below"]
    alarm = the(look_at(points), "gpu-util-below")
    assert alarm.text == "GPU use 69 % in the last 15m00s, all below 70 %, at 1.20 USD/h"
    assert not alarm.stop


def test_below_50_percent_is_said_to_be_a_problem_of_the_program() -> None:
    assert "a problem of the program or its input" in the(look_at(hours(60, used(30, 30))), "gpu-util-below").text
    assert "a problem of the program" not in the(look_at(hours(60, used(51, 30))), "gpu-util-below").text


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(hours(15, used(3, 0)), id="warm-up"),
        pytest.param(hours(60, lambda m, p: replace(used(0, 30)(m, p), stage=1.0)), id="setup"),
        pytest.param(hours(60, lambda m, p: replace(used(0, 20)(m, p), stage=0.0)), id="transfers before the run"),
        pytest.param(hours(60, lambda m, p: used(20, 0)(m, p) if 48 <= m < 52 else p), id="a short dip"),
        pytest.param(hours(60, lambda m, p: used(5, 0)(m, replace(p, saved=1.0)) if m > 40 else p), id="writing"),
        pytest.param(hours(60, lambda m, p: p if m % 8 == 0 else used(40, 30)(m, p)), id="evaluation in between"),
        pytest.param(hours(60, used(math.nan, 30)), id="a driver that cannot tell"),
        pytest.param([p for p in hours(60, used(40, 0)) if p.at < T0 + 600 or p.at > T0 + 3300], id="we slept"),
    ],
)
def test_what_only_looks_like_low_use(points: list[Point]) -> None:
    assert kinds(look_at(points)) == []


def test_low_use_is_an_alarm_although_steps_come_and_loss_falls() -> None:
    look = look_at(hours(60, used(30, 20)))
    assert look.run[-1].step > look.run[-20].step
    assert kinds(look) == ["gpu-util-below"]


@pytest.mark.parametrize(
    ("more", "gpu", "cause"),
    [
        ({}, {"mem_used": 300.0, "util": 0.0}, "the program runs on the CPU"),
        ({"blocked": 2.0}, {}, "I/O wait: processes of the run wait for the disk, 20 MB/s read"),
        ({"iowait": 8.0}, {}, "I/O wait"),
        ({"own": 15.5, "top": 1.0}, {}, "CPU-bound: the run uses 15.5 of 16 cores"),
        ({"net_in": 40e6}, {}, "waits for data from the network (40 MB/s)"),
        ({"own": 1.05, "top": 1.0}, {}, "CPU-bound in one process (1.0 cores) while 15 of 16 cores are free"),
        ({}, {}, "data loading: the memory of the card is 73 % used"),
        ({}, {"mem_used": 9000.0}, "many small operations"),
    ],
)
def test_the_likely_cause_of_low_use(more: dict[str, float], gpu: dict[str, float], cause: str) -> None:
    points = hours(60, lambda m, p: replace(used(**{"util": 25, "since": 0, **gpu})(m, p), **more) if m > 10 else p)
    assert cause in the(look_at(points), "gpu-util-below").cause


def cards_at(*utils: float, since: int = 20, **first: float) -> Callable[[int, Point], Point]:
    def change(minute: int, point: Point) -> Point:
        if minute < since:
            return point
        cards = [card(util=util) for util in utils]
        return replace(point, cards=(replace(cards[0], **first), *cards[1:]))

    return change


def test_one_card_of_four_that_idles_is_named() -> None:
    alarm = the(look_at(hours(60, cards_at(95, 95, 95, 10), cards=4)), "card-idle")
    assert alarm.text.startswith("GPU 3 at 10 % in the last 15m00s, beside GPU 0 at 95 %: 1 of 4 cards are paid for")
    assert "unevenly" in alarm.cause
    assert kinds(look_at(hours(60, cards_at(95, 95, 95, 10), cards=4))) == ["card-idle"]


def test_without_a_launcher_one_busy_card_is_the_default_of_pytorch() -> None:
    points = hours(60, cards_at(97, 0, 0, 0), cards=4)
    assert "no launcher" in the(look_at(points, launcher=False), "card-idle").cause
    assert "no launcher" not in the(look_at(points, launcher=True), "card-idle").cause


def test_a_first_card_with_more_memory_is_data_parallel() -> None:
    points = hours(60, cards_at(85, 40, 40, 38, mem_used=39_000.0), cards=4)
    assert "DataParallel" in the(look_at(points, launcher=False), "card-idle").cause
    assert "DataParallel" not in the(look_at(points, launcher=True), "card-idle").cause
    even = hours(60, cards_at(85, 40, 40, 38), cards=4)
    assert "DataParallel" not in the(look_at(even, launcher=False), "card-idle").cause


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(hours(60, cards_at(95, 95, 95, 60), cards=4), id="only slower"),
        pytest.param(hours(60, cards_at(95, 95, 95, 10, since=50), cards=4), id="for ten minutes"),
        pytest.param(hours(60, lambda m, p: p if m % 10 == 0 else cards_at(95, 10)(m, p), cards=2), id="in turn"),
    ],
)
def test_cards_that_only_look_idle(points: list[Point]) -> None:
    assert "card-idle" not in kinds(look_at(points))


def test_full_memory_of_a_card() -> None:
    alarm = the(look_at(hours(40, used(92, 30, mem_used=39_500.0))), "gpu-memory-above")
    assert alarm.text == "GPU 0 uses 39500 of 40960 MiB (96 %)"
    assert kinds(look_at(hours(40, used(92, 30, mem_used=38_500.0)))) == []
    peak = hours(40, lambda m, p: used(92, 0, mem_used=40_000.0)(m, p) if m == 38 else p)
    assert kinds(look_at(peak)) == [], "one peak of a minute"
    assert kinds(look_at(hours(40, used(92, 30, mem_used=39_500.0)), serve=True)) == [], "a server takes all"


def test_heat_is_an_alarm_and_a_power_cap_is_none() -> None:
    alarm = the(look_at(hours(40, used(92, 20, throttle=0x40, temp=91.0))), "throttled")
    assert alarm.text == "a card slows itself down for 10m00s at 91 °C: too hot (hardware)"
    assert kinds(look_at(hours(40, used(92, 20, throttle=0x4)))) == []
    assert kinds(look_at(hours(40, used(92, 35, throttle=0x40)))) == [], "for five minutes"


@pytest.mark.parametrize(
    ("bits", "why"),
    [
        (0x8, "hardware slowdown"), (0x20, "too hot (software)"), (0x80, "power brake"),
        (0x48, "hardware slowdown, too hot (hardware)"),
    ],
)  # fmt: skip
def test_why_a_card_slows_itself_down(bits: int, why: str) -> None:
    assert the(look_at(hours(40, used(92, 20, throttle=float(bits)))), "throttled").text.endswith(why)


def test_a_card_that_is_hot_now_and_then_is_no_alarm() -> None:
    points = hours(40, lambda m, p: used(92, 20, throttle=0x40)(m, p) if m % 3 else p)
    assert kinds(look_at(points)) == []


def test_cards_that_are_not_there_any_more() -> None:
    gone = hours(40, each(35, lambda _, p: replace(p, cards=())))
    alarm = the(look_at(gone, cards=1), "gpu-lost")
    assert alarm.text.startswith("nvidia-smi shows 0 cards instead of 1 for 3m00s")
    assert "gpu-lost" not in kinds(look_at(hours(40, each(39, lambda _, p: replace(p, cards=()))), cards=1))
    assert kinds(look_at(hours(40, lambda _, p: replace(p, cards=())), cards=0)) == [], "a job without a card"


def test_a_full_disk() -> None:
    full = hours(30, each(20, lambda _, p: replace(p, disk_free=9e9)))
    assert the(look_at(full), "disk-full").text == "9.0 of 500 GB of the disk are free"
    large = hours(30, each(20, lambda _, p: replace(p, disk_free=30e9, disk_total=2000e9)))
    assert kinds(look_at(large)) == [], "2 % of 2 TB is room"


# --- progress --------------------------------------------------------------------------------------------------------


def frozen(since: int, **more: Any) -> Callable[[int, Point], Point]:
    """From a minute on no further step."""
    return each(since, lambda _, p: replace(p, step=(since - 3) * 30.0, saved=0.0, **more))


def test_busy_cards_without_a_step_are_a_stall() -> None:
    points = hours(120, frozen(60, log=0.0))
    assert kinds(look_at(points[:85])) == []
    alarm = the(look_at(points[:95]), "stalled")
    assert alarm.text == "no step for 36m00s (step 1710), no line of log for 36m00s, GPU use 90 %, at 1.20 USD/h"
    assert "keeps the cards busy" in alarm.cause
    assert kinds(look_at(points)) == ["stalled"], "and nothing else is said of it"


def test_a_short_patience_counts_from_the_step_and_not_from_the_beginning_of_its_minute() -> None:
    minutes = Minutes([])
    for second in range(0, 90, 5):  # the last step and the last line of log come at 50 s
        step = min(second, 50) / 10.0
        minutes.add(Point(T0 + second, stage=RUNNING, step=step, log=float(second <= 50)))
    rules = {"stalled": Rule(duration=30.0, stop=True)}

    def after(seconds: float) -> Look:
        times = {"stepped_at": minutes.stepped_at, "logged_at": minutes.logged_at}
        return look_at(minutes.all(), now=T0 + seconds, rules=rules, warm_s=0.0, **times)

    assert T0 % MINUTE == 0
    assert "stalled" not in kinds(after(75))
    assert the(after(85), "stalled").text.startswith("no step for 35s (step 5), no line of log for 35s")


def test_steps_that_stop_while_the_log_goes_on_get_twice_the_time() -> None:
    points = hours(130, frozen(60))
    assert kinds(look_at(points[:105])) == [], "an evaluation of three quarters of an hour"
    assert "though the log goes on" in the(look_at(points[:125]), "stalled").text


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(hours(80, frozen(60, log=0.0)), id="20 minutes"),
        pytest.param(hours(100, lambda m, p: replace(p, step=p.step // 1200, log=0.0)), id="40 minutes a step"),
        pytest.param(
            hours(100, lambda m, p: replace(frozen(60, log=0.0)(m, p), saved=float(m % 20 == 0))), id="it saves"
        ),
        pytest.param(hours(100, lambda _, p: replace(p, step=math.nan, log=0.0)), id="silence of a busy job"),
        pytest.param(
            hours(100, lambda m, p: replace(used(0, 5)(m, p), step=math.nan, log=0.0, own=3.0)), id="busy CPUs"
        ),
    ],
)
def test_what_only_looks_stalled(points: list[Point]) -> None:
    assert "stalled" not in kinds(look_at(points, rules={"gpu-util-below": Rule(off=True)}))


def quiet(minute: int, point: Point) -> Point:
    point = replace(point, step=math.nan)
    if minute < 20:
        return point
    cards = tuple(replace(each, util=0.0) for each in point.cards)
    flow = {"disk_read": 0.0, "disk_write": 0.0, "own": 0.01, "log": 0.0, "saved": 0.0}
    return replace(point, cards=cards, **flow)


def test_without_steps_silence_counts_only_where_nothing_works() -> None:
    alarm = the(look_at(hours(60, quiet)), "stalled")
    assert alarm.text == ("for 30m00s no line of log, no checkpoint and no work on cards or CPUs, at 1.20 USD/h")
    assert "stalled" not in kinds(look_at(hours(45, quiet))), "25 minutes"
    assert "stalled" not in kinds(look_at(hours(60, quiet), serve=True)), "a server that nobody asks"


def test_silence_on_the_log_or_a_save_alone_is_life() -> None:
    talks = hours(60, lambda m, p: replace(quiet(m, p), log=1.0 if m == 45 else 0.0))
    saves = hours(60, lambda m, p: replace(quiet(m, p), saved=1.0 if m == 45 else 0.0))
    works = hours(60, lambda m, p: replace(quiet(m, p), own=2.0 if m > 20 else p.own))
    reads = hours(60, lambda m, p: replace(quiet(m, p), disk_read=5e6))
    for points in (talks, saves, works, reads):
        assert "stalled" not in kinds(look_at(points))


def test_a_few_minutes_seen_of_a_long_silence_decide_nothing() -> None:
    points = [p for p in hours(120, frozen(60, log=0.0)) if not T0 + 3700 < p.at < T0 + 6600]
    assert "stalled" not in kinds(look_at(points)), "this computer slept from minute 62 to 110"


def test_the_defaults_are_those_that_are_documented() -> None:
    told = {
        kind.name: tuple(v for v in (kind.default.percent, kind.default.duration, kind.default.count) if v == v)
        for kind in KINDS.values()
    }
    assert told == {
        "stalled": (1800.0,), "gpu-util-below": (70, 900.0), "card-idle": (50, 900.0), "gpu-memory-above": (95, 120.0),
        "throughput-below": (50, 300.0), "slowing": (20, 3600.0), "leak": (3600.0,), "no-checkpoint": (2,),
        "machine-slow": (80, 900.0), "scaling": (60, 900.0),
        "throttled": (600.0,), "gpu-lost": (180.0,), "disk-full": (95, 120.0), "reclaims": (3,),
        "ttl-near": (1800.0,),
        "budget-near": (80,),
    }  # fmt: skip


def test_without_steps_fifteen_minutes_are_warm_up() -> None:
    points = hours(60, lambda m, p: replace(used(20, 0)(m, p), step=math.nan))
    assert kinds(look_at(points[:29])) == []
    assert kinds(look_at(points[:31])) == ["gpu-util-below"]


def test_a_pace_of_long_ago_is_no_measure() -> None:
    assert kinds(look_at(paced(lambda m: 100 if m < 60 else 40))) == [], "it has been 40 for an hour and a half"


def test_a_hung_collective_shows_full_use_and_little_power() -> None:
    def spin(minute: int, point: Point) -> Point:
        point = replace(point, step=math.nan)
        if minute < 60:
            return point
        return replace(point, log=0.0, saved=0.0, cards=(card(util=100.0, power=110.0),))

    assert "the ranks wait for each other" in the(look_at(hours(100, spin)), "stalled").cause


def paced(pace: Callable[[int], float], **more: Any) -> list[Point]:
    """150 minutes whose steps a minute are what `pace` says."""
    total, points = 0.0, []
    for minute in range(150):
        total += pace(minute)
        points.append(replace(healthy(minute), step=round(total) if minute >= 3 else math.nan, **more))
    return points


def test_half_the_throughput_is_an_alarm() -> None:
    alarm = the(look_at(paced(lambda m: 30 if m < 140 else 12)), "throughput-below")
    assert alarm.text == "12.0 steps a minute in the last 5m00s instead of 30.0"
    slow_disk = paced(lambda m: 30 if m < 140 else 12, blocked=1.0)
    assert "storage became slow" in the(look_at(slow_disk), "throughput-below").cause


@pytest.mark.parametrize(
    "pace",
    [
        pytest.param(lambda m: 30 if m < 140 else 17, id="more than half"),
        pytest.param(lambda m: 30 if m < 147 else 10, id="for three minutes"),
        pytest.param(lambda m: 0 if m % 20 < 6 else 30, id="evaluation phases"),
        pytest.param(lambda m: 4 if m < 4 else 30, id="a slow first batch"),
        pytest.param(lambda m: 1.5, id="few steps a minute"),
    ],
)
def test_throughput_that_only_looks_halved(pace: Callable[[int], float]) -> None:
    assert kinds(look_at(paced(pace))) == []


def test_steps_that_become_rarer_little_by_little() -> None:
    alarm = the(look_at(paced(lambda m: 60 - 0.2 * m)), "slowing")
    assert "steps a minute became" in alarm.text
    assert kinds(look_at(paced(lambda m: 60 - 0.03 * m))) == []


def grown(per_minute: float, since: int = 0, until: int = 10**6) -> Callable[[int, Point], Point]:
    def change(minute: int, point: Point) -> Point:
        more = per_minute * max(0, min(minute, until) - since)
        return replace(point, mem_used=point.mem_used + more)

    return change


def test_memory_that_grows_and_grows() -> None:
    alarm = the(look_at(hours(120, grown(1.5e8))), "leak")
    assert alarm.text.startswith("main memory grew from 46% to 57% in 1h00m and is full in ")

    def on_card(minute: int, point: Point) -> Point:
        return replace(point, cards=(card(mem_used=20_000.0 + 60 * minute),))

    assert the(look_at(hours(120, on_card)), "leak").text.startswith("memory of card 0 grew")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(grown(1.5e8, until=70), id="a cache that is filled"),
        pytest.param(grown(1e7), id="noise"),
        pytest.param(lambda m, p: replace(p, mem_used=20e9 + 8e9 * (m % 20) / 20), id="a saw"),
        pytest.param(lambda m, p: replace(p, mem_used=60e9 * (1 - math.exp(-m / 40))), id="less and less"),
    ],
)
def test_memory_that_only_looks_like_a_leak(change: Callable[[int, Point], Point]) -> None:
    assert "leak" not in kinds(look_at(hours(120, change)))


def test_idle_cards_and_cpus_with_a_busy_network_are_a_download() -> None:
    fetching = hours(60, lambda m, p: replace(quiet(m, p), net_in=5e6))
    assert "stalled" not in kinds(look_at(fetching))


def test_a_first_card_that_is_a_little_fuller_is_no_data_parallel() -> None:
    a_little = hours(60, cards_at(85, 40, 40, 38, mem_used=33_000.0), cards=4)
    assert "DataParallel" not in the(look_at(a_little, launcher=False), "card-idle").cause
    more = hours(60, cards_at(85, 40, 40, 38, mem_used=37_000.0), cards=4)
    assert "DataParallel" in the(look_at(more, launcher=False), "card-idle").cause


def test_no_checkpoint_in_two_intervals() -> None:
    points = hours(100, lambda _, p: replace(p, saved=0.0))
    alarm = the(look_at(points, every_s=1200.0), "no-checkpoint")
    assert alarm.text.endswith("the spec says one every 20m00s")
    assert kinds(look_at(points[:45], every_s=1200.0)) == [], "one interval and the warm-up"
    assert kinds(look_at(points, every_s=1200.0, saved_at=points[-10].at)) == []
    assert kinds(look_at(points)) == [], "none was promised"
    assert kinds(look_at(hours(100), every_s=1200.0)) == [], "30 minutes are no two intervals of 20"


# --- ends and money --------------------------------------------------------------------------------------------------


def test_an_end_before_the_work_is_done() -> None:
    points = hours(100)
    end = points[-1].at + 3600.0
    short = look_at(points, end=end, total=points[-1].step + 3 * 3600.0)
    assert the(short, "ttl-near").text == "at the present pace 6h00m of work are left, and the hard end comes in 59m00s"
    assert the(short, "ttl-near").next == "gpujob extend train 6h"
    assert kinds(look_at(points, end=end, total=points[-1].step + 600.0)) == []
    assert kinds(look_at(points, end=points[-1].at + 1200.0)) == ["ttl-near"], "nobody knows how long it takes"
    assert kinds(look_at(points, end=points[-1].at + 1200.0, ttl_s=3600.0)) == [], "a third of a short life"
    assert kinds(look_at(points, end=points[-1].at + 1200.0, serve=True)) == []


def test_a_budget_that_ends_before_the_work() -> None:
    points = hours(100)
    assert the(look_at(points, budget=10.0, spent=8.5), "budget-near").text == "8.50 of 10.00 USD are spent (85 %)"
    assert kinds(look_at(points, budget=10.0, spent=7.9)) == []
    assert kinds(look_at(points, budget=10.0, spent=8.5, total=points[-1].step + 600.0)) == [], "the rest fits"
    more = the(look_at(points, budget=10.0, spent=9.9, total=points[-1].step + 1800.0), "budget-near")
    assert more.text.endswith("and the rest of the work needs 1.20 more")


def test_more_reclaims_than_expected() -> None:
    points = hours(30)
    recent = [points[-1].at - 600.0 * n for n in range(4)]
    alarm = the(look_at(points, reclaimed_at=recent, reclaims_per_h=0.1), "reclaims")
    assert alarm.text == "4 reclaims within six hours; 0.6 were to be expected"
    assert kinds(look_at(points, reclaimed_at=recent[:2], reclaims_per_h=0.1)) == []
    assert kinds(look_at(points, reclaimed_at=recent, reclaims_per_h=0.5)) == [], "a restless market"
    assert kinds(look_at(points, reclaimed_at=[at - 86_400 for at in recent])) == []


# --- what the spec says ----------------------------------------------------------------------------------------------


def test_thresholds_stops_and_what_is_switched_off() -> None:
    points = hours(60, used(60, 20))
    assert kinds(look_at(points, rules={"gpu-util-below": Rule(percent=50)})) == []
    assert kinds(look_at(points[:28], rules={"gpu-util-below": Rule(duration=300.0)})) == ["gpu-util-below"]
    assert kinds(look_at(points, rules={"gpu-util-below": Rule(off=True)})) == []
    assert the(look_at(points, rules={"gpu-util-below": Rule(stop=True)}), "gpu-util-below").stop
    assert not the(look_at(points, end=points[-1].at, rules={"ttl-near": Rule(stop=True)}), "ttl-near").stop


def test_what_a_spec_leaves_out_of_a_rule_keeps_its_default() -> None:
    look = look_at(hours(30), rules={"gpu-util-below": Rule(duration=60.0), "card-idle": Rule(percent=20)})
    assert (look.rule("gpu-util-below").percent, look.rule("gpu-util-below").duration) == (70, 60.0)
    assert (look.rule("card-idle").percent, look.rule("card-idle").duration) == (20, 900.0)
    assert look.rule("no-checkpoint") == KINDS["no-checkpoint"].default


def test_the_spec_has_a_key_for_every_alarm_and_only_those_that_can_end_a_job_stop() -> None:
    keys = {
        name.replace("_", "-"): field for name, field in Alarms.model_fields.items() if name not in ("off", "warm_up")
    }
    assert set(keys) == set(KINDS)
    assert set(KINDS) > WASTE
    for name, field in keys.items():
        block = next(each for each in field.annotation.__args__ if each is not type(None))  # type: ignore[union-attr]
        assert ("stop" in block.model_fields) is KINDS[name].can_stop
        assert ("relaunch" in block.model_fields) is KINDS[name].can_stop
        told = {each.name: getattr(KINDS[name].default, each.name) for each in fields(Rule)}
        for threshold in ("percent", "duration", "count"):
            if not math.isnan(told[threshold]):
                assert threshold in block.model_fields, f"{name} has no {threshold}"


def test_a_long_setup_is_no_part_of_the_warm_up() -> None:
    def late(minute: int, point: Point) -> Point:
        point = replace(used(20, 0)(minute, point), step=math.nan)
        return replace(point, stage=1.0) if minute < 50 else point

    points = hours(90, late)
    assert kinds(look_at(points[:75])) == [], "25 minutes of run after 50 of setup"
    assert kinds(look_at(points[:82])) == ["gpu-util-below"]
    assert kinds(look_at(points[50:75], began_at=T0 - 3600.0)) == ["gpu-util-below"], "an older run, after a restart"


def test_the_count_of_a_rule_is_the_specs() -> None:
    points = hours(100, lambda _, p: replace(p, saved=0.0))
    assert kinds(look_at(points, every_s=1200.0, rules={"no-checkpoint": Rule(count=5)})) == []
    assert kinds(look_at(points, every_s=1200.0, rules={"no-checkpoint": Rule(count=4)})) == ["no-checkpoint"]


def test_the_work_that_is_left_is_not_guessed_from_a_few_minutes() -> None:
    points = hours(100)
    end = points[-1].at + 3600.0
    assert look_at(points[:9], total=1e6, end=end).left_s is None
    assert look_at(points[:14], total=1e6, end=end).left_s is not None
    assert look_at(points, total=None).left_s is None
    slow_start = [replace(p, step=p.step if p.at < T0 + 1800 else 840 + (p.at - T0 - 1800) / 6) for p in hours(100)]
    left = look_at(slow_start, total=slow_start[-1].step + 600.0).left_s
    assert left == pytest.approx(3600.0), "by the pace of the last hour"


def test_a_warm_up_of_the_specs_own() -> None:
    points = hours(30, used(40, 0))
    assert kinds(look_at(points[:18])) == []
    assert kinds(look_at(points[:18], warm_s=60.0, rules={"gpu-util-below": Rule(duration=600.0)})) == [
        "gpu-util-below"
    ]
    assert kinds(look_at(points, warm_s=1700.0)) == []


def test_a_silent_machine_says_nothing() -> None:
    points = hours(60, used(10, 20))
    assert kinds(look_at(points, now=points[-1].at + 600.0)) == []


# --- against what other machines made --------------------------------------------------------------------------------

USUAL = Before(paces=(30 / 60, 30.3 / 60, 29.7 / 60))


def at_pace(steps_a_minute: float, minutes: int = 60) -> list[Point]:
    return hours(minutes, steps_a_minute=steps_a_minute)


def test_a_machine_that_is_slower_than_others_is_said_with_both_paces() -> None:
    look = look_at(at_pace(23.4), before=USUAL)
    assert kinds(look) == ["machine-slow"]
    assert the(look, "machine-slow").text == (
        "23.4 steps a minute in the last 15m00s, 22% less than the 30.0 of the same program on 3 earlier machines with"
        " this card"
    )
    assert "a neighbour on this host" in the(look, "machine-slow").cause
    hot = [replace(p, cards=tuple(replace(c, throttle=0x40) for c in p.cards)) for p in at_pace(23.4)]
    assert "too hot" in the(look_at(hot, before=USUAL), "machine-slow").cause


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(look_at(at_pace(27), before=USUAL), id="a tenth slower is what machines differ by"),
        pytest.param(look_at(at_pace(23.4), before=Before(paces=(0.5,))), id="one other machine is no rule"),
        pytest.param(look_at(at_pace(23.4)), id="a first machine"),
        pytest.param(look_at(at_pace(23.4, 16), before=USUAL), id="warm-up"),
        pytest.param(look_at(at_pace(23.4), before=USUAL, rules={"machine-slow": Rule(percent=70)}), id="allowed"),
    ],
)
def test_what_is_no_slow_machine(look: Look) -> None:
    assert kinds(look) == []


def told(rate: float, cards: int) -> list[Point]:
    return [replace(point, rate=rate) for point in hours(60, cards=cards)]


def test_eight_cards_that_make_three_times_one_are_said_with_their_share() -> None:
    before = Before(rates=((1, 101.0), (2, 195.0), (1, 99.0)))
    alarm = the(look_at(told(300.0, 8), before=before), "scaling")
    assert alarm.text == "8 cards make 300 a second and 1 card made 100: 37.5 % of linear, at 1.20 USD/h"
    assert "interconnect" in alarm.cause
    assert kinds(look_at(told(490.0, 8), before=before)) == []
    assert kinds(look_at(told(40.0, 1), before=before)) == [], "one card has nothing to scale"
    assert kinds(look_at(told(300.0, 8))) == [], "nothing to compare with"
    assert kinds(look_at(told(math.nan, 8), before=before)) == [], "a job that tells no throughput"
    against_two = the(look_at(told(300.0, 8), before=Before(rates=((2, 200.0),))), "scaling")
    assert "2 cards made 200: 37.5 %" in against_two.text


@pytest.mark.parametrize(
    ("hours_left", "hours_of_work", "said"),
    [(20.0, 21.0, False), (20.0, 23.0, True), (1.5, 1.6, True), (1.5, 1.4, False)],
)
def test_a_prognosis_of_many_hours_leaves_room_for_doubt(hours_left: float, hours_of_work: float, said: bool) -> None:
    points = hours(100)
    total = points[-1].step + 1800 * hours_of_work
    assert (kinds(look_at(points, total=total, end=points[-1].at + 3600 * hours_left)) == ["ttl-near"]) is said
