"""The paper a decision is written on: collects actions, wake-up times and reasons while the rules run."""

from __future__ import annotations

from orchestrator.actions import Action, SetOutcome, SetTaskOutcome
from orchestrator.bench import Bench
from orchestrator.model import Condition, Decision, Facts, Policy

IDLE_S = 30.0  # with nothing to wait for, a job is still looked at this often


class Draft:
    """What one call of `reconcile` has decided so far. Never leaves that call."""

    def __init__(self, facts: Facts, policy: Policy) -> None:
        self.facts = facts
        self.policy = policy
        self.now = facts.now
        self._actions: list[Action] = []
        self._why: list[str] = []
        self._wake = facts.now + IDLE_S
        self.condition = Condition("PENDING")
        self.bench = Bench(facts, policy) if policy.crew is not None else None

    def do(self, action: Action, why: str = "") -> None:
        """Decide `action`; the same action twice is one."""
        if action not in self._actions:
            self._actions.append(action)
            if why:
                self._why.append(why)

    def conclude(self, task: str, outcome: SetOutcome, why: str = "") -> None:
        """The work of `task` is decided, which of a plain job is the job itself."""
        if self.bench is None:
            self.do(outcome, why)
            return
        what = SetTaskOutcome(task, outcome.outcome, outcome.reason, outcome.detail, outcome.exit_code)
        self.do(what, f"{task}: {why}")

    def wake(self, at: float) -> None:
        """Look again at `at` or earlier; a time already past means soon, not in a hot loop."""
        self._wake = min(self._wake, max(at, self.now + 0.2))

    def say(self, state: str, why: str = "", next_: str = "") -> None:
        """What people are told is going on."""
        self.condition = Condition(state, why, next_)

    def decided(self, kind: type) -> bool:
        """Whether an action of this kind is already on the paper."""
        return any(isinstance(action, kind) for action in self._actions)

    def decided_for(self, rental: str, kind: type) -> bool:
        """Whether an action of this kind is already on the paper for this rental."""
        return any(isinstance(action, kind) and getattr(action, "rental", "") == rental for action in self._actions)

    def decision(self) -> Decision:
        """The finished decision."""
        return Decision(tuple(self._actions), self._wake, self.condition, tuple(self._why))
