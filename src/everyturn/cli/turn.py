"""`everyturn turn`: the log, turn by turn."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everyturn.cli.command import Session, command, noun
from everyturn.cli.filters import (
    AgentOption,
    AllOption,
    ConversationOption,
    EmbedderOption,
    IdArgument,
    JsonOption,
    LimitOption,
    SinceOption,
    ToolOption,
    UntilOption,
    VerdictName,
    WhereOption,
    as_matching,
    embedder_named,
    parse_where,
    rows_wanted,
    text_argument,
)
from everyturn.cli.output import Column, Output, Row
from everyturn.cli.paging import DEFAULT_LIMIT, pages
from everyturn.cli.text import as_json, clip
from everyturn.errors import InvalidValue, TurnNotFound

if TYPE_CHECKING:
    from everyturn.evals import SimilarTurn
    from everyturn.turns import TurnHit

app = noun("Turns: what agents said and did.")

SUMMARY = 500
COLUMNS = [
    Column("created_at"),
    Column("id", whole=True),
    Column("conversation", only_piped=True),
    Column("agent"),
    Column("kind"),
    Column("tool"),
    Column("summary", flexible=True),
]
HITS = [Column("score", right=True), *COLUMNS]
ACCEPTED = [Column("similarity", right=True), Column("verdict"), *COLUMNS]
SEARCH_LIMIT = 10
_KEYS = ("id", "seq", "conversation", "agent", "kind", "payload", "created_at")


class Kind(StrEnum):
    user = "user"
    model = "model"
    tool_call = "tool_call"
    tool_result = "tool_result"
    error = "error"


KindOption = Annotated[Kind | None, typer.Option("--kind", help="Only of this kind.")]


@command(app, "list")
async def list_turns(
    session: Session,
    conversation: ConversationOption = None,
    agent: AgentOption = None,
    kind: KindOption = None,
    tool: ToolOption = None,
    where: WhereOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    oldest_first: Annotated[
        bool | None,
        typer.Option("--oldest-first/--newest-first", help="Order, by seq.", show_default=False),
    ] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    json: JsonOption = False,
) -> None:
    """List turns.

    The turns of one conversation come in the order of the log, all others newest first.
    """
    forward = oldest_first if oldest_first is not None else conversation is not None
    wanted = parse_where(where)
    filters = {
        "conversation": conversation,
        "agent": agent,
        "kind": kind,
        "tool": tool,
        # Apart, because there is an index on it.
        "repo": wanted.pop("repo", None),
        "matching": as_matching(wanted),
        "since": since,
        "until": until,
    }
    rows = rows_wanted(limit, everything)
    async with session.as_it_is() as db:
        await session.out.listing(
            COLUMNS,
            pages(db, "turns_matching", rows=rows, **filters, oldest_first=forward, clip=SUMMARY, whole=json),
            limit=rows,
            json=json,
            document=as_document,
            empty="No turns match.",
        )


class Mode(StrEnum):
    hybrid = "hybrid"
    lexical = "lexical"
    vector = "vector"


@command(app, "search")
async def search_turns(
    session: Session,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="What to look for; - reads stdin.", show_default=False)
    ] = None,
    similar: Annotated[
        str | None, typer.Option("--similar", metavar="TEXT", help="The same, by meaning only; - reads stdin.")
    ] = None,
    not_verdict: Annotated[
        VerdictName | None,
        typer.Option("--not-verdict", help="Leave out turns whose standing verdict is this; searches by meaning."),
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option("--mode", help="By words, by meaning, or both; without an embedder always by words."),
    ] = Mode.hybrid,
    conversation: ConversationOption = None,
    agent: AgentOption = None,
    kind: KindOption = None,
    tool: ToolOption = None,
    where: WhereOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    embedder: EmbedderOption = None,
    limit: LimitOption = SEARCH_LIMIT,
    json: JsonOption = False,
) -> None:
    """Find turns whose text is like this one, the best first.

    The standing verdict is the latest human one; where no human has spoken, the latest.
    """
    if (text is None) == (similar is None):
        raise InvalidValue("Say what to look for: TEXT, or --similar TEXT.")
    sought = text_argument(text if text is not None else similar or "")
    if not_verdict is not None:
        if conversation is not None or until is not None:
            raise InvalidValue("--not-verdict goes with --agent, --kind, --tool, --where and --since only.")
        async with session.as_it_is(embedder=embedder_named(embedder)) as db:
            accepted = await db.evals.similar(
                sought,
                agent=agent,
                kind=kind,
                tool=tool,
                where=parse_where(where),
                not_verdict=not_verdict,
                since=since,
                limit=limit,
            )
        await _show_accepted(session.out, accepted, json)
        return
    if similar is not None:
        mode = Mode.vector
    wanted = parse_where(where) | ({"toolName": tool} if tool is not None else {})
    async with session.as_it_is(embedder=False if mode is Mode.lexical else embedder_named(embedder)) as db:
        hits = await db.turns.search(
            sought,
            mode=mode,
            agent=agent,
            conversation=conversation,
            kind=kind,
            where=wanted,
            since=since,
            until=until,
            limit=limit,
        )

    async def found() -> AsyncGenerator[list[Row]]:
        yield [_hit(hit) for hit in hits]

    await session.out.listing(
        HITS, found(), limit=None, json=json, document=_hit_document, empty="No turn is like that."
    )


async def _show_accepted(out: Output, hits: list[SimilarTurn], json: bool) -> None:
    from everyturn.turns import turn_text

    async def found() -> AsyncGenerator[list[Row]]:
        yield [
            {
                "similarity": round(hit.similarity, 4),
                "verdict": hit.verdict,
                "tool": hit.turn.payload.get("toolName"),
                "summary": clip(turn_text(hit.turn.kind, hit.turn.payload) or "", SUMMARY),
                **{key: getattr(hit.turn, key) for key in _KEYS},
            }
            for hit in hits
        ]

    def document(row: Row) -> dict[str, Any]:
        return as_document(row) | {key: row[key] for key in ("similarity", "verdict")}

    await out.listing(ACCEPTED, found(), limit=None, json=json, document=document, empty="No turn is like that.")


def _hit(hit: TurnHit) -> Row:
    from everyturn.turns import turn_text

    turn = hit.turn
    return {
        "score": round(hit.score, 4),
        "similarity": None if hit.similarity is None else round(hit.similarity, 4),
        "lexical": round(hit.lexical, 4),
        "tool": turn.payload.get("toolName"),
        "summary": clip(turn_text(turn.kind, turn.payload) or "", SUMMARY),
        **{key: getattr(turn, key) for key in _KEYS},
    }


def _hit_document(row: Row) -> dict[str, Any]:
    return as_document(row) | {key: row[key] for key in ("score", "similarity", "lexical")}


@command(app, "show")
async def show_turn(session: Session, id: IdArgument, json: JsonOption = False) -> None:
    """Show one turn, whole, and how it was judged."""
    async with session.as_it_is() as db:
        found = await db.query("turn_with_verdicts", id=id)
        if not found:
            raise TurnNotFound(f"There is no turn {id}. `everyturn turn list` shows the ids of turns.")
        row = found[0]
        if json:
            session.out.json(as_document(row) | {"embedded_by": row["embedded_by"], "verdicts": row["verdicts"]})
        else:
            show(session.out, row)


def as_document(row: Row) -> dict[str, Any]:
    """A turn as JSON output has it: the columns of the table."""
    return {key: row[key] for key in _KEYS}


def show(out: Output, row: Row) -> None:
    fields = {key: row[key] for key in ("id", "conversation", "seq", "agent", "kind", "created_at", "embedded_by")}
    for key, value in row["payload"].items() if isinstance(row["payload"], dict) else [("payload", row["payload"])]:
        structured = isinstance(value, dict | list)
        fields[f"payload.{key}"] = as_json(value, indent=2 if out.terminal else None) if structured else value
    for verdict in row["verdicts"]:
        said = f"{verdict['verdict']}: {verdict['rationale']}" if verdict["rationale"] else verdict["verdict"]
        fields[f"verdict of {verdict['evaluator']} at {verdict['created_at']}"] = said
    out.fields(fields)
