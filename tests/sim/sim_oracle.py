"""The judge outside of the system: it walks the world, and opens the books only to see what they claim.

Each invariant of the design is one method that carries its name. What the books say is never taken for what is: they
are read with plain SQL, to compare them with the machines, disks and programs as they are. Every second of a machine is
priced as useful, redone, wasted or orphaned.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sim_box import Box, Run
from sim_prices import Prices

from orchestrator.home import Home
from orchestrator.mirror import listing
from orchestrator.watch import CONNECT_S, RETRY_MAX_S
from providers.base import Offer, Tag

if TYPE_CHECKING:
    from sim_cloud import Cloud, Disk
    from sim_controller import Controller
    from sim_world import Wish, World

TICK_S = 30.0
ORPHAN_S = 900.0
IDLE_S = 600.0
SILENT_S = 1200.0 + 600.0
UNNOTICED_S = TICK_S + RETRY_MAX_S + CONNECT_S  # a machine that answers again is not known to until the next attempt
TTL_S = 300.0
CREATES_PER_HOUR = 40  # and one for each machine that a job of many tasks may have at a time
REFUSED_REST_S = 60.0 - 1.0  # a pool without capacity is left alone for so long, whatever else there is to ask
SAVE_WINDOW_S = 120.0 + 240.0  # grace and the time for results before an end
PHASES = {("intent", "live"), ("intent", "releasing"), ("intent", "gone"), ("live", "releasing"), ("releasing", "gone"),
          ("live", "gone"), ("", "intent")}  # fmt: skip
LEGAL = PHASES - {("live", "gone")}


@dataclass(frozen=True)
class Violation:
    """One broken promise."""

    at: float
    name: str
    who: str
    text: str


class Oracle:
    """Called by the world at every event that matters, and every 30 s."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[Violation] = []
        self.prices = Prices()
        self.taken: dict[str, float] = {}  # machine -> when the provider took it
        self.cancelled: dict[str, float] = {}
        self.creates: Counter[str] = Counter()
        self.failed_prepares: Counter[str] = Counter()
        self._create_times: dict[str, list[float]] = defaultdict(list)
        self._refused: dict[tuple[str, str, str], tuple[float, float]] = {}  # job, cloud, pool -> when, the skew then
        #: job, task -> when, run, step, and whether a later run was committed by then, which no set clock can say
        self._durable: dict[tuple[str, str], list[tuple[float, int, int, bool]]] = defaultdict(list)
        self._best: dict[tuple[str, str], int] = {}
        self._omitted: Counter[str] = Counter()
        self._phases: dict[str, str] = {}
        self._outcomes: dict[str, Any] = {}
        self._terminal: set[str] = set()
        self._wishes: dict[str, Wish] = {}
        self._up_since: float | None = None
        self._disturbed = 0.0
        self._box_disturbed: dict[str, float] = {}
        self._cloud_disturbed: dict[str, float] = {}
        self._idle: Counter[str] = Counter()
        self._was_silent: dict[str, bool] = {}
        self._orphan: Counter[str] = Counter()
        self._silent_since: dict[str, float] = {}
        self._answers_again: dict[str, tuple[float, float]] = {}  # machine -> silent since, until
        self._lost_at: dict[str, float] = {}
        self._finished_at: dict[str, float] = {}
        self._db: sqlite3.Connection | None = None
        self._changes = -1

    # --- what was broken ----------------------------------------------------------------------------------------------

    def broken(self, name: str, who: str, text: str) -> None:
        if any(v.name == name and v.who == who for v in self.violations):
            return
        self.violations.append(Violation(self.world.heap.now, name, who, text))
        self.world.say(who, f"VIOLATION {name}: {text}")

    def _rows(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        if self._db is None:
            if not self.world.home.database.exists():
                return []
            self._db = sqlite3.connect(f"file:{self.world.home.database}?mode=ro", uri=True, isolation_level=None)
            self._db.row_factory = sqlite3.Row
        return self._db.execute(sql, values).fetchall()

    def reopen(self) -> None:
        """The database file was replaced."""
        self.close()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _rental(self, rental: str) -> sqlite3.Row | None:
        rows = self._rows("SELECT * FROM rentals WHERE id = ?", rental)
        return rows[0] if rows else None

    # --- excuses: a bound counts only the time in which nothing hinders the controller --------------------------------

    def disturbed(self, until: float) -> None:
        self._disturbed = max(self._disturbed, until + 60.0)

    def disturb_box(self, box: str, seconds: float) -> None:
        until = self.world.heap.now + seconds
        self._box_disturbed[box] = max(self._box_disturbed.get(box, 0.0), until)

    def disturb_cloud(self, cloud: str, seconds: float) -> None:
        until = self.world.heap.now + seconds
        self._cloud_disturbed[cloud] = max(self._cloud_disturbed.get(cloud, 0.0), until)

    def controller_up(self) -> None:
        self._up_since = self.world.heap.now
        self._omitted.clear()

    def controller_down(self) -> None:
        self._up_since = None

    def _calm(self, box: Box) -> bool:
        now, world = self.world.heap.now, self.world
        controller = world.controller
        if controller is None or controller.dead or controller.paused or self._up_since is None:
            return False
        hindered = max(
            self._disturbed, self._box_disturbed.get(box.id, 0), self._cloud_disturbed.get(box.cloud.name, 0)
        )
        return now - self._up_since > 120.0 and now > hindered

    # --- creates ------------------------------------------------------------------------------------------------------

    def create_called(self, tag: Tag, offer: Offer) -> None:
        self.creates[tag.rental] += 1
        row = self._rental(tag.rental)
        if row is None or row["create_sent_at"] is None:
            self.broken("RentalBeforeCreate", tag.rental, "a create left before its row was committed")
        if self.creates[tag.rental] > 1:
            self.broken("CreateOncePerRental", tag.rental, f"{self.creates[tag.rental]} creates")
        now = self.world.heap.now
        refused_at, skew = self._refused.get((tag.job, offer.provider, offer.pool), (0.0, 0.0))
        if now - refused_at < REFUSED_REST_S and self.world.clock.skew == skew:
            words = f"{offer.provider} {offer.pool} was asked again {now - refused_at:.0f} s after it had no capacity"
            self.broken("AttemptsBounded", tag.job, words)
        times = [t for t in self._create_times[tag.job] if now - t < 3600] + [now]
        self._create_times[tag.job] = times
        wish = self._wishes.get(tag.job)
        together = int((wish.spec.get("sweep") or {}).get("max_parallel", 0)) if wish is not None else 0
        if len(times) > CREATES_PER_HOUR + together:
            self.broken("AttemptsBounded", tag.job, f"{len(times)} creates within an hour")

    def create_refused(self, tag: Tag, offer: Offer) -> None:
        """For want of capacity: nothing is rented, and the bound is the pool's rest, since a large market has many."""
        self._create_times[tag.job].pop()
        self._refused[tag.job, offer.provider, offer.pool] = self.world.heap.now, self.world.clock.skew

    def born(self, box: Box) -> None:
        if self._ours(box) and self._rental(box.name) is None:
            self.broken("NeverForget", box.name, "a machine bills of which the books have no row")

    def _ours(self, box: Box) -> bool:
        return box.tag is not None and box.tag.deployment == self.world.deployment

    # --- listings and destroys ----------------------------------------------------------------------------------------

    def listed(self, cloud: Cloud, ids: set[str]) -> None:
        for box in cloud.boxes.values():
            if box.alive and self._ours(box):
                self._omitted[box.id] = 0 if box.id in ids else self._omitted[box.id] + 1

    def destroy_disk(self, disk: Disk) -> None:
        if disk.tag is None or disk.tag.deployment != self.world.deployment:
            self.broken("OwnedOnly", disk.id, "somebody else's disk was destroyed")

    def destroy_called(self, box: Box) -> None:
        if not self._ours(box):
            self.broken("OwnedOnly", box.id, "somebody else's machine was destroyed")
            return
        row = self._rental(box.name)
        if row is None:
            self.broken("OwnedOnly", box.id, "a machine that the books do not know was destroyed")
            return
        why = self._false_kill(box, row)
        if why:
            self.broken("NoFalseKill", box.name, f"destroyed for {row['reason']}: {why}")

    def _false_kill(self, box: Box, row: sqlite3.Row) -> str:
        """Why the reason is not true of the world; empty when it is."""
        if row["provider_id"] not in (None, box.id):
            return ""  # a second machine of the tag
        if row["phase"] == "gone":
            return ""  # an orphan
        if row["phase"] != "releasing":
            return "the rental is not being released"
        job = self._rows("SELECT * FROM jobs WHERE id = ?", row["job"])[0]
        runs = [r for b in self.world.boxes() for r in b.runs.values() if r.job == row["job"]]
        now, reason = self.world.clock.utc(), row["reason"]
        start = row["create_sent_at"] or row["created_at"]
        match reason:
            case "done":
                many = self._rows(
                    "SELECT 1 FROM tasks WHERE job = ? AND seq > 0", row["job"]
                )  # no task was left for it
                return "" if many or any(r.by_itself and r.rc == 0 for r in runs) else "no program has finished"
            case "failed":
                own = any(r.by_itself and r.rc not in (0, 85, None) for r in runs)
                lost = any(r.by_itself and r.rc == 0 for r in runs) and row["job"] not in self.world.results
                return "" if own or lost or job["reason"] not in ("failed", None) else "no program has failed"
            case "cancelled":
                return "" if row["job"] in self.cancelled else "nobody cancelled"
            case "ttl" | "budget":
                at = row["end"] - min(SAVE_WINDOW_S, (row["end"] - start) / 3) - 5
                decided = job["reason"] in ("ttl", "budget")
                return "" if now >= at or decided else f"its end is {row['end'] - now:.0f} s away"
            case "interrupted":
                lost = box.notice is not None or box.id in self.taken or box.state != "running"
                return "" if lost else "it runs, and nobody takes it"
            case "unreachable":
                return self._not_unreachable(box)
            case "bad-host":
                if self.failed_prepares[box.id] >= 5:
                    return ""
                return "it has run something" if any(r.began for r in box.runs.values()) else ""
            case _:
                return "this reason is not used here"

    def _not_unreachable(self, box: Box) -> str:
        now = self.world.heap.now
        since = self._silent_since.get(box.id)
        if since is None:
            began, ended = self._answers_again.get(box.id, (now, now))
            since = began if now - ended <= UNNOTICED_S else None
        if since is None or now - since < 1200.0 - 2 * TICK_S:
            return f"it was silent for {now - (since or now):.0f} s only"
        healthy = [b for b in self.world.boxes() if self._ours(b) and b.answers]
        if len(healthy) >= 3 and now < self.world.ssh_blocked_until:
            return f"our own network blocks SSH, {len(healthy)} machines are well"
        return ""

    # --- machines and programs ----------------------------------------------------------------------------------------

    def power_changed(self, box: Box) -> None:
        if not box.alive and self._ours(box):
            self._price(box)

    def connected(self, box: Box, rental: str) -> None:
        if box.tag is None or box.tag.rental != rental:
            self.broken("RightMachine", rental, f"{box.id} was taken for it")

    def run_ordered(self, box: Box, run: Run) -> None:
        self._no_double_run(box, run)
        self._resume_from_latest(run)

    def run_started(self, box: Box, run: Run) -> None:
        self._no_double_run(box, run)
        lost = self._lost_at.pop(run.job, None)
        if lost is not None:
            self.prices.recovery.append(self.world.heap.now - lost)

    def _no_double_run(self, box: Box, run: Run) -> None:
        for other in self.world.boxes():
            for theirs in other.runs.values():
                if theirs is run or (theirs.job, theirs.task) != (run.job, run.task) or theirs.ended is not None:
                    continue
                if not theirs.dead and other.state == "running":
                    self.broken("NoDoubleRun", run.job, f"{run.key} on {box.id} beside {theirs.key} on {other.id}")

    def run_stopped(self, box: Box, run: Run) -> None:
        if not run.by_itself:
            self._lost_at.setdefault(run.job, self.world.heap.now)

    def run_over(self, box: Box, run: Run) -> None:
        if run.by_itself and run.rc == 0:
            self._finished_at[box.id] = self.world.heap.now

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def durable(self, job: str, task: str, n: int, step: int) -> None:
        late = bool(self._rows("SELECT 1 FROM assignments WHERE job = ? AND task = ? AND n > ?", job, task, n))
        self._durable[job, task].append((self.world.heap.now, n, step, late))

    def _resume_from_latest(self, run: Run) -> None:
        steps = [step for _, n, step, late in self._durable[run.job, run.task] if n < run.n and not late]
        latest = max(steps, default=0)
        if run.base != latest:
            self.broken("ResumeFromLatest", run.job, f"{run.key} began at {run.base:.0f}, {latest} was durable")

    def mirror_changed(self, home: Home, job: str, task: str) -> None:
        steps = [m.step for m in listing(home, job, task).manifests]
        best = max(steps, default=0)
        if best < self._best.get((job, task), 0):
            self.broken("ProgressMonotone", job, f"the mirror fell from {self._best[job, task]} to {best}")
        self._best[job, task] = max(best, self._best.get((job, task), 0))

    # --- the books' claims --------------------------------------------------------------------------------------------

    def job_applied(self, wish: Wish) -> None:
        self._wishes[wish.job] = wish

    def after_turn(self, controller: Controller) -> None:
        changes = controller.loop.store._db.total_changes + id(controller)
        if changes == self._changes:
            return
        self._changes = changes
        for row in self._rows("SELECT id, phase, provider_id FROM rentals WHERE phase <> 'gone' OR gone_at >= ?",
                              self.world.clock.utc() - 5.0):  # fmt: skip
            old = self._phases.get(row["id"], "")
            if old != row["phase"]:
                self._legal(row["id"], old, row["phase"])
                self._phases[row["id"]] = row["phase"]
        over = json.dumps(sorted(self._terminal))
        sql = "SELECT id, outcome, terminal_at, spec FROM jobs WHERE id NOT IN (SELECT value FROM json_each(?))"
        for row in self._rows(sql, over):
            if row["outcome"] != self._outcomes.get(row["id"]):
                self._outcomes[row["id"]] = row["outcome"]
                self.world.say(row["id"], f"outcome {row['outcome']}")
                if row["outcome"] == "done":
                    self._succeeded_implies_durable(row["id"])
            if row["terminal_at"] is not None:
                self._terminal.add(row["id"])
                self._finish_clean(row["id"])
            self._budget_holds(row)

    def _legal(self, rental: str, old: str, new: str) -> None:
        self.world.say(rental, f"books: {old or '-'} -> {new}")
        if (old, new) not in PHASES and old:
            self.broken("LegalTransitions", rental, f"from {old} to {new}")
        if new == "intent":
            self._successor_waits(rental)
        if new == "gone":
            self._absence_needs_evidence(rental)

    def _successor_waits(self, rental: str) -> None:
        """NoDoubleRun, by stored facts: earlier rentals are quiesced before a successor's row exists."""
        for row in self._rows("SELECT b.id FROM rentals a JOIN rentals b ON a.job = b.job AND b.attempt < a.attempt "
                              "AND b.worker = a.worker "
                              "WHERE a.id = ? AND b.quiesced_at IS NULL AND b.phase <> 'gone'", rental):  # fmt: skip
            self.broken("NoDoubleRun", rental, f"opened while {row['id']} is not quiesced")

    def _absence_needs_evidence(self, rental: str) -> None:
        for box in self.world.boxes():
            if box.tag is None or box.tag.rental != rental or not box.alive or not box.bills:
                continue
            if self._omitted[box.id] < 4 and self.world.heap.now >= box.visible_from:
                words = f"gone in the books, {box.id} is {box.state}, missed in {self._omitted[box.id]} listings"
                self.broken("AbsenceNeedsEvidence", rental, words)

    def _succeeded_implies_durable(self, job: str) -> None:
        if job not in self.world.results and self._wishes[job].spec.get("artifacts") != "none":
            self.broken("SucceededImpliesDurable", job, "done without results at home")
        runs = [r for b in self.world.boxes() for r in b.runs.values() if r.job == job]
        if not any(r.by_itself and r.rc == 0 and r.reached(0) >= r.program.work_s - 1 for r in runs):
            self.broken("SucceededImpliesDurable", job, "done, and no program has finished its work")

    def _finish_clean(self, job: str) -> None:
        for box in self.world.boxes():
            mine = box.tag is not None and box.tag.job == job and box.bills
            if mine and box.visible_from <= self.world.heap.now and self._omitted[box.id] < 4:
                self.broken("FinishClean", job, f"terminal while {box.id} bills")
        for cloud in self.world.clouds.values():
            for disk in cloud.disks.values():
                if disk.tag is not None and disk.tag.job == job and disk.gone_at is None:
                    box = cloud.boxes.get(disk.id.removesuffix("-disk"))
                    if box is None or not box.alive:
                        self.broken("FinishClean", job, f"terminal while {disk.id} bills")

    def _budget_holds(self, row: sqlite3.Row) -> None:
        spec = json.loads(row["spec"])
        budget = (spec.get("sweep") or spec).get("budget")
        if not budget:
            return
        cap = Decimal(str(budget).split()[0])
        ledger = sum((Decimal(r["amount"]) for r in self._rows(
            "SELECT amount FROM ledger JOIN rentals ON rentals.id = ledger.rental WHERE rentals.job = ?", row["id"])),
            Decimal(0))  # fmt: skip
        reserved = sum((Decimal(r["reserve"]) for r in self._rows(
            "SELECT reserve FROM rentals WHERE job = ? AND phase <> 'gone'", row["id"])), Decimal(0))  # fmt: skip
        late = any(r["n"] for r in self._rows(
            "SELECT count(*) n FROM rentals WHERE job = ? AND releasing_at IS NOT NULL AND (gone_at IS NULL OR "
            "gone_at > releasing_at + 600)", row["id"]))  # fmt: skip
        if ledger + reserved > cap and not late:
            self.broken("BudgetHolds", row["id"], f"{ledger} spent and {reserved} reserved of {cap}")

    # --- bounds, every 30 s -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.world.heap.after(TICK_S, self._tick)

    def _tick(self) -> None:
        self.world.heap.after(TICK_S, self._tick)
        now = self.world.heap.now
        rows: dict[str, sqlite3.Row] | None = None
        for box in self.world.boxes():
            if not box.bills or not self._ours(box):
                continue
            if rows is None:
                sql = "SELECT rentals.*, jobs.outcome FROM rentals JOIN jobs ON jobs.id = rentals.job"
                rows = {r["id"]: r for r in self._rows(sql)}
            if self.world.reachable(box):
                if box.id in self._silent_since:
                    self._answers_again[box.id] = (self._silent_since.pop(box.id), now)
            else:
                self._silent_since.setdefault(box.id, now)
            row = rows.get(box.name)
            if row is not None:
                self._bounds(box, row)

    def _bounds(self, box: Box, row: sqlite3.Row) -> None:
        needed = row["phase"] in ("intent", "live") and row["outcome"] is None and row["provider_id"] in (None, box.id)
        if not needed:
            self.prices.orphaned_s += TICK_S
        if self._calm(box):
            if not needed:
                self._orphan_bounded(box, row)
            else:
                self._idle_bounded(box)
        self._ttl_hard(box, row)

    def _orphan_bounded(self, box: Box, row: sqlite3.Row) -> None:
        if self.world.heap.now < box.visible_from:
            return
        self._orphan[box.id] += int(TICK_S)
        if self._orphan[box.id] > ORPHAN_S:
            name = "LateBirthSwept" if row["phase"] == "gone" else "OrphanBounded"
            self.broken(name, box.name, f"{box.id} bills for {self._orphan[box.id]} s with nobody needing it")

    def _idle_bounded(self, box: Box) -> None:
        works = any(not r.dead and r.ended is None and not r.staged for r in box.runs.values())
        if works:
            self._idle[box.id] = 0
            return
        silent = not self.world.reachable(box)
        if silent and self._dark():
            self._idle[box.id] = 0
        if silent is not self._was_silent.get(box.id):  # two bounds, each for its own time
            self._was_silent[box.id] = silent
            self._idle[box.id] = 0
        self._idle[box.id] += int(TICK_S)
        limit = SILENT_S if box.runs and silent else IDLE_S + (box.cloud.caps.ready_within_s if not box.runs else 0)
        if self._idle[box.id] > limit:
            words = "silent" if silent else "ready"
            self.broken("IdleBounded", box.name, f"{box.id} is {words} and idle for {self._idle[box.id]} s")

    def _dark(self) -> bool:
        """Several machines run and none of all answers: that may as well be our own network, so a person is asked
        (the alarm `no-ssh`), and the machines' own ends are the bound."""
        running = [b for b in self.world.boxes() if self._ours(b) and b.state == "running" and b.bills]
        return len(running) > 1 and not any(map(self.world.reachable, running))

    def _ttl_hard(self, box: Box, row: sqlite3.Row) -> None:
        end = max(row["end"], row["wanted_end"], box.born + ORPHAN_S)
        over = self.world.heap.now - end - abs(self.world.clock.skew)
        if over <= TTL_S or row["provider_id"] not in (None, box.id):
            return
        if self._calm(box):
            self.broken("TtlHard", box.name, f"alive {over:.0f} s after its end, with a controller")
        caps = box.cloud.caps
        ends_itself = caps.self_end in ("destroys", "stops_all_billing") and box.confirmed and box.state == "running"
        if (caps.server_ttl or (ends_itself and not box.hung)) and over > TTL_S + 600 and box.ends_at != row["end"]:
            self.broken("TtlHard", box.name, f"alive {over:.0f} s after its end, whatever the controller does")

    # --- the end ------------------------------------------------------------------------------------------------------

    def all_over(self) -> bool:
        return (
            bool(self._wishes) and len(self._wishes) == len(self.world.wishes) and self._terminal >= set(self._wishes)
        )

    def finish(self) -> None:
        """The calm phase is over: everything must be done, and nothing may bill."""
        for wish in self.world.wishes:
            if wish.job not in self._terminal:
                self.broken("EventuallyRuns", wish.job or wish.name, "not over although nothing hinders it")
        self.world.run(self.world.heap.now + 1800.0)
        late = [b.born + ORPHAN_S for b in self.world.boxes() if self._ours(b) and b.bills]  # perhaps born just now
        self.world.run(max(late, default=0.0))
        for box in self.world.boxes():
            if self._ours(box) and box.bills and box.born <= self.world.heap.now - ORPHAN_S:
                self.broken("EventuallyClean", box.name, f"{box.id} still bills")
                self._price(box)
        for cloud in self.world.clouds.values():
            for disk in cloud.disks.values():
                box = cloud.boxes.get(disk.id.removesuffix("-disk"))
                ours = disk.tag is not None and disk.tag.deployment == self.world.deployment
                if ours and disk.gone_at is None and (box is None or not box.alive):
                    self.broken("EventuallyClean", disk.id, "the disk still bills")
        for row in self._rows("SELECT id, created_at, terminal_at FROM jobs"):
            self.prices.job_s += (row["terminal_at"] or self.world.clock.utc()) - row["created_at"]

    def _price(self, box: Box) -> None:
        self.prices.add(box, self._durable, self.world.heap.now, self._finished_at.get(box.id))
