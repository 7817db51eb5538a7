"""One-line bugs, and the suite that must find each. What survives is explained here or is a hole in the suite.

`old` must occur exactly once in `file`. `suite` is the arguments of `tools/sim.py --kill`: `seeds A B` runs the swarm's
seeds until one fails, `crash` kills the controller at every tap of the nominal job, `scopes DEPTH` tells every sequence
of answers, `tests PATH...` runs pytest.
A mutant is `safety` when it could leak money or lose work; all of those must die.
"""

# ruff: noqa: E501  (the table below reads better with one bug a row)
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

MEMORY = Path("/dev/shm")
TIMEOUT_S = 3600.0  # a suite that hangs; far above what the longest takes on a loaded computer
KILLED_MIN = 0.95  # of all, safety or not
COPIED = ("jobspecs", "providers", "orchestrator", "tests", "tools", "pyproject.toml")
PROPS = "tests tests/stateful/test_reconcile_properties.py"
NAMED = "tests tests/sim/test_sim_interleavings.py"
RECONCILE = "tests tests/unit/test_reconcile_rental.py tests/unit/test_reconcile_work.py"
STORE = "tests tests/unit/test_store_decisions.py tests/unit/test_store_books.py tests/unit/test_store_file.py"
SIGHTS = "tests tests/unit/test_sightings.py"
EVIDENCE = "tests tests/unit/test_core_evidence.py"
SEEDS = "seeds 0 60"


@dataclass(frozen=True)
class Mutant:
    """One bug. `harmless` says why a survivor is none."""

    name: str
    file: str
    old: str
    new: str
    suites: tuple[str, ...]
    safety: bool = True
    harmless: str = ""


