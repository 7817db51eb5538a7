"""Answers to what verbs ask. A verb appends a row and waits for its answer; the change and the answer are one commit.

A request that cannot be answered yet (`--replace` while the old run is still ending) stays open in the books, so it
survives the controller; it is looked at again each turn.
"""

from __future__ import annotations

import os
import secrets
import string
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import structlog

from orchestrator import adoption, held, limits, many
from orchestrator.doubt import DOUBTS
from orchestrator.model import Job, Outcome, Reason, RentalPhase
from orchestrator.records import keep_job
from orchestrator.secrets import forget
from orchestrator.snapshot import same_files
from orchestrator.store import Fenced, StoreBroken, StoreBusy, StoreError, StoreFull
from orchestrator.store.rows import Request
from orchestrator.successor import deadline, end_for

if TYPE_CHECKING:
    from orchestrator.loop import Loop

Answer = Mapping[str, Any] | None

log = structlog.get_logger()


STALE_S = 120.0  # twice what a verb waits for its answer
RENTS = frozenset({"apply", "resume"})


def refuse_stale(loop: Loop) -> None:
    """At a controller's start: what would rent for a command that gave up or was killed long ago is refused.

    It would otherwise run a job days after a Ctrl-C, with whatever the next verb was that started a controller. What
    ends something stays asked, and so does a `--replace`, whose old run has been ended for it. Values of secrets that a
    killed command had laid out for a request go as well.
    """
    now, wanted = loop.clock.utc(), set()
    for request in loop.store.open_requests():
        age = now - request.at
        if request.verb in RENTS and request.args.get("mode") != "replace" and age > STALE_S:
            error = f"`{request.verb}` was asked {age:.0f} s ago, and nobody waits for it: nothing was done"
            loop.store.answer(request.id, {"ok": False, "error": error, "code": 2}, now)
            log.warning("stale request", verb=request.verb, id=request.id)
            continue
        wish = request.args.get("job")
        wanted |= {request.args.get("spool"), wish.get("spool") if isinstance(wish, dict) else None}
    for folder in loop.home.secrets("").glob("spool-*"):
        if folder.name not in wanted and now - folder.stat().st_mtime > STALE_S:
            forget(loop.home, folder.name)


