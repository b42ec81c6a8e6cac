"""Any Python value → JSON that Postgres can hold. Every write path goes through here.

`dumps` writes the JSON text of a value, `loads` reads it back, `clean` gives what `dumps` would store as
Python objects. A value is kept, or it is refused by path (`InvalidValue`) before anything is written.
`dumps_lenient` and `clean_lenient` never refuse: a placeholder takes the place of what cannot be kept. They
are for values that must not stop a run, such as what a tool returned.

===============================  ===========================================  ===========================
Python                           stored                                       `loads` gives
===============================  ===========================================  ===========================
None, bool, str, list, dict      themselves                                   the same
int                              number; past 4,300 digits `{"$int": "0x…"}`  the same
float                            number; from 1e16 with all its digits        an equal number (see below)
NaN, Infinity, -Infinity         `{"$float": "NaN"}`                          the same
complex                          `{"$complex": [re, im]}`                     the same
bytes, bytearray, memoryview     `{"$bytes": "<base64>"}`                     bytes
datetime                         ISO 8601 with offset; naive is read as UTC   text
date, time, timedelta            ISO 8601                                     text
Decimal, Fraction, UUID, Path    the text their constructor takes             text
IP address, URL, pattern         text                                         text
Enum                             its value                                    its value
tuple, deque, range              list                                         list
set, frozenset, views of dicts   list; sets in a fixed order                  list
NamedTuple, dataclass, attrs     object, by field name                        dict
pydantic model                   object, by `model_dump()`                    dict
Exception                        `{"name": …, "message": …}`                  dict
NumPy array, NumPy scalar        list, number                                 list, number
pandas NA, NaT                   null                                         None
key that is str, or stored as    that text                                    text
text (UUID, date, Enum of text)
any other key (1, None, (1, 2))  `{"$map": [[key, value], …]}`                a dict with those keys
two keys stored as the same      refused; lenient: `$map`                     the `$map` object
dict that looks like a tag       `{"$literal": {…}}`                          the same
NUL, lone surrogate in text      U+FFFD                                       text
container inside itself          `{"$omitted": "…"}`                          dict
deeper than 192 levels           `{"$omitted": "…"}`                          dict
past 128 MiB in one value        refused; lenient: from 32 MiB clipped        what was kept
anything else                    refused; lenient: `{"$object": {type, repr}} dict
===============================  ===========================================  ===========================

jsonb keeps the value of a number, not its Python type: 1e22 comes back as an int, -0.0 as 0.0. It also
reorders the keys of an object: what a model must see in order is not read back from a table, and values are
compared and hashed by `canonical`, which ignores the order of keys and takes 1.0 and 1 as equal.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from everyturn.errors import InvalidValue
from everyturn.json_cleaner import Cleaner
from everyturn.json_forms import (
    BIG_FLOAT,
    BIG_INT,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_LENIENT_BYTES,
    clean_text,
    exact_int,
    sort_text,
    untag,
)

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_LENIENT_BYTES",
    "canonical",
    "clean",
    "clean_lenient",
    "clean_text",
    "dumps",
    "dumps_lenient",
    "loads",
]

_FAST_SIZE = 4 * 1024 * 1024
"""Characters and nodes up to which a value may take the fast path, which does not measure exactly."""


def dumps(value: Any, *, name: str = "value") -> str:
    """JSON text. `InvalidValue` names the part that cannot be kept, as a path below `name`."""
    text = _fast(value)
    return _slow(value, True, name) if text is None else text


def dumps_lenient(value: Any, *, name: str = "value") -> str:
    """JSON text, with placeholders for what cannot be kept. Never raises for what the value is."""
    text = _fast(value)
    return _slow(value, False, name) if text is None else text


def clean(value: Any, *, name: str = "value") -> Any:
    """What `dumps` would store, as a Python value that shares nothing mutable with the original.

    It may be put into a bigger value and dumped: tags in it are recognised and not escaped again.
    """
    return _clean(value, True, name)


def clean_lenient(value: Any, *, name: str = "value") -> Any:
    """What `dumps_lenient` would store, as a Python value; see `clean`."""
    return _clean(value, False, name)


def loads(stored: str | bytes | Any) -> Any:
    """The Python value of stored JSON: a JSON text, or an object that a driver has parsed already."""
    if isinstance(stored, str):
        return untag(_parse(stored)) if '{"$' in stored else _parse(stored)
    if isinstance(stored, bytes | bytearray):
        return untag(_parse(stored)) if b'{"$' in stored else _parse(stored)
    return untag(stored)


def canonical(value: Any) -> str:
    """One text for all values that are equal once stored: for hashing and comparing."""
    return sort_text(clean_lenient(value))


def _fast(value: Any) -> str | None:
    """The JSON text when every part is plain JSON already, else None."""
    if not _is_plain(value):
        return None
    try:
        out: bytes = to_json(value)
    except (PydanticSerializationError, RuntimeError):  # surrogates, or changed by another thread meanwhile
        return None
    # A NUL is escaped in JSON, a tag is an object whose first key begins with $.
    if b"\\u0000" in out or b'{"$' in out:
        return None
    return out.decode()


def _is_plain(value: Any) -> bool:
    """Whether `to_json` keeps the value as it is: it stringifies keys, and merges 1 with "1", without a word.

    Level by level, so that neither depth nor a cycle can exhaust the stack.
    """
    level = [value]
    size = 0
    try:
        for _ in range(MAX_DEPTH):
            below: list[Any] = []
            for item in level:
                kind = type(item)
                if kind is str:
                    size += len(item)
                elif kind is int:
                    if not -BIG_FLOAT < item < BIG_FLOAT and not -BIG_INT < item < BIG_INT:
                        return False
                elif kind is dict:
                    for key in item:
                        if type(key) is not str:
                            return False
                        size += len(key)
                    below.extend(item.values())
                elif kind is list:
                    below.extend(item)
                elif kind is float:
                    if not -BIG_FLOAT < item < BIG_FLOAT:
                        return False
                elif item is not None and kind is not bool:
                    return False
            size += len(below)
            if size > _FAST_SIZE:
                return False
            if not below:
                return True
            level = below
    except RuntimeError:  # another thread changed a dict under the walk
        return False
    return False


def _clean(value: Any, strict: bool, name: str) -> Any:
    text = _fast(value)
    return _careful(value, strict, name) if text is None else _parse(text)


def _slow(value: Any, strict: bool, name: str) -> str:
    out: bytes = to_json(_careful(value, strict, name))
    return out.decode()


def _careful(value: Any, strict: bool, name: str) -> Any:
    try:
        return Cleaner(strict, name).clean(value)
    except RecursionError:  # the caller has used up the stack; a thread has its own
        pass
    done: list[Any] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(Cleaner(strict, name, fresh_stack=True).clean(value))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="everyturn-jsonable")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def _parse(text: str | bytes | bytearray) -> Any:
    try:
        return from_json(text, cache_strings="keys")
    except ValueError:
        pass
    # Rows of other programs may be deeper, or hold longer numbers, than the fast parser takes.
    try:
        return json.loads(text, parse_int=exact_int)
    except RecursionError:
        return {"$omitted": "JSON nested too deep to be read"}
    except ValueError as error:
        raise InvalidValue(f"This is not JSON: {error}.") from None
