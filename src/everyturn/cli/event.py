"""`everyturn event`: what streamed by while an agent ran."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import asdict
from typing import Annotated

import typer

from everyturn.cli.command import Session, command, noun
from everyturn.cli.exits import CHECK_FAILED, OK
from everyturn.cli.filters import (
    AgentOption,
    AllOption,
    JsonOption,
    LimitOption,
    OlderThanOption,
    SinceOption,
    UntilOption,
    argument,
    readable,
    rows_wanted,
)
from everyturn.cli.output import Column, Output, Row
from everyturn.cli.paging import DEFAULT_LIMIT, pages
from everyturn.cli.text import as_cell, clip, one_line
from everyturn.cli.timeline import Line, Timeline
from everyturn.errors import RunNotFound
from everyturn.event_records import EventRecord, checked_status

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


StatusOption = Annotated[
    str | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        parser=argument(lambda text: str(checked_status(text))),
        help="running, finished, failed, or cut-off: no end mark, and nobody who could still write it.",
    ),
]


@command(app, "runs")
async def list_runs(
    session: Session,
    agent: AgentOption = None,
    status: StatusOption = None,
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


@command(app, "tail")
async def tail(
    session: Session,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", parser=readable, show_default=False)] = None,
    agent: AgentOption = None,
    after: Annotated[
        int | None,
        typer.Option(
            "--after", min=0, metavar="ID", help="Begin after this event; without it, RUN begins at its start."
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write the stored events, one JSON document a line.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write the rows, one JSON document a line.")] = False,
) -> None:
    """Show what happens as it happens: in RUN, to its end, or in all runs from now on, until Ctrl-C.

    A lost connection is replaced, and no event is missed.
    """
    out = session.out
    async with session.as_it_is() as db:
        if run is not None and agent is not None:
            raise typer.BadParameter("RUN is of one agent already; give RUN or --agent.")
        if run is not None:
            await db.events.status(run)
            events = db.events.follow(run, after=after or 0)
        else:
            events = db.events.follow_all(after=after, agent=agent)
        writers: dict[str, _TimelineWriter] = {}
        async with aclosing(_with_pauses(events)) as told:  # type: ignore[type-var]
            async for record in told:
                if record is None:
                    # Nothing more for the moment: what was said so far is worth seeing.
                    for writer in writers.values():
                        writer.end()
                elif raw:
                    out.json_line(record.event)
                elif json:
                    out.json_line(asdict(record))
                else:
                    prefix = "" if run is not None else record.run_id
                    if record.run_id not in writers:
                        for writer in writers.values():
                            writer.end()
                        writers[record.run_id] = _TimelineWriter(out, prefix, begun=not writers)
                    writers[record.run_id].row(asdict(record))
                    if record.ends:
                        writers.pop(record.run_id).end()
                out.flush()
                if out.closed:
                    break
        for writer in writers.values():
            writer.end()


async def _with_pauses(events: AsyncIterator[EventRecord]) -> AsyncIterator[EventRecord | None]:
    """The events, and None where none came for a moment."""
    waiting = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait({waiting}, timeout=0.3)
            if not done:
                yield None
                await asyncio.wait({waiting})
            record = waiting.result()
            if record is None:
                return
            yield record
            waiting = asyncio.ensure_future(anext(events, None))
    finally:
        waiting.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await waiting
        with suppress(RuntimeError):  # when the event loop ends it closes every generator at once
            await events.aclose()  # type: ignore[attr-defined]


@command(app, "redact")
async def redact(
    session: Session,
    run: Annotated[str, typer.Argument(metavar="RUN", parser=readable, show_default=False)],
    path: Annotated[
        list[str] | None,
        typer.Option(
            "--path", metavar="KEY.KEY", help="Mask what stands there, such as args.password. May be repeated."
        ),
    ] = None,
    pattern: Annotated[
        list[str] | None,
        typer.Option("--pattern", metavar="REGEX", help="Mask what this matches. May be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would be masked.")] = False,
    json: JsonOption = False,
) -> int:
    """Mask what is stored of a run: its events and turns, and the cases, memories, verdicts and results from them.

    What a path leads to is masked wherever else the run says it. Without --path and --pattern, known credentials are
    masked. The vectors made of masked text go; `everyturn db reembed` makes them again. Exits 1 when nothing was found.
    """
    async with session.database(embedder=False) as db:
        done = await db.events.redact(
            run,
            paths=[readable(text) for text in path or ()],
            patterns=[readable(text) for text in pattern or ()],
            dry_run=dry_run,
        )
    if json:
        session.out.json({**asdict(done), "dry_run": dry_run})
    else:
        session.out.fields(asdict(done))
    return OK if done.rows else CHECK_FAILED


@command(app, "expire")
async def expire(
    session: Session,
    older_than: OlderThanOption,
    types: Annotated[
        str | None,
        typer.Option("--types", metavar="TYPE,TYPE", help="Only these types, such as text_delta,reasoning_delta."),
    ] = None,
    agent: AgentOption = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only of this run.", parser=readable)] = None,
    keep_failed: Annotated[
        bool, typer.Option("--keep-failed", help="Keep every event of runs that failed or were cut off.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would go.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove old stream events, in batches. It may be interrupted, and goes on from there."""
    async with session.database(embedder=False) as db:
        with session.out.counting("Expiring") as count:
            done = await db.events.expire(
                older_than,
                types=[name.strip() for name in types.split(",") if name.strip()] if types is not None else None,
                agent=agent,
                run_id=run,
                keep_failed=keep_failed,
                dry_run=dry_run,
                progress=lambda so_far, share: count(f"{so_far.events:,} events, {share:.0%} looked at"),
            )
    if json:
        session.out.json({**asdict(done), "dry_run": dry_run})
    else:
        session.out.fields(asdict(done))


class _TimelineWriter:
    """Writes a timeline as it is read."""

    def __init__(self, out: Output, run: str = "", *, begun: bool = True) -> None:
        self._out = out
        self._run = run
        self._timeline = Timeline()
        self._begun = not begun

    def row(self, row: Row) -> None:
        for line in self._timeline.feed(row):
            self._write(line)

    def end(self) -> None:
        for line in self._timeline.end():
            self._write(line)

    def _write(self, line: Line) -> None:
        if self._out.terminal:
            self._out.line(f"{self._run[-8:]:<9}{as_text(line)}" if self._run else as_text(line))
            return
        run = (self._run,) if self._run else ()
        if not self._begun:
            self._begun = True
            self._out.write("\t".join((*(("run_id",) if run else ()), *_LINE)) + "\n")
        text = line.text if line.failed else clip(line.text, CLIP)
        values = [*run, line.turn, line.elapsed_ms, line.depth, line.agent, line.what, line.tool, text]
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
