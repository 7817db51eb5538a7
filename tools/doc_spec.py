"""docs/reference/spec.md, from the descriptions, types and defaults in `jobspecs.schema`.

The model is walked twice over: its JSON Schema says what may be typed, its fields say the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from jobspecs import alarm_keys, schema

INTRODUCTION = """\
# The spec

Every key of a job's YAML file. Required: {required}. `gpujob schema` prints the same as JSON Schema for
editors; `gpujob validate FILE` reports everything wrong with a file at once, each with line and column.

Values with commas between them are examples. A single value or mapping is accepted where a list is asked for.
Unknown keys are refused.
"""

PLAIN_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "mapping",
    "array": "list",
}


def spec_page() -> str:
    document = schema.JobSpec.model_json_schema()
    required = ", ".join(f"`{key}`" for key in document["required"])
    parts = [INTRODUCTION.format(required=required), *_table(schema.JobSpec, document)]
    for name, definition in sorted(document["$defs"].items(), key=lambda each: _anchor(each[0])):
        if "properties" in definition:
            parts += [
                f"\n## {_anchor(name)}\n\n{definition['description']}\n",
                *_table(_model(name), definition),
            ]
    return "\n".join(parts) + "\n"


def _model(name: str) -> type[BaseModel]:
    model = getattr(schema, name, None) or getattr(alarm_keys, name)
    assert issubclass(model, BaseModel)
    return model


def _anchor(model_name: str) -> str:
    """The heading of a block: ModelSize -> model-size."""
    return "".join(f"-{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(model_name))


def _table(model: type[BaseModel], definition: Mapping[str, Any]) -> Iterator[str]:
    """Markdown rows for one model; `definition` is its JSON Schema. ValueError for an undescribed key."""
    yield "| key | value | default | meaning |\n|---|---|---|---|"
    for name, field in model.model_fields.items():
        key = field.alias or name
        if not field.description:
            raise ValueError(f"{model.__name__}.{name} has no description in jobspecs/schema.py")
        values = " or ".join(dict.fromkeys(_words(definition["properties"][key])))
        required = key in definition.get("required", ())
        default = "**required**" if required else _default(field.get_default(call_default_factory=True))
        yield f"| `{key}` | {_cell(values)} | {_cell(default)} | {_cell(field.description)} |"


def _default(value: object) -> str:
    """What a left-out key means; blank where that is nothing, or a block with defaults of its own."""
    if value is PydanticUndefined or value in (None, (), {}) or isinstance(value, BaseModel):
        return ""
    return f"`{value}`"


def _words(node: Mapping[str, Any]) -> Iterator[str]:
    """What may be typed, in words, from one node of the JSON Schema; null only means the key left out."""
    if "$ref" in node:
        name = _anchor(node["$ref"].rsplit("/", 1)[-1])
        yield f"[{name}](#{name})"
    elif "enum" in node:
        # "true" and True are one word in a YAML file
        yield from (f"`{word}`" for word in dict.fromkeys(_yaml(each) for each in node["enum"]))
    elif "const" in node:
        yield f"`{_yaml(node['const'])}`"
    elif "examples" in node:
        yield ", ".join(f"`{_yaml(each)}`" for each in node["examples"])
    elif "anyOf" in node or "oneOf" in node:
        for each in node.get("anyOf") or node["oneOf"]:
            if each.get("type") != "null":
                yield from _words(each)
    elif node.get("type") == "array":
        items = [node["items"]] if "items" in node else node.get("prefixItems", [])
        inner = " or ".join(dict.fromkeys(word for item in items for word in _words(item)))
        yield f"list of {inner}" if inner else "list"
    else:
        yield _plain(node)


def _plain(node: Mapping[str, Any]) -> str:
    """A scalar's word. Several types mean text that an editor's YAML reader may take for something else."""
    types = node.get("type", "string")
    if isinstance(types, str):
        return PLAIN_TYPES[types]
    if "boolean" in types:
        return PLAIN_TYPES["string"]
    if "integer" in types:
        return PLAIN_TYPES["integer"] if "minimum" in node or "maximum" in node else PLAIN_TYPES["string"]
    return PLAIN_TYPES["number"]


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
