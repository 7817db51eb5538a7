"""What kind of value each key of the models takes, read off their annotations.

Role: lets the loader check keys against the models before values are judged, without a second list of keys.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel


@dataclass(frozen=True)
class Shape:
    """A value that may be a mapping of `model`, a mapping of any keys to `item`, or a list of `item`."""

    model: type[BaseModel] | None = None
    is_block: bool = False  #: lists and mappings: nothing below their key means that they are absent
    item: Shape | None = None
    text: bool = False  #: plain text will do too

    @property
    def children(self) -> Mapping[str, Any]:
        """Key as typed -> annotation."""
        fields = self.model.model_fields if self.model else {}
        return {info.alias or name: info.annotation for name, info in fields.items()}

    def child(self, key: str) -> Shape | None:
        """The shape of the value under `key`."""
        if self.model is None:
            return self.item
        return shape_of(self.children[key]) if key in self.children else None


@cache
def shape_of(annotation: Any) -> Shape:
    """The shape of an annotation of the models."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return shape_of(arguments[0])
    if origin in (Union, types.UnionType):
        shapes = [shape_of(each) for each in arguments if each is not type(None)]
        blocks = [shape for shape in shapes if shape.model or shape.item]
        # Where plain text will do, nothing at all is more likely a slip than a block commented out.
        text = any(shape.text for shape in shapes)
        return replace(blocks[0], is_block=not text, text=text) if blocks else Shape(text=text)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return Shape(model=annotation, is_block=True)
    if origin is dict:
        return Shape(is_block=True, item=shape_of(arguments[1]))
    if origin is tuple:
        inner = shape_of(arguments[0])
        # A single mapping stands for a list of one, so it has the keys of the item.
        return Shape(model=inner.model, is_block=True, item=inner)
    return Shape(text=annotation is str)
