"""The careful half of `jsonable`: one walk that turns a Python value into plain JSON values, rule by rule."""

from __future__ import annotations

import base64
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import islice
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic_core import to_jsonable_python

from everyturn.errors import InvalidValue
from everyturn.json_forms import (
    BIG_FLOAT,
    BIG_INT,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_LENIENT_BYTES,
    TAGS,
    Tag,
    clean_text,
    sort_text,
)

_KEPT = 1024 * 1024
_REPR = 1000


class _Unkept(Exception):
    """A part that has no JSON form; the message says why."""


class Cleaner:
    """Cleans one value. `strict` refuses what cannot be kept; otherwise a placeholder takes its place."""

    def __init__(self, strict: bool, name: str, fresh_stack: bool = False) -> None:
        self._strict = strict
        self._fresh_stack = fresh_stack
        self._depth = 0
        self._path: list[str] = [name]
        self._above: set[int] = set()
        self._left = MAX_BYTES if strict else MAX_LENIENT_BYTES

    def clean(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return self._text(value)
        self._left -= 2
        if value is None or kind is bool:
            return value
        if kind is int:
            return self._int(value)
        if kind is float:
            return self._float(value)
        if self._depth >= MAX_DEPTH:
            return Tag({"$omitted": f"{_name(kind)}, nested deeper than {MAX_DEPTH} levels"})
        if id(value) in self._above:
            return Tag({"$omitted": f"{_name(kind)}, which is inside itself"})
        steps, depth = len(self._path), self._depth
        self._above.add(id(value))
        self._depth += 1
        try:
            if kind is dict:
                return self._mapping(value.items())
            if kind is list or kind is tuple:
                return self._sequence(value, len(value))
            if kind is Tag:
                return Tag({key: self.clean(item) for key, item in value.items()})
            return self._object(value)
        finally:
            self._depth = depth
            self._above.discard(id(value))
            del self._path[steps:]

    def _object(self, value: Any) -> Any:
        try:
            for kinds, rule in _RULES:
                if isinstance(value, kinds):
                    return rule(self, value)
            return self._structure(value)
        except InvalidValue:
            raise
        except RecursionError:
            if not self._fresh_stack:
                raise
            return self._unkept(value, "reading it never ends")
        except _Unkept as reason:
            return self._unkept(value, str(reason))
        except Exception as error:
            return self._unkept(value, f"reading it raised {type(error).__name__}")

    def _structure(self, value: Any) -> Any:
        kind = type(value)
        package = (kind.__module__ or "").partition(".")[0]
        if package == "numpy":
            return self._numpy(value)
        if package == "pandas" and kind.__name__ in ("NAType", "NaTType"):
            return None
        if hasattr(kind, "__pydantic_serializer__") and hasattr(kind, "model_dump"):
            return self.clean(value.model_dump())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._fields(value, (field.name for field in dataclasses.fields(value)))
        if hasattr(kind, "__attrs_attrs__"):
            return self._fields(value, (field.name for field in kind.__attrs_attrs__))
        if isinstance(value, Mapping):
            return self._mapping((key, value[key]) for key in value)
        if isinstance(value, Set | KeysView):
            return self._set(value)
        if isinstance(value, ValuesView):
            return self._sequence(value, len(value))
        if not isinstance(value, Iterator):  # an iterator would be used up by being stored
            text = to_jsonable_python(value, fallback=lambda _: None)
            if isinstance(text, str):
                return self._text(text)
        raise _Unkept("it has no JSON form")

    def _text(self, text: str) -> str:
        size = len(text)
        if size <= self._left and not text.isascii():
            size = len(text.encode("utf-8", "surrogatepass"))
        if size > self._left:
            self._too_large(f"a text of {len(text):,} characters")
            kept = max(0, min(_KEPT, self._left // 4))
            # One huge text leaves room for its neighbours; many large ones have used it all.
            self._left = self._left - kept * 4 if size > MAX_LENIENT_BYTES else 0
            return f"{clean_text(text[:kept])} … [clipped: {kept:,} of {len(text):,} characters are kept]"
        self._left -= size + 2
        return clean_text(text)

    def _int(self, value: int) -> Any:
        if -BIG_FLOAT < value < BIG_FLOAT:
            return value
        size = value.bit_length() // 3
        if size > self._left:
            return self._omit("an integer", size)
        self._left -= size
        return value if -BIG_INT < value < BIG_INT else Tag({"$int": hex(value)})

    def _float(self, value: float) -> Any:
        self._left -= 8
        if -BIG_FLOAT < value < BIG_FLOAT:
            return value
        if value != value:
            return Tag({"$float": "NaN"})
        if value in (float("inf"), float("-inf")):
            return Tag({"$float": "Infinity" if value > 0 else "-Infinity"})
        return int(value)

    def _bytes(self, value: bytes | bytearray | memoryview) -> Any:
        size = value.nbytes if isinstance(value, memoryview) else len(value)
        if size > self._left // 4 * 3:
            return self._omit("bytes", size)
        self._left -= size * 4 // 3
        return Tag({"$bytes": base64.b64encode(bytes(value)).decode()})

    def _mapping(self, items: Iterable[tuple[Any, Any]]) -> Any:
        entries = list(islice(items, max(0, self._left // 4) + 1))
        keys = [self.clean(key) for key, _ in entries]
        as_pairs = not all(type(key) is str for key in keys) or len(set(keys)) < len(keys)
        if as_pairs and self._strict and len({sort_text(key) for key in keys}) < len(keys):
            raise InvalidValue(
                f"{self._where()} cannot be stored: two of its keys have the same stored form. "
                f"Its keys are {_brief([key for key, _ in entries])}; rename one of them."
            )
        is_tag_like = not as_pairs and len(keys) == 1 and keys[0] in TAGS
        levels = 2 if as_pairs else int(is_tag_like)  # that the stored form adds
        self._depth += levels
        out: list[list[Any]] = []
        for key, (original, item) in zip(keys, entries, strict=True):
            if self._left <= 0:
                self._too_large(f"an object of {len(entries):,} keys")
                out.append(["$omitted", f"{len(entries) - len(out):,} more keys"])
                break
            self._path.append(f".{key}" if type(key) is str else f"[{_brief(original)}]")
            out.append([key, self.clean(item)])
            self._path.pop()
        if as_pairs:
            return Tag({"$map": out})
        return Tag({"$literal": Tag(out)}) if is_tag_like else dict(out)

    def _sequence(self, items: Iterable[Any], total: int) -> list[Any]:
        out: list[Any] = []
        for count, item in enumerate(items):
            if self._left <= 0:
                self._too_large(f"a list of {total:,} items")
                out.append(Tag({"$omitted": f"{total - count:,} more items"}))
                break
            self._path.append(f"[{count}]")
            out.append(self.clean(item))
            self._path.pop()
        return out

    def _set(self, items: Set[Any]) -> list[Any]:
        return sorted(self._sequence(items, len(items)), key=sort_text)

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        names = getattr(type(value), "_fields", None)
        if names and len(names) == tuple.__len__(value):
            return self._mapping(zip(names, tuple.__iter__(value), strict=True))
        return self._sequence(tuple.__iter__(value), tuple.__len__(value))

    def _fields(self, value: Any, names: Iterable[str]) -> Any:
        return self._mapping((name, getattr(value, name)) for name in names)

    def _numpy(self, value: Any) -> Any:
        if value.dtype.kind in "mM":  # cut to microseconds: Python knows nothing finer
            value = value.astype(f"{value.dtype.kind}8[us]")
        if value.size * 4 > self._left:
            return self._omit("an array", value.nbytes)
        plain = value.tolist()
        if type(plain) is type(value):
            raise _Unkept("it is a number Python has no type for")
        return self.clean(plain)

    def _datetime(self, value: datetime) -> str | None:
        if value != value:  # pandas.NaT
            return None
        return self._text((value.replace(tzinfo=UTC) if value.tzinfo is None else value).isoformat())

    def _complex(self, value: complex) -> Tag:
        return Tag({"$complex": [self._float(value.real), self._float(value.imag)]})

    def _exception(self, value: BaseException) -> Any:
        return self._mapping([("name", type(value).__name__), ("message", str(value))])

    def _omit(self, what: str, size: int) -> Tag:
        self._too_large(f"{what} of {size:,} bytes")
        return Tag({"$omitted": f"{what} of {size:,} bytes"})

    def _too_large(self, what: str) -> None:
        if self._strict:
            raise InvalidValue(
                f"{self._where()} cannot be stored: with {what} the value takes more than the "
                f"{MAX_BYTES // 1024**2} MiB that one value may take. Store a part, or a reference to a file."
            )

    def _unkept(self, value: Any, reason: str) -> Tag:
        kind = _name(type(value))
        if self._strict:
            raise InvalidValue(
                f"{self._where()} cannot be stored: it is of type {kind}, and {reason}. "
                "Convert it to text, numbers, lists or dicts."
            )
        self._left -= _REPR
        return Tag({"$object": {"type": kind, "repr": clean_text(_brief(value))}})

    def _where(self) -> str:
        return "".join(self._path)


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _brief(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:
        return f"<repr raised {type(error).__name__}>"
    return text if len(text) <= _REPR else f"{text[:_REPR]}…"


_RULES: list[tuple[type | tuple[type, ...], Callable[[Cleaner, Any], Any]]] = [
    (Enum, lambda c, v: c.clean(v.value)),
    (str, lambda c, v: c._text(str.__str__(v))),
    (int, lambda c, v: c._int(int.__int__(v))),
    (float, lambda c, v: c._float(float.__float__(v))),
    ((bytes, bytearray, memoryview), Cleaner._bytes),
    (datetime, Cleaner._datetime),
    ((date, time), lambda c, v: c._text(v.isoformat())),
    (timedelta, lambda c, v: c._text(to_jsonable_python(v))),
    ((Decimal, Fraction, UUID, PurePath), lambda c, v: c._text(str(v))),
    (complex, Cleaner._complex),
    (BaseException, Cleaner._exception),
    (dict, lambda c, v: c._mapping(dict.items(v))),
    (list, lambda c, v: c._sequence(list.__iter__(v), list.__len__(v))),
    (tuple, Cleaner._tuple),
    ((set, frozenset), Cleaner._set),
    ((deque, range), lambda c, v: c._sequence(v, len(v))),
]
