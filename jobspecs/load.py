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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jobspecs import document as doc
from jobspecs.explain import model_problem, unknown_key
from jobspecs.problems import Problem, SpecErrors, looks_like_secret_name, shown
from jobspecs.rules import BrokenRules
from jobspecs.schema import JobSpec
from jobspecs.shapes import Shape, shape_of

SHELL_KEYS = ("setup", "smoke", "run")
# Stand-ins for required keys that could not be read, so that the other keys are still compared with each other.
_STAND_INS = {"name": "x", "gpu": "none", "run": "true"}
_Path = tuple[str | int, ...]


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
            data = source.read(doc.MAX_BYTES + 1)
    except FileNotFoundError:
        raise doc.refuse(str(path), 0, 0, "there is no such file") from None
    except IsADirectoryError:
        raise doc.refuse(str(path), 0, 0, "is a folder", "name the spec file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise doc.refuse(str(path), 0, 0, f"cannot be read: {reason}") from None
    return load_located(data, str(path), **arguments)


@dataclass(frozen=True, slots=True)
class Located:
    """A spec with the places of its keys."""

    spec: JobSpec
    filename: str
    root: doc.Mapping
    origins: Mapping[str, str]  #: top-level key -> where its value came from; a key that is absent is built in

    def place(self, problem: Problem) -> Problem:
        """`problem`, which knows only its key, at the place of that key or of the nearest one above it."""
        parts = re.findall(r"[^.\[\]]+", problem.key)
        path: _Path = tuple(int(part) if part.isdigit() else part for part in parts)
        node, _ = find(self.root, path)
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
        if key not in root.entries or doc.plain(root.entries[key][1]) is None:
            root.entries[key] = (
                doc.Scalar("config: defaults", 0, 0, key),
                doc.from_plain(value, "config: defaults"),
            )
            origins[key] = "config"
    walk = _Walk(root, filename, found)
    for path_text, said in overrides:
        walk.override(path_text, said)
        origins[path_text.split(".")[0]] = "--set"
    if env:
        walk.set_env(env)
    walk.fill_env(environ or {})
    values = walk.values(root, shape_of(JobSpec), ())
    return Located(_validated(values, walk), filename, root, origins)


def find(root: doc.Mapping, path: _Path) -> tuple[doc.Node, _Path]:
    """The node at `path` or the last one on the way to it, a mapping's key rather than its value, and the path to it
    as it stands in the source (a single value instead of a list has no position)."""
    node: doc.Node = root
    shown_at: doc.Node = root
    real: list[str | int] = []
    for part in path:
        if isinstance(node, doc.Mapping) and str(part) in node.entries:
            shown_at, node = node.entries[str(part)]
        elif isinstance(node, doc.Sequence) and isinstance(part, int) and part < len(node.items):
            node = shown_at = node.items[part]
        elif isinstance(part, int) and not isinstance(node, doc.Sequence):
            continue
        elif part == "[key]":
            break
        real.append(part)
    return shown_at, tuple(real)


def key_text(path: _Path) -> str:
    """`artifacts[0].to` for ("artifacts", 0, "to")."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


@dataclass
class _Walk:
    """One pass over a spec's nodes, collecting problems."""

    root: doc.Mapping
    filename: str
    problems: list[Problem] = field(default_factory=list)
    reported: set[_Path] = field(default_factory=set)

    def report(self, node: doc.Node, path: _Path, reason: str, hint: str = "") -> None:
        """Adds a problem at `node` and marks `path` as judged."""
        self.reported.add(path)
        self.problems.append(Problem(node.file, node.line, node.column, key_text(path), reason, hint))

    def values(self, node: doc.Node, shape: Shape | None, path: _Path) -> Any:
        """The plain values for the models, without what was refused here."""
        if isinstance(node, doc.Sequence):
            item = shape.item if shape and shape.item else shape
            return [self.values(each, item, (*path, at)) for at, each in enumerate(node.items)]
        if not isinstance(node, doc.Mapping):
            return doc.plain(node)
        model = shape.model if shape else None
        out: dict[str, Any] = {}
        for key, (key_node, value) in node.entries.items():
            here = (*path, key)
            below = shape.child(key) if shape else None
            if model is not None and key not in shape_keys(shape):
                reason, hint = unknown_key(key, shape_keys(shape), path)
                self.report(key_node, here, reason, hint)
            elif model is not None and isinstance(value, doc.Scalar) and value.text is None:
                if not (below and below.is_block):
                    hint = "give it a value or delete the key"
                    if value.commented:
                        hint = "what follows # is a comment; quote a value that starts with #"
                    self.report(key_node, here, "is empty", hint)
            elif not path and key in SHELL_KEYS and isinstance(value, doc.Scalar) and value.commented:
                hint = f"use a block, `{key}: |` with the command below it, or quote it, or move the comment"
                self.report(value, here, "what follows # is a comment for YAML and cuts the command", hint)
            else:
                out[key] = self.values(value, below, here)
        return out

    def override(self, path_text: str, said: str) -> None:
        """Puts one value of the command line into the tree; an empty one takes the key out."""
        file = f"--set {path_text}"
        parts = path_text.split(".")
        node: doc.Node = self.root
        for part in parts[:-1]:
            if isinstance(node, doc.Sequence) and part.isdigit() and int(part) < len(node.items):
                node = node.items[int(part)]
                continue
            if not isinstance(node, doc.Mapping):
                self.problems.append(Problem(file, 0, 0, "", f"there is nothing below {shown(part)}"))
                return
            fresh = (doc.Scalar(file, 0, 0, part), doc.Mapping(file, 0, 0, {}))
            entry = node.entries.get(part)
            if entry is None or doc.plain(entry[1]) is None:
                entry = fresh
            below = entry[1]
            if isinstance(below, doc.Mapping):
                below = replace(below, entries=dict(below.entries))  # an alias may share it
            node.entries[part] = (entry[0], below)
            node = below
        if not isinstance(node, doc.Mapping):
            self.problems.append(Problem(file, 0, 0, "", f"{shown(parts[-1])} is not a key of a mapping"))
        elif not said and parts[0] != "env":
            node.entries.pop(parts[-1], None)
        else:
            node.entries[parts[-1]] = (
                doc.Scalar(file, 0, 0, parts[-1]),
                _override_value(parts[0], said, file),
            )

    def set_env(self, given: Mapping[str, str]) -> None:
        """Puts variables of the command line into `env`."""
        entry = self.root.entries.get("env")
        node = entry[1] if entry else None
        if isinstance(node, doc.Sequence):
            names = [doc.plain(each) for each in node.items]
            pairs = [str(name).partition("=") for name in names]
            entries: dict[str, tuple[doc.Scalar, doc.Node]] = {
                name: (_scalar_at(each, name), _scalar_at(each, content if equals else None))
                for each, (name, equals, content) in zip(node.items, pairs, strict=True)
            }
            node = doc.Mapping(node.file, node.line, node.column, entries)
        if not isinstance(node, doc.Mapping):
            node = doc.Mapping("--env", 0, 0, {})
        node = replace(node, entries=dict(node.entries))  # an alias may share it
        for name, value in given.items():
            node.entries[name] = (
                doc.Scalar("--env", 0, 0, name),
                doc.Scalar("--env", 0, 0, value, plain=False),
            )
        key_node = entry[0] if entry else doc.Scalar("--env", 0, 0, "env")
        self.root.entries["env"] = (key_node, node)

    def fill_env(self, environ: Mapping[str, str]) -> None:
        """Gives variables without a value theirs from the environment, or reports them."""
        entry = self.root.entries.get("env")
        if entry is None:
            return
        if isinstance(entry[1], doc.Sequence):
            self.set_env({})
            entry = self.root.entries["env"]
        if not isinstance(entry[1], doc.Mapping):
            return
        filled: dict[str, str] = {}
        for name, (key_node, value) in entry[1].entries.items():
            if not isinstance(value, doc.Scalar) or value.text is not None:
                continue
            if looks_like_secret_name(name):
                continue  # the models say where it belongs
            if name in environ:
                filled[name] = environ[name]
            elif value.commented:
                hint = "what follows # is a comment; quote a value that starts with #"
                self.report(key_node, ("env", name), f"{name} has no value", hint)
            else:
                hint = f"give it with --env {name}=VALUE, or set it in your environment"
                self.report(key_node, ("env", name), f"{name} has no value here, so it must be given at apply", hint)
        if filled:
            self.set_env(filled)


def shape_keys(shape: Shape | None) -> list[str]:
    """The keys that a mapping of this shape may have."""
    return list(shape.children) if shape else []


def _scalar_at(node: doc.Node, text: str | None) -> doc.Scalar:
    return doc.Scalar(node.file, node.line, node.column, text)


def _override_value(key: str, said: str, file: str) -> doc.Node:
    """Text of the command line as a node: brackets are YAML, except where the key takes text as it is."""
    if key in (*SHELL_KEYS, "env", "labels") or said[:1] not in ("[", "{"):
        return doc.Scalar(file, 0, 0, said, plain=False)
    return doc.from_plain(doc.plain(doc.read_document(f"value: {said}", file).entries["value"][1]), file)


def _validated(values: dict[str, Any], walk: _Walk) -> JobSpec:
    """The model of `values`; raises SpecErrors with the walk's problems and the models'."""
    try:
        spec = JobSpec.model_validate(values)
    except ValidationError as error:
        _add_model_problems(error, values, walk)
        raise SpecErrors(walk.problems) from None
    if walk.problems:
        raise SpecErrors(walk.problems)
    return spec


def _add_model_problems(error: ValidationError, values: dict[str, Any], walk: _Walk) -> None:
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


def _add_broken(cause: BrokenRules, walk: _Walk, spoiled: set[str]) -> None:
    """Adds broken rules whose keys could all be read."""
    for broken in cause.broken:
        if spoiled.isdisjoint(broken.keys):
            node, real = find(walk.root, broken.path)
            walk.report(node, real, broken.reason, broken.hint)