L, W, S = "orchestrator/lifecycle.py", "orchestrator/work.py", "orchestrator/successor.py"
ENDING = "orchestrator/ending.py"
MUTANTS: tuple[Mutant, ...] = (
    # --- reconcile: one rental's life ---
    Mutant("create-sent-twice", "orchestrator/store/receipts.py",
           'if not self._run("create_sent", id=rental, now=now):', 'if self._run("create_sent", id=rental, now=now) < 0:',
           (STORE, "crash")),
    Mutant("create-resent-when-ambiguous", L, "    if rental.create_sent_at is None:\n        if ended:",
           "    if rental.create_sent_at is None or sight.instance is None:\n        if ended:", (RECONCILE, PROPS)),
    Mutant("never-seen-at-once", L, "old_enough = draft.now - sent >= max(SETTLE_S, 2 * facts.caps.list_lag_s)",
           "old_enough = True", (RECONCILE, PROPS, SEEDS)),
    Mutant("never-seen-without-listings", L,
           "    return old_enough and absent(facts.sight, facts.caps, policy.absence_count, policy.absence_span_s)",
           "    return old_enough", (RECONCILE, PROPS, SEEDS)),
    Mutant("absence-by-one-listing", L, "    return sight.absent_count >= count and", "    return sight.absent_count >= 1 and",
           (RECONCILE, PROPS, SEEDS)),
    Mutant("absence-without-span", L, "and sight.absent_span_s >= max(span_s, caps.list_lag_s)", "",
           (RECONCILE, PROPS, SEEDS)),
    Mutant("lost-on-one-missing-get", L, "        if _vanished(draft, facts):", "        if True:", (EVIDENCE, NAMED, SEEDS)),
    Mutant("duplicates-kept", L, "if extra.ref.id != facts.rental.provider_id and", "if False and", (RECONCILE, SEEDS)),
    Mutant("duplicate-kills-the-recorded", L, "if extra.ref.id != facts.rental.provider_id and", "if", (RECONCILE, PROPS)),
    Mutant("end-ignored", L, "    if draft.now >= end:", "    if draft.now >= end + 1e9:", (RECONCILE, SEEDS)),
    Mutant("quiesced-by-missing-alone", L, 'if acked is None or looked is None or sight.got != "missing":',
           'if looked is None or sight.got != "missing":', (RECONCILE, PROPS, SEEDS)),
    Mutant("quiesced-by-an-earlier-look", L, "return looked > acked or acked > draft.now >= looked", "return True",
           (RECONCILE, SEEDS)),
    Mutant("quiesced-by-acknowledgement-alone", L, 'if acked is None or looked is None or sight.got != "missing":',
           "if acked is None or looked is None:", (RECONCILE, SEEDS)),
    Mutant("gone-with-disks", L, "isinstance(sight.others, Unknown) or sight.others or", "", (RECONCILE, PROPS, SEEDS)),
    Mutant("gone-by-old-evidence", "orchestrator/sightings.py", "0 if others or lives else", "0 if others else",
           (EVIDENCE, NAMED)),
    Mutant("gone-with-duplicates", L, "or _live_duplicates(facts):", ":", (RECONCILE, SEEDS)),
    Mutant("gone-without-destroy", L, "asked = rental.destroy_sent_at is not None and", "asked =", (RECONCILE, PROPS),
           harmless="a release sends its destroy in the decision that moves it; absence and a missing get are still needed"),
    Mutant("destroy-never-resent", L, "resend = rental.destroy_acked_at is None or draft.now - rental.destroy_acked_at >= 60",
           "resend = rental.destroy_acked_at is None", (RECONCILE, NAMED, SEEDS)),
    Mutant("disks-not-destroyed", L, "        refs += [other.ref for other in sight.others]", "        pass", (RECONCILE, SEEDS)),
    Mutant("brake-ignored", L, "    if draft.facts.brake or draft.facts.cut_off:\n        return\n    if sight",
           "    if sight", (RECONCILE, PROPS)),
    Mutant("ssh-dark-ignored", L, "    if draft.facts.ssh_dark:", "    if False:", (EVIDENCE, NAMED)),
    Mutant("release-never-alarmed", L, "    if since >= RELEASE_ALARM_S:", "    if False:", (RECONCILE, NAMED), safety=False),
    # --- work ---
    Mutant("released-before-results", W,
           "if _results_wanted(draft, success) and assignment.results_at is None and not assignment.results_lost:",
           "if False:", (RECONCILE, SEEDS)),
    Mutant("run-before-armed", W, "not (machine.connected and machine.end_confirmed)", "not machine.connected", (RECONCILE,)),
    Mutant("run-while-another-may-write", W, "    if free is None:", "    if False:", (RECONCILE, PROPS)),
    Mutant("no-mirror-listing", W,
           "if not fresh and (facts.mirror_listed.get(task.id, -1.0) < free or task.id not in facts.mirror_listed):", "if False:",
           (RECONCILE, NAMED)),
    Mutant("resume-from-anything", "orchestrator/resume.py", "c.hash in last.seal or c.n == last.n", "True", (RECONCILE,)),
    Mutant("resume-never", W, 'resume_name=best.name if best else "",', 'resume_name="",', (RECONCILE, SEEDS)),
    Mutant("resume-oldest", "orchestrator/resume.py", "return next(iter(resume_order(rows)), None)",
           "return next(iter(reversed(resume_order(rows))), None)", (RECONCILE, SEEDS)),
    Mutant("no-saving-before-the-end", ENDING, "    if draft.now >= at:", "    if False:", (RECONCILE,)),
    Mutant("close-before-mirror", W, "    if machine.connected and assignment.key in facts.checkpoints_left and", "    if False and",
           (RECONCILE, SEEDS, "crash")),
    Mutant("notice-ignored", ENDING, "if rental.machine.notice is not None or _provider_notice(rental) is not None:",
           "if False:", (RECONCILE,)),
    Mutant("cancel-ignored-while-running", ENDING, "    if draft.facts.job.cancel_at is not None:\n        return SignalWhy.CANCEL",
           "    if False:\n        return SignalWhy.CANCEL", (RECONCILE, SEEDS)),
    Mutant("failure-without-a-look", "orchestrator/verdict.py", "    if not _machine_is_well(facts, rental, exit_.at):",
           "    if False:", (RECONCILE,), safety=False),
    Mutant("interruption-counts-as-failure", "orchestrator/verdict.py",
           "    if exit_.signalled is SignalWhy.INTERRUPTION:", "    if False:", (RECONCILE, SEEDS)),
    Mutant("lost-exit-is-done", "orchestrator/verdict.py", "if exit_.rc == 0 and not exit_.lost:", "if exit_.rc == 0:", (RECONCILE,),
           harmless=""),
    # --- successor, money ---
    Mutant("successor-too-early", S, "return row.phase is RentalPhase.GONE or row.quiesced_at is not None", "return True",
           (RECONCILE, PROPS, SEEDS)),
    Mutant("relaunch-for-ever", S, "    if fruitless >= policy.no_progress_max:", "    if False:", (RECONCILE,)),
    Mutant("open-after-cancel", S, "    if job.cancel_at is not None:\n        draft.do", "    if False:\n        draft.do",
           (RECONCILE, PROPS, SEEDS)),
    Mutant("budget-unchecked", "orchestrator/store/decisions.py", "        if spent + reserved > budget:", "        if False:", (STORE,)),
    Mutant("reserve-without-margin", "orchestrator/budget.py", "return cost(end - start + margin_s, offer)",
           "return cost(end - start, offer)", (RECONCILE, "tests tests/unit")),
    Mutant("minimum-billing-forgotten", "orchestrator/budget.py", "return max(offer.min_billing_s,", "return max(0,",
           (RECONCILE, "tests tests/unit")),
    Mutant("billed-before-looking", "orchestrator/spending.py",
           "or rental.provider_id is None or not loop.observer.settled(rental):", "or rental.provider_id is None:", (NAMED + " -k away",)),
    # --- observe, sightings ---
    Mutant("unknown-counts-as-absent", "orchestrator/sightings.py",
           "            self.sight = replace(self.sight, absent_count=0, absent_span_s=0.0, others_absent_count=0)\n            return",
           "            self.sight = replace(self.sight, absent_count=self.sight.absent_count + 1)\n            return", (SIGHTS,)),
    Mutant("seen-does-not-reset", "orchestrator/sightings.py", "seen_at=began, absent_count=0, absent_span_s=0.0)",
           "seen_at=began)", (SIGHTS, SEEDS)),
    Mutant("listing-from-before-the-create", "orchestrator/sightings.py",
           "if rental.create_sent_at is None or began < rental.create_sent_at:", "if rental.create_sent_at is None:", (SIGHTS,)),
    Mutant("not-settled-after-sleep", "orchestrator/loop.py", "gap=gap)\n        self.observer.unsettled = {region_of(r) for r in self.store.open_rentals()}\n",
           "gap=gap)\n", ("tests tests/unit", NAMED)),
    Mutant("silence-kept-over-sleep", "orchestrator/sightings.py",
           "        self.machine = replace(self.machine, failed_awake_s=0.0)\n        unasked", "        unasked", (SIGHTS,)),
    Mutant("looks-kept-over-a-clock-step", "orchestrator/sightings.py", "got=unasked, got_at=None", "", (SIGHTS,)),
    Mutant("looks-kept-over-the-acknowledgement", "orchestrator/receipts.py", "            loop.observer.of(rental.id).forget_get()", "            pass",
           ("tests tests/unit/test_receipts.py",)),
    # --- execute, receipts ---
    Mutant("ambiguous-taken-for-refused", "orchestrator/execute.py", 'return Receipt(effect, job, "ambiguous", doors.now(), str(error))',
           'return Receipt(effect, job, "refused", doors.now(), str(error))', ("tests tests/sim/test_sim_faults.py -k create-lost", SEEDS)),
    Mutant("missing-acknowledges", "orchestrator/receipts.py",
           'if receipt.data.get("ack") is DestroyAck.ACKNOWLEDGED and', "if", (NAMED, SEEDS)),
    Mutant("disk-acknowledges-the-machine", "orchestrator/receipts.py",
           "DestroyAck.ACKNOWLEDGED and action.ref.id == rental.provider_id:", "DestroyAck.ACKNOWLEDGED:", (NAMED,),
           harmless="a disk is listed on its own only when its machine is dead"),
    Mutant("close-not-proved", "orchestrator/receipts.py", '            if data.get("dead"):', "            if True:",
           ("tests tests/unit",), harmless=""),
    # --- sweep, store, books ---
    Mutant("strays-ignored", "orchestrator/sweep.py", "        elif rental.phase is RentalPhase.GONE:", "        elif False:",
           ("tests tests/unit", NAMED)),
    Mutant("strays-in-one-memory", "orchestrator/hearing.py", "setdefault((message.provider, message.account, message.region), {})",
           'setdefault(("", "", ""), {})', ("tests tests/unit", NAMED)),
    Mutant("strays-at-first-sight", "orchestrator/sweep.py", "SIGHTINGS = 2", "SIGHTINGS = 1", ("tests tests/unit",), safety=False,
           harmless="the second sighting guards against a listing older than the row's last phase; the row decides"),
    Mutant("other-deployments-swept", "orchestrator/sweep.py", "tag is None or tag.deployment != deployment or", "tag is None or",
           ("tests tests/unit",), harmless="an adapter lists its own deployment only; the row is looked up by its id as well"),
    Mutant("no-tombstone", "orchestrator/store/decisions.py", "until = now + TOMBSTONE_S if write.tombstone else None", "until = None",
           (STORE, NAMED)),
    Mutant("finish-with-open-rentals", "orchestrator/reconcile.py",
           "elif all(r.rental.phase is RentalPhase.GONE for r in facts.rentals):", "else:", (RECONCILE, PROPS, NAMED)),
    Mutant("unfenced", "orchestrator/store/connection.py", "        if now != self.epoch:", "        if False:", (STORE,)),
    Mutant("old-copy-trusted", "orchestrator/books.py",
           "return Verdict.BEHIND if epoch < kept.epoch or milestones < kept.milestones else Verdict.OK", "return Verdict.OK", (NAMED, STORE)),
    Mutant("lost-books-trusted", "orchestrator/books.py", "return Verdict.LOST if kept.milestones else Verdict.OK", "return Verdict.OK",
           (NAMED, STORE)),
    Mutant("two-runs-committed", "orchestrator/store/decisions.py",
           '        for before in self._rows("running_before", job=job, task=write.task):',
           "        for before in []:", (STORE,)),
    # --- checkpoints, agent, one adapter ---
    Mutant("manifest-before-its-parts", "orchestrator/checkpoints.py", "    _make_durable(parts, manifest)\n", "    pass\n",
           ("tests tests/process/test_checkpoints_mirror.py",)),
    Mutant("prune-the-best", "orchestrator/mirror.py", "[-keep:]\n    wanted", "[:keep]\n    wanted", ("tests tests/unit/test_checkpoints.py", SEEDS)),
    Mutant("agent-takes-a-second-run", "orchestrator/agent/commands.py",
           "                if other.order is not None and other.ended is None and other.key", "                if False and other.key",
           ("tests tests/process/test_agent_faults.py",)),
    Mutant("agent-obeys-an-old-controller", "orchestrator/agent/asks.py", "epoch < ", "epoch + 1 < 0 * ",
           ("tests tests/process/test_agent_faults.py",)),
)  # fmt: skip


