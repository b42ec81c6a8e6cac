"""Events: many streams at once, how soon a follower has them, and loading a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import everyturn as et
from everyturn import jsonable
from everyturn.redaction import Redaction

from . import harness
from .appends import copy_events
from .harness import Row, Scale, at_least, at_most

STREAMS = 100
DELTAS = 100
FOLLOWERS = 10

FILL = """
INSERT INTO agent_events (run_id, agent_id, agent_name, turn, event)
SELECT 'run ' || n %% %(runs)s, 'bench', 'bench', 1,
       jsonb_build_object('type', 'text_delta', 'turn', 1, 'delta', 'word ' || n)
  FROM generate_series(1, %(count)s) AS n
"""


async def rows(scale: Scale) -> AsyncIterator[Row]:
    async for row in streams(scale):
        yield row
    yield await load(scale)
    yield await load_among_many(scale)
    for row in redaction():
        yield row


async def streams(scale: Scale) -> AsyncIterator[Row]:
    """Streams of deltas, each event durable before the next; some of them are followed meanwhile."""
    deltas = scale(DELTAS, 20)
    total = STREAMS * deltas
    ours, pooled, copied = [], [], []
    async with harness.database() as db, harness.pool(db, 16) as pool:
        for turn in range(3):

            async def append(number: int, turn: int = turn) -> None:
                for _ in range(deltas):
                    await db.events.append(et.EventRecord(f"run {turn} {number}", "bench", harness.EVENT, turn=1))

            async def insert(number: int) -> None:
                for _ in range(deltas):
                    async with pool.connection() as conn:
                        await conn.execute(harness.INSERT_EVENT, harness.event_values(f"raw {number}"), prepare=True)

            ours.append(total / await harness.tasks(STREAMS, append))
            pooled.append(total / await harness.tasks(STREAMS, insert))
            copied.append(total / await harness.tasks(1, lambda _: copy_events(db, total)))
    yield at_least(f"{STREAMS} streams of {deltas} deltas", max(ours), max(pooled), 10, "rows/s", "pool of 16")
    yield at_least(f"{STREAMS} streams of {deltas} deltas", max(ours), max(copied), 0.35, "rows/s", "COPY of dicts")
    yield await delay(scale)
    yield await idle(scale)


async def delay(scale: Scale) -> Row:
    """From the commit of an event to its delivery, while all streams write."""
    deltas = scale(DELTAS, 20)
    stored: dict[tuple[str, int], float] = {}
    delays: list[float] = []
    async with harness.database() as db:

        async def follow(number: int) -> None:
            async for record in db.events.follow(f"run {number}"):
                if not record.ends:
                    delays.append(time.perf_counter() - stored[record.run_id, record.event["n"]])

        followers = [asyncio.create_task(follow(number)) for number in range(FOLLOWERS)]
        await asyncio.sleep(0.5)

        async def append(number: int) -> None:
            run = f"run {number}"
            for n in range(deltas):
                # Durable a moment before the append returns: the delay is counted from too early, not too late.
                stored[run, n] = time.perf_counter()
                await db.events.append(et.EventRecord(run, "bench", {**harness.EVENT, "n": n}, turn=1))
                stored[run, n] = time.perf_counter()
                await asyncio.sleep(0.02)
            await db.events.append(et.EventRecord(run, "bench", {"type": "final"}))

        await harness.tasks(STREAMS, append)
        await asyncio.gather(*followers)
    delays.sort()
    p95 = delays[int(len(delays) * 0.95)] * 1000
    what = f"commit to follower, {STREAMS} streams writing"
    return Row(
        f"{what}, p95", f"{p95:.1f} ms", f"p50 {delays[len(delays) // 2] * 1000:.1f} ms", None, "≤ 50 ms", p95 <= 50
    )


async def idle(scale: Scale) -> Row:
    """What it costs to follow a run in which nothing happens."""
    seconds = scale(10, 2)
    async with harness.database() as db:
        await db.events.append(et.EventRecord("quiet", "bench", harness.EVENT))

        async def follow() -> None:
            async for _ in db.events.follow("quiet"):
                pass

        following = asyncio.create_task(follow())
        await asyncio.sleep(1)
        before = time.process_time()
        await asyncio.sleep(seconds)
        share = (time.process_time() - before) / seconds
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return Row("processor used by an idle follower", f"{share:.1%}", "of one core", None, "≤ 5 %", share <= 0.05)


async def load(scale: Scale) -> Row:
    count = scale(10_000, 1_000)
    async with harness.database() as db, harness.raw(db) as conn:
        await db.execute(FILL, {"runs": 1, "count": count})
        await db.execute("VACUUM ANALYZE agent_events")

        async def ours() -> None:
            assert len(await db.events.load("run 0")) == count

        async def raw() -> None:
            cursor = await conn.execute(
                "SELECT id, run_id, agent_id, agent_name, turn, tool_name, tool_call_id, internal_call_id, event,"
                " created_at FROM agent_events WHERE run_id = 'run 0' ORDER BY created_at, id",
                prepare=True,
            )
            assert len(await cursor.fetchall()) == count

        mine, select = await harness.side_by_side([ours, raw], scale(30, 5), warm=3)
    return at_most(f"load a run of {count:,} events", mine, select, 1.3, "ms", "raw SELECT")


async def load_among_many(scale: Scale) -> Row:
    """A run of 100 events, in a full table and in an almost empty one."""
    count = scale(10_000_000, 100_000)
    async with harness.database() as few, harness.database() as many:
        for db, rows in ((few, 1000), (many, count)):
            await db.execute(FILL, {"runs": rows // 100, "count": rows})
            await db.execute("VACUUM ANALYZE agent_events")

        async def small() -> None:
            assert len(await few.events.load("run 7")) == 100

        async def big() -> None:
            assert len(await many.events.load("run 7")) == 100

        alone, among = await harness.side_by_side([small, big], scale(300, 50))
    return at_most(f"load a run of 100 among {count:,} events", among, alone, 1.5, "ms", "among 1,000")


def redaction() -> list[Row]:
    """What looking for secrets costs a payload that holds none."""
    rules = Redaction()
    found = []
    for what, value in (("a payload of 400 bytes", harness.PAYLOAD), ("a delta", harness.EVENT)):
        text = jsonable.dumps(value)
        best = min(_microseconds(lambda text=text: rules.text(text)) for _ in range(20))
        cleaning = min(_microseconds(lambda value=value: jsonable.dumps(value)) for _ in range(20))
        figure, baseline = f"{best:.1f} µs", f"cleaning it {cleaning:.1f} µs"
        found.append(Row(f"redaction of {what}", figure, baseline, best / cleaning, "≤ 5 µs", best <= 5))
    return found


def _microseconds(work: object) -> float:
    assert callable(work)
    began = time.perf_counter()
    for _ in range(1000):
        work()
    return (time.perf_counter() - began) * 1000
