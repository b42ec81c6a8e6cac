"""`everyturn case`: captured interactions, in and out of the database."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from everyturn.cli.case_files import export_cases, import_cases
from everyturn.cli.case_options import (
    AnyTagOption,
    NotTagOption,
    OnDuplicate,
    OnDuplicateOption,
    ReferenceOption,
    SourceOption,
    TagOption,
    narrowing,
    split_tags,
)
from everyturn.cli.command import Session, command, noun
from everyturn.cli.exits import NOT_ENOUGH_DATA
from everyturn.cli.filters import (
    AgentOption,
    AllOption,
    EmbedderOption,
    IdArgument,
    JsonOption,
    LimitOption,
    SinceOption,
    UntilOption,
    argument,
    embedder_named,
    parse_uuid,
    readable,
    rows_wanted,
    text_argument,
)
from everyturn.cli.output import Column, Row
from everyturn.cli.paging import DEFAULT_LIMIT, pages
from everyturn.errors import InvalidValue

if TYPE_CHECKING:
    from everyturn.cli.output import Output
    from everyturn.datasets.values import Captured, Case

app = noun("Eval cases: interactions worth answering again.")

COLUMNS = [
    Column("captured_at"),
    Column("id", whole=True),
    Column("source"),
    Column("tags", lambda row: ",".join(row["tags"])),
    Column("captured_by", only_piped=True),
    Column("reference", only_piped=True),
    Column("turn_id", only_piped=True),
    Column("prompt", flexible=True),
]


@command(app, "capture")
async def capture(
    session: Session,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", metavar="TEXT", parser=readable)] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the prompt from stdin.")] = False,
    file: Annotated[Path | None, typer.Option("--file", help="Read the prompt from a file.")] = None,
    turn: Annotated[
        UUID | None,
        typer.Option("--turn", metavar="ID", help="The run of this turn.", parser=argument(parse_uuid)),
    ] = None,
    conversation: Annotated[
        UUID | None,
        typer.Option(
            "--conversation", metavar="ID", help="The last run of this conversation.", parser=argument(parse_uuid)
        ),
    ] = None,
    from_evals: Annotated[
        str | None,
        typer.Option(
            "--from-evals", metavar="VERDICT", help="The runs whose turns got this verdict: bad, partial, good."
        ),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    agent: AgentOption = None,
    evaluator: Annotated[str | None, typer.Option("--evaluator", metavar="NAME", help="Only its verdicts.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", "-t", metavar="TAG", help="Tag the case; repeat it, or use commas.")
    ] = None,
    reference: ReferenceOption = None,
    source: SourceOption = None,
    context: Annotated[
        str | None, typer.Option("--context", metavar="JSON", help="A JSON object to keep with the case.")
    ] = None,
    instructions: Annotated[
        Path | None,
        typer.Option("--instructions", metavar="FILE", help="The system prompt the captured run was made under."),
    ] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who captures it. Default: this user.")] = None,
    on_duplicate: OnDuplicateOption = OnDuplicate.store,
    embedder: EmbedderOption = None,
    json: JsonOption = False,
) -> int:
    """Capture a case: from a prompt, the run of a turn, a conversation, or verdicts.

    A run is captured with its history and the recorded results of its calls, so that it can be replayed.
    Exact and near duplicates are said on stderr.
    """
    given = [prompt is not None, stdin, file is not None, turn is not None, conversation is not None, bool(from_evals)]
    if sum(given) != 1:
        raise typer.BadParameter("Give one of --prompt, --stdin, --file, --turn, --conversation and --from-evals.")
    if stdin:
        prompt = sys.stdin.read()
    elif file is not None:
        prompt = file.read_text(encoding="utf-8", errors="replace")
    from everyturn.datasets.plan import read_prompt

    async with session.database(embedder=embedder_named(embedder)) as db:
        if from_evals is not None:
            found = await db.cases.capture_evals(
                from_evals,
                since=since,
                until=until,
                agent=agent,
                evaluator=evaluator,
                tags=split_tags(tag),
                source=source or "production",
                captured_by=by,
            )
        else:
            found = [
                await db.cases.capture(
                    prompt,
                    turn=turn,
                    conversation=conversation,
                    context=_json_object(context),
                    reference=reference,
                    tags=split_tags(tag),
                    source=source,
                    captured_by=by,
                    instructions=None if instructions is None else read_prompt(instructions),
                    on_duplicate=on_duplicate,
                )
            ]
    for case in found:
        _warn(session.out, case)
    rows = [as_row(case) for case in found]
    if json:
        session.out.json(rows if from_evals is not None else rows[0])
    elif session.out.terminal:
        for row in rows:
            session.out.line(f"{'Captured' if row['stored'] else 'Already there:'} {row['id']}")
    else:
        for row in rows:
            session.out.line(str(row["id"]))
    if not found:
        session.out.warn(f"No turn got the verdict {from_evals} that is not a case yet.")
        return NOT_ENOUGH_DATA
    return 0


def _json_object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = jsonlib.loads(text)
    except ValueError as error:
        raise InvalidValue(f"--context is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise InvalidValue("--context is not a JSON object.")
    return found


def _warn(out: Output, case: Captured) -> None:
    from everyturn.datasets.storing import NEAR

    if not case.stored:
        out.note(f"Not stored again: case {case.id} has exactly this content.")
    elif case.duplicates:
        out.note(f"Case {case.duplicates[0]} has exactly this content.")
    elif case.nearest is not None and case.similarity is not None and case.similarity >= NEAR:
        out.note(f"Case {case.nearest} is nearly the same (similarity {case.similarity:.2f}).")


def as_row(case: Case) -> dict[str, Any]:
    return {field.name: getattr(case, field.name) for field in fields(case)}


@command(app, "list")
async def list_cases(
    session: Session,
    tag: TagOption = None,
    any_tag: AnyTagOption = None,
    not_tag: NotTagOption = None,
    source: SourceOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    json: JsonOption = False,
) -> None:
    """List cases, the newest first."""
    rows = rows_wanted(limit, everything)
    async with session.as_it_is() as db:
        await session.out.listing(
            COLUMNS,
            pages(db, "cases_matching", rows=rows, **narrowing(tag, any_tag, not_tag, source, since, until)),
            limit=rows,
            json=json,
            empty="No cases match.",
        )


@command(app, "show")
async def show_case(session: Session, id: IdArgument, json: JsonOption = False) -> None:
    """Show a case: its prompt, context and reference."""
    async with session.as_it_is() as db:
        row = asdict(await db.cases.get(id))
    if json:
        session.out.json(row)
        return
    session.out.fields(row | {"tags": ",".join(row["tags"])})


@command(app, "similar")
async def similar_cases(
    session: Session,
    to: Annotated[str, typer.Argument(metavar="ID|TEXT", help="A case, or a text; - reads it from stdin.")],
    tag: TagOption = None,
    not_tag: NotTagOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N")] = 10,
    embedder: EmbedderOption = None,
    json: JsonOption = False,
) -> None:
    """Find the cases most like one that just broke, or like a text."""
    columns = [Column("similarity", lambda row: _rounded(row["similarity"]), right=True), *COLUMNS[1:]]
    async with session.as_it_is(embedder=embedder_named(embedder)) as db:
        found = await db.cases.similar(
            text_argument(to), tags=split_tags(tag) or None, not_tags=split_tags(not_tag) or None, limit=limit
        )

        async def rows() -> AsyncGenerator[Sequence[Row]]:
            yield [asdict(case) for case in found]

        await session.out.listing(columns, rows(), limit=None, json=json, empty="No case is like it.")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


@command(app, "tag")
async def tag_case(
    session: Session,
    ids: Annotated[list[UUID], typer.Argument(metavar="ID...", parser=argument(parse_uuid), show_default=False)],
    add: Annotated[
        list[str] | None, typer.Option("--add", "-a", metavar="TAG", help="Add; repeat it, or commas.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", "-r", metavar="TAG", help="Take away; repeat it, or commas.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Add tags to cases, or take them away; nothing else of a case ever changes."""
    if not add and not remove:
        raise typer.BadParameter("Give --add or --remove.")
    async with session.database(embedder=False) as db:
        cases = await db.cases.tag(ids, add=split_tags(add), remove=split_tags(remove))
    _show_tags(session.out, cases, json)


def _show_tags(out: Output, cases: Sequence[Case], json: bool) -> None:
    if json:
        out.json([as_row(case) for case in cases])
        return
    for case in cases:
        out.line(f"{case.id}\t{','.join(case.tags)}")


@command(app, "supersede")
async def supersede_case(
    session: Session,
    old: Annotated[UUID, typer.Argument(metavar="OLD", parser=argument(parse_uuid), show_default=False)],
    new: Annotated[UUID, typer.Argument(metavar="NEW", parser=argument(parse_uuid), show_default=False)],
    json: JsonOption = False,
) -> None:
    """Tag a case superseded by another; the next version of a dataset leaves it out."""
    async with session.database(embedder=False) as db:
        case = await db.cases.supersede(old, new)
    _show_tags(session.out, [case], json)


command(app, "import")(import_cases)
command(app, "export")(export_cases)
