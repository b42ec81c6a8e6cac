"""Live events: one reader of the table for all who follow, in one event loop.

It polls while somebody follows, and costs the writers nothing. Ids are given out before their commit, so that a row may
appear below others that are there already: what lies above a missing id is held until that row has come, or until
every transaction that was open when the gap was first seen has ended. Then nothing can come late.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import DatabaseUnavailable
from .event_records import EventRecord

if TYPE_CHECKING:
    from .database import Database

logger = logging.getLogger("everyturn")

SETTLE = 5.0
"""Seconds for which a row that is missing is waited for, whoever may be writing it."""
_WATCHED = 600.0
# A number may have been given out to a transaction that has no id of its own yet.
_GRACE = 0.1
_QUICK, _SLOW, _IDLE = 0.01, 0.035, 0.2
_IDLE_AFTER = 60.0
_PAGE = 1000
_MOST_QUEUED = 5000
_PATIENCE = 60.0


@dataclass(slots=True)
class _Gap:
    """Ids that are missing below others that are there."""

    first: int
    last: int
    horizon: int
    """No transaction older than this is open: then none of these can come any more."""
    since: float
    held: bool = True
    """Whether what lies above waits for it."""


class Subscription:
    """What one follower has still to be given."""

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id
        self.begin = 0
        """The feed gives what lies above this id; what lies below is read from the table."""
        self.behind = False
        """Whether the queue was given up because the follower reads too slowly."""
        self.error: BaseException | None = None
        self.joined = asyncio.Event()
        self._queue: deque[tuple[EventRecord, bool]] = deque()
        self._news = asyncio.Event()

    def put(self, record: EventRecord, *, late: bool) -> None:
        if self.behind:
            return
        if len(self._queue) >= _MOST_QUEUED:
            self.behind = True
            self._queue.clear()
        else:
            self._queue.append((record, late))
        self._news.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.joined.set()
        self._news.set()

    def restart(self, begin: int) -> None:
        """Have what lies up to `begin` read from the table."""
        self.behind, self.begin = False, begin
        self._queue.clear()

    def take(self) -> Iterator[tuple[EventRecord, bool]]:
        """What has come, each with whether it came late, below what had been given before."""
        while self._queue:
            yield self._queue.popleft()

    async def wait(self, seconds: float) -> bool:
        """Wait for news; False when none came. Raises DatabaseUnavailable."""
        if self.error is not None:
            raise self.error
        if not self._queue and not self.behind:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), seconds)
        if self.error is not None:
            raise self.error
        return bool(self._queue) or self.behind


class Feed:
    """The reader of one event loop; it runs while somebody follows."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._members: set[Subscription] = set()
        self._joining: list[Subscription] = []
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._newest: int | None = None
        self._gaps: list[_Gap] = []
        self.position = 0
        """Everything up to here has been given out, or will never come."""

    @contextlib.asynccontextmanager
    async def subscribed(self, run_id: str | None) -> AsyncIterator[Subscription]:
        """Be given what comes, of one run or of all."""
        member = Subscription(run_id)
        self._joining.append(member)
        self._wake.set()
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="everyturn feed")
            await member.joined.wait()
            if member.error is not None:
                raise member.error
            yield member
        finally:
            self._members.discard(member)
            if member in self._joining:
                self._joining.remove(member)
            # With nobody left the task ends by itself: a query that is cancelled costs its connection.
            self._wake.set()
            if not self._members and not self._joining and self._task is not None:
                await asyncio.wait({self._task}, timeout=1)

    async def _run(self) -> None:
        self._newest, self._gaps, self.position = None, [], 0
        pause, news_at, failing_since = _QUICK, time.monotonic(), None
        try:
            while True:
                try:
                    news = await self._look()
                    failing_since = None
                except DatabaseUnavailable as error:
                    failing_since = failing_since or time.monotonic()
                    if self._database.closed or time.monotonic() - failing_since > _PATIENCE:
                        raise
                    logger.info("following stopped for a moment: %s", error)
                    await asyncio.sleep(0.2)
                    continue
                self._admit()
                if not self._members:
                    return
                now = time.monotonic()
                if news:
                    pause, news_at = _QUICK, now
                else:
                    pause = min(pause * 1.3, _SLOW if now - news_at < _IDLE_AFTER else _IDLE)
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
        except Exception as error:
            for member in (*self._members, *self._joining):
                member.fail(error)

    def _admit(self) -> None:
        """Let in those who came meanwhile: between two looks, so that none of them misses half of one."""
        for member in self._joining:
            member.restart(self.position)
            member.joined.set()
            self._members.add(member)
        self._joining.clear()

    async def _look(self) -> bool:
        """Read what came since the last look; whether anything did."""
        gaps = self._gaps
        [row] = await self._database.read(
            "events_position",
            {
                "above": self._newest,
                "settle": SETTLE,
                "starts": ",".join(str(gap.first) for gap in gaps) or None,
                "ends": ",".join(str(gap.last) for gap in gaps) or None,
            },
        )
        first = self._newest is None
        now = time.monotonic()
        arrived = [int(id) for id in row["arrived"].split(",")] if row["arrived"] else []
        late = [id for id in arrived if id <= self.position]
        self._close_gaps(arrived, row["oldest"], now)
        for pair in row["missing"].split(",") if row["missing"] else ():
            start, end = map(int, pair.split())
            self._gaps.append(_Gap(start, end, row["next"], now))
        newest = row["newest"]
        if newest is not None:
            self._newest = newest
        elif first:
            self._newest = 0
        assert self._newest is not None
        until = min([gap.first - 1 for gap in self._gaps if gap.held], default=self._newest)
        if first:
            self.position = until
            return False
        if late:
            for record in await self._read("events_with_ids", {"ids": late}):
                self._give(record, late=True)
        news = until > self.position
        while until > self.position and self._members:
            runs = None if any(m.run_id is None for m in self._members) else list({m.run_id for m in self._members})
            params = {"after": self.position, "until": until, "runs": runs, "limit": _PAGE}
            records = await self._read("events_after", params)
            for record in records:
                self._give(record, late=False)
            self.position = until if len(records) < _PAGE else records[-1].id or until
        self.position = max(self.position, until)
        return news or bool(late)

    def _close_gaps(self, arrived: list[int], oldest: int, now: float) -> None:
        """Take from the gaps what has come, and those that nothing can come into any more."""
        for id in arrived:
            for gap in [gap for gap in self._gaps if gap.first <= id <= gap.last]:
                self._gaps.remove(gap)
                self._gaps += [
                    _Gap(start, end, gap.horizon, gap.since, gap.held)
                    for start, end in ((gap.first, id - 1), (id + 1, gap.last))
                    if start <= end
                ]
        for gap in self._gaps:
            gap.held = gap.held and now - gap.since < SETTLE
        self._gaps = [
            gap
            for gap in self._gaps
            if not (gap.horizon <= oldest and now - gap.since >= _GRACE) and now - gap.since < _WATCHED
        ]

    async def _read(self, name: str, params: dict[str, Any]) -> list[EventRecord]:
        return [EventRecord.of(row) for row in await self._database.read(name, params)]

    def _give(self, record: EventRecord, *, late: bool) -> None:
        for member in self._members:
            if (member.run_id is None or member.run_id == record.run_id) and (late or (record.id or 0) > member.begin):
                member.put(record, late=late)
