"""The text of values that a handler captures or uses: plain ones as they are, objects by what they hold."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

_BY_REPR = (
    *(int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice),
    *(date, time, timedelta, tzinfo, Decimal, Fraction, UUID, re.Pattern),
)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_MADE_BY_DATACLASS = frozenset(
    {"__init__", "__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__setattr__"}
    | {"__delattr__", "__replace__", "__getstate__", "__setstate__"}
)


def plain_text(value: Any) -> str | None:
    """The text of a value that has no parts to follow, else None."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}={value.value!r}"
    if isinstance(value, PurePath):  # where the project lies is not part of it
        return f"Path({value.name!r})"
    if isinstance(value, _BY_REPR):
        return f"{type(value).__name__}:{value!r}"
    return None


def value_object(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass, attrs or pydantic object. Other objects change as they live."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(kind)}
    if hasattr(kind, "__attrs_attrs__"):
        return {field.name: getattr(value, field.name, None) for field in kind.__attrs_attrs__}
    if isinstance(getattr(kind, "model_fields", None), dict):
        return {name: getattr(value, name, None) for name in kind.model_fields}
    return None


def _filename(function: types.FunctionType) -> str:
    inner = inspect.unwrap(function)
    return inner.__code__.co_filename if isinstance(inner, types.FunctionType) else ""


def class_parts(kind: type) -> Iterator[tuple[str, str | tuple[Any]]]:
    """What a class body says, by name: a text, or a part to follow."""
    is_dataclass = dataclasses.is_dataclass(kind)
    for name, part in sorted(vars(kind).items()):
        function = getattr(part, "__func__", None) or getattr(part, "fget", None) or part
        if isinstance(function, types.FunctionType):
            made = is_dataclass and name in _MADE_BY_DATACLASS and _filename(function) == "<string>"
            if not made and function.__module__ == kind.__module__:
                yield name, (part,)
        elif issubclass(kind, Enum) and name.startswith("_"):
            continue
        elif not (name.startswith("__") and name.endswith("__")) and (
            plain_text(part) is not None or isinstance(part, list | tuple | set | frozenset | dict | type)
        ):
            yield name, (part,)
    for name, annotation in vars(kind).get("__annotations__", {}).items():
        shown = annotation if isinstance(annotation, str) else getattr(annotation, "__qualname__", repr(annotation))
        yield f"{name}:", _ADDRESS.sub("", shown)
    fields = getattr(kind, "__dataclass_fields__", None) if is_dataclass else vars(kind).get("__pydantic_fields__")
    for name, field in (fields or {}).items():
        default = getattr(field, "default", None)
        yield f"{name}:=", plain_text(default) or type(default).__qualname__
