"""`everyturn memory`: what agents remember."""

from __future__ import annotations

import json as jsonlib
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import typer

from everyturn.cli.command import Session, command, noun
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
from everyturn.cli.memory_options import (
    AllScopesOption,
    AttributeOption,
    ConditionOption,
    ExpiresOption,
    Kind,
    KindArgument,
    OnDuplicate,
    ScopeOption,
    SubjectOption,
    TextArgument,
    TimeOption,
)
from everyturn.cli.memory_output import HITS, LISTED, as_row
from everyturn.cli.memory_text import parse_conditions, parse_pairs
from everyturn.cli.output import Output, Row
from everyturn.cli.paging import DEFAULT_LIMIT, pages
from everyturn.cli.times import parse_time
from everyturn.errors import InvalidValue

app = noun("Memory: what happened, what is true, how things are done.")

RECALL_LIMIT = 10


@command(app, "remember")
async def remember(
    session: Session,
    kind: KindArgument,
    text: TextArgument,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Procedural: the key; TEXT is its value, as JSON or else a string."),
    ] = None,
    subject: SubjectOption = None,
    attribute: AttributeOption = None,
    scope: ScopeOption = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Which agent's.", parser=readable)
    ] = None,
    at: TimeOption = None,
    expires_in: ExpiresOption = None,
    on_duplicate: Annotated[
        OnDuplicate,
        typer.Option("--on-duplicate", help="When something near enough is known: keep both, skip, or supersede it."),
    ] = OnDuplicate.keep,
    embedder: EmbedderOption = None,
    json: JsonOption = False,
) -> None:
    """Remember one thing; say what was near it."""
    said = text_argument(text)
    fields: dict[str, Any] = {"cache_key": readable(key) if key is not None else None}
    if kind is Kind.procedural:
        fields["value"] = _json_or_text(said)
    else:
        fields |= {"text": said, "attributes": parse_pairs(attribute), "occurred_at": at}
    async with session.database(embedder=embedder_named(embedder)) as db:
        done = await db.memory.remember(
            kind.value,
            subjects=subject,
            scope=scope,
            agent=agent,
            expires_at=expires_in,
            on_duplicate=on_duplicate.value,
            **fields,
        )
    _say(
        session.out,
        {"id": done.id, "action": done.action, "nearest": done.nearest, "similarity": done.similarity},
        json,
    )


@command(app, "recall")
async def recall(
    session: Session,
    kind: KindArgument,
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The question, or the key; - reads stdin. Without it the newest come."),
    ] = None,
    subject: SubjectOption = None,
    where: ConditionOption = None,
    scope: ScopeOption = None,
    all_scopes: AllScopesOption = False,
    agent: AgentOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    as_of: Annotated[
        datetime | None,
        typer.Option("--as-of", metavar="TIME", help="Semantic: what was true then.", parser=argument(parse_time)),
    ] = None,
    half_life: Annotated[
        float | None, typer.Option("--half-life", metavar="DAYS", help="Episodic: a score halves in so many days.")
    ] = None,
    embedder: EmbedderOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most N.")] = RECALL_LIMIT,
    json: JsonOption = False,
) -> None:
    """Find what answers a question, the best first, and show why: ranks by words and by vector, and what matched."""
    question = text_argument(text) if text is not None else None
    embedding = embedder_named(embedder) if question is not None and kind is not Kind.procedural else False
    async with session.as_it_is(embedder=embedding) as db:
        hits = await db.memory.recall(
            kind.value,
            question,
            subjects=subject,
            scope=_scope(scope, all_scopes),
            agent=agent,
            attributes=parse_conditions(where),
            since=since,
            until=until,
            as_of=as_of,
            half_life=half_life,
            limit=limit,
        )

    async def found() -> AsyncGenerator[list[Row]]:
        yield [as_row(hit) for hit in hits]

    await session.out.listing(
        HITS, found(), limit=None, json=json, document=lambda row: row["hit"].as_dict(), empty="Nothing is remembered."
    )


