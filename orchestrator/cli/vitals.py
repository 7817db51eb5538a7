"""How a job's machine does: its last sample, its pace, and the last hour as small charts. For `describe` and `top`.

Read from the series of the newest run's machine, never from the machine itself: it costs nothing there, and works as
well while the machine does not answer; how old the last sample is, is said.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import cut, line_width, paint, size, span, utc_z
from orchestrator.home import Home
from orchestrator.points import CARD_COLUMNS, COLUMNS, Card, Point, mean
from orchestrator.series import read

if TYPE_CHECKING:
    from orchestrator.store.rows import Notice

LAST_S = 180.0  # the newest sample; what is older is only a memory
HOUR_S = 3600.0
PACE_S = 300.0  # steps a minute are told over so long
CHART = 30  # characters
STALE_S = 60.0  # six samples missing are said
BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
HEAT_BITS = 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class Vitals:
    """One machine: `last` is the newest sample, `minutes` the last hour, oldest first."""

    last: Point
    minutes: Sequence[Point]

    @property
    def whole(self) -> Sequence[Point]:
        """The minutes but the newest, which still grows: its step is not the one that it will end with."""
        return self.minutes[:-1]

    @property
    def pace(self) -> float:
        """Steps a second over the last minutes; NaN where no step is known."""
        known = [p for p in self.whole if p.step == p.step and p.at >= self.last.at - PACE_S - 60.0]
        if len(known) < 2 or known[-1].at <= known[0].at or known[-1].step < known[0].step:
            return math.nan
        return (known[-1].step - known[0].step) / (known[-1].at - known[0].at)

    @property
    def paces(self) -> list[float]:
        """Steps a second of each minute of the last hour; NaN where unknown."""
        found = [math.nan]
        for before, after in itertools.pairwise(self.whole):
            moved = after.step - before.step
            found.append(moved / (after.at - before.at) if moved >= 0 else math.nan)
        return found


def vitals_of(home: Home, job: str, rental: str, now: float) -> Vitals | None:
    """The vitals of one machine; None before its first sample."""
    path = home.series(job, rental)
    minutes = read(path, 60, now - HOUR_S)
    newest = read(path, 10, now - LAST_S)
    if newest:
        return Vitals(newest[-1], minutes)
    older = minutes or read(path, 600)
    return Vitals(older[-1], minutes) if older else None


def chart(values: Sequence[float], high: float = math.nan, width: int = CHART) -> str:
    """The newest values as bars from 0 to `high` (the largest one unless given), blank where unknown; of more than
    `width` two share a bar, as their mean."""
    shown = list(values)[-2 * width :]
    if len(shown) > width:
        shown = [mean(shown[i : i + 2]) for i in range(len(shown) % 2, len(shown), 2)]
    known = [value for value in shown if value == value]
    top = high if high == high else max(known, default=0.0)
    bars = BARS if (sys.stdout.encoding or "").lower().startswith("utf") else PLAIN_BARS
    last = len(bars) - 1
    scaled = [round(last * min(1.0, max(0.0, v / top))) if v == v and top > 0 else 0 for v in shown]
    return "".join(bars[s] if v == v else " " for s, v in zip(scaled, shown, strict=True)).rstrip()


def health_lines(found: Vitals, step: float | None, total: float | None, now: float) -> Iterator[str]:
    """The section HEALTH of `describe`."""
    age = now - found.last.at
    yield "HEALTH   the last hour" + (f"; the last sample is {span(age)} old" if age > STALE_S else "")
    for index, card in enumerate(found.last.cards):
        uses = [p.cards[index].util if index < len(p.cards) else math.nan for p in found.minutes]
        yield cut(f"  GPU {index:<2} {card_words(card):<52} {chart(uses, 100.0)}", line_width())
    pace = found.pace
    if pace == pace or step is not None:
        at = f"step {step:g}" if step is not None else ""
        at += f" of {total:g}" if total else ""
        yield cut(f"  steps  {pace_words(pace) + '  ' + at:<52} {chart(found.paces)}".rstrip(), line_width())
    uses = [p.cpu for p in found.minutes]
    yield cut(f"  CPU    {cpu_words(found.last):<52} {chart(uses, 100.0)}", line_width())
    full = [100 * p.mem_used / p.mem_total if p.mem_total > 0 else math.nan for p in found.minutes]
    yield cut(f"  RAM    {of(found.last.mem_used, found.last.mem_total):<52} {chart(full, 100.0)}", line_width())
    yield cut(f"  disk   {disk_words(found.last)}", line_width())
    yield cut(f"  net    {flow(found.last.net_in)} in, {flow(found.last.net_out)} out", line_width())


def alarm_lines(alarms: Sequence[Mapping[str, Any]], now: float) -> Iterator[str]:
    """The section ALARMS: each with since when, why, and what to do."""
    if alarms:
        yield "ALARMS"
    for each in alarms:
        since = f"for {span(now - float(each.get('since', now)))}"
        yield f"  {paint(str(each.get('kind')), 'yellow')} ({since}): {each.get('text')}"
        yield f"    likely  {each.get('cause')}"
        yield f"    next    {each.get('next')}"


def card_words(card: Card) -> str:
    """`97 %  31.2 of 40.0 GiB  66 °C  310 W  slowed down`."""
    memory = f"{card.mem_used / 1024:.1f} of {card.mem_total / 1024:.1f} GiB" if card.mem_total > 0 else "-"
    parts = [known(card.util, "%"), memory, known(card.temp, "°C"), known(card.power, "W")]
    if card.throttle == card.throttle and int(card.throttle) & HEAT_BITS:
        parts.append("slowed down")
    return "  ".join(parts)


def cpu_words(last: Point) -> str:
    """`5.1 of 16 cores by the run; 30 % busy, 1 % waiting`."""
    own = f"{last.own:.1f} of {last.cpus:.0f} cores by the run; " if last.own == last.own else ""
    return f"{own}{known(last.cpu, '%')} busy, {known(last.iowait, '%')} waiting"


def disk_words(last: Point) -> str:
    """`200 GB free, 20 MB/s read, 1 MB/s written`."""
    free = f"{size(int(last.disk_free))} free, " if last.disk_free == last.disk_free else ""
    return f"{free}{flow(last.disk_read)} read, {flow(last.disk_write)} written"


def pace_words(pace: float) -> str:
    """Steps a second, or a minute where they are rare."""
    if pace != pace:
        return "-"
    return f"{pace:.1f} steps/s" if pace >= 1 else f"{pace * 60:.1f} steps/min"


def known(value: float, unit: str) -> str:
    """`97 %`; `-` where it is unknown."""
    return f"{value:.0f} {unit}" if value == value else "-"


def of(used: float, total: float) -> str:
    """`20 of 64 GB`."""
    return f"{size(int(used))} of {size(int(total))}" if used == used and total == total else "-"


def flow(rate: float) -> str:
    """`20 MB/s`."""
    return f"{size(int(rate))}/s" if rate == rate else "-"


def as_json(found: Vitals | None) -> dict[str, Any] | None:
    """The vitals as documented in the reference of the JSON output; what is unknown is null."""
    if found is None:
        return None
    last = found.last
    cards = [
        {"index": i, **{name: plain(getattr(card, name)) for name in CARD_COLUMNS}} for i, card in enumerate(last.cards)
    ]
    history: dict[str, Callable[[Point], float]] = {
        "gpu_util": lambda p: p.use, "cpu": lambda p: p.cpu, "mem_used": lambda p: p.mem_used, "step": lambda p: p.step,
    }  # fmt: skip
    return {
        "at": utc_z(last.at),
        "gpus": cards,
        **{name: plain(getattr(last, name)) for name in COLUMNS if name not in ("stage", "log", "saved", "rate")},
        "steps_per_s": plain(found.pace),
        "throughput": plain(last.rate),
        "minutes": {
            "at": [utc_z(p.at) for p in found.minutes],
            **{name: [plain(value(p)) for p in found.minutes] for name, value in history.items()},
        },
    }


def plain(value: float) -> float | None:
    """A number, or null where it is unknown."""
    return value if value == value and math.isfinite(value) else None


def alarm_json(alarm: Any) -> dict[str, Any]:
    """One alarm that holds."""
    return {**{key: alarm.get(key) for key in ("kind", "text", "cause", "next")}, "since": utc_z(alarm.get("since"))}


def notice_words(notice: Notice, now: float) -> str:
    """How the last try to tell a target ended: `me: told "train is done" 3m20s ago`."""
    if not notice.error:
        return f"{notice.target}: told {notice.title!r} {span(now - (notice.sent_at or now))} ago"
    then = "given up" if notice.over else f"again in {span(notice.next_at - now)}"
    return f"{notice.target}: NOT told {notice.title!r}: {notice.error} (try {notice.tries}, {then})"
