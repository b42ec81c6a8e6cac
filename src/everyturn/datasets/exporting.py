"""Cases into files: JSONL and CSV, and a dataset as one self-contained bundle.

A bundle is JSONL: a line that describes the dataset, then its cases in order. Restored elsewhere it has the same ids
and the same hash.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everyturn import sqlfiles

from .cases import filters
from .rows import COLUMNS
from .values import Dataset, dataset_name

if TYPE_CHECKING:
    from everyturn.database import Database

FORMAT = 1
_PAGE = 500


async def lines(db: Database, query: str, **params: Any) -> AsyncIterator[str]:
    """The lines of an export, read with a cursor: memory stays flat."""
    values = dict.fromkeys(sqlfiles.parameters(query)) | params
    async with db.transaction() as conn, conn.cursor(name="everyturn_export") as cursor:
        await cursor.execute(sqlfiles.query(query), values)
        while page := await cursor.fetchmany(_PAGE):
            for row in page:
                yield row["line"]


async def bundle(db: Database, dataset: Dataset) -> AsyncIterator[str]:
    """The lines of a dataset's bundle."""
    yield json.dumps(
        {
            "everyturn": "dataset",
            "format": FORMAT,
            "id": str(dataset.id),
            "name": dataset.name,
            "version": dataset.version,
            "notes": dataset.notes,
            "published_at": dataset.published_at.isoformat(),
            "cases": len(dataset.case_ids),
            "hash": dataset.hash,
        },
        ensure_ascii=False,
    )
    async with aclosing(lines(db, "cases_as_lines", dataset_id=dataset.id)) as found:  # type: ignore[type-var]
        async for line in found:
            yield line


async def export_dataset(db: Database, dataset: Dataset, path: str | os.PathLike[str] | None = None) -> Path:
    """Write a bundle to `path`, by default NAME@VERSION.jsonl in the current directory; the file is whole or absent."""
    file = Path(path) if path is not None else Path(f"{dataset_name(dataset.name)}@{dataset.version}.jsonl")
    return await write_file(file, bundle(db, dataset))


async def export_cases(db: Database, path: str | os.PathLike[str], **narrowing: Any) -> Path:
    """Write the cases that match as JSONL, or as CSV where the name ends so; the same filters as `Cases.list`."""
    return await write_file(Path(path), case_lines(db, **narrowing), as_csv=str(path).lower().endswith(".csv"))


def case_lines(
    db: Database,
    *,
    tags: Iterable[str] | None = None,
    any_tags: Iterable[str] | None = None,
    not_tags: Iterable[str] | None = None,
    **others: Any,
) -> AsyncIterator[str]:
    """The JSON lines of the cases that match, the oldest first."""
    return lines(db, "cases_as_lines", **filters(tags, any_tags, not_tags), **others)


async def as_csv_lines(found: AsyncIterator[str]) -> AsyncIterator[str]:
    """JSON lines of cases as lines of CSV; contexts are JSON, tags a JSON list."""
    names = (*COLUMNS, "content_hash")
    yield _csv_line(names)
    async for line in found:
        row = json.loads(line)
        cells = [row[name] for name in names]
        yield _csv_line(
            json.dumps(cell, ensure_ascii=False) if isinstance(cell, dict | list) else cell for cell in cells
        )


def _csv_line(cells: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


async def write_file(file: Path, found: AsyncIterator[str], *, as_csv: bool = False) -> Path:
    partial = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as out:
            async for line in as_csv_lines(found) if as_csv else found:
                out.write(line + "\n")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return file
