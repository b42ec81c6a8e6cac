"""`everyturn case import` and `export`."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everyturn.cli.case_options import (
    AnyTagOption,
    NotTagOption,
    OnDuplicate,
    OnDuplicateOption,
    SourceOption,
    TagOption,
    narrowing,
    split_tags,
)
from everyturn.cli.command import Session
from everyturn.cli.filters import EmbedderOption, JsonOption, SinceOption, UntilOption, embedder_named

if TYPE_CHECKING:
    from everyturn.cli.output import Output


async def import_cases(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL, CSV or TSV, or a dataset's bundle.")],
    tag: Annotated[list[str] | None, typer.Option("--tag", "-t", metavar="TAG", help="Tag every case.")] = None,
    source: SourceOption = None,
    on_duplicate: OnDuplicateOption = OnDuplicate.skip,
    embedder: EmbedderOption = None,
    json: JsonOption = False,
) -> None:
    """Import cases: all of a file, or none, with the numbers of the lines that are wrong.

    Columns: prompt (input, question), reference (expected, expected_output, answer), context (metadata), tags, source,
    id, captured_at, captured_by, turn_id; any other goes into the context. An empty cell and NaN are missing values.
    """
    async with session.database(embedder=embedder_named(embedder)) as db:
        done = await db.cases.import_file(file, on_duplicate=on_duplicate, tags=split_tags(tag), source=source)
    if done.duplicates:
        session.out.note(f"{done.duplicates} cases were there already.")
    if json:
        session.out.json(
            {"imported": done.imported, "duplicates": done.duplicates, "dataset": done.dataset and str(done.dataset)}
        )
    else:
        session.out.line(f"Imported {done.imported} cases{f' and {done.dataset}' if done.dataset else ''}.")


async def export_cases(
    session: Session,
    file: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: stdout.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Write CSV instead of JSONL.")] = False,
    tag: TagOption = None,
    any_tag: AnyTagOption = None,
    not_tag: NotTagOption = None,
    source: SourceOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
) -> None:
    """Export cases as JSONL or CSV, the oldest first; `import` reads both."""
    from everyturn.datasets.exporting import as_csv_lines, case_lines, write_file

    async with session.as_it_is() as db:
        found = case_lines(db, **narrowing(tag, any_tag, not_tag, source, since, until))
        if file is not None:
            await write_file(file, found, as_csv=csv or file.suffix.lower() == ".csv")
            session.out.note(f"Written: {file}")
            return
        await write_lines(session.out, as_csv_lines(found) if csv else found)


async def write_lines(out: Output, found: Any) -> None:
    """Write lines to stdout until its reader leaves."""
    async with aclosing(found) as lines:
        async for line in lines:
            out.write(line + "\n")
            if out.closed:
                break
