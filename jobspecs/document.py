"""YAML text -> nodes that still know what was typed and where.

Role: the only reader of YAML here, for specs and for the config. PyYAML splits the text into events; the meaning of
a scalar is left to whoever asks, so nothing is ever read as a boolean, a date or a base-60 number.

Rules: every trap has its own words. Work is bounded before it is done: bytes, depth, and the number of nodes with
aliases expanded. Tags are refused, aliases and merge keys are followed. Raises SpecErrors and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml

from jobspecs.problems import Problem, SpecErrors, shown
from jobspecs.source import decode, refuse

MAX_DEPTH = 24  # the deepest key of the schema is at 6
MAX_NODES = 10_000  # a sweep that lists some thousand legs, and far below what an alias bomb needs
_NULLS = ("", "~", "null", "Null", "NULL")


@dataclass
class Node:
    """A place in a source. `line` and `column` count from 1, 0 when the source is not a file."""

    file: str
    line: int
    column: int
    size: int = field(default=1, kw_only=True)  # nodes below and this one, aliases expanded
    height: int = field(default=1, kw_only=True)


@dataclass
class Scalar(Node):
    """What was typed. `text` is None for an empty or null value; `comment` is what follows it, from its #."""

    text: str | None
    plain: bool = True
    comment: str = ""
    block: bool = False  # after a `|`: its lines are those of the file


@dataclass
class Sequence(Node):
    items: list[Node]


@dataclass
class Mapping(Node):
    entries: dict[str, tuple[Scalar, Node]]


_Block = TypeVar("_Block", Sequence, Mapping)


def plain(node: Node) -> Any:
    """The node as dicts, lists, text and None; scalars exactly as typed."""
    if isinstance(node, Mapping):
        return {key: plain(value) for key, (_, value) in node.entries.items()}
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return node.text if isinstance(node, Scalar) else None


def from_plain(value: Any, file: str) -> Node:
    """Nodes for data that came from elsewhere than a spec file; problems in it are shown with `file` alone."""
    if isinstance(value, dict):
        entries = {str(k): (Scalar(file, 0, 0, str(k)), from_plain(v, file)) for k, v in value.items()}
        return Mapping(file, 0, 0, entries)
    if isinstance(value, (list, tuple)):
        return Sequence(file, 0, 0, [from_plain(each, file) for each in value])
    if isinstance(value, bool):
        return Scalar(file, 0, 0, "true" if value else "false")
    return Scalar(file, 0, 0, None if value is None else str(value), plain=False)


def read_document(data: bytes | str, file: str, problems: list[Problem] | None = None) -> Mapping:
    """The one mapping of a YAML file. Raises SpecErrors when it is anything else.

    What can be read past (duplicate keys, tags, a second document) is added to `problems`, or raised without one.
    """
    text = decode(data, file)
    composer = _Composer(text, file)
    root = composer.document()
    if isinstance(root, Mapping):
        if problems is None and composer.problems:
            raise SpecErrors(composer.problems)
        if problems is not None:
            problems += composer.problems
        return root
    if isinstance(root, Sequence):
        hint = "a spec is one mapping: remove the leading `- `, and apply several jobs as several files"
        raise refuse(file, root.line, root.column, "is a list, not `key: value` lines", hint)
    if isinstance(root, Scalar) and root.text is not None:
        hint = "replace the full-width colon by `: `" if "\uff1a" in root.text else "write `name: value` lines"
        raise refuse(file, root.line, root.column, "is text without `key: value` lines; a ':' is missing", hint)
    raise refuse(file, 1, 1, "is empty", "`gpujob init` writes a spec to start from")


class _Events(yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser):
    """PyYAML's pure parser. The C one accepts stray tabs and rejects legal ones, so only one of them can be used."""

    def __init__(self, text: str) -> None:
        yaml.reader.Reader.__init__(self, text)
        yaml.scanner.Scanner.__init__(self)
        yaml.parser.Parser.__init__(self)


