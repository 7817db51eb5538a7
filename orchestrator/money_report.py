"""What was spent in a time, on what, and how much of it computed: from the ledger, the rentals and what was recorded.

Rules: pure. Every bill is in exactly one of four classes. A bill that reaches beyond the time counts by the share of
its seconds within. Play money is never added to real money, nor one currency to another without a rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from orchestrator.model import Reason, Rental
from orchestrator.paid_time import PHASES, UNSEEN, Busy
from orchestrator.store.rows import Bill

CLASSES = ("instances", "storage", "traffic", "other")
_CLASS_OF = {
    "instance": "instances", "minimum": "instances", "disk": "storage", "volume": "storage", "snapshot": "storage",
    "egress": "traffic", "ingress": "traffic",
    "cross-region": "traffic", "traffic": "traffic",
}  # fmt: skip
OLD_SNAPSHOT_S = 30 * 86_400.0
SPIKY = 3.0  # a peak day above this many mean days is what renting is for
DAY_S = 86_400.0


@dataclass(frozen=True, order=True)
class Unit:
    """What amounts are in: a currency, or its play money."""

    currency: str
    play: bool = False


Amounts = dict[Unit, Decimal]


@dataclass(frozen=True)
class Machine:
    """One rental with what was recorded of it within the time: seconds by phase, and sampled use."""

    rental: Rental
    phases: Mapping[str, float]
    busy: Busy = UNSEEN
    orphaned: bool = False  # it still bills although its job is over

    @property
    def billed_s(self) -> float:
        """The seconds that are paid, minimum and steps included."""
        return sum(self.phases.values())


@dataclass
class GpuLine:
    """One class of machines: hours x price = amount, and how many of the hours were sampled, and computed."""

    gpu: str
    unit: Unit
    machines: int = 0
    billed_s: float = 0.0
    seen_s: float = 0.0
    busy_s: float = 0.0
    amount: Decimal = Decimal(0)

    @property
    def price(self) -> Decimal:
        """What one hour cost on average."""
        return self.amount * 3600 / Decimal(self.billed_s) if self.billed_s else Decimal(0)


@dataclass(frozen=True)
class Flag:
    """Something that costs and that nobody needs."""

    text: str
    amount: Decimal
    unit: Unit


@dataclass(frozen=True)
class Report:
    """The money of one time [since, until), in UTC epoch seconds."""

    since: float
    until: float
    classes: Mapping[str, Amounts]
    total: Amounts
    gpus: Sequence[GpuLine]
    names: Sequence[tuple[str, Amounts]]  # of jobs, dearest first
    phases: Mapping[str, float]
    bad_host_s: float
    bad_host: Amounts
    flags: Sequence[Flag]
    busy_days: Mapping[int, float] = field(default_factory=dict)  # UTC day -> hours that computed

    @property
    def demand(self) -> tuple[str, float, float] | None:
        """(flat or spiky, busy hours of the peak day, of the mean day); None when no use was recorded."""
        days = max(1, round((self.until - self.since) / DAY_S))
        peak = max(self.busy_days.values(), default=0.0)
        if not peak:
            return None
        mean = sum(self.busy_days.values()) / days
        return "spiky" if peak > SPIKY * mean else "flat", peak, mean


def class_of(kind: str) -> str:
    """The class of a bill's kind; what nobody knows is other."""
    return _CLASS_OF.get(kind, "other")


def within(bill: Bill, since: float, until: float) -> Decimal:
    """The share of a bill's amount that falls into [since, until), by time."""
    length = bill.until - bill.since
    if length <= 0:
        return bill.amount if since <= bill.since < until else Decimal(0)
    share = max(0.0, min(bill.until, until) - max(bill.since, since)) / length
    return bill.amount if share >= 1 else (bill.amount * Decimal(f"{share:.9f}")).quantize(Decimal("0.000001"))


def report(
    bills: Iterable[Bill],
    machines: Mapping[str, Machine],
    names: Mapping[str, str],
    since: float,
    until: float,
    currency: str,
    rates: Mapping[str, Decimal],
) -> Report:
    """The report of one time. `machines` by rental, `names` by job; `rates` bring other currencies into `currency`."""
    classes: dict[str, Amounts] = {name: {} for name in CLASSES}
    total: Amounts = {}
    by_name: dict[str, Amounts] = {}
    lines: dict[tuple[str, Unit], GpuLine] = {}
    bad: Amounts = {}
    flags: list[Flag] = []
    counted: set[str] = set()
    for bill in bills:
        amount = within(bill, since, until)
        rate = rates.get(bill.currency, Decimal(1))
        unit = Unit(currency if bill.currency in rates else bill.currency, bill.play)
        amount *= rate
        machine = machines.get(bill.rental)
        _add(classes[class_of(bill.kind)], unit, amount)
        _add(total, unit, amount)
        _add(by_name.setdefault(names.get(bill.job, bill.job), {}), unit, amount)
        if class_of(bill.kind) == "instances" and machine is not None:
            line = lines.setdefault((gpu_of(machine.rental), unit), GpuLine(gpu_of(machine.rental), unit))
            line.amount += amount
            if bill.rental not in counted:
                _count(line, machine)
                counted.add(bill.rental)
            if machine.rental.reason is Reason.BAD_HOST:
                _add(bad, unit, amount)
        flags += _flags(bill, machine, amount, unit, until)
    here = [machine for rental, machine in machines.items() if rental in counted]
    days: dict[int, float] = {}
    for machine in here:
        for day, seconds in machine.busy.by_day.items():
            days[day] = days.get(day, 0.0) + seconds / 3600
    return Report(
        since=since,
        until=until,
        classes=classes,
        total=total,
        gpus=sorted(lines.values(), key=lambda line: (-line.amount, line.gpu)),
        names=sorted(by_name.items(), key=lambda each: (-max(each[1].values()), each[0])),
        phases={phase: sum(machine.phases.get(phase, 0.0) for machine in here) for phase in PHASES},
        bad_host_s=sum(each.billed_s for each in here if each.rental.reason is Reason.BAD_HOST),
        bad_host=bad,
        flags=flags,
        busy_days=days,
    )


def gpu_of(rental: Rental) -> str:
    """`RTX-4090:2`, `CPU`; a stand-in says so."""
    offer = rental.offer
    count = f":{offer.gpu_count}" if offer.gpu_count > 1 else ""
    return f"{offer.gpu}{count}{' stand-in' if offer.stand_in else ''}" if offer.gpu else "CPU"


def _count(line: GpuLine, machine: Machine) -> None:
    line.machines += 1
    line.billed_s += machine.billed_s
    line.seen_s += machine.busy.seen_s
    line.busy_s += machine.busy.busy_s


def _flags(bill: Bill, machine: Machine | None, amount: Decimal, unit: Unit, until: float) -> list[Flag]:
    if not amount:
        return []
    if bill.kind == "snapshot" and min(bill.until, until) - bill.since > OLD_SNAPSHOT_S:
        return [Flag(f"snapshot of {bill.rental} is older than 30 days", amount, unit)]
    if bill.kind == "cross-region":
        return [Flag(f"traffic of {bill.rental} between regions", amount, unit)]
    if class_of(bill.kind) == "instances" and machine is not None and machine.orphaned:
        return [Flag(f"{bill.rental} ({bill.provider}) bills without a live job", amount, unit)]
    return []


def _add(amounts: Amounts, unit: Unit, amount: Decimal) -> None:
    amounts[unit] = amounts.get(unit, Decimal(0)) + amount
