"""How attributes, conditions on them and lifetimes are written on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from everyturn.cli.filters import readable
from everyturn.errors import InvalidValue

_CONDITION = re.compile(r"(?P<key>[^<>=]+?)(?P<operator><=|>=|=|<|>)(?P<value>.*)", re.DOTALL)
_LIFETIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_pairs(pairs: Sequence[str] | None) -> dict[str, Any] | None:
    """`KEY=VALUE` pairs; None where there are none. Raises InvalidValue."""
    found: dict[str, Any] = {}
    for pair in pairs or ():
        key, separator, value = readable(pair).partition("=")
        if not separator or not key:
            raise InvalidValue(f"--attribute {pair!r} is not KEY=VALUE.")
        found[key] = _value(value)
    return found or None


def parse_conditions(texts: Sequence[str] | None) -> dict[str, Any] | None:
    """Conditions as `recall` takes them; None where there are none. Raises InvalidValue."""
    found: dict[str, dict[str, Any]] = {}
    for text in map(readable, texts or ()):
        match = _CONDITION.fullmatch(text)
        if match:
            key, operator, operand = match["key"], match["operator"], _value(match["value"])
        else:
            key, operator, operand = text.removeprefix("!"), "exists", not text.startswith("!")
        if not key or re.search("[<>=]", key):
            raise InvalidValue(f"--where {text!r} is not a condition: KEY=VALUE, KEY<VALUE, KEY or !KEY.")
        if operator in found.setdefault(key, {}):
            raise InvalidValue(f"--where gives two conditions with {operator} for {key!r}.")
        found[key][operator] = operand
    return found or None


def parse_lifetime(text: str) -> timedelta:
    """`90s`, `30m`, `24h`, `7d`, `2w`."""
    match = _LIFETIME.fullmatch(text.strip().lower())
    try:
        if match:
            return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
    except OverflowError:
        pass
    raise InvalidValue(f"{text!r} is not a length of time, such as 30m, 24h, 7d or 2w.")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
