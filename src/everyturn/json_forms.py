"""The stored forms of values that JSON has no word for: how they are marked, read back and compared."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

MAX_DEPTH = 192
"""Levels of nesting that are kept; the fast parsers of JSON stop at 200."""

MAX_BYTES = 128 * 1024 * 1024
"""Bytes one value may take before it is refused; jsonb itself refuses a string or a container of 256 MiB."""

MAX_LENIENT_BYTES = 32 * 1024 * 1024
"""Bytes from which a value is clipped when it may not be refused: it still fits a row with other values."""

BIG_FLOAT = 1e16
"""From here on the shortest form of a float is not its value: jsonb would store another number."""

BIG_INT = 10**4300
"""From here on Python refuses to convert between int and decimal text."""


class Tag(dict[str, Any]):
    """An object that this module made: it goes through another cleaning as it is."""


def clean_text(text: str) -> str:
    """The text without what Postgres cannot hold: NUL and lone surrogates become U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def sort_text(cleaned: Any) -> str:
    """One text for all cleaned values that jsonb holds to be equal."""
    return json.dumps(_by_value(cleaned), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def exact_int(digits: str) -> int:
    """An int from decimal text of any length: `int` itself stops at 4,300 digits."""
    return int(digits) if len(digits) <= 4300 else int(Decimal(digits))


def _by_value(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_by_value(item) for item in value]
    if isinstance(value, dict):
        if len(value) == 1:
            ((tag, inner),) = value.items()
            if tag == "$literal" and isinstance(inner, dict):
                return {tag: {key: _by_value(item) for key, item in inner.items()}}
            if tag == "$map" and isinstance(inner, list):  # the order of pairs is not part of the value
                return {tag: sorted((_by_value(pair) for pair in inner), key=sort_text)}
        return {key: _by_value(item) for key, item in value.items()}
    return value


def untag(value: Any) -> Any:
    try:
        return _revert(value)
    except RecursionError:
        return value


def _revert(value: Any) -> Any:
    if isinstance(value, list):
        return [_revert(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, inner),) = value.items()
        reader = _READERS.get(tag)
        if reader is not None:
            try:
                return reader(inner)
            except (TypeError, ValueError, binascii.Error):  # not written by us: kept as it is
                pass
    return {key: _revert(item) for key, item in value.items()}


def _read_bytes(inner: Any) -> bytes:
    return base64.b64decode(inner.encode() if isinstance(inner, str) else inner, validate=True)


def _read_float(inner: Any) -> float:
    if inner not in ("NaN", "Infinity", "-Infinity"):
        raise ValueError(inner)
    return float(inner)


def _read_int(inner: Any) -> int:
    return int(inner, 16)


def _read_complex(inner: Any) -> complex:
    real, imaginary = (_revert(part) for part in inner)
    return complex(real, imaginary)


def _read_map(inner: Any) -> dict[Any, Any]:
    found = {_hashable(_revert(key)): _revert(item) for key, item in inner}
    if len(found) != len(inner):
        raise ValueError("two keys with one form")
    return found


def _read_literal(inner: Any) -> dict[str, Any]:
    if not isinstance(inner, dict):
        raise TypeError("not an object")
    return {key: _revert(item) for key, item in inner.items()}


def _hashable(key: Any) -> Any:
    return tuple(_hashable(part) for part in key) if isinstance(key, list) else key


_READERS: dict[str, Callable[[Any], Any]] = {
    "$bytes": _read_bytes,
    "$float": _read_float,
    "$int": _read_int,
    "$complex": _read_complex,
    "$map": _read_map,
    "$literal": _read_literal,
}

TAGS = frozenset(_READERS)
"""Keys that, alone in an object, mark a stored form."""