class NotNow(Exception):
    """The request is refused; `code` is the exit code of the verb."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def answer(loop: Loop, request: Request) -> None:
    """Answer one open request, or leave it open."""
    verb = VERBS.get(request.verb, _unknown_verb(request.verb))
    try:
        with loop.store.transaction():
            said = verb(loop, request.args)
            if said is not None:
                loop.store.answer(request.id, said, loop.clock.utc())
    except (Fenced, StoreFull, StoreBusy, StoreBroken):
        raise  # says something about the books, not about the request: it stays open
    except NotNow as error:
        said = {"ok": False, "error": str(error), "code": error.code}
    except StoreError as error:  # no such job, or one that is over
        said = {"ok": False, "error": str(error), "code": 2}
    except Exception as error:  # a request that cannot be read must not end the controller, now and at each restart
        log.exception("request", verb=request.verb)
        said = {"ok": False, "error": f"{request.verb}: {type(error).__name__}: {error}", "code": 2}
    if said is None:
        return
    if said.get("accepted"):
        adoption.accept(loop)  # after the commit: a crash in between leaves books that are still in doubt
    if not said.get("ok"):
        with loop.store.transaction():  # the refused change was rolled back as a whole
            loop.store.answer(request.id, said, loop.clock.utc())
    log.info("answered", verb=request.verb, ok=said.get("ok"), error=said.get("error", ""))


def _unknown_verb(name: str) -> Callable[[Loop, Mapping[str, Any]], Answer]:
    def refuse(_loop: Loop, _args: Mapping[str, Any]) -> Answer:
        raise NotNow(f"this controller does not know `{name}`; restart it: gpujob controller stop")

    return refuse


def _ping(loop: Loop, _: Mapping[str, Any]) -> Answer:
    from orchestrator.version import installed

    known = {"version": installed(), "pid": os.getpid(), "epoch": loop.store.epoch, "books": str(loop.verdict)}
    return {"ok": True, **known, "stepped_aside": loop.fenced}


def _stop(loop: Loop, _: Mapping[str, Any]) -> Answer:
    loop.stop()
    return {"ok": True}


def _cancel(loop: Loop, args: Mapping[str, Any]) -> Answer:
    job = loop.store.job(str(args["job"]))
    if job.terminal_at is not None:
        return {"ok": True, "over": True, "outcome": job.outcome}
    if args.get("task"):
        there = loop.store.cancel_task(job.id, str(args["task"]), loop.clock.utc())
        loop.touch(job.id)
        return {"ok": True, "over": not there}
    loop.store.cancel(job.id, loop.clock.utc(), at_once=bool(args.get("now")))
    loop.touch(job.id)
    return {"ok": True, "over": False}


def _extend(loop: Loop, args: Mapping[str, Any]) -> Answer:
    """Move the ttl; say which end binds now: the ttl, or the budget before it."""
    job = loop.store.job(str(args["job"]))
    if job.outcome is not None:
        raise NotNow(f"{job.name} has ended ({job.outcome}): there is nothing to extend")
    now = loop.clock.utc()
    loop.store.extend(job.id, float(args["seconds"]), now)
    loop.touch(job.id)  # decided after this commit: no timer may move before the books know
    job = loop.store.job(job.id)
    _, policy = loop.spec_of(job)
    end, binds = deadline(job, policy, now), Reason.TTL
    facts = loop.observer.facts(job, now, loop.money.limits_left(job))
    for rental in (r.rental for r in facts.rentals if r.rental.phase is RentalPhase.LIVE):
        start = rental.create_sent_at or rental.created_at
        end, binds = end_for(facts, policy, rental.offer, start, without=rental.id)
    return {"ok": True, "end": end, "binds": str(binds)}


def _refuse_doubt(loop: Loop) -> None:
    """Nothing is rented while machines may run that the books do not know."""
    if loop.doubtful:
        words = f"{DOUBTS[loop.verdict]}: machines may run that they do not know, so nothing is rented"
        raise NotNow(f"{words}; `gpujob audit` finds them, then adopt or prune them", 3)


# --- apply ------------------------------------------------------------------------------------------------------------


def _apply(loop: Loop, args: Mapping[str, Any]) -> Answer:
    """A new job, an edit of a live one, or the answer of a finished one."""
    wish, mode = args["job"], str(args.get("mode", "new"))
    _refuse_doubt(loop)
    old = loop.store.newest_of(str(wish["name"]))
    if old is not None and old.terminal_at is None:
        return _apply_to_live(loop, old, wish, args, mode)
    if old is not None and mode == "new":
        settled = _finished_answer(loop, old, wish)
        if settled is not None:
            return settled
    _check_limits(loop, wish, args)
    again = mode == "again"
    goes_on = old is not None and not again and many.same(loop, old, wish)
    inherit = old if (mode == "replace" and not args.get("fresh")) or goes_on else None
    return _create(loop, wish | {"again": again}, inherit)


def _apply_to_live(loop: Loop, old: Job, wish: Mapping[str, Any], args: Mapping[str, Any], mode: str) -> Answer:
    if (
        old.outcome is None
        and old.cancel_at is None
        and old.spec_hash == wish["spec_hash"]
        and _same_files(loop, old, wish)
    ):
        return {"ok": True, "id": old.id, "name": old.name, "run": old.run, "unchanged": True}
    if mode == "replace":
        return _replace(loop, old, wish, args)
    if old.held_until is not None and old.held_until > loop.clock.utc() and old.cancel_at is None:
        words = f"{old.name} failed and its machine is held: `apply --replace` goes on on it (same gpu and image)"
        raise NotNow(f"{words}, `gpujob cancel {old.name}` releases it")
    if old.outcome is not None or old.cancel_at is not None:
        raise NotNow(f"{old.name} is still ending; `gpujob wait {old.name} --for released`, then apply again")
    edited = _live_edit(loop, old, wish)
    return {"ok": True, "id": old.id, "name": old.name, "run": old.run, "unchanged": False, "edited": edited}


def _same_files(loop: Loop, old: Job, wish: Mapping[str, Any]) -> bool:
    """The workdir as it was; the spec file itself, where it lies in there, is compared as a spec."""
    return same_files(loop.home, old.snapshot, str(wish.get("snapshot") or ""), str(wish.get("spec_file") or ""))


def _live_edit(loop: Loop, old: Job, wish: Mapping[str, Any]) -> list[str]:
    """Apply a change of live keys only; anything else needs `--replace`."""
    from jobspecs.schema import from_document, live_changes

    applicable, needs_replace = live_changes(from_document(old.spec), from_document(wish["spec"]))
    if "sweep" in needs_replace and many.only_adds(loop, old, wish):
        needs_replace.remove("sweep")
        applicable.append("sweep")
    if not _same_files(loop, old, wish):
        needs_replace = [*needs_replace, "workdir (its files changed)"]
    if needs_replace:
        what = ", ".join(needs_replace)
        raise NotNow(f"{old.name} is running and {what} changed: `apply --replace` starts it anew from its checkpoints")
    loop.store.edit_spec(old.id, wish["spec"], str(wish["spec_hash"]), _money(wish.get("price_cap")), loop.clock.utc())
    keep_job(loop.home, loop.store.job(old.id))
    if "sweep" in applicable:
        many.add(loop, old, wish)
    loop.touch(old.id)
    return list(applicable)


def _replace(loop: Loop, old: Job, wish: Mapping[str, Any], args: Mapping[str, Any]) -> Answer:
    """End the old run first; the request stays open until it is over."""
    if old.base_dir != wish["base_dir"] and args.get("replace_name") != old.name:
        raise NotNow(f"the live {old.name} was applied from {old.base_dir}; `--replace={old.name}` if it is meant")
    if old.outcome is None and old.cancel_at is None:
        _check_limits(loop, wish, args)
        loop.store.cancel(old.id, loop.clock.utc())
    elif old.held_until is not None:
        rental = held.machine_for(loop, old, wish)
        if rental is not None:
            _check_limits(loop, wish, args)
            return held.go_on(loop, old, wish, rental, fresh=bool(args.get("fresh")))
        loop.store.end_hold(old.id, loop.clock.utc())
    loop.touch(old.id)
    return None


def _finished_answer(loop: Loop, old: Job, wish: Mapping[str, Any]) -> Answer:
    """The last run is over: its result, an offer to resume, or None for a new run."""
    same = old.spec_hash == wish["spec_hash"] and _same_files(loop, old, wish)
    found = {"id": old.id, "name": old.name, "run": old.run, "unchanged": True}
    if same and old.outcome is Outcome.DONE and many.whole(loop, old):
        return {"ok": True, "finished": True, "outcome": old.outcome, "results": old.results_dir, **found}
    kept = loop.store.checkpoints(old.id)
    if many.of(wish):
        return None  # what is done is kept, what is missing is run
    if same:
        words = f"{old.name}.{old.run} ended as {old.outcome} ({old.reason}): `gpujob resume {old.name}` goes on"
        raise NotNow(f"{words} from {'its checkpoints' if kept else 'the start'}; `apply --again` starts anew")
    if kept:
        step = max(c.step for c in kept)
        words = f"{old.name}.{old.run} left checkpoints up to step {step} and the spec or its files changed"
        raise NotNow(f"{words}: `--replace` resumes from them, `--again` starts from the beginning")
    return None


def _check_limits(loop: Loop, wish: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    """The config's limits, against all that is spent and reserved; a `--max-cost` that covers the worst case wins."""
    cost = limits.Cost(_money(wish.get("worst_case")), str(wish.get("currency") or "USD"), bool(wish.get("play")))
    if cost.play:  # many machines of this host may be asked for in one apply; the verb has counted those before it
        return
    found = limits.passed(loop.store, loop.config, cost, _money(args.get("max_cost")), loop.clock.utc())
    if found:
        raise NotNow("; ".join(found) + (f"; --max-cost {cost.worst:.2f} allows it" if cost.worst is not None else ""))