def run_mutants(root: Path, names: list[str], jobs: int) -> int:
    """Each mutant in a copy of the tree; prints a line each and counts what survived."""
    chosen = [m for m in MUTANTS if m.suites and (not names or m.name in names)]
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        alive = sum(not killed for killed in pool.map(lambda m: _try(root, m), chosen))
    died = len(chosen) - alive
    share = died / max(1, len(chosen))
    print(f"{died} of {len(chosen)} mutants killed ({100 * share:.0f} %)")
    wrong = [m.name for m in chosen if m.safety and not m.harmless and m.name in _survivors]
    few = not names and share < KILLED_MIN
    if few:
        print(f"fewer than {100 * KILLED_MIN:.0f} % were killed")
    print(f"{len(wrong) + few} violations")
    return 1 if wrong or few else 0


_survivors: set[str] = set()


def _try(root: Path, mutant: Mutant) -> bool:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpujob-mutant-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        copy = Path(folder)
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, copy / name)
        path = copy / mutant.file
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            print(
                f"STALE     {mutant.name}: its text occurs {text.count(mutant.old)} times in {mutant.file}", flush=True
            )
            _survivors.add(mutant.name)
            return False
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        for suite in mutant.suites:
            if _fails(copy, suite):
                print(f"killed    {mutant.name:36} by `{suite}` in {time.monotonic() - began:.0f} s", flush=True)
                return True
    _survivors.add(mutant.name)
    print(f"SURVIVED  {mutant.name:36} {mutant.harmless}", flush=True)
    return False


def _fails(copy: Path, suite: str) -> bool:
    kind, _, rest = suite.partition(" ")
    env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "GPUJOB_EXAMPLES": "150"}
    if kind == "tests":
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *rest.split()]
    else:
        command = [sys.executable, "tools/sim.py", "--kill", kind, *rest.split()]
    try:
        return subprocess.run(
            command, cwd=copy, env=env, capture_output=True, timeout=TIMEOUT_S, check=False
        ).returncode not in (0, 5)  # 5: no test ran
    except subprocess.TimeoutExpired:
        return True  # it hangs, which no suite would let pass
