"""One rental from its intent until it is gone: pure leaf rules, called by `reconcile` for each rental in turn.

Two facts are kept apart. *Quiesced*: its user code can never run again. *Gone*: it no longer bills. A successor needs
the first, the end of the job needs the second, and neither is ever concluded from a failed or a single look.
"""

from __future__ import annotations

from orchestrator.actions import (
    Alarm,
    ConfirmEnd,
    Destroy,
    Look,
    MoveEnd,
    RecordInstance,
    Release,
    SendCreate,
    StoreGone,
    StoreQuiesced,
    StoreReady,
)
from orchestrator.draft import Draft
from orchestrator.model import CreateOutcome, Reason, Rental, RentalFacts, RentalPhase, Sight, Unknown
from providers.base import Caps, Instance, Ref

LOOK_AGAIN_S = 1.0  # a provider may show a machine running for a moment after its connections broke
LOOK_EVERY_S = 5.0  # point-gets while a machine does not answer: quick, and far below every rate limit
LOOK_SLOWLY_S = 20.0  # the same once it has been silent for a minute
SETTLE_S = 300.0  # a create may stay invisible this long (measured lags are up to 60 s; the rest is margin)
KEY_REFUSED_S = 120.0  # sshd answers and refuses our key for this long: the host is misconfigured (skypilot#6514)
END_TOLERANCE_S = 2.0  # clocks of machine and provider may differ this much without an end being moved again
STOPPED_S = 60.0  # silent for this long, and the provider itself no longer shows it running: taken from us
RELEASE_ALARM_S = 900.0  # a release slower than this needs eyes
OTHERS_ABSENT = 2  # complete listings without disks and addresses, once the machine itself is dead


def step(draft: Draft, facts: RentalFacts) -> None:
    """Decide for one rental by its stored phase."""
    phase = facts.rental.phase
    if phase is RentalPhase.INTENT:
        _intent(draft, facts)
    elif phase is RentalPhase.LIVE:
        _live(draft, facts)
    elif phase is RentalPhase.RELEASING:
        _releasing(draft, facts)


def dead(facts: RentalFacts) -> bool:
    """A point-get showed a status in which user code can never run again."""
    got = facts.sight.got
    return isinstance(got, Instance) and got.status in facts.caps.dead_statuses


def absent(sight: Sight, caps: Caps, count: int, span_s: float) -> bool:
    """Enough complete listings of this process in a row, over long enough, without the machine."""
    return sight.absent_count >= count and sight.absent_span_s >= max(span_s, caps.list_lag_s)


def loss_reason(rental: Rental, now: float) -> Reason:
    """Why a machine that we did not destroy is dead: its own end, or the provider took it."""
    return rental.end_reason if now >= rental.end - END_TOLERANCE_S else Reason.INTERRUPTED


# --- intent ----------------------------------------------------------------------------------------------------------


def _intent(draft: Draft, facts: RentalFacts) -> None:
    rental, sight, job = facts.rental, facts.sight, draft.facts.job
    ended = job.outcome is not None or job.cancel_at is not None
    if rental.create_sent_at is None:
        if ended:
            draft.do(StoreGone(rental.id, tombstone=False, never_made=True), "ended before the create was sent")
        else:
            draft.do(SendCreate(rental.id), "the intent is committed")
        return
    if rental.create_outcome is CreateOutcome.REFUSED:
        draft.do(StoreGone(rental.id, never_made=True), "the provider refused: nothing was made")
    elif sight.instance is not None:
        draft.do(RecordInstance(rental.id, sight.instance), "found by its tag")
    elif never_seen(draft, facts):
        draft.do(StoreGone(rental.id, never_made=True), "never seen in complete listings; its tombstone stays")
    elif ended:
        draft.do(Release(rental.id, _ended_reason(draft), "ended while the create was unanswered"))
    else:
        draft.wake(draft.now + LOOK_EVERY_S)


def never_seen(draft: Draft, facts: RentalFacts) -> bool:
    """An unanswered create that no complete listing shows, after the longest lag of a birth."""
    sent = facts.rental.create_sent_at
    if sent is None or draft.facts.brake or draft.facts.cut_off:
        return False
    old_enough = draft.now - sent >= max(SETTLE_S, 2 * facts.caps.list_lag_s)
    policy = draft.policy
    return old_enough and absent(facts.sight, facts.caps, policy.absence_count, policy.absence_span_s)


# --- live ------------------------------------------------------------------------------------------------------------


def _live(draft: Draft, facts: RentalFacts) -> None:
    rental, machine = facts.rental, facts.machine
    _duplicates(draft, facts)
    if dead(facts):
        reason = loss_reason(rental, draft.now)
        draft.do(
            Release(rental.id, reason, _death_words(facts), interrupted=reason is Reason.INTERRUPTED),
            "a point-get shows it dead",
        )
        draft.do(StoreQuiesced(rental.id))
        return
    end = min(rental.end, rental.wanted_end)
    if draft.now >= end:
        draft.do(Release(rental.id, rental.end_reason, "its end has come"), "the end wins")
        return
    draft.wake(end)
    if machine.connected and machine.proven and rental.ready_at is None:
        draft.do(StoreReady(rental.id), "first proven connection")
    _ends(draft, facts)
    if not machine.connected:
        _silent(draft, facts)