def _create(loop: Loop, wish: Mapping[str, Any], inherit: Job | None) -> Answer:
    from jobspecs.names import cloud_name

    name, now = str(wish["name"]), loop.clock.utc()
    run = loop.store.next_run(name)
    suffix = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(4))
    job = Job(
        id=f"{cloud_name(name, max_len=40)}-{run}-{suffix}",
        name=name,
        run=run,
        spec=wish["spec"],
        spec_hash=str(wish["spec_hash"]),
        snapshot=str(wish.get("snapshot") or ""),
        base_dir=str(wish["base_dir"]),
        created_at=now,
        owner=str(wish.get("owner") or ""),
        price_cap=_money(wish.get("price_cap")),
        currency=str(wish.get("currency") or "USD"),
        data_manifests=wish.get("data_manifests") or {},
        resumed_from=inherit.id if inherit is not None else "",
        results_dir=str(wish.get("results_dir") or ""),
        max_cost=_money(wish.get("max_cost")),
        git_commit=str(wish.get("commit") or ""),
    )
    _take_secrets(loop, str(wish.get("spool") or ""), job.id)
    keep_job(loop.home, job)
    over = {} if wish.get("again") or not job.spec.get("batch") else many.items_before(loop, name, wish)
    loop.store.add_job(job, many.tasks_of(loop, job, wish))
    many.keep(loop, job, over)
    if inherit is not None:
        open_tasks = {task.id for task in loop.store.tasks(job.id) if task.outcome is None}
        rows = tuple(row for row in loop.store.checkpoints(inherit.id) if row.task in open_tasks)
        for row in loop.machines.inherit(inherit, job, rows):
            loop.store.checkpoint_durable(row)
    loop.touch(job.id)
    return {"ok": True, "id": job.id, "name": name, "run": run, "unchanged": False}


