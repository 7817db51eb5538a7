"""Rules that compare keys.

Rules: pure functions of a spec. A rule names every key that it looks at, so that the loader can leave it out when
one of them could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobspecs.problems import Refusal

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec, Parameter, Sweep


VARIABLE_MAX = 128 * 1024  # MAX_ARG_STRLEN of Linux, for one string of an environment, its final NUL included


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken rule: the `keys` that it compared, the path of the one to show, the reason and the way out."""

    keys: tuple[str, ...]
    path: tuple[str | int, ...]
    reason: str
    hint: str = ""


class BrokenRules(Refusal):
    """Every broken rule of one spec."""

    def __init__(self, broken: list[Broken]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, each.path))}: {each.reason}" for each in broken))
        self.broken = tuple(broken)


def broken_rules(spec: JobSpec) -> list[Broken]:
    """All broken rules of a spec whose single values are valid."""
    return [broken for rule in _RULES for broken in rule(spec)]


def _times(spec: JobSpec) -> Iterator[Broken]:
    if not spec.ttl.seconds:  # everything else would be longer, and nobody wrote that
        yield Broken(("ttl",), ("ttl",), "leaves no time to run in", "write how long the job may take, like 12h")
        return
    if spec.expected is not None and spec.expected > spec.ttl:
        reason = f"{spec.expected} is longer than ttl {spec.ttl}, which ends the job"
        yield Broken(("expected", "ttl"), ("expected",), reason, f"raise ttl above {spec.expected}")
    for key, value in (("grace", spec.grace.time), ("hold_on_failure", spec.hold_on_failure)):
        if value >= spec.ttl:
            path = ("grace", "time") if key == "grace" else (key,)
            written = key in spec.model_fields_set
            hint = "shorten it or raise ttl" if written else f"raise ttl, or write a shorter {'.'.join(path)}"
            yield Broken((key, "ttl"), path, f"{value} is not within ttl {spec.ttl}", hint)


def _spot(spec: JobSpec) -> Iterator[Broken]:
    if spec.spot is not True:
        return
    if spec.workload == "serve":
        yield Broken(("spot", "workload"), ("spot",), "a serve job may not be interrupted", "write spot: false")
    elif not spec.resumable:
        yield Broken(
            ("spot", "run", "checkpoint", "batch"),
            ("spot",),
            "true needs a job that can resume, or an interruption loses everything",
            'pass "$GPUJOB_RESUME_FROM" to the program in run, or set checkpoint.resume: folder when it looks '
            "into $GPUJOB_CKPT itself",
        )


def _money(spec: JobSpec) -> Iterator[Broken]:
    budget, price = spec.budget, spec.max_price
    if budget is not None and price is not None and budget.currency != price.currency:
        reason = f"is in {price.currency} and budget in {budget.currency}"
        yield Broken(("budget", "max_price"), ("max_price",), reason, "write both in one currency")


def _model(spec: JobSpec) -> Iterator[Broken]:
    """What no estimate can be made of."""
    if spec.model is None:
        return
    from jobspecs.memory import parse_params

    size = spec.model
    try:
        parse_params(size.params)
    except Refusal as refusal:
        yield Broken(("model",), ("model", "params"), refusal.reason, refusal.hint)
    if size.method == "full" and size.dtype in ("int8", "int4"):
        reason = f"a full fine-tune has no {size.dtype} weights"
        yield Broken(("model",), ("model", "dtype"), reason, "write method: qlora, or dtype: bf16")
    if size.kv_heads is not None and (size.heads is None or size.kv_heads > size.heads):
        heads = "not given" if size.heads is None else str(size.heads)
        yield Broken(("model",), ("model", "kv_heads"), f"{size.kv_heads} need heads, which is {heads}", "write heads")


def _image(spec: JobSpec) -> Iterator[Broken]:
    """An image whose CUDA knows none of the cards that may be rented."""
    from jobspecs.cuda import cuda_of_image, misfit

    named = spec.image if isinstance(spec.image, Mapping) else {"": spec.image}
    for provider, image in named.items():
        known = cuda_of_image(image)
        wrong = [misfit(known, gpu.capability) for choice in spec.gpu.choices for gpu in choice.classes()]
        if known is not None and wrong and all(wrong):
            place = ("image", provider) if provider else ("image",)
            yield Broken(("image", "gpu"), place, f"{image}: {wrong[0]}", "take another image, or another card")


def _environment(spec: JobSpec) -> Iterator[Broken]:
    for name in spec.secrets:
        if name in spec.env:
            yield Broken(("env", "secrets"), ("env", name), f"{name} is in secrets too", "keep it in secrets only")
    for name, value in spec.env.items():
        if value is not None:
            yield from _variable("env", ("env", name), name, value)


def _variable(key: str, path: tuple[str | int, ...], name: str, text: str) -> Iterator[Broken]:
    """No program starts with a variable that is longer than Linux allows."""
    size = len(f"{name}={text}".encode("utf-8", "surrogateescape")) + 1
    if size > VARIABLE_MAX:
        reason = f"has {size} bytes with its name, and no program starts with a variable of more than {VARIABLE_MAX}"
        yield Broken((key,), path, reason, "write it into a file of workdir, and its path here")


