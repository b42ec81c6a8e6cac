"""`everyturn worker`: takes cases of queued replays, on any machine."""

from __future__ import annotations

from typing import Annotated

import typer

from everyturn.cli.command import Session, command
from everyturn.cli.filters import EmbedderOption, embedder_named

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@command(app, "worker")
async def worker(
    session: Session,
    concurrency: Annotated[int, typer.Option("--concurrency", "-j", min=1, metavar="N", help="Answers in flight.")] = 8,
    drain: Annotated[bool, typer.Option("--drain", help="Stop when nothing is left in the queue.")] = False,
    stalled_after: Annotated[
        float,
        typer.Option(
            "--stalled-after", metavar="SECONDS", help="Take over from a worker that was not heard of for this long."
        ),
    ] = 30,
    embedder: EmbedderOption = None,
) -> None:
    """Take cases of replays begun with --queue, until Ctrl-C.

    Models, agents and scorers named python:module:name are looked up from here.
    """
    from everyturn.datasets.queue import work

    async with session.database(embedder=embedder_named(embedder)) as db:
        session.out.note(f"Working on up to {concurrency} cases at once; Ctrl-C ends.")
        await work(db, concurrency=concurrency, drain=drain, stalled_after=stalled_after)
