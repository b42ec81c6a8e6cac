"""Stream events: rows of `agent_events`, shared with programs in other languages.

The JSON of an event and the columns beside it are those of the table's contract; an unknown type or a missing key is
kept as it is. Order within a run is `id`.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from .database_errors import translate
from .errors import InvalidValue, RunNotFound
from .event_calls import EventCall, pair_calls
from .event_feed import Feed, Subscription
from .event_records import EventRecord, EventStore, RunSummary, checked_number, checked_status, checked_types
from .event_rows import event_row, record_of, run_key
from .rows import EventRow

if TYPE_CHECKING:
    from .database import Database
    from .redacting import Redacted
    from .retention import Expired

__all__ = ["EventRecord", "EventStore", "Events", "RunSummary", "record_of"]

_PAGE = 1000
# How long a run may be silent before somebody who follows it asks whether it still runs.
_QUIET = 2.0


class Events:
    """`db.events`, the `EventStore` of the database."""

    __blocking_face__ = True

    def __init__(self, database: Database) -> None:
        self._database = database
        self._feeds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Feed] = weakref.WeakKeyDictionary()

    async def append(self, record: EventRecord) -> None:
        """Append one event; it is durable when this returns. Raises InvalidValue."""
        row = self.row(record)
        if self._database.ambient is None:
            await self._database.writer.append(events=[row])
            return
        try:
            await self._database.query("append_event", **row.values())
        except psycopg.Error as error:
            raise translate(error) from error

    def row(self, record: EventRecord) -> EventRow:
        """The row of a record, checked and cleaned. Raises InvalidValue."""
        return event_row(record, lambda event: self._database.encode(event, lenient=True))

    async def load(
        self,
        run_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        types: Sequence[str] | None = None,
    ) -> list[EventRecord]:
        """The events of a run in order: all, or the next `limit` after the event with id `after`."""
        rows = await self._database.read(
            "events_of_run",
            {
                "run_id": run_key(run_id),
                "after": checked_number(after, "after"),
                "limit": checked_number(limit, "limit"),
                "types": checked_types(types),
            },
        )
        return [EventRecord.of(row) for row in rows]

    async def pages(
        self, run_id: str, *, after: int = 0, types: Sequence[str] | None = None, size: int = _PAGE
    ) -> AsyncIterator[list[EventRecord]]:
        """The events of a run in order, page by page: memory stays flat however long it is."""
        async for page in self._pages(run_id, after, None, types, size):
            yield page

    async def _pages(
        self, run_id: str, after: int, until: int | None, types: Sequence[str] | None = None, size: int = _PAGE
    ) -> AsyncIterator[list[EventRecord]]:
        checked_number(size, "size", 1)
        rows = await self._database.read(
            "event_ids_of_run",
            {
                "run_id": run_key(run_id),
                "after": checked_number(after, "after"),
                "until": until,
                "types": checked_types(types),
            },
        )
        ids = [row["id"] for row in rows]
        for start in range(0, len(ids), size):
            part = await self._database.read("events_with_ids", {"ids": ids[start : start + size]})
            yield [EventRecord.of(row) for row in part]

    async def calls(self, run_id: str) -> list[EventCall]:
        """The tool calls of a run, each with its result: paired also where ids are missing or used again."""
        return pair_calls([record async for page in self.pages(run_id) for record in page])

    async def clear(self, run_id: str) -> None:
        """Remove the events of this run."""
        await self._database.query("clear_events_of_run", run_id=run_key(run_id))

    # Runs

    async def runs(
        self,
        agent: str | None = None,
        since: datetime | timedelta | None = None,
        status: str | None = None,
        *,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> list[RunSummary]:
        """The runs that left events, the last started first: `running`, `finished`, `failed` or `cut off`.

        `agent` is an agent's id or name; `since` a time, or an age. Raises InvalidValue.
        """
        rows = await self._database.query(
            "runs",
            agent=agent,
            status=checked_status(status),
            since=_moment(since, "since"),
            until=_moment(until, "until"),
            limit=checked_number(limit, "limit"),
        )
        return [RunSummary(**{key: value for key, value in row.items() if key != "first_id"}) for row in rows]

    async def status(self, run_id: str) -> str:
        """How a run stands. Raises RunNotFound."""
        rows = await self._database.query("run_status", run_id=run_key(run_id))
        if not rows:
            raise RunNotFound(
                f"There are no stream events of run {run_id!r}. `everyturn event runs` lists the runs there are."
            )
        return str(rows[0]["status"])

    # Following

    async def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[EventRecord]:
        """The events of a run after the one with id `after`: those that are stored, then live, to the one that ends it.

        Also ends when the run turns out to be cut off. A run that has not begun is waited for. A connection that is
        lost is replaced; no event is missed and none given twice. Raises DatabaseUnavailable when the database stays
        away.
        """
        run_id, last = run_key(run_id), after
        # Who comes back may have had everything: that is asked at once.
        patience = 0.0 if after else _QUIET
        async with self._feed().subscribed(run_id) as member:
            while True:
                pages = self._pages(run_id, last, member.begin)
                async with aclosing(pages):  # type: ignore[type-var]
                    async for page in pages:
                        for record in page:
                            last = record.id or last
                            yield record
                            if record.ends:
                                return
                while not member.behind:
                    for record, late in member.take():
                        if late or (record.id or 0) > last:
                            last = max(last, record.id or 0)
                            yield record
                            if record.ends:
                                return
                    if not await member.wait(patience) and await self._over(run_id, last, member):
                        return
                    patience = _QUIET
                member.restart(self._feed().position)

    async def _over(self, run_id: str, last: int, member: Subscription) -> bool:
        """Whether a silent run was cut off, and everything it wrote has been given."""
        rows = await self._database.query("run_status", run_id=run_id)
        if not rows or rows[0]["status"] == "running":
            return False
        # Ended with an event that is on its way, or one that the reader had before.
        left = await self._database.read(
            "event_ids_of_run", {"run_id": run_id, "after": last, "until": None, "types": None}
        )
        return not left and not await member.wait(0)

    async def follow_all(
        self, *, after: int | None = None, agent: str | None = None, types: Iterable[str] | None = None
    ) -> AsyncIterator[EventRecord]:
        """The events of all runs as they are stored, without end: from now on, or from those after id `after`.

        `agent` is an agent's id or name. An event is given once, also one that commits late.
        """
        only = checked_types(types)
        wanted = frozenset(only) if only is not None else None
        checked_number(after, "after")
        async with self._feed().subscribed(None) as member:
            last = member.begin if after is None else after
            while True:
                while last < member.begin:
                    params = {"after": last, "until": member.begin, "runs": None, "limit": _PAGE}
                    rows = await self._database.read("events_after", params)
                    for row in rows:
                        record = EventRecord.of(row)
                        last = row["id"]
                        if _wanted(record, agent, wanted):
                            yield record
                    if len(rows) < _PAGE:
                        last = member.begin
                while not member.behind:
                    for record, late in member.take():
                        if late or (record.id or 0) > last:
                            last = max(last, record.id or 0)
                            if _wanted(record, agent, wanted):
                                yield record
                    await member.wait(_QUIET)
                member.restart(self._feed().position)

    def _feed(self) -> Feed:
        loop = asyncio.get_running_loop()
        if loop not in self._feeds:
            self._feeds[loop] = Feed(self._database)
        return self._feeds[loop]

    # What goes

    async def expire(
        self,
        older_than: datetime | timedelta,
        *,
        types: Iterable[str] | None = None,
        agent: str | None = None,
        run_id: str | None = None,
        keep_failed: bool = False,
        dry_run: bool = False,
        progress: Callable[[Expired, float], object] | None = None,
    ) -> Expired:
        """Remove old events, batch by batch; what was removed when it is stopped stays removed.

        `keep_failed` keeps runs that failed or were cut off whole. `progress` is told the sum so far, and the share
        that was gone through.
        """
        from .retention import expire_events

        return await expire_events(
            self._database,
            older_than,
            types=types,
            agent=agent,
            run_id=run_id,
            keep_failed=keep_failed,
            dry_run=dry_run,
            progress=progress,
        )

    async def redact(
        self,
        run_id: str,
        *,
        paths: Iterable[str] = (),
        patterns: Iterable[Any] = (),
        dry_run: bool = False,
    ) -> Redacted:
        """Mask what is stored of a run: its events and turns, and the cases, memories, verdicts and results from them.

        By field paths and regular expressions; without either, known credentials. One transaction; the vectors made of
        masked text go. Raises RunNotFound and InvalidValue.
        """
        from .redacting import redact_run

        return await redact_run(self._database, run_id, paths=paths, patterns=patterns, dry_run=dry_run)


def _moment(when: datetime | timedelta | None, what: str) -> datetime | None:
    """A point in time; an age is counted back from now, and a naive time read as UTC. Raises InvalidValue."""
    if when is not None and not isinstance(when, datetime | timedelta):
        raise InvalidValue(f"{what}={when!r} is neither a datetime nor a timedelta.")
    if isinstance(when, timedelta):
        try:
            return datetime.now(UTC) - when
        except OverflowError:
            raise InvalidValue(f"{what}={when!r} reaches beyond the calendar.") from None
    return when.replace(tzinfo=UTC) if when is not None and when.tzinfo is None else when


def _wanted(record: EventRecord, agent: str | None, types: frozenset[str] | None) -> bool:
    return (agent is None or agent in (record.agent_id, record.agent_name)) and (types is None or record.type in types)