def _finish(spec: JobSpec) -> Iterator[Broken]:
    if spec.finish_by is None:
        return
    if spec.workload == "serve":
        reason = "a serve job ends at its ttl"
        yield Broken(("finish_by", "workload"), ("finish_by",), reason, "leave finish_by out")
    for key in ("sweep", "batch", "replicas"):
        if getattr(spec, key) is not None:
            yield Broken(("finish_by", key), ("finish_by",), f"cannot be combined with {key}", "leave it out")


def _landing(spec: JobSpec) -> Iterator[Broken]:
    seen: dict[str, int] = {}
    for position, entry in enumerate(spec.data):
        first = seen.setdefault(entry.path.rstrip("/"), position)
        if first != position:
            reason = f"data[{first}] lands in {entry.path} too"
            yield Broken(("data",), ("data", position, "path"), reason, "give each its own path")


#: Keys that are refused beside any of some others. As a default of the config they give way to them.
NOT_BESIDE = {"hold_on_failure": ("sweep", "batch", "replicas")}


def _many(spec: JobSpec) -> Iterator[Broken]:
    used = [key for key in ("sweep", "batch", "replicas") if getattr(spec, key) is not None]
    if len(used) > 1:
        yield Broken(tuple(used), (used[1],), f"{used[1]} and {used[0]} cannot be combined", "keep one of them")
    if used and spec.workload == "serve":
        yield Broken((used[0], "workload"), (used[0],), "a serve job has one machine", f"leave out {used[0]}")
    if spec.workload == "batch" and spec.batch is None:
        hint = "add batch: {items, slice}, or leave workload out"
        yield Broken(("workload", "batch"), ("workload",), "is batch, and no batch says which items there are", hint)
    if used and spec.hold_on_failure.seconds:
        reason = f"is of a job with one machine: with {used[0]} a machine goes on with what is still to do"
        yield Broken(("hold_on_failure", used[0]), ("hold_on_failure",), reason, "leave it out, or write 0s")


def _sweep(spec: JobSpec) -> Iterator[Broken]:
    sweep = spec.sweep
    if sweep is None:
        return
    if (sweep.parameters is None) == (sweep.legs is None):
        yield Broken(("sweep",), ("sweep",), "a sweep has either parameters or a list", "keep one of them")
        return
    for name, parameter in (sweep.parameters or {}).items():
        yield from _parameter(name, parameter)
    for position, leg in enumerate(sweep.legs or ()):
        for name, value in leg.items():
            yield from _variable("sweep", ("sweep", "list", position, name), f"GPUJOB_PARAM_{name}", value)
    yield from _search(sweep)
    for key, other in (("budget", spec.budget), ("max_price", spec.max_price)):
        if other is not None and other.currency != sweep.budget.currency:
            reason = f"is in {sweep.budget.currency} and {key} in {other.currency}"
            yield Broken(("sweep", key), ("sweep", "budget"), reason, "write both in one currency")


def _parameter(name: str, parameter: Parameter) -> Iterator[Broken]:
    path = ("sweep", "parameters", name)
    if len(parameter.model_dump(exclude_none=True)) != 1:
        yield Broken(("sweep",), path, "exactly one of values, choice, log_uniform, uniform, int and files")
        return
    for bounds in (parameter.log_uniform, parameter.uniform, parameter.whole):
        if bounds is not None and bounds[0] >= bounds[1]:
            yield Broken(("sweep",), path, f"{bounds[0]} is not below {bounds[1]}", "write [low, high]")
    if parameter.log_uniform is not None and parameter.log_uniform[0] <= 0:
        yield Broken(("sweep",), path, "a logarithm needs bounds above 0", "write uniform, or a low end above 0")
    for position, value in enumerate(parameter.listed or ()):
        yield from _variable("sweep", (*path, position), f"GPUJOB_PARAM_{name}", value)
    if parameter.listed == ():
        yield Broken(("sweep",), path, "has no values", "write at least one")


def _search(sweep: Sweep) -> Iterator[Broken]:
    from jobspecs.sweep import continuous, method_of

    path, search, method = ("sweep", "search"), sweep.search, method_of(sweep)
    if method in ("random", "tpe") and search.trials is None:
        yield Broken(("sweep",), path, f"{method} needs a number of trials", "add trials: 40")
    if method in ("grid", "list") and search.trials is not None:
        yield Broken(("sweep",), path, f"a {method} has no trials: every leg is run", "write method: random")
    if (method == "list") is not (sweep.legs is not None):
        reason = "list needs `list`" if method == "list" else f"{method} needs parameters, not a list"
        yield Broken(("sweep",), path, reason, "leave method out")
    for name, parameter in (sweep.parameters or {}).items():
        if method == "grid" and continuous(parameter):
            yield Broken(("sweep",), path, f"a grid cannot list {name}", "write method: random and trials")
    stops = sweep.stop_early is not None and sweep.stop_early.method != "none"
    if sweep.metric is None and (stops or method == "tpe"):
        yield Broken(("sweep",), ("sweep",), "stop_early and tpe compare legs by a metric", "add metric: {name, goal}")


_RULES: tuple[Callable[[JobSpec], Iterator[Broken]], ...] = (
    _times, _spot, _money, _model, _image, _environment, _finish, _landing, _many, _sweep
)  # fmt: skip

_URI = re.compile(r"^([a-z][a-z0-9+.-]*://|[A-Za-z][A-Za-z0-9_-]+:(?!/|\\))")


def is_remote(place: str) -> bool:
    """Whether a `from`, `to` or `mirror` is a URI or a configured store (`lab:prefix`), not a path."""
    return _URI.match(place) is not None
