"""What is worth a word while a job runs: from a machine's last hours as minutes to alarms. Pure.

Progress is the first signal and use the second: a job whose steps come is not stalled whatever its cards show, and one
whose cards are busy may have stopped all the same (requirement of every report on silent hangs).

Rules
- Only minutes count in which `run` ran and that were its own: warm-up (until some minutes after the first step), the
  writing of checkpoints, and everything before `run` (code, data, setup) are left out.
- An alarm on use needs every such minute below the threshold: one busy minute is an evaluation, not a fault.
- A gap in the samples (this computer slept) is no evidence: too few minutes decide nothing.
- Each alarm says what is seen with figures, what it probably is, and what to do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from orchestrator import alarms_of_use as use
from orchestrator.look import COVERED, KINDS, MINUTE, PARTS, Alarm, Look, Rule, Said, hot, median, parts_of
from orchestrator.points import Point, mean
from orchestrator.spans import span

IDLE_CORES, IDLE_BYTES = 0.05, 100_000.0  # below both, and with idle cards, nothing happens
STEP_PATIENCE = 10  # a job that always took minutes a step is not stalled after one of them
LEAK_SHARE = 0.05  # of all memory in that time: less is noise or a cache
LEAK_HORIZON_S = 24 * 3600.0
PROGNOSIS_DOUBT = 0.1  # an hour with an evaluation in it, or with longer samples, is so much slower than the others
PROGNOSIS_SURE_S = 2 * 3600.0  # from here on there is no time for doubt
MACHINES_MIN = 2  # earlier machines before their pace is the usual one
SLOWER_MIN = 10  # minutes with steps before a median is believed
RECLAIM_WINDOW_S = 6 * 3600.0


def examine(look: Look) -> tuple[Alarm, ...]:
    """The alarms that hold at `look.now`, in the order of `KINDS`."""
    found = []
    for name, rule_of in _RULES.items():
        rule = look.rule(name)
        alarm = None if rule.off else rule_of(look, rule)
        if alarm is not None:
            found.append(Alarm(name, *alarm, stop=rule.stop and KINDS[name].can_stop))
    kinds = {alarm.kind for alarm in found}
    if "card-idle" in kinds or "gpu-lost" in kinds:  # they say the same, and why
        found = [alarm for alarm in found if alarm.kind != "gpu-util-below"]
    if "stalled" in kinds:
        found = [alarm for alarm in found if alarm.kind not in ("gpu-util-below", "card-idle", "no-checkpoint")]
    return tuple(found)


# --- progress --------------------------------------------------------------------------------------------------------


def _stalled(look: Look, rule: Rule) -> Said:
    if not look.fresh or look.serve:
        return None
    run = look.run
    steps = [p for p in run if p.step == p.step]
    changes = [after for before, after in itertools.pairwise(steps) if after.step != before.step]
    if steps:
        return _steps_stopped(look, rule, [steps[0], *changes])
    since = look.now - rule.duration
    window = [p for p in run if p.at + MINUTE > since]
    if look.now - run[0].at < rule.duration or len(window) < COVERED * rule.duration / MINUTE:
        return None
    if sum(p.log for p in window if p.log == p.log) > 0 or any(p.saved > 0 for p in window):
        return None
    quiet = f"for {span(rule.duration)} no line of log, no checkpoint"
    if all(map(_idle, window)):
        cause = "the program waits for something that does not come: a prompt, a lock, a download, a dead worker"
        return f"{quiet} and no work on cards or CPUs, {look.price}", cause, _look_inside(look)
    power = [mean(c.power for c in p.cards) for p in run if p.at < since]
    before, now = sorted(p for p in power if p == p), mean(mean(c.power for c in p.cards) for p in window)
    typical = before[len(before) * 9 // 10] if len(before) >= SLOWER_MIN else math.nan
    if mean(p.use for p in window) >= 90 and now < 0.6 * typical:
        text = (
            f"{quiet}; the cards show {mean(p.use for p in window):.0f} % use with {now:.0f} W instead of {typical:.0f}"
        )
        return f"{text} W, {look.price}", "the ranks wait for each other (a hung collective)", _look_inside(look)
    return None


def _steps_stopped(look: Look, rule: Rule, changes: list[Point]) -> Said:
    gaps = sorted(after.at - before.at for before, after in itertools.pairwise(changes))
    usual = gaps[len(gaps) // 2] if gaps else 0.0
    patience = max(rule.duration, STEP_PATIENCE * usual)
    run = look.run
    saves = [p.at for p in run if p.saved > 0]
    since = max([changes[-1].at, look.stepped_at, *saves])
    silent_since = max([look.logged_at, *(p.at for p in run if p.log > 0)]) or since
    waited = look.now - since
    silent = look.now - silent_since >= patience
    seen = sum(p.at + MINUTE > since for p in run)
    if waited < (patience if silent else 2 * patience) or seen < COVERED * waited / MINUTE:
        return None
    share = mean(p.use for p in run if p.at > since)
    log = f"no line of log for {span(look.now - silent_since)}" if silent else "though the log goes on"
    shown = f", GPU use {share:.0f} %" if share == share else ""
    text = f"no step for {span(waited)} (step {changes[-1].step:g}), {log}{shown}, {look.price}"
    if share >= 50:
        cause = "a hang that keeps the cards busy (a collective that waits for a rank), or a very long evaluation"
    else:
        cause = "the program waits: a dead data worker, a lock, a full disk, a network mount"
    return text, cause, _look_inside(look)


def _idle(point: Point) -> bool:
    used = any(card.util > use.IDLE_UTIL for card in point.cards) or point.own > IDLE_CORES
    moved = (point.disk_read, point.disk_write, point.net_in, point.net_out)
    return not used and not any(each > IDLE_BYTES for each in moved)


def _look_inside(look: Look) -> str:
    return (
        f"gpujob attach {look.name} (or ssh, then `py-spy dump --pid PID`); gpujob cancel {look.name} saves and ends it"
    )


def _throughput(look: Look, rule: Rule) -> Said:
    since = look.now - rule.duration
    recent = [(at, pace) for at, pace in look.paces if at > since]
    before = [pace for at, pace in look.paces if since - 3600.0 <= at <= since]
    if not look.last(rule.duration) or len(recent) < 3 or len(before) < SLOWER_MIN:
        return None
    usual, now = median(before), median([pace for _, pace in recent])
    if now * MINUTE * len(recent) < 5 or max(pace for _, pace in recent) >= usual * rule.percent / 100:
        return None
    text = f"{now * MINUTE:.1f} steps a minute in the last {span(rule.duration)} instead of {usual * MINUTE:.1f}"
    waits = mean(p.blocked for p in look.last(rule.duration))
    cause = "longer samples, or storage that became slow"
    if waits >= 0.5:
        cause = "the storage became slow: processes of the run wait for the disk"
    elif hot(look.last(rule.duration)):
        cause = "the cards slow down: too hot, or short of power"
    return text, cause, f"gpujob top {look.name}; if it stays, another machine may be faster"


def _slowing(look: Look, rule: Rule) -> Said:
    if not look.last(rule.duration):
        return None
    paces = [(at, pace) for at, pace in look.paces if at > look.now - rule.duration]
    parts = parts_of(paces, look.now - rule.duration, rule.duration)
    if parts is None:
        return None
    medians = [median(part) for part in parts]
    falls = all(after < before for before, after in itertools.pairwise(medians))
    if not falls or medians[-1] > medians[0] * (1 - rule.percent / 100):
        return None
    text = f"{medians[0] * MINUTE:.1f} steps a minute became {medians[-1] * MINUTE:.1f} little by little"
    text += f", in {span(rule.duration)}"
    return text, "a leak, fragmented memory, or a list that grows with each step", _leak_next(look)


def _machine_slow(look: Look, rule: Rule) -> Said:
    minutes = look.last(rule.duration)
    recent = [pace for at, pace in look.paces if at > look.now - rule.duration]
    before = look.before.paces
    if not minutes or len(before) < MACHINES_MIN or len(recent) < SLOWER_MIN:
        return None
    usual, now = median(before), median(recent)
    if now >= usual * rule.percent / 100:
        return None
    text = f"{now * MINUTE:.1f} steps a minute in the last {span(rule.duration)}, {1 - now / usual:.0%} less than"
    text += f" the {usual * MINUTE:.1f} of the same program on {len(before)} earlier machines with this card"
    cause = "a neighbour on this host, or its slower CPUs, disk or network"
    if hot(minutes):
        cause = "the cards slow down: too hot, or short of power"
    return (
        text,
        cause,
        f"another machine: alarms: machine_slow: {{relaunch: true}}, or gpujob cancel {look.name} and resume",
    )


def _scaling(look: Look, rule: Rule) -> Said:
    rates = [p.rate for p in look.last(rule.duration) if p.rate > 0]
    fewer = [(cards, rate) for cards, rate in look.before.rates if cards < look.cards]
    if look.cards < 2 or len(rates) < SLOWER_MIN or not fewer:
        return None
    few = min(cards for cards, _ in fewer)
    base = median([rate for cards, rate in fewer if cards == few])
    now = median(rates)
    share = 100 * now * few / (base * look.cards)
    if share >= rule.percent:
        return None
    cards = "1 card" if few == 1 else f"{few} cards"
    text = (
        f"{look.cards} cards make {now:.4g} a second and {cards} made {base:.4g}: {share:.1f} % of linear, {look.price}"
    )
    todo = f"nvidia-smi topo -m (gpujob ssh {look.name}); a larger batch a card; fewer cards cost less for each sample"
    return text, "the interconnect, or a batch too small for so many cards", todo


def _leak(look: Look, rule: Rule) -> Said:
    minutes = look.last(rule.duration)
    if not minutes:
        return None
    totals = [
        ("main memory", [(p.at, p.mem_used / p.mem_total) for p in minutes if p.mem_total > 0 and p.mem_used >= 0])
    ]
    for index in range(max(len(p.cards) for p in minutes)):
        full = [(p.at, p.cards[index].full / 100) for p in minutes if index < len(p.cards)]
        totals.append((f"memory of card {index}", [(at, share) for at, share in full if share == share]))
    for what, shares in totals:
        parts = parts_of(shares, look.now - rule.duration, rule.duration)
        if parts is None:
            continue
        lows = [min(part) for part in parts]
        steps = [after - before for before, after in itertools.pairwise(lows)]
        grown = lows[-1] - lows[0]
        steady = min(steps) > 0.6 * grown / len(steps)  # a cache that fills grows less and less
        if grown < LEAK_SHARE or not steady:
            continue
        full_in = (1.0 - lows[-1]) / (grown / (rule.duration * (PARTS - 1) / PARTS))
        if full_in > LEAK_HORIZON_S:
            continue
        text = (
            f"{what} grew from {lows[0]:.0%} to {lows[-1]:.0%} in {span(rule.duration)} and is full in {span(full_in)}"
        )
        return text, "something is kept from step to step (losses with their graph, a list, a cache)", _leak_next(look)
    return None


def _leak_next(look: Look) -> str:
    todo = "append loss.item() instead of loss, bound caches, fewer data workers"
    return f"{todo}; a resume from a checkpoint starts small again (gpujob cancel {look.name}, gpujob resume)"


def _no_checkpoint(look: Look, rule: Rule) -> Said:
    if look.every_s is None or not look.fresh:
        return None
    own = [p.at for p in look.run if p.saved > 0]
    since = max([look.warm_at, *own, *([look.saved_at] if look.saved_at is not None else [])])
    limit = rule.count * look.every_s + MINUTE
    if look.now - since < limit:
        return None
    text = f"no checkpoint for {span(look.now - since)}; the spec says one every {span(look.every_s)}"
    cause = "saves go somewhere else than $GPUJOB_CKPT, have another name than `pattern`, or fail"
    return text, cause, f"gpujob describe {look.name} lists what was found; without one a reclaim throws all of it away"


# --- ends and money --------------------------------------------------------------------------------------------------


def _ttl_near(look: Look, rule: Rule) -> Said:
    if look.end is None or look.serve or not look.run:
        return None
    remaining = look.end - look.now
    left = look.left_s
    todo = f"gpujob extend {look.name} {_hours(left - remaining if left is not None else 2 * 3600.0)}"
    if left is not None:
        doubt = PROGNOSIS_DOUBT * remaining if remaining > PROGNOSIS_SURE_S else 0.0
        if left <= remaining + doubt or look.now - look.run[0].at < 15 * MINUTE:
            return None
        text = f"at the present pace {span(left)} of work are left, and the hard end comes in {span(remaining)}"
        return text, "ttl is shorter than the work", todo
    window = min(rule.duration, look.ttl_s / 10) if look.ttl_s == look.ttl_s else rule.duration
    if remaining > window:
        return None
    return f"the hard end comes in {span(remaining)}", "ttl is shorter than the work, or the work hangs", todo


def _hours(seconds: float) -> str:
    return f"{max(1, math.ceil(seconds / 3600.0))}h"


def _budget_near(look: Look, rule: Rule) -> Said:
    if not look.budget or look.spent < look.budget * rule.percent / 100:
        return None
    left = look.left_s
    needs = left / 3600.0 * look.hourly if left is not None else None
    if needs is not None and look.spent + needs <= look.budget:
        return None
    text = f"{look.spent:.2f} of {look.budget:.2f} {look.money} are spent ({100 * look.spent / look.budget:.0f} %)"
    if needs is not None:
        text += f", and the rest of the work needs {needs:.2f} more"
    return text, "the budget ends before the work", "a larger `budget:` and `gpujob apply`, or let it save and end"


def _reclaims(look: Look, rule: Rule) -> Said:
    recent = [at for at in look.reclaimed_at if at > look.now - RECLAIM_WINDOW_S]
    expected = look.reclaims_per_h * RECLAIM_WINDOW_S / 3600.0
    if len(recent) < max(rule.count, 2 * expected):
        return None
    text = f"{len(recent)} reclaims within six hours; {expected:.1f} were to be expected"
    return text, "the market of this card is short just now", "spot: false, another card or region, or a later start"


_RULES: Mapping[str, Callable[[Look, Rule], Said]] = {
    "stalled": _stalled,
    "gpu-util-below": use.low_use,
    "card-idle": use.card_idle,
    "gpu-memory-above": use.memory_full,
    "throughput-below": _throughput,
    "slowing": _slowing,
    "machine-slow": _machine_slow,
    "scaling": _scaling,
    "leak": _leak,
    "no-checkpoint": _no_checkpoint,
    "throttled": use.throttled,
    "gpu-lost": use.gpu_lost,
    "disk-full": use.disk_full,
    "reclaims": _reclaims,
    "ttl-near": _ttl_near,
    "budget-near": _budget_near,
}
