"""Rows of a file as cases: the names of columns, what counts as missing, and what is wrong with a row."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from everyturn import jsonable
from everyturn.errors import InvalidValue
from everyturn.names import as_uuid

from .values import aware

if TYPE_CHECKING:
    from everyturn.database import Database

_ALIASES = {
    "input": "prompt",
    "question": "prompt",
    "expected": "reference",
    "expected_output": "reference",
    "answer": "reference",
    "metadata": "context",
}
COLUMNS = ("id", "prompt", "reference", "context", "tags", "source", "captured_at", "captured_by", "turn_id")
_IGNORED = ("content_hash", "embedding", "embedded_by")
_CSV_MISSING = ("", "nan", "NaN")


class WrongRow(InvalidValue):
    """Lines of a file that cannot be imported."""


def json_rows(data: io.BufferedReader, start: int) -> Iterator[tuple[int, Any]]:
    # Only \n ends a line: a JSON string may hold U+2028 and U+0085.
    for number, line in enumerate(iter(data.readline, b""), start):
        text = line.strip(b" \t\r\n\xef\xbb\xbf") if number == 1 else line.strip()
        if not text:
            continue
        try:
            yield number, json.loads(text)
        except json.JSONDecodeError as error:
            yield number, WrongRow(f"is not JSON: {error.msg} at character {error.pos + 1}")
        except (ValueError, RecursionError) as error:
            yield number, WrongRow(f"is not JSON: {error}")


def csv_rows(text: io.TextIOWrapper, delimiter: str) -> Iterator[tuple[int, Any]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    names = next(reader, None)
    if not names:
        raise InvalidValue("The file is empty: its first line must name the columns, such as prompt,reference,tags.")
    names = [name.strip() for name in names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidValue(f"Line 1 names the column {twice!r} twice.")
    start = reader.line_num + 1
    for values in _rows(reader, start):
        number, start = start, reader.line_num + 1
        if not values:
            continue
        if len(values) != len(names):
            yield number, WrongRow(f"has {len(values)} fields where the header has {len(names)}")
            continue
        row: dict[str, Any] = {
            name: value for name, value in zip(names, values, strict=True) if value not in _CSV_MISSING
        }
        for name in ("context", "metadata"):
            if name in row:
                try:
                    row[name] = json.loads(row[name])
                except (ValueError, RecursionError) as error:
                    row[name] = WrongRow(f"has a {name} that is not JSON: {error}")
        wrong = next((value for value in row.values() if isinstance(value, WrongRow)), None)
        yield number, row if wrong is None else wrong


def _rows(reader: Any, line: int) -> Iterator[list[str]]:
    """The rows of a CSV reader; where it cannot go on, the line on which the row begins is told."""
    while True:
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise csv.Error(f"line {line}: {error}") from None
        yield values
        line = reader.line_num + 1


def _without_nan(value: Any) -> Any:
    """The value with NaN read as missing: table tools write it for an empty cell."""
    if isinstance(value, Mapping):
        cleaned = {key: _without_nan(inner) for key, inner in value.items()}
        return {key: inner for key, inner in cleaned.items() if inner is not None or value[key] is None}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    # NaT and NA of pandas, and NaN of numpy, are not equal to themselves, or cannot say.
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return value


def _fields(row: Any) -> dict[str, Any]:
    """The columns of a case from a row; what is no column becomes part of the context."""
    if isinstance(row, WrongRow):
        raise row
    if not isinstance(row, Mapping):
        raise WrongRow(f"is a JSON {type(row).__name__}, not an object")
    fields: dict[str, Any] = {}
    context: dict[str, Any] = {}
    if "content_hash" in row and isinstance(row.get("context"), Mapping):
        # A line that was exported: bytes and the like in it are written as they are stored.
        row = {**row, "context": jsonable.loads(row["context"])}
    for key, value in _without_nan(row).items():
        name = _ALIASES.get(str(key).lower(), str(key))
        if value is None or name in _IGNORED:
            continue
        if name not in COLUMNS:
            context[name] = value
        elif name in fields:
            raise WrongRow(f"names {name} twice ({key!r} is read as {name})")
        else:
            fields[name] = value
    given = fields.get("context", {})
    if not isinstance(given, Mapping):
        raise WrongRow("has a context that is not a JSON object")
    if context or given:
        fields["context"] = {**context, **given}
    return fields


def record_of(db: Database, row: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    fields = _fields(row)
    if "prompt" not in fields:
        raise WrongRow("has no prompt")
    reference = fields.get("reference")
    if reference is not None and not isinstance(reference, str):
        reference = json.dumps(reference, ensure_ascii=False)
    tags = fields.get("tags", [])
    if isinstance(tags, str):
        tags = json.loads(tags) if tags.startswith("[") else [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not isinstance(tags, list):
        raise WrongRow("has tags that are neither a list nor text")
    moment = fields.get("captured_at")
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    return db.cases.record(
        prompt=fields["prompt"],
        context=fields.get("context"),
        reference=reference,
        tags=[*tags, *defaults.get("tags", ())],
        source=fields.get("source") or defaults.get("source") or "handcrafted",
        captured_by=fields.get("captured_by") or defaults.get("captured_by"),
        turn_id=as_uuid(fields["turn_id"], "turn_id") if "turn_id" in fields else None,
        captured_at=aware(moment),
        id=as_uuid(fields["id"], "id") if "id" in fields else None,
    )
