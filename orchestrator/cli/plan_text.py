"""How a plan is printed for a terminal, within 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from orchestrator.cli import stage
from orchestrator.cli.output import counted, local_time, money, size, span, table
from orchestrator.cli.phases import saving_words
from orchestrator.cli.plan_json import warnings_of
from orchestrator.cli.stores import lines as store_lines
from orchestrator.comparison import billing_mode, removed, spot_choice
from orchestrator.pace import net_at, steers_nothing

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec
    from orchestrator.cli.plan import Prepared
    from orchestrator.planning import Plan
    from providers.base import Offer

OFFERS_SHOWN = 12
LEFT_OUT_SHOWN = 8
LEFT_OUT_NAMED = 3
STAGE_FROM = 20 * 1000**3  # bytes from which data is better put into an object store first
CURES = (
    "an object store: `stores` in the config, then `checkpoint.mirror` and `artifacts.to`",
    "a controller on an always-on host: GPUJOB_CONTROLLER=ssh://HOST, with gpujob installed there",
)


def plan_text(prepared: Prepared) -> Iterator[str]:
    """The lines for a terminal."""
    from jobspecs.files import missing_scripts
    from jobspecs.names import cloud_name

    plan, spec = prepared.plan, prepared.spec
    mapped = cloud_name(spec.name)
    yield spec.name + (f"  (called {mapped} at providers)" if mapped != spec.name else "")
    yield ""
    rows = [(each.key, _short(each.value), each.origin) for each in plan.values]
    yield table(("KEY", "VALUE", "FROM"), rows, shrink=("VALUE",), state="")
    yield ""
    yield from _offers(prepared)
    yield ""
    yield from _memory(prepared)
    yield from _basis(plan)
    yield from _finish(plan)
    if plan.saving is not None:
        yield f"saving     {saving_words(plan.saving)}"
    yield from _legs(prepared)
    yield from _money(plan, prepared)
    yield ""
    yield stage.named("ENDS THE MACHINE   stops the bill without this computer?")
    for timer in plan.timers:
        yield f"  {timer.name:<15}  {'yes' if timer.binds else 'no':<3}  {stage.named(timer.why)}"
    if plan.needs_awake:
        yield ""
        yield from _awake(plan, spec)
    yield ""
    yield from store_lines(prepared.stores)
    yield f"results    {prepared.results_dir or 'none are brought home (artifacts: none)'}"
    yield from _snapshot(prepared)
    yield from _data(prepared)
    for each in missing_scripts(spec, prepared.loaded.base_dir):
        yield f"advice     {each.key} {each.reason} ({each.hint})"


def _short(value: Any) -> str:
    if isinstance(value, str):
        lines = value.strip().splitlines()
        return lines[0] + (f"  ... ({len(lines)} lines)" if len(lines) > 1 else "") if lines else "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(_short(each) for each in value) or "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_short(each)}" for key, each in value.items()) or "-"
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _offers(prepared: Prepared) -> Iterator[str]:
    from orchestrator.comparison import rows as rows_of

    plan = prepared.plan
    for each in plan.quotes:
        when = f"prices of {local_time(each.at)}" if each.stored else "asked now"
        trouble = f"; {each.trouble}" if each.trouble else ""
        yield f"{each.provider}: {counted(len(each.offers), 'offer')}, {when}{trouble}"
    rows = rows_of(plan, (offer for each in plan.quotes for offer in each.offers))
    if not rows:
        yield "no offers satisfy the spec"
        for key, count in prepared.nothing:
            yield f"  {key} leaves out {count} that have the GPU"
        return
    shown = rows[:OFFERS_SHOWN]
    if plan.chosen and all(row.offer is not plan.chosen for row in shown):
        shown = [*shown[:-1], next(row for row in rows if row.offer is plan.chosen)]
    play = _play(plan)
    total = ("IN ALL",) if plan.policy.work is not None else ()
    yield table(
        ("PROVIDER", "REGION", "GPU", "SPOT", "PRICE/H", *total, "WHY"),
        [
            (
                *_offer_cells(row.offer, row.offer.provider in play),
                *(_total(row.total, plan, row.offer.provider in play) for _ in total),
                row.why,
            )
            for row in shown
        ],
        shrink=("WHY",), right=("PRICE/H", *total), state="",
    )  # fmt: skip
    if len(rows) > len(shown):
        yield f"... and {len(rows) - len(shown)} more"
    counts = ", ".join(f"{count} by {name}" for name, count in removed(plan))
    if counts:
        yield f"left out   {counts}"


def _play(plan: Plan) -> set[str]:
    """Providers whose money is not real."""
    return {each.provider for each in plan.quotes if each.caps and each.caps.play}


def _cards(offer: Offer) -> str:
    return f"{offer.gpu_count} x {offer.gpu}" if offer.gpu_count > 1 else offer.gpu


def _total(amount: Decimal | None, plan: Plan, play: bool) -> str:
    """What a whole job costs on an offer."""
    if amount is not None and amount.is_infinite():
        return "never ends"
    return money(amount, plan.currency, play)


def _basis(plan: Plan) -> Iterator[str]:
    """What the totals rest on, each with where it comes from."""
    work, history = plan.policy.work, plan.history
    if work is None:
        yield "time       unknown, so offers are compared by the hour: write `expected`, or wait for a finished run"
        for warning in warnings_of(plan):
            yield f"warning    {warning}"
        return
    keys = {value.key: value.value for value in plan.values}
    if keys.get("expected"):
        run = f"{span(work.run_s)} (expected)"
    elif keys.get("workload") == "serve":
        run = f"{span(work.run_s)} (the ttl of a serve job)"
    else:
        run = f"{span(work.run_s)} (median of {history.runs} earlier runs)"
    startup = "a guess" if history.startup_s is None else "median of earlier runs"
    cards = ", ".join(f"{gpu.removesuffix(':1')} {span(seconds)}" for gpu, seconds in sorted(work.run_on.items()))
    same = f"on {cards}, elsewhere the same" if cards else "the same on every card"
    yield f"time       {run}, and {span(work.startup_s)} until it starts ({startup}); {same}"
    if plan.chosen is not None:
        yield f"rent       {billing_mode(plan)}"
    for warning in warnings_of(plan):
        yield f"warning    {warning}"
    choice = spot_choice(plan)
    if choice is None:
        return
    seen = f"seen over {history.spot_hours:.0f} h" if choice.spot.provider in work.reclaims else "a guess"
    rate = f"{choice.reclaims_per_h:.2g} an hour ({seen})"
    if choice.breakeven_per_h is None:
        yield f"spot       not cheaper in the end, even without any reclaim; counted with {rate}"
    else:
        yield f"spot       cheaper in the end below {choice.breakeven_per_h:.2g} reclaims an hour; counted with {rate}"


def _finish(plan: Plan) -> Iterator[str]:
    """What `finish_by` does, or why it does nothing."""
    by, work = plan.policy.finish_by, plan.policy.work
    if by is None:
        return
    words = {
        "any": steers_nothing(plan.policy),
        "spot-first": "spot, or on demand where there is none",
        "spot-or-wait": "spot, which is waited for while ahead of an even pace",
        "demand": plan.pace.why,
    }[plan.pace.kind]
    yield f"finish by  {local_time(by)}: {words}"
    if work is not None and plan.pace.kind.startswith("spot"):
        yield f"           on demand from {local_time(net_at(by, work))} on, later by what is done until then"


def _memory(prepared: Prepared) -> Iterator[str]:
    """What `model` needs, and what would fit where the cards asked for do not hold it."""
    from orchestrator.cli.estimate import bigger, gb, instead, need_text, title

    plan = prepared.plan
    found = plan.memory
    if found is None:
        return
    yield f"memory     {title(found)}: {need_text(found)}"
    for line in found.assumed:
        yield f"  assumed  {line}"
    chosen = plan.chosen
    if chosen is not None:
        if found.is_near(chosen.vram_gb, chosen.gpu_count):
            yield f"  near     {chosen.gpu} is near the limit: with {found.near} only"
        return
    small = [out.offer for out in plan.left_out if out.by == "model"]
    if not small:
        return
    largest = max(small, key=lambda offer: offer.vram_gb * offer.gpu_count)
    cards = f"{_cards(largest)} ({gb(largest.vram_gb * largest.gpu_count)})"
    offer = prepared.bigger
    if offer is not None:
        hourly = money(offer.hourly, offer.currency, offer.provider in _play(plan))
        price = f"; bigger card {_cards(offer)} at {offer.provider} costs {hourly}/h"
    else:
        price = f"; {bigger(found)}"
    how = "is too small" if found.model.method == "inference" else "fits only with ZeRO-3 or offload (slower)"
    yield f"  {cards} {how}{price}"
    yield from (f"  {line}" for line in instead(found))


def _offer_cells(offer: Offer, play: bool) -> tuple[str, ...]:
    count = f":{offer.gpu_count}" if offer.gpu_count > 1 else ""
    gpu = f"{offer.gpu}{count}{' stand-in' if offer.stand_in else ''}" if offer.gpu else f"CPU x {offer.cpus}"
    price = money(offer.hourly, offer.currency, play)
    return (offer.provider, offer.region, gpu, "spot" if offer.spot else "no", price)


def _legs(prepared: Prepared) -> Iterator[str]:
    """How many tasks there are, how many at one time, and what two spellings of one number mean."""
    plan, spec = prepared.plan, prepared.spec
    crew = plan.policy.crew
    if crew is None:
        return
    noun = {"sweep": "leg", "batch": "slice", "replicas": "replica"}[crew.kind]
    items = sum(len(task.items) for task in prepared.tasks)
    what = counted(plan.tasks, noun)
    if crew.trials:
        what = f"up to {what}, drawn one after the other"
    of = f" of {counted(items, 'item')}" if items else ""
    yield f"{noun + 's':<10} {what}{of}, {plan.parallel} at one time"
    if spec.sweep is not None:
        from jobspecs.sweep import spellings

        yield f"per leg    ttl {spec.ttl}" + (f", budget {spec.budget}" if spec.budget is not None else "")
        for words in spellings(spec.sweep):
            yield f"note       {words} are one number in two spellings, and two legs: a leg is what you typed"


def _money(plan: Plan, prepared: Prepared) -> Iterator[str]:
    currency, play, spec = plan.currency, plan.play, prepared.spec
    if plan.price_cap is not None:
        shown = "the cheapest on demand, for finish_by" if plan.pace.kind != "any" else "the offer shown"
        why = "max_price" if plan.price_cap_given else f"1.5 x {shown}"
        yield f"price cap  {money(plan.price_cap, currency, play)}/h ({why}); a dearer offer waits"
    if plan.expected_cost is not None:
        yield f"expected   {_total(plan.expected_cost, plan, play)} for the whole job, startup and rework included"
    if plan.worst_case is not None:
        times = (
            f" of {counted(plan.tasks, 'leg')}"
            if spec.sweep is not None
            else f" of {counted(plan.parallel, 'machine')}"
            if plan.tasks
            else ""
        )
        how = f"the ttl of {spec.ttl}{times} at the price cap" if plan.worst_case_by == "ttl" else "the budget"
        yield f"worst case {money(plan.worst_case, currency, play)}: {how}, a late release included"
    if plan.reserve is not None and plan.machine_end_s is not None:
        amount, end = money(plan.reserve, currency, play), span(plan.machine_end_s)
        yield f"reserve    {amount} for the first machine, which ends {end} after its start"
    if prepared.short:
        yield f"balance    {prepared.short}"
    if not spec.resumable:
        yield "resume     no: a lost machine means a start from zero (name $GPUJOB_RESUME_FROM in run)"


def _awake(plan: Plan, spec: JobSpec) -> Iterator[str]:
    hours = spec.expected or spec.ttl
    at_stake = plan.expected_cost if plan.expected_cost is not None else plan.worst_case
    amount = f", {money(at_stake, plan.currency, plan.play)}" if at_stake is not None else ""
    most = "" if spec.expected else " at most"
    whose = "THIS COMPUTER" if stage.current is None else "THE HOST OF THE CONTROLLER"
    yield f"NEEDS {whose} AWAKE ({hours}{most}{amount}); the run itself goes on without it"
    for need in plan.needs_awake:
        yield f"  {need.what:<22}  {stage.named(need.why)}"
    for cure in CURES if stage.current is None else CURES[:1]:
        yield f"  cure: {cure}"


def _snapshot(prepared: Prepared) -> Iterator[str]:
    shot = prepared.snapshot
    if shot is None:
        yield "snapshot   none (no workdir)"
        return
    files = sum(entry.kind == "file" for entry in shot.files)
    commit = f", commit {shot.commit[:12]}{' with changes' if shot.dirty else ''}" if shot.commit else ""
    yield f"snapshot   {counted(files, 'file')}, {size(shot.bytes)}, {shot.hash[:12]}{commit}"
    if shot.origin:
        yield f"  from      {shot.origin}"
    for path in shot.pointers[:LEFT_OUT_SHOWN]:
        yield f"  WARNING   {path} is a Git LFS pointer, not the content: `git lfs pull` here brings it"
    for left in shot.left_out[:LEFT_OUT_SHOWN]:
        more = "more than " if left.more else ""
        yield f"  not sent  {left.path}  ({left.reason}, {more}{size(left.bytes)})"
    if len(shot.left_out) > LEFT_OUT_SHOWN:
        yield f"  not sent  ... and {len(shot.left_out) - LEFT_OUT_SHOWN} more"


def _data(prepared: Prepared) -> Iterator[str]:
    """What lands on the machine before the start, from where, and by which way."""
    ways = {"local": "sent from this computer", "rclone": "through this computer, by rclone"}
    for path, manifest in prepared.data.items():
        share = f", {manifest.sample:.3g} of the files" if manifest.sample < 1 else ""
        way = stage.named(ways.get(manifest.kind, "fetched by the machine itself"))
        yield f"data       {path}: {counted(manifest.count, 'file')}, {size(manifest.bytes)}{share}, {way}"
        if manifest.kind == "local" and manifest.bytes > STAGE_FROM:
            whence = f"over {size(STAGE_FROM)} from {stage.computer()}"
            yield f"  WARNING   {whence}: an object store near the machines is faster"


def left_out_line(prepared: Prepared) -> str:
    """What an ignore file keeps back, the largest first, for those who do not look at the plan; empty: nothing."""
    shot = prepared.snapshot
    ignored = (
        [each for each in shot.left_out if "ignore" in each.reason and "never sent" not in each.reason] if shot else []
    )
    if not ignored:
        return ""
    largest = sorted(ignored, key=lambda each: -each.bytes)
    shown = ", ".join(f"{each.path} ({each.reason}, {size(each.bytes)})" for each in largest[:LEFT_OUT_NAMED])
    more = f" and {len(ignored) - LEFT_OUT_NAMED} more" if len(ignored) > LEFT_OUT_NAMED else ""
    return f"not sent: {shown}{more}; `gpujob plan` lists everything"
