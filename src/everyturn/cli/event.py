"""`everyturn event`: what streamed by while an agent ran."""

from __future__ import annotations

from contextlib import aclosing
from enum import StrEnum
from typing import Annotated

import typer

from everyturn.cli.command import Session, command, noun
from everyturn.cli.filters import (
    AgentOption,
    AllOption,
    JsonOption,
    LimitOption,
    SinceOption,
    UntilOption,
    readable,
    rows_wanted,
)
from everyturn.cli.output import Column, Output, Row
from everyturn.cli.paging import DEFAULT_LIMIT, pages
from everyturn.cli.text import as_cell, clip, one_line
from everyturn.cli.timeline import Line, Timeline
from everyturn.errors import RunNotFound

app = noun("Stream events of runs.")

RUNS = [
    Column("started_at"),
    Column("run_id", whole=True),
    Column("agent", lambda row: row["agent_name"] or row["agent_id"]),
    Column("status"),
    Column("turns", right=True),
    Column("events", right=True),
    Column("ended_at", only_piped=True),
    Column("output", flexible=True),
]
CLIP = 200
_LINE = ("turn", "elapsed_ms", "depth", "agent", "what", "tool", "text")


class RunStatus(StrEnum):
    finished = "finished"
    failed = "failed"
    open = "open"


@command(app, "runs")
async def list_runs(
    session: Session,
    agent: AgentOption = None,
    status: Annotated[
        RunStatus | None,
        typer.Option("--status", help="How it ended; open: no end mark, still going or cut off."),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    json: JsonOption = False,
) -> None:
    """List runs that left stream events, the last started first."""
    rows = rows_wanted(limit, everything)
    async with session.as_it_is() as db:
        await session.out.listing(
            RUNS,
            pages(db, "runs", rows=rows, agent=agent, status=status, since=since, until=until),
            limit=rows,
            json=json,
            document=lambda row: {key: value for key, value in row.items() if key != "first_id"},
            empty="No run left stream events.",
        )


@command(app, "show")
async def show_run(
    session: Session,
    run: Annotated[str, typer.Argument(metavar="RUN", parser=readable, show_default=False)],
    raw: Annotated[bool, typer.Option("--raw", help="Write the stored events, one JSON document a line.")] = False,
    json: JsonOption = False,
) -> None:
    """Show a run as a timeline.

    Deltas are joined, arguments and results clipped, nested agents indented, errors shown in full.
    --json writes the rows as they are stored, --raw the bare events.
    """
    async with session.as_it_is() as db:
        if not await db.query("events_of_run", run_id=run, after=0, limit=1):
            raise RunNotFound(
                f"There are no stream events of run {run!r}. `everyturn event runs` lists the runs there are."
            )
        stored = pages(db, "events_of_run", rows=None, run_id=run, after=0)
        if json:
            await session.out.listing([], stored, limit=None, json=True)
            return
        writer = _TimelineWriter(session.out)
        async with aclosing(stored):
            async for page in stored:
                for row in page:
                    if raw:
                        session.out.json_line(row["event"])
                    else:
                        writer.row(row)
                if session.out.closed:
                    break
        writer.end()


class _TimelineWriter:
    """Writes a timeline as it is read."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._timeline = Timeline()
        self._begun = False

    def row(self, row: Row) -> None:
        for line in self._timeline.feed(row):
            self._write(line)

    def end(self) -> None:
        for line in self._timeline.end():
            self._write(line)

    def _write(self, line: Line) -> None:
        if self._out.terminal:
            self._out.line(as_text(line))
            return
        if not self._begun:
            self._begun = True
            self._out.write("\t".join(_LINE) + "\n")
        text = line.text if line.failed else clip(line.text, CLIP)
        values = [line.turn, line.elapsed_ms, line.depth, line.agent, line.what, line.tool, text]
        self._out.write("\t".join(as_cell(value) for value in values) + "\n")


def as_text(line: Line) -> str:
    """A line of a timeline for people; an error takes as many lines as it has."""
    turn = "" if line.turn is None else f"#{line.turn}"
    start = f"{turn:<4}{line.elapsed_ms / 1000:>9.3f}s  {'    ' * line.depth}"
    who = f"{line.agent}: " if line.depth else ""
    head = f"{start}{who}{line.what}{' ' + line.tool if line.tool else ''}"
    if line.failed:
        return f"{head}  " + line.text.replace("\n", "\n" + " " * len(start))
    return f"{head}  {clip(one_line(line.text), CLIP)}".rstrip()