@command(app, "supersede")
async def supersede(
    session: Session,
    id: IdArgument,
    text: TextArgument,
    subject: SubjectOption = None,
    attribute: AttributeOption = None,
    scope: ScopeOption = None,
    at: TimeOption = None,
    expires_in: ExpiresOption = None,
    embedder: EmbedderOption = None,
    json: JsonOption = False,
) -> None:
    """Replace a fact by a new one; the old one is kept as history."""
    async with session.database(embedder=embedder_named(embedder)) as db:
        done = await db.memory.supersede(
            id,
            text=text_argument(text),
            subjects=subject,
            attributes=parse_pairs(attribute),
            scope=scope,
            occurred_at=at,
            expires_at=expires_in,
        )
    _say(session.out, {"id": done.id, "action": done.action, "supersedes": done.nearest}, json)


@command(app, "forget")
async def forget(
    session: Session,
    kind: KindArgument,
    id: Annotated[
        list[UUID] | None,
        typer.Option("--id", metavar="ID", help="This one. May be repeated.", parser=argument(parse_uuid)),
    ] = None,
    subject: SubjectOption = None,
    where: ConditionOption = None,
    scope: ScopeOption = None,
    all_scopes: AllScopesOption = False,
    agent: AgentOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    from_log: Annotated[
        bool, typer.Option("--from-log", help="Take the text out of the log too, wherever a turn quotes it.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove memories and their vectors, and log which. At least one filter must be given."""
    async with session.database(embedder=False) as db:
        with session.out.counting("Forgetting") as progress:
            gone = await db.memory.forget(
                kind.value,
                ids=id,
                subjects=subject,
                attributes=parse_conditions(where),
                scope=_scope(scope, all_scopes),
                agent=agent,
                since=since,
                until=until,
                from_log=from_log,
                progress=progress,
            )
    if json:
        session.out.json({"count": gone.count, "ids": gone.ids, "redacted_turns": gone.redacted_turns})
        return
    for one in gone.ids:
        session.out.line(str(one))
    erased = f", and {gone.redacted_turns} turns of the log redacted" if from_log else ""
    session.out.note(f"{gone.count} forgotten{erased}.")


@command(app, "list")
async def list_memories(
    session: Session,
    kind: Annotated[Kind | None, typer.Argument(help="Only of this kind.", show_default=False)] = None,
    subject: SubjectOption = None,
    scope: Annotated[
        str | None, typer.Option("--scope", metavar="NAME", help="Only in this scope.", parser=readable)
    ] = None,
    agent: AgentOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    history: Annotated[bool, typer.Option("--history", help="Superseded and expired ones too.")] = False,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    json: JsonOption = False,
) -> None:
    """List what is remembered, in every scope, the newest first."""
    from everyturn.memory.filters import as_text, subject_list

    rows = rows_wanted(limit, everything)
    filters = as_text({"subjects": subject_list(subject) or None, "since": since, "until": until})
    async with session.as_it_is() as db:
        await session.out.listing(
            LISTED,
            pages(db, "memories_listed", rows=rows, kind=kind, scope=scope, agent=agent, history=history, **filters),
            limit=rows,
            json=json,
            empty="Nothing is remembered.",
        )


@command(app, "rebuild")
async def rebuild(
    session: Session,
    scope: Annotated[
        str | None, typer.Option("--scope", metavar="NAME", help="Only this scope.", parser=readable)
    ] = None,
    agent: AgentOption = None,
    json: JsonOption = False,
) -> None:
    """Make the memory tables again from the log alone, without embedding. Rows that agree with it are left alone."""
    async with session.database(embedder=False) as db:
        with session.out.counting("Rebuilding") as progress:
            tables = await db.memory.rebuild(
                agent=agent, scope=scope, progress=lambda table: progress(f"{table.kind}: {table.written}")
            )
    if json:
        session.out.json([{"kind": one.kind, "removed": one.removed, "written": one.written} for one in tables])
        return
    for one in tables:
        session.out.line(f"{one.kind}\t{one.removed} removed\t{one.written} written")


def _scope(scope: str | None, all_scopes: bool) -> Any:
    from everyturn.memory import ALL

    if all_scopes and scope is not None:
        raise InvalidValue("--scope names one scope and --all-scopes means every one: give one of the two.")
    return ALL if all_scopes else scope


def _json_or_text(text: str) -> Any:
    try:
        return jsonlib.loads(text)
    except ValueError:
        return text


def _say(out: Output, facts: dict[str, Any], json: bool) -> None:
    if json:
        out.json(facts)
    else:
        out.fields({name: value for name, value in facts.items() if value is not None})
