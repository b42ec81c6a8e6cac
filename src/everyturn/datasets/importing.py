"""Cases out of files: JSONL, CSV, or a dataset's bundle.

An import is one transaction: a file with a wrong line stores nothing, and all wrong lines are named. The vectors are
made once the rows are stored, so that no transaction waits for an embedder; until then they are owed.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from everyturn.database_errors import translate
from everyturn.errors import InvalidValue
from everyturn.names import as_uuid

from .exporting import FORMAT
from .rows import WrongRow, csv_rows, json_rows, record_of
from .values import Dataset, Imported, aware, dataset_name

if TYPE_CHECKING:
    from everyturn.database import Database

_BATCH = 500
_MOST_ERRORS = 20


async def import_file(
    db: Database, path: str | os.PathLike[str], *, on_duplicate: str = "skip", **defaults: Any
) -> Imported:
    """See `Cases.import_file`."""
    file = Path(path)
    try:
        if file.suffix.lower() in (".csv", ".tsv"):
            with file.open(encoding="utf-8-sig", newline="") as text:  # noqa: ASYNC230
                rows = csv_rows(text, "\t" if file.suffix.lower() == ".tsv" else ",")
                return await _import(db, rows, "line", on_duplicate, defaults)
        with file.open("rb") as data:  # noqa: ASYNC230
            first = data.readline()
            header = _bundle_header(first)
            if header is not None:
                return await _import_bundle(db, header, json_rows(data, 2))
            data.seek(0)
            return await _import(db, json_rows(data, 1), "line", on_duplicate, defaults)
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{file} is not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except csv.Error as error:
        raise InvalidValue(f"{file} is not CSV: {error}.") from None


async def import_rows(
    db: Database, rows: Iterable[Mapping[str, Any]], *, on_duplicate: str = "skip", **defaults: Any
) -> Imported:
    """See `Cases.import_rows`."""
    return await _import(db, enumerate(rows, 1), "row", on_duplicate, defaults)


class _Importer:
    """Takes rows in batches; remembers what is wrong, and what came before."""

    def __init__(self, db: Database, unit: str, on_duplicate: str, defaults: Mapping[str, Any]) -> None:
        if on_duplicate not in ("store", "skip"):
            raise InvalidValue(f"on_duplicate={on_duplicate!r} is not one of store, skip.")
        self._db = db
        self._unit = unit
        self._skip = on_duplicate == "skip"
        self._defaults = defaults
        self._ids: dict[str, int] = {}
        self._hashes: set[str] = set()
        self.errors: list[str] = []
        self.imported = 0
        self.duplicates = 0
        self.ids: list[UUID] = []

    def read(self, number: int, row: Any) -> dict[str, Any] | None:
        try:
            record = record_of(self._db, row, self._defaults)
            first = self._ids.setdefault(record["id"], number)
            if first != number:
                raise WrongRow(f"has the id {record['id']} of {self._unit} {first}")
            return record
        except (ValueError, TypeError, RecursionError) as error:
            self.wrong(number, error)
            return None

    def wrong(self, number: int, error: BaseException | str) -> None:
        said = str(error).rstrip(".")
        said = said if isinstance(error, str | WrongRow) else f"is wrong: {said}"
        self.errors.append(f"{self._unit} {number} {said}")

    def check(self) -> None:
        if self.errors:
            more = f" … and {len(self.errors) - _MOST_ERRORS} more" if len(self.errors) > _MOST_ERRORS else ""
            said = "; ".join(self.errors[:_MOST_ERRORS])
            raise InvalidValue(f"Nothing was imported: {said}{more}.")

    async def store(self, batch: list[tuple[int, dict[str, Any]]]) -> None:
        rows = await self._db.query("content_hashes", records=json.dumps([record for _, record in batch]))
        known = set()
        if self._skip:
            found = await self._db.query("hashes_stored", hashes=[row["hash"] for row in rows])
            known = {row["content_hash"] for row in found}
        fresh = []
        for (number, record), row in zip(batch, rows, strict=True):
            if row["stored"] is not None and row["stored"] != row["hash"]:
                self.wrong(number, f"has the id of case {record['id']}, whose content is another; cases never change")
            elif row["stored"] is not None or (self._skip and row["hash"] in known | self._hashes):
                self.duplicates += 1
            else:
                self._hashes.add(row["hash"])
                fresh.append(record)
        if fresh and not self.errors:
            await self._db.cases.insert(fresh)
            self.imported += len(fresh)
            self.ids += [UUID(record["id"]) for record in fresh]


async def _import(
    db: Database, rows: Iterable[tuple[int, Any]], unit: str, on_duplicate: str, defaults: Mapping[str, Any]
) -> Imported:
    importer = _Importer(db, unit, on_duplicate, defaults)
    async with db.transaction():
        await _store_all(importer, rows)
    await _embed(db, importer.ids)
    return Imported(importer.imported, importer.duplicates, None, importer.ids)


async def _embed(db: Database, ids: Sequence[UUID]) -> None:
    """Make the vectors of cases that are stored."""
    if db.embedder is None:
        return
    for start in range(0, len(ids), _BATCH):
        part = list(ids[start : start + _BATCH])
        rows = await db.query("cases_without_vector", ids=part)
        vectors = await db.vectors.documents([row["prompt"] for row in rows])
        made = [
            {"id": str(row["id"]), "embedding": vector} for row, vector in zip(rows, vectors, strict=True) if vector
        ]
        await db.query("embed_cases", records=json.dumps(made), embedded_by=db.vectors.embedded_by)


async def _store_all(importer: _Importer, rows: Iterable[tuple[int, Any]]) -> None:
    """Store every row in the surrounding transaction; once all were read, raise InvalidValue with all that is wrong."""
    batch: list[tuple[int, dict[str, Any]]] = []
    for number, row in rows:
        record = importer.read(number, row)
        if record is not None:
            batch.append((number, record))
        if len(batch) == _BATCH:
            await importer.store(batch)
            batch = []
    if batch:
        await importer.store(batch)
    importer.check()


def _bundle_header(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("everyturn") == "dataset" else None


def _whole(header: dict[str, Any], field: str) -> int:
    value = header.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise _wrong_header(field, value)
    return value


def _wrong_header(field: str, value: Any) -> InvalidValue:
    return InvalidValue(f"Line 1 does not describe a dataset: its {field!r} is {value!r:.80}.")


async def _import_bundle(db: Database, header: dict[str, Any], rows: Iterator[tuple[int, Any]]) -> Imported:
    if header.get("format") != FORMAT:
        raise InvalidValue(
            f"The bundle has the format {header.get('format')!r:.80}; this version of everyturn reads {FORMAT}."
        )
    name, id = dataset_name(header.get("name")), as_uuid(header.get("id"), "id")
    version, count = _whole(header, "version"), _whole(header, "cases")
    notes = header.get("notes")
    if notes is not None and not isinstance(notes, str):
        raise _wrong_header("notes", notes)
    try:
        published_at = aware(datetime.fromisoformat(header.get("published_at") or ""))
    except (TypeError, ValueError):
        raise _wrong_header("published_at", header.get("published_at")) from None
    importer = _Importer(db, "line", "store", {})
    order: list[str] = []

    def read() -> Iterator[tuple[int, Any]]:
        for number, row in rows:
            if isinstance(row, dict) and "id" not in row:
                row = WrongRow("has no id, and the cases of a bundle have one")
            elif isinstance(row, dict):
                order.append(str(row["id"]))
            yield number, row

    async with db.transaction():
        await _store_all(importer, read())
        if len(order) != count:
            raise InvalidValue(f"The bundle describes {count} cases and holds {len(order)}: it was cut or edited.")
        existing = await db.query("dataset", name=name, version=version)
        if not existing:
            try:
                async with db.transaction():
                    await db.query(
                        "restore_dataset",
                        id=id,
                        name=name,
                        version=version,
                        case_ids="{" + ",".join(order) + "}",
                        notes=notes,
                        published_at=published_at,
                    )
            except psycopg.Error as error:
                raise translate(error) from error
        [row] = await db.query("dataset", name=name, version=version)
        if row["hash"] != header.get("hash") or row["id"] != id:
            raise InvalidValue(
                f"{name}@{version} here holds other cases than the bundle; nothing was imported."
                if existing
                else "The cases of the bundle do not have the hash it was exported with: it was edited, or a redaction "
                "rule masks a part of it. Nothing was imported."
            )
    await _embed(db, importer.ids)
    return Imported(importer.imported, importer.duplicates, Dataset(**row, created=not existing), importer.ids)
