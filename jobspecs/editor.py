"""The JSON Schema for editors (`gpujob schema`).

Rules: derived from the models, so it cannot name other keys; it accepts every spelling that the loader accepts (one
value for a list, a block with nothing in it, text for a mapping with one obvious key), and may accept more.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from jobspecs.schema import JobSpec
from jobspecs.shapes import Shape, shape_of
from jobspecs.units import Duration

_TEXT = {"type": ["string", "number", "boolean"]}
# Models that may also be written as something simpler than their mapping.
_SHORT_FORMS: dict[str, list[dict[str, Any]]] = {
    "DataSource": [{"type": "string"}],
    "Artifact": [_TEXT],
    "Parameter": [_TEXT, {"type": "array", "items": _TEXT}],
}
# Required by the model, filled in by the loader.
_FILLED_IN = {"DataSource": ["path"]}


def json_schema() -> dict[str, Any]:
    """A JSON Schema (2020-12) of the spec file."""
    schema = JobSpec.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs")
    for name, definition in definitions.items():
        for key in _FILLED_IN.get(name, ()):
            definition["required"].remove(key)
    models = {shape.model.__name__: shape for shape in _shapes(shape_of(JobSpec)) if shape.model}
    root = _model(schema, models["JobSpec"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpujob spec",
        **root,
        "$defs": {name: _model(definition, models[name]) for name, definition in sorted(definitions.items())},
    }


def _shapes(shape: Shape) -> list[Shape]:
    found = [shape]
    for key in shape.children:
        below = shape.child(key)
        found += _shapes(below) if below and below.model is not shape.model else []
    return found + (_shapes(shape.item) if shape.item else [])


def _model(schema: dict[str, Any], shape: Shape) -> dict[str, Any]:
    """One model's schema, its blocks nullable and its parts in every spelling."""
    out: dict[str, Any] = _spellings(schema)
    fields = {info.alias or name: info for name, info in shape.model.model_fields.items()} if shape.model else {}
    for key, part in out["properties"].items():
        default = fields[key].get_default()
        if part.pop("default", None) is not None:
            part["default"] = str(default) if isinstance(default, Duration) else _as_typed(default)
        below = shape.child(key)
        if key == "env":
            part["anyOf"] = [{"type": "object", "additionalProperties": part.pop("additionalProperties")}]
            part["anyOf"].append({"type": "array", "items": _TEXT})
            part.pop("type")
        if below is None or not below.is_block:
            continue
        if "anyOf" not in part:
            kept = {name: part.pop(name) for name in ("description", "default") if name in part}
            out["properties"][key] = part = {"anyOf": [dict(part)], **kept}
        if {"type": "null"} not in part["anyOf"]:
            part["anyOf"].append({"type": "null"})
    return out


def _as_typed(default: Any) -> Any:
    if isinstance(default, BaseModel):
        return default.model_dump(mode="json", exclude_none=True)
    return list(default) if isinstance(default, tuple) else default


def _spellings(part: Any) -> Any:
    """`part` with one value for a list, short forms of models, and without generated titles."""
    if isinstance(part, list):
        return [_spellings(each) for each in part]
    if not isinstance(part, dict):
        return part
    out = {
        "anyOf" if key == "oneOf" else key: (
            {name: _spellings(each) for name, each in value.items()} if key == "properties" else _spellings(value)
        )
        for key, value in part.items()
        if key not in ("title", "discriminator", "default", "propertyNames")
    }
    if "default" in part:
        out["default"] = part["default"]
    name = str(part.get("$ref", "")).rsplit("/", 1)[-1]
    if name in _SHORT_FORMS:
        rest = {key: value for key, value in out.items() if key != "$ref"}
        return {"anyOf": [{"$ref": part["$ref"]}, *_SHORT_FORMS[name]], **rest}
    if out.get("type") == "array" and "items" in out and "prefixItems" not in out:
        rest = {key: out.pop(key) for key in ("description", "default") if key in out}
        return {"anyOf": [out["items"], out], **rest}
    return out