def _take_secrets(loop: Loop, spool: str, job: str) -> None:
    """The values that the verb left in a folder of its own become the job's."""
    folder = loop.home.secrets(spool) if spool else None
    if folder is not None and folder.is_dir() and folder.parent == loop.home.secrets(job).parent:
        os.replace(folder, loop.home.secrets(job))


def _resume(loop: Loop, args: Mapping[str, Any]) -> Answer:
    """A new run of a job that ended without success, from its durable checkpoints."""
    _refuse_doubt(loop)
    old = loop.store.job(str(args["job"]))
    if old.terminal_at is None:
        raise NotNow(f"{old.name} is not over; `gpujob extend {old.name} TIME` moves its end")
    if old.outcome is Outcome.DONE:
        raise NotNow(f"{old.name}.{old.run} is done; `gpujob apply --again` runs it anew")
    newest = loop.store.newest_of(old.name)
    if newest is not None and newest.id != old.id and newest.terminal_at is None:
        raise NotNow(f"{newest.name}.{newest.run} is live")
    spec = {**old.spec, **{k: str(args[k]) for k in ("ttl", "budget") if args.get(k)}}
    if args.get("budget") and old.spec.get("sweep"):  # what ended it is the sweep's own, not that of each leg
        spec["sweep"] = {**old.spec["sweep"], "budget": str(args["budget"])}
        spec.pop("budget")
        spec |= {"budget": old.spec["budget"]} if old.spec.get("budget") else {}
    from jobspecs.schema import from_document, spec_hash, to_document

    model = from_document(spec)
    wish = {
        "name": old.name,
        "spec": to_document(model),
        "spec_hash": spec_hash(model),
        "snapshot": old.snapshot,
        "base_dir": old.base_dir,
        "owner": old.owner,
        "price_cap": str(old.price_cap) if old.price_cap is not None else None,
        "currency": old.currency,
        "data_manifests": old.data_manifests,
        "tasks": [
            {"id": task.id, "params": dict(task.params), "items": list(task.items)}
            for task in loop.store.tasks(old.id)
            if task.seq
        ],
        "spool": args.get("spool"),
    }
    return _create(loop, wish, old)


def _money(value: object) -> Decimal | None:
    return None if value in (None, "") else Decimal(str(value))


VERBS: Mapping[str, Callable[[Loop, Mapping[str, Any]], Answer]] = {
    "ping": _ping,
    "stop": _stop,
    "apply": _apply,
    "cancel": _cancel,
    "extend": _extend,
    "resume": _resume,
    "adopt": adoption.adopt,
    "prune": adoption.prune,
    "forget": adoption.forget,
}
