"""The companies' published API documents, where they lie beside this checkout, as validators of a fake's bodies.

The documents are not part of this repository. Where they are absent, the fakes serve the same shapes unchecked, and the
tests that are about the checking are skipped with that reason.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

SPECS = Path(__file__).resolve().parents[3] / "shared" / "providers" / "specs"
SAMPLES = SPECS.parent / "samples"
ABSENT = "the companies' API documents are not beside this checkout"

Origin = Literal["official", "transcribed", "derived"]


@cache
def document(name: str) -> Document | None:
    """The document `name`; None where it is absent."""
    path = SPECS / name
    if not path.exists():
        return None
    text = path.read_text(encoding="utf-8")
    return Document(json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=_LOADER))


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Document:
    """One OpenAPI 3.1 document: does a body fit what it says of a request or a response?"""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._registry = Registry().with_resource("urn:doc", Resource(contents=root, specification=DRAFT202012))
        self._paths = [(re.compile(_pattern(path)), path) for path in root["paths"]]
        self._validators: dict[tuple[str, ...], Draft202012Validator | None] = {}

    def operation(self, method: str, path: str) -> Any:
        """The operation behind a concrete path; a path without braces wins. Raises LookupError."""
        fitting = [template for pattern, template in self._paths if pattern.fullmatch(path.rstrip("/"))]
        for template in sorted(fitting, key=lambda each: each.count("{")):
            if method.lower() in self.root["paths"][template]:
                return self.root["paths"][template][method.lower()]
        raise LookupError(f"the document has no {method} {path}")

    def schema(self, operation: Any, status: int | None) -> Any:
        """The JSON schema of a request (None) or of a response; None where the document gives none."""
        if status is None:
            found = self._follow(operation.get("requestBody", {}))
        else:
            answers = operation["responses"]
            if str(status) not in answers and "default" not in answers:
                raise LookupError(f"the document has no answer {status} there, only {', '.join(answers)}")
            found = self._follow(answers.get(str(status), answers.get("default")))
        kinds = list(found.get("content", {}).values())
        return kinds[0].get("schema") if kinds else None

    def errors(self, method: str, path: str, status: int | None, body: Any) -> list[str]:
        """What is wrong with a body, each with its JSON path; an unknown operation or status is one as well."""
        try:
            operation = self.operation(method, path)
            schema = self.schema(operation, status)
        except LookupError as problem:
            return [str(problem)]
        if schema is None:
            return [] if body is None else [f"{method} {path} {status or 'request'} has no body, got {str(body)[:80]}"]
        validator = Draft202012Validator(_absolute(schema), registry=self._registry)
        return [f"{each.json_path}: {each.message[:160]}" for each in validator.iter_errors(body)]

    def _follow(self, value: Any) -> Any:
        while "$ref" in value:
            target = self.root
            for step in value["$ref"].removeprefix("#/").split("/"):
                target = target[step]
            value = target
        return value


def _pattern(template: str) -> str:
    return re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(template.rstrip("/")))


def _absolute(schema: Any) -> Any:
    """The schema with references that lead into the document."""
    if isinstance(schema, dict):
        return {
            key: f"urn:doc{value}" if key == "$ref" and isinstance(value, str) and value[0] == "#" else _absolute(value)
            for key, value in schema.items()
        }
    return [_absolute(each) for each in schema] if isinstance(schema, list) else schema


# --- bodies that a document allows ------------------------------------------------------------------------------------


def allowed(root: Any, schema: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that fit `schema`, as a company may send them: optional fields left out, every member of an enum, nulls,
    fields that the document does not name. Covers what the documents here use; texts are short.
    """
    while "$ref" in schema:
        target = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        schema = {**target, **{key: value for key, value in schema.items() if key not in ("$ref", "description")}}
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return st.one_of([allowed(root, each, depth) for each in schema[word]])
    if "allOf" in schema and not schema.get("properties"):
        parts = [allowed(root, each, depth) for each in schema["allOf"]]
        return parts[0] if len(parts) == 1 else st.tuples(*parts).map(_merged)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema.get("type", "object" if "properties" in schema else ANYTHING)
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return st.one_of([_of_kind(root, schema, kind, depth) for kind in kinds])


ANYTHING = "anything"
_ANY: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(allow_nan=False), st.text(max_size=8)
)


def _of_kind(root: Any, schema: Any, kind: str, depth: int) -> st.SearchStrategy[Any]:
    if kind == "null":
        return st.none()
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        return st.integers(schema.get("minimum", -1000), schema.get("maximum", 10**9))
    if kind == "number":
        return st.floats(-1e9, 1e9) | st.integers(0, 10**6)
    if kind == "string":
        known = schema.get("examples", []) + [schema[key] for key in ("example", "default") if key in schema]
        known = [each for each in known if isinstance(each, str)]
        return st.text(max_size=12) | st.sampled_from(known) if known else st.text(max_size=12)
    if kind == "array":
        return st.lists(allowed(root, schema.get("items", {}), depth + 1), max_size=0 if depth > 5 else 3)
    if kind == "object":
        return _objects(root, schema, depth)
    return _ANY


def _objects(root: Any, schema: Any, depth: int) -> st.SearchStrategy[Any]:
    fields = {name: allowed(root, each, depth + 1) for name, each in schema.get("properties", {}).items()}
    needed = {name: each for name, each in fields.items() if name in schema.get("required", ())}
    optional = {name: each for name, each in fields.items() if name not in needed}
    known = st.fixed_dictionaries(needed, optional=optional if depth <= 5 else {})
    more = schema.get("additionalProperties", True)
    if more is False:
        return known
    others = allowed(root, more, depth + 1) if isinstance(more, dict) else _ANY
    return st.tuples(st.dictionaries(st.text(max_size=6), others, max_size=2), known).map(_merged)


def _merged(parts: tuple[Any, ...]) -> Any:
    return {key: value for part in parts for key, value in part.items()}
