"""Spec text -> JobSpec, or every problem of it at once.

Role: joins the nodes of `document.py` with the models of `schema.py`. The walk over the nodes finds what needs the
source (unknown keys, empty values, commands cut by a comment); the models judge the values; this module puts
each finding at its place.

Rules: only SpecErrors leaves it, for any bytes. Nothing is dropped silently: a null is "absent" only for keys whose
value is a list or a mapping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jobspecs import document as doc
from jobspecs.explain import model_problem
from jobspecs.problems import Problem, SpecErrors
from jobspecs.rules import NOT_BESIDE, BrokenRules
from jobspecs.schema import JobSpec
from jobspecs.shapes import shape_of
from jobspecs.source import MAX_BYTES, refuse
from jobspecs.walk import Path as KeyPath
from jobspecs.walk import Walk, find

# Stand-ins for required keys that could not be read, so that the other keys are still compared with each other.
_STAND_INS = {"name": "x", "gpu": "none", "run": "true"}


def load_spec(
    data: bytes | str,
    filename: str,
    *,
    overrides: Iterable[tuple[str, str]] = (),
    env: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> JobSpec:
    """The spec in `data`. Raises SpecErrors with all problems. See `load_located` for the arguments."""
    return load_located(data, filename, overrides=overrides, env=env, environ=environ, defaults=defaults).spec


def load_file(path: Path, **arguments: Any) -> Located:
    """`load_located` for a file; one that cannot be read is a SpecErrors too."""
    try:
        with path.open("rb") as source:
            data = source.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise refuse(str(path), 0, 0, "there is no such file") from None
    except IsADirectoryError:
        raise refuse(str(path), 0, 0, "is a folder", "name the spec file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise refuse(str(path), 0, 0, f"cannot be read: {reason}") from None
    return load_located(data, str(path), **arguments)


@dataclass(frozen=True, slots=True)
class Located:
    """A spec with the places of its keys."""

    spec: JobSpec
    filename: str
    root: doc.Mapping
    origins: Mapping[str, str]  #: top-level key -> where its value came from; a key that is absent is built in

    def place(self, problem: Problem) -> Problem:
        """`problem`, which knows only its key, at the place of that key or of the nearest one above it.

        Its line, if any, counts within the value, which is followed where the value keeps its lines (`|`).
        """
        parts = re.findall(r"[^.\[\]]+", problem.key)
        path: KeyPath = tuple(int(part) if part.isdigit() else part for part in parts)
        node, _ = find(self.root, path)
        _, value = self.root.entries.get(problem.key, (node, node))
        if problem.line and isinstance(value, doc.Scalar) and value.block:
            return problem.at(value.file, value.line + problem.line, 1)
        return problem.at(node.file if node.file else self.filename, node.line, node.column)


def load_located(
    data: bytes | str,
    filename: str,
    *,
    overrides: Iterable[tuple[str, str]] = (),
    env: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Located:
    """The spec in `data` and where its keys are.

    `overrides` are (key path, text) pairs such as ("retry.max", "2"), and win over the file. `env` holds variables
    given for this run, which win over the spec's; `environ` is the caller's environment, which fills variables that
    the spec leaves empty. `defaults` are top-level keys of the config, which the spec wins over.
    Raises SpecErrors with every problem.
    """
    found: list[Problem] = []
    root = doc.read_document(data, filename, found)
    origins = dict.fromkeys(root.entries, "spec")
    for key, value in (defaults or {}).items():
        written = root.entries.get(key)
        below = shape_of(JobSpec).child(key)
        # A value left empty is a slip to be told; only a block with nothing in it counts as absent.
        if written is None or (below and below.is_block and doc.plain(written[1]) is None):
            root.entries[key] = (
                doc.Scalar("config: defaults", 0, 0, key),
                doc.from_plain(value, "config: defaults"),
            )
            origins[key] = "config"
    walk = Walk(root, filename, found)
    walk.env_as_mapping()
    for path_text, said in overrides:
        walk.override(path_text, said)
        origins[path_text.split(".")[0]] = "--set"
    for key in _out_of_place(root, origins):  # a default is for specs that it fits; only what is written is refused
        del root.entries[key], origins[key]
    if env:
        walk.set_env(env)
    walk.fill_env(environ or {})
    values = walk.values(root, shape_of(JobSpec), ())
    return Located(_validated(values, walk), filename, root, origins)


def _out_of_place(root: doc.Mapping, origins: Mapping[str, str]) -> list[str]:
    """Defaults of the config beside a key of the spec with which they cannot stand."""
    return [
        key
        for key, others in NOT_BESIDE.items()
        if origins.get(key) == "config" and any(doc.plain(root.entries[o][1]) for o in others if o in root.entries)
    ]


def _validated(values: dict[str, Any], walk: Walk) -> JobSpec:
    """The model of `values`; raises SpecErrors with the walk's problems and the models'."""
    try:
        spec = JobSpec.model_validate(values)
    except ValidationError as error:
        _add_model_problems(error, values, walk)
        raise SpecErrors(walk.problems) from None
    if walk.problems:
        raise SpecErrors(walk.problems)
    return spec


def _add_model_problems(error: ValidationError, values: dict[str, Any], walk: Walk) -> None:
    spoiled = {str(path[0]) for path in walk.reported}
    for each in error.errors(include_url=False):
        cause = each.get("ctx", {}).get("error")
        if isinstance(cause, BrokenRules):
            _add_broken(cause, walk, spoiled)
            continue
        path = tuple(each["loc"])
        if len(path) > 1 and path[0] in ("workdir", "artifacts"):
            path = (path[0], *path[2:])  # the second part only names the branch of a union
        spoiled.add(str(path[0]))
        node, real = find(walk.root, path)
        if path in walk.reported or real in walk.reported:
            continue
        reason, hint = model_problem(each)
        walk.report(node, real, reason, hint)
    if spoiled:
        kept = {key: value for key, value in values.items() if key not in spoiled}
        stand_ins = {key: value for key, value in _STAND_INS.items() if key in spoiled}
        try:
            JobSpec.model_validate(kept | stand_ins)
        except ValidationError as again:
            for each in again.errors(include_url=False):
                cause = each.get("ctx", {}).get("error")
                if isinstance(cause, BrokenRules):
                    _add_broken(cause, walk, spoiled)


def _add_broken(cause: BrokenRules, walk: Walk, spoiled: set[str]) -> None:
    """Adds broken rules whose keys could all be read."""
    for broken in cause.broken:
        if spoiled.isdisjoint(broken.keys):
            node, real = find(walk.root, broken.path)
            walk.report(node, real, broken.reason, broken.hint)
