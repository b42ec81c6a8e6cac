"""Server-sent events: the stream of a run, as any ASGI framework can return it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from . import jsonable

if TYPE_CHECKING:
    from .database import Database


async def sse(
    db: Database,
    run_id: str,
    last_event_id: str | int | None = None,
    *,
    heartbeat: float = 15.0,
    retry: float = 2.0,
) -> AsyncIterator[str]:
    """The events of a run as frames of `text/event-stream`: what is stored, then live, to the end of the run.

    `last_event_id` is the header `Last-Event-ID` of a client that comes back: it misses nothing. Each frame has the
    event's id, and its JSON as data; a comment every `heartbeat` seconds keeps the connection open, and `retry` tells
    the client how many seconds to wait before it comes back. Closing the iterator never touches the run.
    """
    after = _id(last_event_id)
    events = db.events.follow(run_id, after=after)
    next_event: asyncio.Future[Any] | None = None
    try:
        yield f"retry: {round(retry * 1000)}\n\n"
        while True:
            if next_event is None:
                next_event = asyncio.ensure_future(anext(events, None))
            done, _ = await asyncio.wait({next_event}, timeout=heartbeat)
            if not done:
                yield ": still here\n\n"
                continue
            record, next_event = next_event.result(), None
            if record is None:
                return
            yield f"id: {record.id}\ndata: {jsonable.dumps_lenient(record.event)}\n\n"
    finally:
        if next_event is not None:
            next_event.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
                await next_event
        with contextlib.suppress(RuntimeError):  # when the event loop ends it closes every generator at once
            await events.aclose()  # type: ignore[attr-defined]


def _id(last_event_id: str | int | None) -> int:
    """The id a client last saw; whoever sends something else starts from the beginning."""
    try:
        after = int(last_event_id or 0)
    except ValueError:
        return 0
    return after if 0 < after < 1 << 63 else 0