class _Composer:
    """Builds the nodes of one document from its events."""

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._lines = text.split("\n")
        self._events = self._checked_events()
        self._anchors: dict[str, Node | None] = {}
        self.problems: list[Problem] = []
        self._count = 0

    def document(self) -> Node | None:
        next(self._events)
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            return None
        root = self._node(next(self._events), 1)
        next(self._events)
        more = next(self._events)
        if isinstance(more, yaml.DocumentStartEvent):
            self._note(more, "a second document starts here", "write each job into a file of its own")
        return root

    def _checked_events(self) -> Iterator[Any]:
        try:
            source = _Events(self._text)
            while source.check_event():
                yield source.get_event()  # type: ignore[no-untyped-call]
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            # Escapes and directives with absurd numbers; the parser gives no place for them.
            raise refuse(self._file, 1, 1, f"is not YAML: {error}".split("\n")[0]) from None

    def _refuse(self, event: Any, reason: str, hint: str = "", key: str = "") -> SpecErrors:
        mark = event.start_mark
        return refuse(self._file, mark.line + 1, mark.column + 1, reason, hint, key)

    def _note(self, event: Any, reason: str, hint: str, key: str = "") -> None:
        self.problems += self._refuse(event, reason, hint, key).problems

    def _node(self, event: Any, depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        self._count += 1
        tag = getattr(event, "tag", None)
        if tag is not None:
            said = shown(tag.replace("tag:yaml.org,2002:", "!!"))
            self._note(
                event,
                f"has the YAML tag {said}, and tags are not read",
                "delete it; quote the value if it is text",
            )
        if depth > MAX_DEPTH:
            raise self._refuse(event, f"is nested deeper than {MAX_DEPTH} levels")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node: Node = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, depth)
        else:
            node = self._mapping(event, depth)
        self._bound(event, self._count)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: Any, depth: int) -> Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            said = "refers to itself" if event.anchor in self._anchors else "is not defined above"
            hint = "quote the value if the * is meant" if said == "is not defined above" else ""
            raise self._refuse(event, f"the alias *{event.anchor} {said}", hint)
        self._count += node.size
        self._bound(event, self._count)
        if depth + node.height > MAX_DEPTH:
            raise self._refuse(event, f"is nested deeper than {MAX_DEPTH} levels")
        return node

    def _bound(self, event: Any, count: int) -> None:
        if count > MAX_NODES:
            raise self._refuse(event, f"has more than {MAX_NODES} values, aliases expanded")

    def _scalar(self, event: Any) -> Scalar:
        line, column, value = event.start_mark.line, event.start_mark.column, event.value
        is_plain = event.style is None
        end = event.end_mark
        rest = self._lines[end.line][end.column :] if end.line < len(self._lines) else ""
        comment = rest.strip() if is_plain and rest.lstrip().startswith("#") else ""
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self._refuse(event, "contains half a surrogate pair") from None
        if "\0" in value:  # written as an escape; no script, variable or path can hold one
            raise self._refuse(event, "contains a NUL character")
        text = None if is_plain and value in _NULLS else value
        return Scalar(self._file, line + 1, column + 1, text, is_plain, comment, event.style == "|")

    def _sequence(self, start: Any, depth: int) -> Sequence:
        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return self._sized(Sequence(self._file, start.start_mark.line + 1, start.start_mark.column + 1, items), items)

    def _mapping(self, start: Any, depth: int) -> Mapping:
        entries: dict[str, tuple[Scalar, Node]] = {}
        merged: list[tuple[Any, Node]] = []
        values: list[Node] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            if not isinstance(key, Scalar):
                raise self._refuse(event, "has a list or mapping as a key", "a key is one word")
            if key.text is None:
                raise self._refuse(event, "has no key before ':'", "write one, or quote it")
            value = self._node(next(self._events), depth + 1)
            values.append(value)
            if key.text == "<<" and key.plain:
                merged.append((event, value))
            elif key.text in entries:
                first = entries[key.text][0].line
                reason = f"is here twice, first in line {first}, and only one can count"
                self._note(event, reason, "delete one of them", key.text)
            else:
                entries[key.text] = (key, value)
        for event, value in merged:
            for key_text, entry in self._merge_source(event, value):
                entries.setdefault(key_text, entry)
        mark = start.start_mark
        return self._sized(Mapping(self._file, mark.line + 1, mark.column + 1, entries), values)

    def _merge_source(self, event: Any, value: Node) -> Iterator[tuple[str, tuple[Scalar, Node]]]:
        for source in value.items if isinstance(value, Sequence) else [value]:
            if not isinstance(source, Mapping):
                raise self._refuse(event, "<< merges only mappings", "write << : *NAME of a mapping above")
            yield from source.entries.items()

    def _sized(self, node: _Block, children: list[Node]) -> _Block:
        node.size = 1 + sum(child.size for child in children)
        node.height = 1 + max((child.height for child in children), default=0)
        return node

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> SpecErrors:
        said = error.problem or error.context or "is not YAML"
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        source = self._lines[line] if line < len(self._lines) else ""
        if "found character '\\t'" in said or (column < len(source) and source[column] == "\t"):
            reason, hint = (
                "a tab where YAML allows only spaces",
                "replace the tab by spaces, or delete it at the end",
            )
            return refuse(self._file, line + 1, column + 1, reason, hint)
        if said == "could not find expected ':'" and error.context_mark:
            line, column = error.context_mark.line, error.context_mark.column
            return refuse(self._file, line + 1, column + 1, "a ':' is missing after the key", "write `key: value`")
        if said == "mapping values are not allowed here":
            above = self._lines[line - 1] if line else ""
            indent = len(above) - len(above.lstrip())
            if above.strip() and ":" not in above and indent == len(source) - len(source.lstrip()):
                return refuse(self._file, line, indent + 1, "a ':' is missing after the key", "write `key: value`")
        if said == "found unexpected end of stream" and error.context_mark:
            line, column = error.context_mark.line, error.context_mark.column
            return refuse(self._file, line + 1, column + 1, "a quote is never closed", "close it")
        hint = next((hint for start, hint in _SYNTAX_HINTS if said.startswith(start)), "")
        return refuse(self._file, line + 1, column + 1, f"is not YAML: {said}", hint)


# What the parser says -> what to do about it.
_SYNTAX_HINTS = (
    ("mapping values are not allowed here", "quote a value that contains `: `, or use a block `key: |`"),
    ("expected <block end>, but found '<scalar>'", "quote the whole value, or use a block `key: |`"),
    ("expected <block end>", "indent the keys of one mapping alike"),
    ("expected ',' or", "close the bracket, and separate with commas"),
    ("found character '%'", "quote the value"),
    ("found character '@'", "quote the value"),
    ("found character '`'", "quote the value"),
    ("found unknown escape character", "use single quotes, or a block `key: |`, to keep the backslash"),
    ("expected alphabetic or numeric character", "quote the value"),
)
