"""Whatever a user, a provider and bad luck do in whatever order: no promise is broken, and in the end all is paid."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sim_box import Program
from sim_cloud import kinds
from sim_faults import ASKED, TIMED, Faults, Shape
from sim_swarm import MEMORY
from sim_time import T0
from sim_world import Wish, World

pytestmark = pytest.mark.sim
HOUR = 3600.0
PAUSES = frozenset({"suspend", "freeze"})
EXAMPLES = int(os.environ.get("GPUJOB_STATEFUL", "4"))


class Lives(RuleBasedStateMachine):
    """One world, driven by random rules."""

    world: World

    @initialize(cloud=st.sampled_from(sorted(kinds())), seed=st.integers(0, 50))
    def begin(self, cloud: str, seed: int) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="gpujob-sim-", dir=MEMORY if MEMORY.is_dir() else None))
        faults = Faults(random.Random(seed), {}, T0 + 1e7)
        self.world = World(seed, self.home, faults, [Wish("first", Program(2 * HOUR))], (cloud,))
        self.world.start()
        self.jobs = 1

    @rule(seconds=st.sampled_from((1.0, 5.0, 60.0, 600.0, 3600.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.run(self.world.heap.now + seconds)

    @rule(kind=st.sampled_from([k for k in TIMED if k not in PAUSES]), seconds=st.sampled_from((40.0, 700.0, 1500.0)))
    def misfortune(self, kind: str, seconds: float) -> None:
        self.world.happen(kind, seconds=seconds)

    @rule(seconds=st.sampled_from((10.0, 300.0, 28_800.0)), asleep=st.booleans())
    def the_computer_sleeps(self, seconds: float, asleep: bool) -> None:
        self.world.pause(seconds, asleep)

    @rule(kind=st.sampled_from(ASKED), seconds=st.sampled_from((30.0, 600.0)))
    def a_lie_begins(self, kind: str, seconds: float) -> None:
        now = self.world.heap.now
        self.world.faults.shapes[kind] = Shape("window", windows=((now, now + seconds),))

    @rule()
    def a_kill_at_the_next_commit(self) -> None:
        self.world.restart_s = (1.0,)
        self.world.crash_at_names["commit/after"] = 1

    @rule()
    def the_user_cancels_the_newest(self) -> None:
        wish = self.world.wishes[-1]
        if wish.job and wish.job not in self.world.oracle.cancelled:
            self.world._cancel(wish)

    @rule(hours=st.sampled_from((0.1, 1.0, 6.0)))
    def the_user_applies_another(self, hours: float) -> None:
        if self.jobs < 3:
            self.jobs += 1
            wish = Wish(f"job{self.jobs}", Program(hours * HOUR))
            self.world.wishes.append(wish)
            self.world._apply(wish)

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "world"):
            assert self.world.oracle.violations == []

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.crash_at_names.clear()
            self.world.faults.until = self.world.heap.now
            self.world.faults_off()
            self.world.run_to_end(self.world.heap.now + 60 * HOUR)
            assert self.world.oracle.violations == []
        finally:
            self.world.close()
            shutil.rmtree(self.home, ignore_errors=True)


Lives.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=20, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck), print_blob=False,
)  # fmt: skip
TestLives = Lives.TestCase
