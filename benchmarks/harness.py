"""What every benchmark shares: a row of the table, timing, and the raw baselines."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
from psycopg_pool import AsyncConnectionPool

import everyturn as et
from everyturn import testing


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    figure: str
    baseline: str
    ratio: float | None
    target: str
    met: bool | None
    """None where there is no target."""


def at_most(what: str, ours: float, raw: float, limit: float, unit: str, baseline: str) -> Row:
    """A row whose ratio should not exceed `limit`."""
    ratio = ours / raw
    return Row(what, f"{ours:.3g} {unit}", f"{baseline} {raw:.3g} {unit}", ratio, f"≤ {limit:g} ×", ratio <= limit)


def at_least(what: str, ours: float, raw: float, limit: float, unit: str, baseline: str) -> Row:
    """A row whose ratio should reach `limit`."""
    ratio = ours / raw
    return Row(what, f"{ours:,.0f} {unit}", f"{baseline} {raw:,.0f} {unit}", ratio, f"≥ {limit:g} ×", ratio >= limit)


@dataclass(frozen=True)
class Scale:
    """How much is done: 1 is the full table."""

    factor: float = 1.0

    def __call__(self, count: int, least: int = 1) -> int:
        return max(least, int(count * self.factor))


PAYLOAD: dict[str, Any] = {
    "text": "The parser reads one hunk at a time and keeps the header it belongs to, so that a comment lands on the "
    "line the reviewer saw. When the file was renamed the old path is kept beside the new one; a binary file has no "
    "hunk at all and is listed without lines. What is left out is said at the end of the review.",
    "runId": "01a22ee6-48df-7955-a257-d618ba98c322",
    "attributes": {"repo": "o/r", "pr": 7},
}
"""About 400 bytes as JSON."""

EVENT: dict[str, Any] = {"type": "text_delta", "turn": 1, "delta": "The parser reads"}

INSERT_TURN = "INSERT INTO agent_turns (id, conversation, agent, kind, payload) VALUES (%s, %s, %s, %s, %s::jsonb)"
INSERT_EVENT = "INSERT INTO agent_events (run_id, agent_id, agent_name, turn, event) VALUES (%s, %s, %s, %s, %s::jsonb)"

OUR_INDEXES = ("agent_turns_conv_seq", "agent_turns_tool_time", "agent_turns_repo_time", "agent_turns_text")


def turn_values(conversation: Any) -> tuple[Any, ...]:
    return (uuid4(), conversation, "bench", "user", json.dumps(PAYLOAD))


def event_values(run_id: str) -> tuple[Any, ...]:
    return (run_id, "bench", "bench", 1, json.dumps(EVENT))


@contextlib.asynccontextmanager
async def database(*, seed_indexes: bool = False, lexical: bool = True) -> AsyncIterator[et.Database]:
    """A throw-away database; with only the indexes of the seed, or without the lexical one, if asked for."""
    async with testing.database() as db:
        dropped = OUR_INDEXES if seed_indexes else () if lexical else ("agent_turns_text",)
        for index in dropped:
            await db.execute(f"DROP INDEX {index}")
        yield db


@contextlib.asynccontextmanager
async def raw(db: et.Database) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A plain connection in autocommit mode."""
    conn = await psycopg.AsyncConnection.connect(db.url, autocommit=True)
    try:
        yield conn
    finally:
        await conn.close()


@contextlib.asynccontextmanager
async def pool(db: et.Database, size: int) -> AsyncIterator[AsyncConnectionPool[Any]]:
    async with AsyncConnectionPool(db.url, min_size=size, max_size=size, kwargs={"autocommit": True}) as opened:
        await opened.wait()
        yield opened


async def side_by_side(ways: Sequence[Callable[[], Awaitable[None]]], repeats: int, warm: int = 20) -> list[float]:
    """Median milliseconds of each way, taken in turns so that what else the machine does hits all alike."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(warm):
        for way in ways:
            await way()
    gc.collect()
    for _ in range(repeats):
        for way, taken in zip(ways, times, strict=True):
            start = time.perf_counter()
            await way()
            taken.append((time.perf_counter() - start) * 1000)
    return [statistics.median(taken) for taken in times]


async def tasks(count: int, work: Callable[[int], Awaitable[None]]) -> float:
    """Seconds until `count` tasks, each given its number, have ended."""
    gc.collect()
    start = time.perf_counter()
    await asyncio.gather(*(work(number) for number in range(count)))
    return time.perf_counter() - start
