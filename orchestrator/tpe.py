"""The next leg of a sweep by TPE, a search that learns from the legs before it. Needs Optuna (extra `tpe`).

Rules:
- Nothing is remembered: the study is made anew from the legs at each step, so a restart changes nothing, and the same
  legs with the same seed give the same suggestion, in whatever order they are given.
- A leg that waits or runs counts as a bad one until it is done, so that parallel legs do not crowd on one spot.
- Stopped and cancelled legs count by their last value, below every one that is done; a failed leg says nothing.
- What decides must not import this: Optuna is not pure, and takes a second to load.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.legs import Goal, Leg, LegState
from orchestrator.search import Choice, Domain, Space, Uniform, Whole, number_text, random_legs, size_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STARTUP = 10  # results before there is anything to learn from; Optuna's default, too
TRIES = 20  # suggestions that repeat an earlier leg before a random one is taken


class NoOptuna(Exception):
    """Optuna is not installed."""

    def __init__(self) -> None:
        super().__init__("search method tpe needs Optuna, which is not installed: install gpujob with its extra `tpe`")


def require() -> None:
    """Raise `NoOptuna` unless a suggestion can be made."""
    import importlib.util

    if importlib.util.find_spec("optuna") is None:
        raise NoOptuna


def next_leg(space: Space, goal: Goal, seed: int, legs: Sequence[Leg]) -> dict[str, str] | None:
    """The parameters of the next leg; None when every combination of a finite space was given out."""
    known = [leg for leg in legs if _fits(space, leg.params)]
    taken = [leg.params for leg in legs]
    size = size_of(space)
    if size is not None and len({tuple(sorted(leg.params.items())) for leg in known}) >= size:
        return None
    results = sum(leg.state.over and leg.last is not None for leg in known)
    if results >= STARTUP:
        found = _suggestion(space, goal, seed, sorted(known, key=_by_result), taken)
        if found is not None:
            return found
    return next(iter(random_legs(space, seed, 1, taken)), None)


def _by_result(leg: Leg) -> tuple[float, str]:
    """Old results first, since Optuna lets them fade; the order in which legs were given must not matter."""
    return leg.last.at if leg.last is not None and leg.state.over else math.inf, leg.id


def _fits(space: Space, params: Mapping[str, str]) -> bool:
    """False for a leg of another space, as after an edit of the spec: it says nothing of this one."""
    return params.keys() == space.keys() and all(_read(domain, params[name]) for name, domain in space.items())


def _read(domain: Domain, text: str) -> bool:
    if isinstance(domain, Choice):
        return text in domain.values
    try:
        return domain.low <= _number(domain, text) <= domain.high
    except ValueError:
        return False


def _number(domain: Uniform | Whole, text: str) -> float:
    return float(text) if isinstance(domain, Uniform) else int(text)


def _suggestion(
    space: Space, goal: Goal, seed: int, legs: Sequence[Leg], taken: Sequence[Mapping[str, str]]
) -> dict[str, str] | None:
    """What Optuna suggests; None when it keeps to combinations that were given out."""
    try:
        import optuna
    except ImportError:
        raise NoOptuna from None

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    domains = {name: _distribution(domain) for name, domain in space.items()}
    trials = [_trial(leg, space, domains) for leg in legs]
    for again in range(TRIES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=0,
                multivariate=True,
                constant_liar=True,
                seed=_seed(seed, len(legs), again),
            )
        study = optuna.create_study(direction=goal, sampler=sampler)
        study.add_trials(trials)
        drawn = study.ask(domains).params
        params = {name: _text(space[name], drawn[name]) for name in space}
        if params not in taken:
            return params
    return None


def _seed(seed: int, count: int, again: int) -> int:
    digest = hashlib.sha256(f"tpe\0{seed}\0{count}\0{again}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _distribution(domain: Domain) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.values)
    if isinstance(domain, Uniform):
        return FloatDistribution(domain.low, domain.high, log=domain.log)
    return IntDistribution(domain.low, domain.high)


def _text(domain: Domain, value: Any) -> str:
    return number_text(float(value), domain) if isinstance(domain, Uniform) else str(value)


def _trial(leg: Leg, space: Space, domains: Mapping[str, BaseDistribution]) -> FrozenTrial:
    """One leg as Optuna knows it."""
    from optuna.trial import TrialState, create_trial

    params = {
        name: leg.params[name] if isinstance(domain, Choice) else _number(domain, leg.params[name])
        for name, domain in space.items()
    }
    last = leg.last
    finite = last is not None and math.isfinite(last.value)
    if not leg.state.over:
        state = TrialState.RUNNING
    elif leg.state is LegState.FAILED or last is None:
        state = TrialState.FAIL
    elif leg.state is LegState.DONE and finite:
        state = TrialState.COMPLETE
    else:
        state = TrialState.PRUNED  # with NaN it is the worst of those that came as far
    seen = {last.step: last.value if finite else math.nan} if last is not None and leg.state.over else {}
    return create_trial(
        state=state,
        params=params,
        distributions=dict(domains),
        value=last.value if last is not None and state is TrialState.COMPLETE else None,
        intermediate_values=seen,
    )
