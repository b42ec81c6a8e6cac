"""Text on its way out: safe for a terminal, exact in a tab-separated cell, valid as JSON."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from everyturn import jsonable

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
# Python writes no decimal longer than 4,300 digits.
_LONG_BITS = 14_000
_TSV = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def printable(text: str) -> str:
    """Text that is safe to send to a terminal; tabs and newlines are kept."""
    return _UNSAFE.sub(_escaped, text)


def one_line(text: str) -> str:
    """Text on one line, safe for a terminal: runs of white space become one space."""
    return printable(" ".join(text.split()))


def clip(text: str, width: int) -> str:
    """At most `width` characters; what is cut ends in an ellipsis."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value.bit_length() >= _LONG_BITS:
        return as_json(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(plain(value), ensure_ascii=False, default=_json_value)
    return str(value)


def as_cell(value: Any) -> str:
    """A value as one cell of tab-separated output."""
    text = value.isoformat() if isinstance(value, (datetime, date)) else shown(value)
    return printable(text.translate(_TSV))


def as_json(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """JSON text that is safe for a terminal and reads back to the same value.

    What JSON has no form for (NaN, bytes, keys that are no text) is written as it is stored: `{"$float": "NaN"}`.
    """
    text = json.dumps(plain(value), ensure_ascii=ascii_only, indent=indent, default=_json_value)
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def plain(value: Any) -> Any:
    """A value with the parts that JSON has no form for as they are stored."""
    if isinstance(value, dict):
        if any(type(key) is not str for key in value) or (len(value) == 1 and next(iter(value)).startswith("$")):
            return jsonable.clean_lenient(value)
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, int):
        return value if value.bit_length() < _LONG_BITS else jsonable.clean_lenient(value)
    if isinstance(value, (bytes, complex)) or (isinstance(value, float) and not math.isfinite(value)):
        return jsonable.clean_lenient(value)
    return value


def _json_value(value: Any) -> Any:
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)
