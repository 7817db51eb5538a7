"""One pass over a spec's nodes: what needs the source to be seen.

Role: checks keys against the models' shapes, finds empty values and commands cut by a comment, and puts values of the
command line and the environment into the tree.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from jobspecs import document as doc
from jobspecs.explain import unknown_key
from jobspecs.fields import kind_of
from jobspecs.problems import Problem, looks_like_secret_name, shown
from jobspecs.shapes import Shape

SHELL_KEYS = ("setup", "smoke", "run")
Path = tuple[str | int, ...]
_AnyNode = TypeVar("_AnyNode", bound=doc.Node)


def find(root: doc.Mapping, path: Path) -> tuple[doc.Node, Path]:
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


def key_text(path: Path) -> str:
    """`artifacts[0].to` for ("artifacts", 0, "to")."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


@dataclass
class Walk:
    """One pass over a spec's nodes, collecting problems."""

    root: doc.Mapping
    filename: str
    problems: list[Problem] = field(default_factory=list)
    reported: set[Path] = field(default_factory=set)

    def report(self, node: doc.Node, path: Path, reason: str, hint: str = "") -> None:
        """Adds a problem at `node` and marks `path` as judged."""
        self.reported.add(path)
        self.problems.append(Problem(node.file, node.line, node.column, key_text(path), reason, hint))

    def values(self, node: doc.Node, shape: Shape | None, path: Path) -> Any:
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
                    if value.comment:
                        hint = "what follows # is a comment; quote a value that starts with #"
                    self.report(key_node, here, "is empty", hint)
            elif not path and key in SHELL_KEYS and isinstance(value, doc.Scalar) and _cuts(value):
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
                below = node.items[int(part)] = _own(node.items[int(part)])
            elif isinstance(node, doc.Mapping):
                key_node, value = node.entries.get(part, (doc.Scalar(file, 0, 0, part), None))
                if value is None or doc.plain(value) is None:
                    value = doc.Mapping(file, 0, 0, {})
                below = _own(value)
                node.entries[part] = (key_node, below)
            else:
                self.problems.append(Problem(file, 0, 0, "", f"there is nothing at {shown(part)}"))
                return
            node = below
        if not isinstance(node, doc.Mapping):
            self.problems.append(Problem(file, 0, 0, "", f"there is nothing below {shown(parts[-2])}"))
        elif not said and parts[0] != "env":
            node.entries.pop(parts[-1], None)
        else:
            node.entries[parts[-1]] = (
                doc.Scalar(file, 0, 0, parts[-1]),
                _override_value(parts[0], said, file),
            )

    def env_as_mapping(self) -> None:
        """The list form of `env`, `- NAME=value` or `- NAME`, as its mapping."""
        entry = self.root.entries.get("env")
        if entry is None or not isinstance(entry[1], doc.Sequence):
            return
        entries: dict[str, tuple[doc.Scalar, doc.Node]] = {}
        for position, item in enumerate(entry[1].items):
            if isinstance(item, doc.Mapping):
                entries.update(item.entries)
            elif isinstance(item, doc.Scalar) and item.text is not None:
                name, equals, value = item.text.partition("=")
                entries[name] = (replace(item, text=name), replace(item, text=value if equals else None))
            else:
                reason = f"expected NAME=VALUE or NAME, got {kind_of(doc.plain(item))}"
                self.report(item, ("env", position), reason)
        self.root.entries["env"] = (entry[0], doc.Mapping(entry[1].file, entry[1].line, entry[1].column, entries))

    def set_env(self, given: Mapping[str, str]) -> None:
        """Puts variables of the command line or the environment into `env`."""
        key_node, value = self.root.entries.get("env", (doc.Scalar("--env", 0, 0, "env"), None))
        node = _own(value) if isinstance(value, doc.Mapping) else doc.Mapping("--env", 0, 0, {})
        for name, text in given.items():
            node.entries[name] = (doc.Scalar("--env", 0, 0, name), doc.Scalar("--env", 0, 0, text, plain=False))
        self.root.entries["env"] = (key_node, node)

    def fill_env(self, environ: Mapping[str, str]) -> None:
        """Gives variables without a value theirs from the environment, or reports them."""
        entry = self.root.entries.get("env")
        if entry is None or not isinstance(entry[1], doc.Mapping):
            return
        filled: dict[str, str] = {}
        for name, (key_node, value) in entry[1].entries.items():
            if not isinstance(value, doc.Scalar) or value.text is not None:
                continue
            if looks_like_secret_name(name):
                continue  # the models say where it belongs
            if name in environ:
                filled[name] = environ[name]
            elif value.comment:
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


def _cuts(command: doc.Scalar) -> bool:
    """Whether the comment behind a command may have been meant as a part of it.

    ` # text` is a comment for bash too, so it changes nothing behind a complete command. `#text` without the space
    looks like an argument, and a comment inside quotes or brackets leaves half a command.
    """
    if not command.comment or command.text is None:
        return False
    if not re.match(r"#\s", command.comment):
        return True
    try:
        shlex.split(command.text)
    except ValueError:
        return True
    text = command.text
    unbalanced = text.count("(") > text.count(")") or text.count("{") > text.count("}") or text.count("`") % 2
    return bool(unbalanced) or text.endswith(("|", "&&", "\\"))


def _own(node: _AnyNode) -> _AnyNode:
    """A copy that can be changed: an alias elsewhere may be the same node."""
    if isinstance(node, doc.Mapping):
        return replace(node, entries=dict(node.entries))
    if isinstance(node, doc.Sequence):
        return replace(node, items=list(node.items))
    return node


def _override_value(key: str, said: str, file: str) -> doc.Node:
    """Text of the command line as a node: brackets are YAML, except where the key takes text as it is."""
    if key in (*SHELL_KEYS, "env", "labels") or said[:1] not in ("[", "{"):
        return doc.Scalar(file, 0, 0, said, plain=False)
    return doc.from_plain(doc.plain(doc.read_document(f"value: {said}", file).entries["value"][1]), file)