def _death_words(facts: RentalFacts) -> str:
    got = facts.sight.got
    status = got.status if isinstance(got, Instance) else "gone"
    return f"{facts.rental.offer.provider} says {status}"


def _duplicates(draft: Draft, facts: RentalFacts) -> None:
    """The provider made two machines of one tag: keep the recorded one."""
    for extra in facts.sight.duplicates:
        if extra.ref.id != facts.rental.provider_id and extra.status not in facts.caps.dead_statuses:
            draft.do(Destroy(facts.rental.id, extra.ref, Reason.DUPLICATE), "a second machine with this tag")


def _ends(draft: Draft, facts: RentalFacts) -> None:
    """Keep the machine's and the provider's timers at the wanted end; confirm it once all of them agree."""
    rental, machine, caps = facts.rental, facts.machine, facts.caps
    if not (machine.connected and machine.proven):
        return
    here = machine.end_confirmed and machine.end is not None and _close(machine.end, rental.wanted_end)
    instance = facts.sight.instance
    theirs = instance.ends_at if instance is not None and caps.server_ttl else None
    # A provider that does not show its timer is believed: it is set before the machine's own, which confirms both
    if not here or (theirs is not None and not _close(theirs, rental.wanted_end)):
        draft.do(MoveEnd(rental.id, rental.wanted_end), "a timer differs from the wanted end")
    elif rental.end != rental.wanted_end:
        draft.do(ConfirmEnd(rental.id), "every timer confirmed the end")


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= END_TOLERANCE_S


