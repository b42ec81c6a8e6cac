"""`everyturn dataset`: frozen sets of cases."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from everyturn.cli.case_files import import_cases, write_lines
from everyturn.cli.case_options import AnyTagOption, NotTagOption, SourceOption, TagOption, split_tags
from everyturn.cli.command import Session, command, noun
from everyturn.cli.exits import NOT_ENOUGH_DATA
from everyturn.cli.filters import (
    TIME_FORMS,
    AgentOption,
    AllOption,
    EmbedderOption,
    JsonOption,
    LimitOption,
    SinceOption,
    UntilOption,
    argument,
    embedder_named,
    readable,
    rows_wanted,
)
from everyturn.cli.output import Column, Row
from everyturn.cli.paging import DEFAULT_LIMIT, pages
from everyturn.cli.times import parse_time

app = noun("Datasets: cases frozen under a name and a version.")

DatasetArgument = Annotated[
    str, typer.Argument(metavar="NAME@VERSION", help="Without a version, the newest.", parser=readable)
]

COLUMNS = [
    Column("published_at"),
    Column("name"),
    Column("version", right=True),
    Column("cases", right=True),
    Column("replayed_at"),
    Column("id", only_piped=True),
    Column("notes", flexible=True),
]
REPLAYS = [
    Column("started_at"),
    Column("id", whole=True),
    Column("model"),
    Column("prompt_rev", lambda row: row["prompt_rev"][:12]),
    Column("status"),
    Column("done", lambda row: f"{row['done']}/{row['cases'] * row['trials']}", right=True),
    Column("passed", right=True),
    Column("errors", right=True),
]


@command(app, "publish")
async def publish(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", parser=readable)],
    tag: TagOption = None,
    any_tag: AnyTagOption = None,
    not_tag: NotTagOption = None,
    include_superseded: Annotated[
        bool, typer.Option("--include-superseded", help="Superseded cases too; otherwise they are left out.")
    ] = False,
    since: SinceOption = None,
    until: UntilOption = None,
    source: SourceOption = None,
    where_sql: Annotated[
        str | None, typer.Option("--where-sql", metavar="SQL", help="A condition on eval_case, as c.")
    ] = None,
    similar_to: Annotated[
        str | None,
        typer.Option("--similar-to", metavar="ID|TEXT", help="The cases nearest to a case or a text (50, or --limit)."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="At most N: the nearest, else the newest.")
    ] = None,
    notes: Annotated[str | None, typer.Option("--notes", metavar="TEXT", parser=readable)] = None,
    embedder: EmbedderOption = None,
    json: JsonOption = False,
) -> None:
    """Freeze the cases that match as the next version of a dataset, in the order of their capture.

    Where a version holds exactly these cases already, it is named instead.
    """
    async with session.database(embedder=embedder_named(embedder)) as db:
        dataset = await db.datasets.publish(
            name,
            tags=split_tags(tag),
            any_tags=split_tags(any_tag),
            not_tags=split_tags(not_tag),
            include_superseded=include_superseded,
            since=since,
            until=until,
            source=source,
            where_sql=where_sql,
            similar_to=similar_to,
            limit=limit,
            notes=notes,
        )
    if not dataset.created:
        session.out.note(f"{dataset} holds exactly these cases already.")
    if json:
        from everyturn.datasets.publish import summary

        session.out.json({**summary(dataset), "created": dataset.created})
    elif session.out.terminal:
        verb = "Published" if dataset.created else "Unchanged:"
        session.out.line(f"{verb} {dataset} with {len(dataset.case_ids)} cases.")
    else:
        session.out.line(str(dataset))


@command(app, "list")
async def list_datasets(
    session: Session,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only its versions.")] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    json: JsonOption = False,
) -> None:
    """List datasets, the newest first."""
    rows = rows_wanted(limit, everything)
    async with session.as_it_is() as db:
        await session.out.listing(
            COLUMNS,
            pages(db, "datasets_published", rows=rows, dataset=name),
            limit=rows,
            json=json,
            empty="No dataset is published; `everyturn dataset publish NAME` does it.",
        )


@command(app, "show")
async def show_dataset(session: Session, dataset: DatasetArgument, json: JsonOption = False) -> None:
    """Show a dataset: what it is, its replays and its cases."""
    from everyturn.cli.case import COLUMNS as CASES
    from everyturn.datasets.publish import summary

    out = session.out
    async with session.as_it_is() as db:
        found = await db.datasets.get(dataset)
        replays = await db.query("replays_of_dataset", dataset_id=found.id)
        cases = pages(db, "cases_of_dataset", rows=None, dataset_id=found.id)
        if json:
            await out.document_with({**summary(found), "replays": replays}, "cases", cases)
            return
        if out.terminal:
            out.fields(summary(found))
            if replays:
                out.line("\nReplays")
                await out.listing(REPLAYS, _page(replays), limit=None, json=False)
            out.line("\nCases")
        await out.listing(CASES, cases, limit=None, json=False)


async def _page(rows: Sequence[Row]) -> AsyncGenerator[Sequence[Row]]:
    yield rows


@command(app, "coverage")
async def coverage(
    session: Session,
    dataset: DatasetArgument,
    against: Annotated[
        datetime | None,
        typer.Option(
            "--against",
            metavar="TIME",
            help=f"List the real prompts since then that no case is near: {TIME_FORMS}.",
            parser=argument(parse_time),
        ),
    ] = None,
    agent: AgentOption = None,
    below: Annotated[
        float, typer.Option("--below", min=0, max=1, help="A prompt is covered by a case at least this similar.")
    ] = 0.75,
    limit: Annotated[int, typer.Option("--prompts", min=1, metavar="N", help="Look at the newest N prompts.")] = 500,
    json: JsonOption = False,
) -> int:
    """Count a dataset's cases by tag, or find what people ask that it does not cover."""
    async with session.as_it_is() as db:
        if against is None:
            rows = await db.datasets.coverage(dataset)
            columns = [Column("tag"), Column("cases", right=True), Column("share", _percent, right=True)]
            await session.out.listing(columns, _page(rows), limit=None, json=json)
            return 0
        rows = await db.datasets.uncovered(dataset, against, agent=agent, below=below, limit=limit)
        seen = await db.query("prompts_embedded_since", since=against)
    await session.out.listing(UNCOVERED, _page(rows), limit=None, json=json, empty="Every prompt has a case near it.")
    if not seen[0]["turns"]:
        session.out.warn(
            "No user turn since then has a vector to compare; `everyturn db reembed` makes those that are owed."
        )
        return NOT_ENOUGH_DATA
    return 0


UNCOVERED = [
    Column("similarity", lambda row: None if row["similarity"] is None else round(row["similarity"], 3), right=True),
    Column("turn_id", whole=True),
    Column("agent"),
    Column("times", right=True),
    Column("created_at", only_piped=True),
    Column("case_id", only_piped=True),
    Column("prompt", flexible=True),
]


def _percent(row: Row) -> Any:
    return f"{float(row['share']):.1%}"


@command(app, "export")
async def export_dataset(
    session: Session,
    dataset: DatasetArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: NAME@VERSION.jsonl here; - is stdout."),
    ] = None,
) -> None:
    """Write a dataset as a self-contained JSONL bundle; `import` restores it with the same ids and hash."""
    from everyturn.datasets.exporting import bundle
    from everyturn.datasets.exporting import export_dataset as export

    async with session.as_it_is() as db:
        found = await db.datasets.get(dataset)
        if str(output) == "-":
            await write_lines(session.out, bundle(db, found))
            return
        file = await export(db, found, output)
    session.out.note(f"Written: {file}")


command(app, "import")(import_cases)
