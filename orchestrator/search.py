"""The combinations of a sweep's parameters: a grid, and a sequence of random draws. Pure.

Rules:
- A draw is a hash of (seed, its number, the parameter's name), so it needs no generator and no state: the same sweep
  draws the same legs on every computer, more trials only add legs, and another parameter changes no other's values.
- Values are text, as the job will read them. A drawn number has six digits where that is fine enough, and as many as
  it takes to be read back exactly elsewhere.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DRAWS_MAX = 100_000  # ten times the legs that a sweep may have; one second
FINE = 1e-3  # a rounding step is small when it is at most this share of the range


@dataclass(frozen=True)
class Choice:
    """One of these, as typed."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class Uniform:
    """A number of [low, high]; `log`: even in its logarithm, low > 0."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Whole:
    """A whole number of [low, high], both included."""

    low: int
    high: int


Domain = Choice | Uniform | Whole
Space = Mapping[str, Domain]  # by parameter, in the order of the spec


def space_of(parameters: Mapping[str, Mapping[str, Any]], files: Callable[[str], Sequence[str]]) -> Space:
    """The space of `sweep.parameters` of a stored spec; `files` gives the paths that match a pattern."""
    return {name: _domain(parameter, files) for name, parameter in parameters.items()}


def _domain(parameter: Mapping[str, Any], files: Callable[[str], Sequence[str]]) -> Domain:
    if parameter.get("log_uniform") is not None:
        low, high = map(float, parameter["log_uniform"])
        return Uniform(low, high, log=True)
    if parameter.get("uniform") is not None:
        low, high = map(float, parameter["uniform"])
        return Uniform(low, high)
    if parameter.get("int") is not None:
        first, last = map(int, parameter["int"])
        return Whole(first, last)
    listed = [parameter[key] for key in ("values", "choice") if parameter.get(key) is not None]
    return Choice(tuple(dict.fromkeys(map(str, listed[0] if listed else files(str(parameter["files"]))))))


def size_of(space: Space) -> int | None:
    """How many combinations there are; None for a space with a continuous parameter."""
    count = 1
    for domain in space.values():
        if isinstance(domain, Uniform):
            if domain.low < domain.high:
                return None
            continue
        count *= len(domain.values) if isinstance(domain, Choice) else domain.high - domain.low + 1
    return count


def grid(space: Space) -> Iterator[dict[str, str]]:
    """Every combination of a finite space; the last parameter changes first."""
    for row in itertools.product(*(_listed(domain) for domain in space.values())):
        yield dict(zip(space, row, strict=True))


def _listed(domain: Domain) -> Iterable[str]:
    if isinstance(domain, Choice):
        return domain.values
    if isinstance(domain, Whole):
        return map(str, range(domain.low, domain.high + 1))
    if domain.low == domain.high:
        return [number_text(domain.low, domain)]
    raise ValueError("a continuous parameter has no list of values")


def draw(space: Space, seed: int, number: int) -> dict[str, str]:
    """The random combination of this number, from 0 on; two numbers may give the same one."""
    return {name: _drawn(domain, _chance(seed, number, name)) for name, domain in space.items()}


def _chance(seed: int, number: int, name: str) -> int:
    """53 random bits, as many as a float of [0, 1) has."""
    digest = hashlib.sha256(f"{seed}\0{number}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 11


def _drawn(domain: Domain, chance: int) -> str:
    if isinstance(domain, Choice):
        return domain.values[chance * len(domain.values) >> 53]
    if isinstance(domain, Whole):
        return str(domain.low + (chance * (domain.high - domain.low + 1) >> 53))
    share = chance / (1 << 53)
    if domain.log:
        low, high = math.log(domain.low), math.log(domain.high)
        return number_text(math.exp(low + share * (high - low)), domain)
    return number_text(domain.low * (1 - share) + domain.high * share, domain)


def number_text(value: float, domain: Uniform) -> str:
    """A number within the domain as text: six digits where that is fine enough, else all that it has."""
    value = min(max(value, domain.low), domain.high) + 0.0  # no minus zero
    short = f"{value:.6g}"
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 5) if value else 0.0
    span = min(domain.high - domain.low, value) if domain.log else domain.high - domain.low
    fine = step <= FINE * span and domain.low <= float(short) <= domain.high
    return short if fine else repr(value)


def random_legs(space: Space, seed: int, count: int, taken: Iterable[Mapping[str, str]] = ()) -> list[dict[str, str]]:
    """The next `count` combinations of the random sequence that are not yet `taken`; fewer when a finite space holds
    no more.

    The first ones do not depend on `count`, nor on whether they are asked for at once or one by one.
    """
    known = {_key(params) for params in taken}
    found: list[dict[str, str]] = []
    for params in _sequence(space, seed):
        if len(found) == count:
            break
        if _key(params) not in known:
            known.add(_key(params))
            found.append(params)
    return found


def _sequence(space: Space, seed: int) -> Iterator[dict[str, str]]:
    """Draws, with repetitions; in the end every combination of a finite space."""
    size = size_of(space)
    most = DRAWS_MAX if size is None else min(DRAWS_MAX, 20 * size)  # by then few combinations are left
    yield from (draw(space, seed, number) for number in range(most))
    if size is not None:
        yield from grid(space)


def _key(params: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(params.items())