def _silent(draft: Draft, facts: RentalFacts) -> None:
    """No connection: ask the provider at once, and judge only on evidence of this process's own awake time."""
    rental, machine, sight = facts.rental, facts.machine, facts.sight
    _look(draft, facts, since=machine.lost_at or rental.created_at, why="the machine does not answer")
    if draft.facts.brake or draft.facts.cut_off:
        return
    if sight.got == "missing":
        if _vanished(draft, facts):
            draft.do(Release(rental.id, Reason.INTERRUPTED, "no longer known to the provider", interrupted=True))
        return
    if isinstance(sight.got, Instance) and sight.got.notice is not None and sight.got.notice.at <= draft.now:
        # Stopped, outbid, exited: the provider may start it again, so it is no death, but it computes nothing now.
        detail = f"{rental.offer.provider} says {sight.got.status}"
        draft.do(Release(rental.id, Reason.INTERRUPTED, detail, interrupted=True), "an announced reclaim has happened")
        return
    if draft.facts.ssh_dark:
        if machine.failed_awake_s >= draft.policy.unreachable_after_s:
            draft.do(Alarm("no-ssh", "no machine answers SSH and the providers do: is SSH blocked on this network?"))
    elif rental.ready_at is None:
        _never_ready(draft, facts)
    elif isinstance(sight.got, Instance) and not sight.got.ready and machine.failed_awake_s >= STOPPED_S:
        # Outbid: the provider may start it again, so it is not dead and must be destroyed, but nothing runs on it
        detail = f"{rental.offer.provider} says {sight.got.status}"
        draft.do(Release(rental.id, Reason.INTERRUPTED, detail, interrupted=True), "taken, though not for good")
    elif machine.failed_awake_s >= draft.policy.unreachable_after_s and isinstance(sight.got, Instance):
        minutes = int(machine.failed_awake_s // 60)
        detail = f"no SSH for {minutes} min while the provider says {sight.got.status}"
        draft.do(Release(rental.id, Reason.UNREACHABLE, detail, interrupted=True), "unreachable for too long")


def _vanished(draft: Draft, facts: RentalFacts) -> bool:
    """A point-get says missing, and so do enough listings: one of each is what a lagging replica says of a healthy
    machine. One that never answered may also still be on its way into the provider's view.
    """
    rental, policy = facts.rental, draft.policy
    if rental.ready_at is None:
        return never_seen(draft, facts)
    return absent(facts.sight, facts.caps, policy.absence_count, policy.absence_span_s)


def _never_ready(draft: Draft, facts: RentalFacts) -> None:
    rental, machine = facts.rental, facts.machine
    waited = draft.now - (rental.create_sent_at or rental.created_at)
    draft.wake(draft.now + facts.caps.ready_within_s - waited)
    instance = facts.sight.instance
    nowhere = instance is not None and instance.endpoint is None  # seen by this process, and no address to try
    if waited >= facts.caps.ready_within_s and (machine.failures > 0 or nowhere):
        trouble = machine.trouble or ("no address" if nowhere else "no answer")
        detail = f"not reachable {int(waited)} s after the create: {trouble}"
        draft.do(Release(rental.id, Reason.BAD_HOST, detail), "never became ready")
    elif "key not accepted" in machine.trouble and machine.failed_awake_s >= KEY_REFUSED_S:
        draft.do(Release(rental.id, Reason.BAD_HOST, "our key is not accepted"), "key refused")


def _look(draft: Draft, facts: RentalFacts, *, since: float, why: str) -> None:
    """A point-get, at once for something new, then at a pace: after 1, 2, 4 and 8 s, every 5 s, every 20 s.

    A `since` ahead of now is from before the clock was set back, and every look that is remembered is later: without
    this each answer would be followed by the next question, for as long as the clock was set back.
    """
    sight = facts.sight
    since = since if since <= draft.now else 0.0
    if sight.got_at is None or sight.got_at < since:
        draft.do(Look(facts.rental.id, why), why)
        return
    pace = LOOK_EVERY_S if draft.now - since < 60 else LOOK_SLOWLY_S
    pace = min(pace, max(LOOK_AGAIN_S, sight.got_at - since))
    if draft.now - sight.got_at >= pace:
        draft.do(Look(facts.rental.id, why))
    else:
        draft.wake(sight.got_at + pace)


# --- releasing -------------------------------------------------------------------------------------------------------


def _releasing(draft: Draft, facts: RentalFacts) -> None:
    rental, sight = facts.rental, facts.sight
    _duplicates(draft, facts)
    if rental.provider_id is None and sight.instance is not None:
        draft.do(RecordInstance(rental.id, sight.instance), "found by its tag, to be destroyed")
        return
    if gone(draft, facts):
        draft.do(StoreGone(rental.id), "it no longer bills")
        return
    if rental.quiesced_at is None and _is_quiesced(draft, facts):
        draft.do(StoreQuiesced(rental.id), "a destroy was acknowledged and a later look agrees")
    for ref in _still_there(draft, facts):
        draft.do(Destroy(rental.id, ref, rental.reason or Reason.ORPHAN), f"releasing: {rental.reason}")
    if rental.provider_id is not None:
        _look(draft, facts, since=rental.destroy_acked_at or rental.releasing_at or draft.now, why="is it gone")
    since = draft.now - (rental.releasing_at or draft.now)
    if since >= RELEASE_ALARM_S:
        what = f"{rental.offer.provider} {rental.provider_id or rental.id}"
        text = f"{what} still bills {int(since // 60)} min after its release began; we go on trying"
        draft.do(Alarm("release-slow", text, rental.id))
    draft.wake(draft.now + LOOK_EVERY_S)


def _is_quiesced(draft: Draft, facts: RentalFacts) -> bool:
    """Dead by a point-get, or an acknowledged destroy ("missing" acknowledges nothing) plus one later look.

    An acknowledgement that lies ahead of now is from before the clock was set back, and so is no look of this memory.
    """
    rental, sight = facts.rental, facts.sight
    if dead(facts):
        return True
    acked, looked = rental.destroy_acked_at, sight.got_at
    if acked is None or looked is None or sight.got != "missing":
        return False
    return looked > acked or acked > draft.now >= looked


def gone(draft: Draft, facts: RentalFacts) -> bool:
    """Absence by complete listings after a destroy, or a dead machine whose disks and addresses are absent."""
    rental, sight, policy = facts.rental, facts.sight, draft.policy
    if isinstance(sight.others, Unknown) or sight.others or _live_duplicates(facts):
        return False
    if dead(facts) and sight.others_absent_count >= OTHERS_ABSENT:
        return True
    if rental.provider_id is None:
        return never_seen(draft, facts)
    asked = rental.destroy_sent_at is not None and sight.got == "missing"
    return asked and not draft.facts.brake and absent(sight, facts.caps, policy.absence_count, policy.absence_span_s)


def _live_duplicates(facts: RentalFacts) -> bool:
    return any(extra.status not in facts.caps.dead_statuses for extra in facts.sight.duplicates)


def _still_there(draft: Draft, facts: RentalFacts) -> tuple[Ref, ...]:
    """What a destroy must still be sent for: the machine until it is dead or missing, then what it left behind."""
    rental, sight = facts.rental, facts.sight
    refs: list[Ref] = []
    if rental.provider_id is not None and not dead(facts):
        known_missing = sight.got == "missing" and rental.destroy_sent_at is not None
        resend = rental.destroy_acked_at is None or draft.now - rental.destroy_acked_at >= 60
        if resend and not known_missing:
            offer = rental.offer
            refs.append(Ref(offer.provider, offer.account, offer.region, rental.provider_id))
    if not isinstance(sight.others, Unknown):
        refs += [other.ref for other in sight.others]
    return tuple(refs)


def _ended_reason(draft: Draft) -> Reason:
    job = draft.facts.job
    if job.reason in (Reason.TTL, Reason.BUDGET, Reason.DONE, Reason.FAILED):
        return job.reason
    return Reason.CANCELLED if job.cancel_at is not None else Reason.FAILED
