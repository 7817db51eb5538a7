"""What one spec asks to be run many times: a sweep's legs, a batch's slices, replicas. Pure but for the file names
that the caller looks up.

Rules
- A leg is its characters. `1e-4` and `0.0001` are two legs, because a program may read them differently (a version
  `1.10` is not `1.1`), and what was typed is what the program gets. `plan` says where two spellings are one number.
- A leg's id is the hash of its parameters, whatever their order, so the same leg has the same id in every run of the
  sweep, and a value that is added changes no other leg's id.
- Values are data: they reach the program in a JSON file and in variables, never as shell text.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from jobspecs.problems import Refusal

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec, Parameter, Sweep

Method = Literal["grid", "list", "random", "tpe"]
#: Pattern -> the paths that match, relative to workdir (a batch: or to $GPUJOB_DATA), sorted.
Files = Callable[[str], Sequence[str]]

LEGS_MAX = 10_000  # a grid beyond this is a slip of the pen, and no table would show it
WHOLE_MAX = 1_000  # whole numbers that a grid spells out
ID_LETTERS = 8  # base32: 40 bits, so that 10,000 legs meet by chance once in 20,000 sweeps; then it is refused
# A number as JSON writes it: what is typed so is a number in $GPUJOB_PARAMS, with the same characters.
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Wanted:
    """One leg, slice or replica that is to be run. `items` are of a batch: paths, in order."""

    id: str
    params: Mapping[str, str] = field(default_factory=dict)
    items: tuple[str, ...] = ()


def leg_id(params: Mapping[str, str]) -> str:
    """The stable id of a combination: letters a-z and digits 2-7."""
    canonical = json.dumps(dict(sorted(params.items())), separators=(",", ":"), ensure_ascii=True)
    digest = hashlib.sha256(canonical.encode()).digest()
    return base64.b32encode(digest).decode().lower()[:ID_LETTERS]


def label(params: Mapping[str, str]) -> str:
    """`lr=1e-4,batch=16`: what people read, and may write as `NAME/LEG`."""
    return ",".join(f"{name}={value}" for name, value in params.items())


def method_of(sweep: Sweep) -> Method:
    """How legs are chosen: what is written, else list for a list, random where a parameter is continuous, grid."""
    if sweep.search.method is not None:
        return sweep.search.method
    if sweep.legs is not None:
        return "list"
    return "random" if any(continuous(each) for each in (sweep.parameters or {}).values()) else "grid"


def continuous(parameter: Parameter) -> bool:
    """Whether its values cannot be listed."""
    return parameter.log_uniform is not None or parameter.uniform is not None


def sampled(sweep: Sweep) -> bool:
    """Whether legs are drawn one after the other, up to `search.trials`, instead of being known from the start."""
    return method_of(sweep) in ("random", "tpe")


def seed_of(spec: JobSpec) -> int:
    """The seed of random and tpe: `search.seed`, else one made from the name, so that the same sweep draws the same."""
    assert spec.sweep is not None
    if spec.sweep.search.seed is not None:
        return spec.sweep.search.seed
    return int.from_bytes(hashlib.sha256(spec.name.encode()).digest()[:4], "big")


def legs(sweep: Sweep, files: Files) -> tuple[Wanted, ...]:
    """Every leg of a grid or a list, in the order in which they are run; none for a search that draws them.

    Raises Refusal for a sweep of nothing, or of too much.
    """
    if sampled(sweep):
        return ()
    rows: Iterable[Mapping[str, str]]
    if sweep.legs is not None:
        rows = sweep.legs
    else:
        choices = choices_of(sweep, files)
        count = math.prod(len(values) for values in choices.values())
        if count > LEGS_MAX:
            reason = f"the grid has {count} legs, more than {LEGS_MAX}"
            raise Refusal(reason, "write search: {method: random, trials}", "sweep.parameters")
        rows = (dict(zip(choices, row, strict=True)) for row in itertools.product(*choices.values()))
    return _distinct(rows)


def _distinct(rows: Iterable[Mapping[str, str]]) -> tuple[Wanted, ...]:
    found: dict[str, Wanted] = {}
    for row in rows:
        leg = Wanted(leg_id(row), dict(row))
        if found.setdefault(leg.id, leg).params != leg.params:
            raise Refusal(f"{label(leg.params)} and {label(found[leg.id].params)} have one id", "rename a parameter")
    return tuple(found.values())


def choices_of(sweep: Sweep, files: Files) -> dict[str, tuple[str, ...]]:
    """The values of every parameter that can be listed; continuous ones are left out."""
    found: dict[str, tuple[str, ...]] = {}
    for name, parameter in (sweep.parameters or {}).items():
        key = f"sweep.parameters.{name}"
        if parameter.listed is not None:
            found[name] = tuple(dict.fromkeys(parameter.listed))
        elif parameter.whole is not None:
            low, high = parameter.whole
            if high - low >= WHOLE_MAX:
                raise Refusal(f"{high - low + 1} whole numbers", "write search: {method: random, trials}", f"{key}.int")
            found[name] = tuple(str(value) for value in range(low, high + 1))
        elif parameter.files is not None:
            try:
                found[name] = tuple(files(parameter.files))
            except Refusal as refusal:
                raise Refusal(refusal.reason, refusal.hint, f"{key}.files") from None
            if not found[name]:
                reason = f"no file below workdir matches {parameter.files!r}"
                raise Refusal(reason, "mend the pattern", f"{key}.files")
    return found


def spellings(sweep: Sweep) -> list[str]:
    """Values of one parameter that are one number in two spellings, in words: `lr: 1e-4 and 0.0001`."""
    found = []
    for name, parameter in (sweep.parameters or {}).items():
        seen: dict[float, str] = {}
        for value in parameter.listed or ():
            number = _number(value)
            if number is not None and seen.setdefault(number, value) != value:
                found.append(f"{name}: {seen[number]} and {value}")
    return found


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def slices(items: Sequence[str], size: int, first: int = 1) -> tuple[Wanted, ...]:
    """A batch's items in order, `size` to a slice; slices are numbered from `first`."""
    cuts = range(0, len(items), size)
    return tuple(Wanted(f"s{first + at:04d}", {}, tuple(items[cut : cut + size])) for at, cut in enumerate(cuts))


def replicas(count: int) -> tuple[Wanted, ...]:
    """`1` to `count`: the names under which `gpujob ssh NAME/3` knows them."""
    return tuple(Wanted(str(number)) for number in range(1, count + 1))


def variables(params: Mapping[str, str]) -> dict[str, str]:
    """GPUJOB_PARAM_<name> for each parameter, as typed; in capitals too, where that is no other's name."""
    found = {f"GPUJOB_PARAM_{name}": value for name, value in params.items()}
    for name, value in params.items():
        found.setdefault(f"GPUJOB_PARAM_{name.upper()}", value)
    return found


def params_json(params: Mapping[str, str]) -> str:
    """The text of $GPUJOB_PARAMS: what reads as a JSON number, true or false is that, with the characters typed."""
    lines = [f"  {json.dumps(name)}: {_literal(value)}" for name, value in params.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n" if lines else "{}\n"


def _literal(value: str) -> str:
    plain = value in ("true", "false") or _JSON_NUMBER.fullmatch(value) is not None
    return value if plain else json.dumps(value)
