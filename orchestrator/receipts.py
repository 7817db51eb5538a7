"""What each receipt changes: rows of the books, and the memory of what was seen. Runs in the loop's thread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from jobspecs.sweep import leg_id
from orchestrator import actions as act
from orchestrator import placement, reports
from orchestrator.messages import Receipt
from orchestrator.model import CheckpointRow, CreateOutcome, Rental, Task, Trouble, Unknown
from orchestrator.store.rows import Preflight, plain, text
from orchestrator.taps import tap
from providers.base import DestroyAck, Instance

if TYPE_CHECKING:
    from orchestrator.loop import Loop

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 600.0  # a release never gives up, and never asks more often than this once it keeps failing
REST_REFUSED_S = 60.0  # a pool that refused is asked again after this
REST_RATE_S = 10.0  # an account that was asked too often and did not say when to ask again
REST_ACCOUNT_S = 600.0  # an account that cannot work: a person may mend it meanwhile
REPEAT_S = 1.0
#: A provider that took a destroy needs time for it: sent each second, a slow release would use up the account's rate.
PAUSES_S: dict[type[act.Effect], float] = {act.Look: 0.0, act.Destroy: 10.0}

log = structlog.get_logger()


def take_receipt(loop: Loop, receipt: Receipt) -> None:
    """Store what an effect brought, and when it may run again."""
    action = receipt.action
    tap(f"effect/{type(action).__name__}/received")
    _pace(loop, receipt)
    rental = _rental_of(loop, action)
    match action:
        case act.AskOffers():
            _offers(loop, receipt, action)
        case act.SendCreate():
            assert rental is not None
            _created(loop, receipt, rental)
        case act.Look():
            _looked(loop, receipt, action)
        case act.Destroy():
            _destroyed(loop, receipt, action, rental)
        case act.MoveEnd():
            _moved(loop, receipt, action)
        case act.ListMirror():
            _mirror_listed(loop, receipt, action)
        case act.DrawLegs():
            _drawn(loop, receipt, action)
        case _:
            _machine_work(loop, receipt, action)


def _rental_of(loop: Loop, action: act.Effect) -> Rental | None:
    name = getattr(action, "rental", "")
    return loop.store.rental(name) if name else None


def _pace(loop: Loop, receipt: Receipt) -> None:
    """Failures back off by doubling; a success may be repeated after a second; both are remembered per key."""
    memory, key = loop.observer.job(receipt.job), receipt.action.key
    flight = f"{receipt.job}/{key}"
    boot = loop.clock.boot()
    if receipt.status == "done":
        memory.troubles.pop(key, None)
        loop.not_before[flight] = boot + PAUSES_S.get(type(receipt.action), REPEAT_S)
        return
    old = memory.troubles.get(key)
    count = (old.count if old else 0) + 1
    first = old.first_at if old else receipt.at
    memory.troubles[key] = Trouble(key, count, first, receipt.detail, receipt.fatal)
    pause = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(count - 1, 10))
    loop.not_before[flight] = boot + max(pause, receipt.retry_after_s or 0.0)
    log.warning("effect failed", job=receipt.job, key=key, status=receipt.status, detail=receipt.detail, count=count)
    if count in (1, 5) or count % 50 == 0:
        text = f"{receipt.status}: {receipt.detail}"
        rental = getattr(receipt.action, "rental", "")
        loop.store.add_journal(
            receipt.at, f"failed:{type(receipt.action).__name__}", text, job=receipt.job, rental=rental
        )


def _offers(loop: Loop, receipt: Receipt, action: act.AskOffers) -> None:
    memory = loop.observer.job(receipt.job)
    offers = receipt.data.get("offers", Unknown(receipt.detail, receipt.at))
    memory.offers, memory.offers_at = offers, receipt.at
    for name, why in receipt.data.get("failed", {}).items():
        loop.store.add_journal(receipt.at, "offers-failed", f"{name}: {why}", job=receipt.job)
    if not isinstance(offers, Unknown):
        for name in action.providers:
            mine = [offer for offer in offers if offer.provider == name]
            if mine:
                loop.store.put_prices(name, text(plain(action.ask)), mine, receipt.at)


def _created(loop: Loop, receipt: Receipt, rental: Rental) -> None:
    """The answer of the one create: made, refused, or nobody knows."""
    instance = receipt.data.get("instance")
    if receipt.status == "done" and isinstance(instance, Instance):
        loop.store.create_result(rental.id, CreateOutcome.MADE, instance, "", receipt.at)
        loop.observer.of(rental.id).got(instance, receipt.at)
        return
    if receipt.status != "refused":
        loop.store.create_result(rental.id, CreateOutcome.AMBIGUOUS, None, receipt.detail, receipt.at)
        loop.accounts.list_now()
        return
    loop.store.create_result(rental.id, CreateOutcome.REFUSED, None, receipt.detail, receipt.at)
    loop.observer.job(receipt.job).offers_at = None  # prices that were refused are stale
    if receipt.data.get("account"):
        key = placement.account_key(rental.offer.provider, rental.offer.account)
        limited = receipt.detail.startswith(placement.RATE_LIMIT)
        pause = receipt.data.get("rest_s") or REST_RATE_S if limited else REST_ACCOUNT_S
        loop.store.rest(key, receipt.at + pause, receipt.detail, receipt.at)
        return
    key = placement.pool_key(rental.offer)
    loop.store.rest(key, receipt.at + REST_REFUSED_S, receipt.detail, receipt.at)


def _looked(loop: Loop, receipt: Receipt, action: act.Look) -> None:
    seen = loop.observer.of(action.rental)
    got = receipt.data.get("got", Unknown(receipt.detail, receipt.at))
    if isinstance(got, Unknown):
        loop.observer.saw_dark(loop.clock.boot())
    else:
        loop.observer.saw_light()
    seen.got(got, receipt.at)


def _destroyed(loop: Loop, receipt: Receipt, action: act.Destroy, rental: Rental | None) -> None:
    if receipt.status != "done" or rental is None:
        return
    if receipt.data.get("ack") is DestroyAck.ACKNOWLEDGED and action.ref.id == rental.provider_id:
        loop.store.destroy_acked(rental.id, receipt.at)
        if rental.destroy_acked_at is None:
            loop.observer.of(rental.id).forget_get()
    loop.accounts.list_now()


def _moved(loop: Loop, receipt: Receipt, action: act.MoveEnd) -> None:
    """The machine and the provider confirmed: do not wait for their next word to believe it."""
    if receipt.status != "done":
        return
    seen = loop.observer.of(action.rental)
    if seen.machine.connected:
        seen.machine = replace(seen.machine, end=action.end, end_confirmed=True)
    got = receipt.data.get("got")
    if got is not None:
        seen.got(got, receipt.at)


def _mirror_listed(loop: Loop, receipt: Receipt, action: act.ListMirror) -> None:
    if receipt.status != "done":
        return
    _durable(loop, receipt.job, receipt.data["rows"])
    memory = loop.observer.job(receipt.job)
    memory.mirror_listed[action.task] = receipt.data["began"]
    memory.passed_over |= receipt.data["passed_over"]
    for words in receipt.data["words"]:
        loop.store.add_journal(receipt.at, "checkpoint-passed-over", words, job=receipt.job)


def _drawn(loop: Loop, receipt: Receipt, action: act.DrawLegs) -> None:
    """Further legs of a search. When the space holds no more, nothing is drawn beyond what is there."""
    if receipt.status != "done":
        return
    for number, params in enumerate(receipt.data["params"], action.known + 1):
        loop.store.add_task(Task(receipt.job, leg_id(params), params, seq=number), receipt.at)
    if receipt.data["exhausted"]:
        loop.observer.job(receipt.job).exhausted = True


def _durable(loop: Loop, job: str, rows: list[CheckpointRow]) -> None:
    known = {(c.task, c.n, c.hash) for c in loop.store.checkpoints(job)}
    for row in rows:
        if (row.task, row.n, row.hash) not in known:
            loop.store.checkpoint_durable(row)


def _machine_work(loop: Loop, receipt: Receipt, action: Any) -> None:
    """Prepare, order, signal, close, mirror, collect."""
    if receipt.data.get("epoch_refused"):
        loop.step_aside(receipt.detail)
    seen, run = loop.observer.of(action.rental), f"{action.task}.{action.n}"
    job, data = receipt.job, receipt.data
    if isinstance(action, act.Prepare) and "preflight" in data:
        loop.store.put_preflight(Preflight(action.rental, "", job, **data["preflight"]))
    if isinstance(action, act.Prepare) and data.get("damaged"):
        loop.observer.job(job).passed_over.add(data["damaged"])
        words = f"{receipt.detail}; the one before it is taken"
        loop.store.add_journal(receipt.at, "checkpoint-passed-over", words, job=job, rental=action.rental)
    if receipt.status != "done" and not (isinstance(action, act.MirrorCheckpoints) and "rows" in data):
        return  # of several checkpoints some may be durable
    match action:
        case act.Prepare():
            seen.prepared.add(run)
        case act.SendOrder():
            if not data.get("after"):  # one that was ordered ahead is told when it begins
                loop.store.ordered(job, action.task, action.n, receipt.at)
            if "store_until" in data:
                seen.store_until[run] = data["store_until"]
        case act.SendSignal():
            known = seen.machine.runs.get(run)
            if known is not None:
                runs = {**seen.machine.runs, run: replace(known, signalled=action.why)}
                seen.machine = replace(seen.machine, runs=runs)
        case act.MoveLimit():
            known = seen.machine.runs.get(run)
            if known is not None:
                moved = {**seen.machine.runs, run: replace(known, limit_s=data["limit_s"])}
                seen.machine = replace(seen.machine, runs=moved)
        case act.Withdraw():
            loop.store.closed(job, action.task, action.n, receipt.at)
        case act.SendClose():
            if data.get("dead"):
                reports.marks(loop, job, action.rental, run)  # the whole log is here: it belongs to what is decided now
                reports.read(loop, job, action.rental, run, complete=True)
                loop.store.closed(job, action.task, action.n, receipt.at, data.get("cause"))
        case act.MirrorCheckpoints():
            _durable(loop, job, data["rows"])
            for row in data["pruned"]:
                loop.store.checkpoint_pruned(job, row.task, row.n, row.hash, receipt.at)
            for words in data.get("words", ()):
                loop.store.add_journal(receipt.at, "checkpoint-refused", words, job=job, rental=action.rental)
            if "store_until" in data:
                seen.store_until[run] = data["store_until"]
            seen.mirrored |= data["mirrored"]
            seen.bytes_per_s = data.get("rate") or seen.bytes_per_s
        case act.RenewStore():
            seen.store_until[run] = data["store_until"]
        case act.CollectResults():
            seen.collected_at = receipt.at
            for item in data.get("items", ()):  # what they made was on the machine before they were marked, and is here
                loop.store.item_over(job, action.task, item, "done", "", receipt.at)
            seen.bytes_per_s = data.get("rate") or seen.bytes_per_s
            seen.bytes_left = data.get("bytes_left", 0)
            if data.get("environment"):
                loop.store.environment(job, action.task, action.n, data["environment"])
            if action.final:
                if data.get("many"):
                    loop.store.results_done(job, action.task, action.n, "", receipt.at)
                    loop.store.task_results(job, action.task, data["folder"])
                else:
                    loop.store.results_done(job, action.task, action.n, data["folder"], receipt.at)
                for words in data["words"]:
                    loop.store.add_journal(receipt.at, "results", words, job=job, rental=action.rental)
                for folder, aside in data.get("moved", ()):
                    loop.store.results_moved(job, folder, aside)
