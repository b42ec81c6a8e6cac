"""Evaluators at work: over what lacks their verdict, beside any number of other workers.

A worker reads ids page by page, claims a few, looks again whether they still lack the verdict, judges them and records
the verdict under an id made of turn and evaluator. One that dies leaves its claims to the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg import sql

from . import jsonable, sqlfiles, transactions
from .claims import Claims
from .errors import DatabaseUnavailable, InvalidValue
from .evaluators import CONVERSATION, Evaluated, Evaluator, Verdict
from .following import Follower
from .values import Conversation, Turn

if TYPE_CHECKING:
    from .database import Database

logger = logging.getLogger("everyturn")

_PAGE = 256
_FULL_PASS_EVERY = 600.0
_MOST_REMEMBERED = 100_000
_RETRY = (10.0, 600.0)
_PAUSE = (0.1, 5.0)
_FAILURES_IN_A_ROW = 10
_AWAY = 5.0


class Evaluation:
    """One worker of one evaluator."""

    def __init__(
        self,
        database: Database,
        evaluator: Evaluator,
        *,
        agent: str | None = None,
        since: datetime | None = None,
        concurrency: int = 8,
        limit: int | None = None,
        on_progress: Callable[[Evaluated], None] | None = None,
    ) -> None:
        if concurrency < 1:
            raise InvalidValue(f"concurrency={concurrency} lets nothing run; give a number from 1 up.")
        if limit is not None and limit < 1:
            raise InvalidValue(f"limit={limit} asks for no verdicts; give a number from 1 up, or None for all.")
        if agent is not None and evaluator.agent is not None and agent != evaluator.agent:
            raise InvalidValue(
                f"The evaluator {evaluator.name!r} is for the agent {evaluator.agent!r}, and not for {agent!r}."
            )
        self.done = Evaluated(evaluator.name)
        self._db = database
        self._evaluator = evaluator
        self._claims = Claims(database)
        self._concurrency = concurrency
        self._limit = limit
        self._on_progress = on_progress
        self._query = "conversations_without_verdict" if evaluator.whole else "turns_without_verdict"
        self._filters: dict[str, Any] = {
            "evaluator": evaluator.name,
            "agent": agent or evaluator.agent,
            "tool": evaluator.tool,
            "since": since,
        }
        if not evaluator.whole:
            self._filters["kinds"] = evaluator.kinds
        self._running: dict[asyncio.Task[None], UUID] = {}
        self._finished: list[UUID] = []
        self._failed_in_a_row = 0
        self._seen: dict[UUID, int] = {}
        """What this worker tried and left without a verdict: not again in the same pass."""
        self._retries: dict[UUID, tuple[int, float]] = {}

    async def count(self) -> int:
        """How many there are to judge."""
        inner = sql.SQL(sqlfiles.query(self._query).rstrip().rstrip(";"))
        counting = sql.SQL("SELECT count(*) AS n FROM ({}) AS q").format(inner)
        values = dict.fromkeys(sqlfiles.parameters(self._query)) | self._filters | {"whole": False}
        async with self._db.connection() as conn:
            cursor = await conn.execute(counting, values, prepare=False)
            row = await cursor.fetchone()
        return int(row["n"]) if row is not None else 0

    async def once(self) -> Evaluated:
        """Judge what lacks the verdict now; what another worker is judging is waited for, in case it dies."""
        async with self._at_work():
            await self._pass()
        return self.done

    async def watch(self, interval: float = 1.0) -> Evaluated:
        """The same, and then go on with what is appended, until cancelled or `limit` is reached.

        No late commit is missed. Evaluations that failed are tried again after 10 seconds, then after twice that and
        so on, up to 10 minutes.
        """
        follower = Follower(self._db)
        async with self._at_work():
            full = -_FULL_PASS_EVERY
            while not self._enough():
                try:
                    await follower.look()
                    self._seen = {id: seq for id, seq in self._seen.items() if seq > follower.known}
                    if time.monotonic() - full >= _FULL_PASS_EVERY:
                        await self._pass()
                        full = time.monotonic()
                    else:
                        await self._pass(above=follower.known)
                    await self._retry()
                except DatabaseUnavailable as error:
                    logger.warning("%s Trying again in %g s.", error, _AWAY)
                    await asyncio.sleep(_AWAY)
                await asyncio.sleep(interval)
        return self.done

    # One pass

    async def _pass(self, above: int | None = None) -> None:
        held: list[UUID] = []
        async for ids in self._pages(above):
            held = await self._judge([*ids, *held])
            if self._enough():
                break
        await self._drain()
        pause = 0.05
        while held and not self._enough():
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)
            held = await self._judge(held)
            await self._drain()

    async def _retry(self) -> None:
        now = time.monotonic()
        due = [id for id, (_, when) in self._retries.items() if when <= now]
        for start in range(0, len(due), _PAGE):
            batch = due[start : start + _PAGE]
            for id in batch:
                self._seen.pop(id, None)
            await self._judge(batch)
        await self._drain()

    async def _pages(self, above: int | None) -> AsyncIterator[list[UUID]]:
        after: UUID | None = None
        while True:
            rows = await self._ask(after=after, above=above, limit=_PAGE, whole=False)
            ids = [row["id"] for row in rows if row["id"] not in self._seen]
            if self._limit is None:
                random.shuffle(ids)  # workers that began together would claim the same ones
            yield ids
            if len(rows) < _PAGE:
                return
            after = rows[-1]["id"]

    async def _ask(self, **params: Any) -> list[dict[str, Any]]:
        return await self._db.query(self._query, **self._filters, **params)

    async def _judge(self, ids: Sequence[UUID]) -> list[UUID]:
        """Start evaluating these; returns those that another worker has claimed."""
        held: list[UUID] = []
        position = 0
        while position < len(ids):
            free = await self._free_slots()
            if free < 1:
                return held
            chunk = ids[position : position + free]
            position += free
            granted = await self._claims.take(chunk)
            held += [id for id in chunk if id not in granted]
            if not granted:
                continue
            rows: list[dict[str, Any]] = []
            try:
                rows = await self._ask(ids=list(granted), whole=True)
            finally:
                gone = granted - {row["id"] for row in rows}
                self._finished += gone
            for id in gone:
                self._retries.pop(id, None)
            for row in rows:
                turn = Turn(**{key: row[key] for key in Turn.__dataclass_fields__})
                self._running[asyncio.create_task(self._evaluate(turn))] = turn.id
        return held

    async def _free_slots(self) -> int:
        """Wait until something more may be started; how much. 0 when nothing more is wanted."""
        while True:
            await self._collect()
            if self._enough():
                return 0
            room = self._concurrency - len(self._running)
            if self._limit is not None:
                room = min(room, self._limit - self.done.recorded - len(self._running))
            if room > 0:
                if self._failed_in_a_row >= max(_FAILURES_IN_A_ROW, self._concurrency):
                    first, most = _PAUSE
                    await asyncio.sleep(min(first * 2 ** min(self._failed_in_a_row - _FAILURES_IN_A_ROW, 20), most))
                return room
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def _collect(self) -> None:
        for task in [task for task in self._running if task.done()]:
            self._finished.append(self._running.pop(task))
            task.result()
        if self._finished:
            finished, self._finished = self._finished, []
            await self._claims.free(finished)

    async def _drain(self) -> None:
        if self._running:
            await asyncio.wait(self._running)
        await self._collect()

    def _enough(self) -> bool:
        return self._limit is not None and self.done.recorded >= self._limit

    # One evaluation

    async def _evaluate(self, turn: Turn) -> None:
        done = self.done
        try:
            subject: Turn | Conversation = turn
            if self._evaluator.whole:
                subject = await self._db.turns.conversation(turn.conversation)
            verdict = await self._evaluator.judge(subject, self._db)
            if verdict is None:
                done.abstained += 1
                self._remember(turn)
            elif await self._record(turn, verdict):
                setattr(done, verdict.verdict, getattr(done, verdict.verdict) + 1)
            else:
                done.elsewhere += 1
            self._failed_in_a_row = 0
            self._retries.pop(turn.id, None)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            self._failed(turn, error)
        if self._on_progress is not None:
            self._on_progress(done)

    async def _record(self, turn: Turn, verdict: Verdict) -> bool:
        payload = dict(verdict.payload or {})
        if verdict.score is not None:
            payload["score"] = verdict.score
        if self._evaluator.whole:
            payload["target"] = CONVERSATION
        rationale = verdict.rationale
        if rationale is not None:
            rationale = str(jsonable.loads(self._db.encode(rationale, lenient=True)))
        try:
            # Read, not query: after a lost connection it does no harm to say it twice.
            rows = await self._db.read(
                "record_verdict_once",
                {
                    "id": self._evaluator.verdict_id(turn.id),
                    "turn_id": turn.id,
                    "conversation": turn.conversation,
                    "evaluator": self._evaluator.name,
                    "verdict": verdict.verdict,
                    "rationale": rationale,
                    "payload": self._db.encode(payload, lenient=True) if payload else None,
                },
            )
        except psycopg.errors.ForeignKeyViolation:
            return False  # retention was faster
        return bool(rows)

    def _failed(self, turn: Turn, error: Exception) -> None:
        failure = self.done.add_failure(turn.id, error)
        self._failed_in_a_row += 1
        tries = self._retries.pop(turn.id, (0, 0.0))[0] + 1
        first, most = _RETRY
        if len(self._retries) < _MOST_REMEMBERED:
            self._retries[turn.id] = (tries, time.monotonic() + min(first * 2 ** min(tries - 1, 10), most))
        self._remember(turn)
        logger.debug("the evaluator %s failed on turn %s: %s", self.done.evaluator, turn.id, failure)

    def _remember(self, turn: Turn) -> None:
        if len(self._seen) < _MOST_REMEMBERED:
            self._seen[turn.id] = turn.seq

    @contextlib.asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        try:
            with transactions.outside():  # each verdict is durable on its own
                yield
        finally:
            await self._stop()

    async def _stop(self) -> None:
        """End what is under way, and give every claim back."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        for task in self._running:
            if not task.cancelled():
                task.exception()
        self._finished += self._running.values()
        self._running.clear()
        finished, self._finished = self._finished, []
        await self._claims.free(finished)
