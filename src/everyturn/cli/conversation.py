"""`everyturn conversation`: how conversations ended, and going on with those that crashed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from everyturn.cli.command import Session, command, noun
from everyturn.cli.exits import OK, OPERATIONAL, sentence
from everyturn.cli.filters import (
    AgentOption,
    AllOption,
    EmbedderOption,
    IdArgument,
    JsonOption,
    LimitOption,
    argument,
    embedder_named,
    parse_uuid,
    rows_wanted,
)
from everyturn.cli.objects import load_object
from everyturn.cli.output import Column, Output, Row
from everyturn.cli.paging import DEFAULT_LIMIT, pages
from everyturn.cli.resume import crashed, load_agent, resume_one
from everyturn.cli.text import as_cell, clip, one_line
from everyturn.cli.turn import as_document
from everyturn.errors import ConversationConflict, ConversationNotFound

if TYPE_CHECKING:
    from everyturn.database import Database

app = noun("Conversations: how they ended, and going on with those that crashed.")

COLUMNS = [
    Column("updated_at"),
    Column("id", whole=True),
    Column("agent"),
    Column("status"),
    Column("turns", right=True),
    Column("started_at", only_piped=True),
    Column("run_id", only_piped=True),
    Column("prompt", flexible=True),
]
_TEXT = 4000
_CLIP = 300


class Status(StrEnum):
    finished = "finished"
    failed = "failed"
    running = "running"
    crashed = "crashed"
    recorded = "recorded"


StatusOption = Annotated[
    Status | None,
    typer.Option(
        "--status",
        help="crashed: no ending, and no live process holds it; running: one does; "
        "failed: an error ended it; recorded: turns that no run wrote.",
    ),
]


@command(app, "list")
async def list_conversations(
    session: Session,
    status: StatusOption = None,
    agent: AgentOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    json: JsonOption = False,
) -> None:
    """List conversations, the last written to first."""
    async with session.as_it_is() as db:
        rows = rows_wanted(limit, everything)
        await session.out.listing(
            COLUMNS,
            pages(db, "conversations_by_status", rows=rows, status=status, agent=agent),
            limit=rows,
            json=json,
            document=without_position,
            empty="No conversations match.",
        )


def without_position(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "last_seq"}


async def find(db: Database, id: UUID) -> Row:
    """One conversation with its status. Raises ConversationNotFound."""
    found = await db.query("conversations_by_status", conversation=id, limit=1)
    if not found:
        raise ConversationNotFound(
            f"No turn of conversation {id} is in the log. `everyturn conversation list` shows what is."
        )
    return found[0]


RESUMED = [
    Column("conversation", whole=True),
    Column("result"),
    Column("turns", right=True),
    Column("run_id", only_piped=True),
    Column("output", flexible=True),
]


@command(app, "resume")
async def resume(
    session: Session,
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            metavar="python:MODULE:NAME",
            help="The agent, or a function that takes the database and returns it; also python:FILE.py:NAME.",
            show_default=False,
        ),
    ],
    id: Annotated[UUID | None, typer.Argument(metavar="ID", parser=argument(parse_uuid), show_default=False)] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Every crashed conversation of the agent, the last written to first."),
    ] = False,
    deps: Annotated[
        str | None, typer.Option("--deps", metavar="python:MODULE:NAME", help="What tools get as deps.")
    ] = None,
    embedder: EmbedderOption = None,
    json: JsonOption = False,
) -> int:
    """Go on with a conversation that a crash left without an ending, or with all of them.

    A conversation that cannot be resumed does not stop the others; the exit code is then 4.
    """
    if (id is None) == (not everything):
        raise typer.BadParameter("Give the ID of one conversation, or --all.")
    failed = 0
    async with session.database(embedder=embedder_named(embedder)) as db:
        loaded = await load_agent(agent, db)
        given = load_object(deps) if deps is not None else None

        async def results() -> AsyncGenerator[list[Row]]:
            nonlocal failed
            for conversation in [id] if id is not None else await crashed(db, loaded.name):
                try:
                    row = await resume_one(loaded, conversation, given)
                    yield [{"result": "finished", **row}]
                except ConversationConflict:
                    if id is not None:
                        raise
                    yield [{"conversation": conversation, "result": "running"}]  # somebody was faster
                except Exception as error:
                    if id is not None:
                        raise
                    failed += 1
                    yield [{"conversation": conversation, "result": "failed", "output": sentence(error)}]

        if id is not None:
            async with aclosing(results()) as only:
                [row] = await anext(only)
            _show_result(session.out, row, json)
        else:
            await session.out.listing(
                RESUMED, results(), limit=None, json=json, empty="No conversation of this agent has crashed."
            )
    return OPERATIONAL if failed else OK


def _show_result(out: Output, row: Row, json: bool) -> None:
    if json:
        out.json(row)
    else:
        out.fields(row)


@command(app, "show")
async def show_conversation(session: Session, id: IdArgument, json: JsonOption = False) -> None:
    """Show a conversation: how it stands, and its turns in the order of the log."""
    out = session.out
    async with session.as_it_is() as db:
        row = await find(db, id)
        turns = pages(db, "turns_matching", rows=None, conversation=id, oldest_first=True, clip=_TEXT, whole=json)
        if json:
            await out.document_with(without_position(row), "turns", turns, document=as_document)
            return
        if out.terminal:
            out.fields(without_position(row))
            out.line()
        else:
            out.write("seq\tcreated_at\tkind\ttool\ttext\n")
        async with aclosing(turns):
            async for page in turns:
                for turn in page:
                    _write_turn(out, turn)
                if out.closed:
                    break


def _write_turn(out: Output, turn: Row) -> None:
    if not out.terminal:
        values = [turn["seq"], turn["created_at"], turn["kind"], turn["tool"], turn["summary"]]
        out.write("\t".join(as_cell(value) for value in values) + "\n")
        return
    head = f"{turn['created_at']:%H:%M:%S}  {turn['kind']:<11}  "
    tool = f"{turn['tool']}: " if turn["tool"] else ""
    summary = turn["summary"] or ""
    if turn["kind"] in ("tool_call", "tool_result"):
        out.line(head + tool + clip(one_line(summary), _CLIP))
    else:
        cut = " …" if len(summary) == _TEXT else ""
        out.line(head + tool + summary.replace("\n", "\n" + " " * len(head)) + cut)
