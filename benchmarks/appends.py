"""Appending: one writer, 64 agents at once, a big table, and what a turn weighs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import everyturn as et

from . import harness
from .harness import Row, Scale, at_least, at_most

AGENTS = 64


async def rows(scale: Scale) -> AsyncIterator[Row]:
    async for row in one_writer(scale):
        yield row
    for seed_indexes, best, copied in ((True, 8, 0.5), (False, 4, 0.5)):
        async for row in many_turns(scale, seed_indexes, best, copied):
            yield row
    async for row in many_events(scale):
        yield row
    yield await big_table(scale)
    async for row in weight(scale):
        yield row


async def one_writer(scale: Scale) -> AsyncIterator[Row]:
    async with harness.database() as db, harness.raw(db) as conn:
        conversation = uuid4()

        async def our_turn() -> None:
            await db.turns.append(conversation, "bench", "user", harness.PAYLOAD)

        async def raw_turn() -> None:
            await conn.execute(harness.INSERT_TURN, harness.turn_values(conversation), prepare=True)

        async def our_event() -> None:
            await db.events.append(et.EventRecord("run", "bench", harness.EVENT, agent_name="bench", turn=1))

        async def raw_event() -> None:
            await conn.execute(harness.INSERT_EVENT, harness.event_values("raw"), prepare=True)

        turn, raw_t, event, raw_e = await harness.side_by_side(
            [our_turn, raw_turn, our_event, raw_event], scale(2000, 100)
        )
        yield at_most("one durable append, a turn", turn, raw_t, 1.15, "ms", "async INSERT")
        yield at_most("one durable append, an event", event, raw_e, 1.15, "ms", "async INSERT")


async def many_turns(scale: Scale, seed_indexes: bool, best: float, copied: float) -> AsyncIterator[Row]:
    per_task = scale(300, 20)
    total = AGENTS * per_task
    label = "seed indexes" if seed_indexes else "all our indexes"
    ours, pooled, copy = [], [], []
    async with harness.database(seed_indexes=seed_indexes) as db, harness.pool(db, 16) as pool:
        for _ in range(3):

            async def append(_: int) -> None:
                conversation = uuid4()
                for _ in range(per_task):
                    await db.turns.append(conversation, "bench", "user", harness.PAYLOAD)

            async def insert(_: int) -> None:
                conversation = uuid4()
                for _ in range(per_task):
                    async with pool.connection() as conn:
                        await conn.execute(harness.INSERT_TURN, harness.turn_values(conversation), prepare=True)

            ours.append(total / await harness.tasks(AGENTS, append))
            pooled.append(total / await harness.tasks(AGENTS, insert))
            copy.append(total / await harness.tasks(1, lambda _: copy_turns(db, total)))
    yield at_least(f"64 agents, turns, {label}", max(ours), max(pooled), best, "rows/s", "pool of 16")
    yield at_least(f"64 agents, turns, {label}", max(ours), max(copy), copied, "rows/s", "COPY of dicts")


async def copy_turns(db: et.Database, total: int) -> None:
    conversation = uuid4()
    statement = "COPY agent_turns (id, conversation, agent, kind, payload) FROM STDIN"
    async with harness.raw(db) as conn, conn.cursor() as cursor, cursor.copy(statement) as copy:
        for _ in range(total):
            await copy.write_row(_cleaned(conversation))


def _cleaned(conversation: Any) -> tuple[Any, ...]:
    from everyturn import jsonable

    return (uuid4(), conversation, "bench", "user", jsonable.dumps(harness.PAYLOAD))


async def many_events(scale: Scale) -> AsyncIterator[Row]:
    per_task = scale(300, 20)
    total = AGENTS * per_task
    ours, pooled, copied = [], [], []
    async with harness.database() as db, harness.pool(db, 16) as pool:
        for _ in range(3):

            async def append(number: int) -> None:
                for _ in range(per_task):
                    await db.events.append(et.EventRecord(f"run {number}", "bench", harness.EVENT, turn=1))

            async def insert(number: int) -> None:
                for _ in range(per_task):
                    async with pool.connection() as conn:
                        await conn.execute(harness.INSERT_EVENT, harness.event_values(f"raw {number}"), prepare=True)

            ours.append(total / await harness.tasks(AGENTS, append))
            pooled.append(total / await harness.tasks(AGENTS, insert))
            copied.append(total / await harness.tasks(1, lambda _: copy_events(db, total)))
    yield at_least("64 agents, events", max(ours), max(pooled), 10, "rows/s", "pool of 16")
    yield at_least("64 agents, events", max(ours), max(copied), 0.35, "rows/s", "COPY of dicts")


async def copy_events(db: et.Database, total: int) -> None:
    from everyturn import jsonable

    statement = "COPY agent_events (run_id, agent_id, agent_name, turn, event) FROM STDIN"
    async with harness.raw(db) as conn, conn.cursor() as cursor, cursor.copy(statement) as copy:
        for _ in range(total):
            await copy.write_row(("copy", "bench", "bench", 1, jsonable.dumps(harness.EVENT)))


FILL = """
INSERT INTO agent_turns (conversation, agent, kind, payload)
SELECT md5((n / 200)::text)::uuid, 'bench', 'user', jsonb_build_object('text', 'turn ' || n || ' ' || md5(n::text))
  FROM generate_series(1, %s) AS n
"""


async def big_table(scale: Scale) -> Row:
    async with harness.database() as empty, harness.database() as full:
        await full.execute("DROP INDEX agent_turns_text")
        await full.execute(FILL, (scale(1_000_000, 10_000),))
        await full.execute(
            "CREATE INDEX agent_turns_text ON agent_turns USING gin (everyturn_tsvector(payload ->> 'text'))"
            " WHERE kind IN ('user', 'model')"
        )
        await full.execute("VACUUM ANALYZE agent_turns")
        await full.execute("CHECKPOINT")
        conversation = uuid4()

        async def at_empty() -> None:
            await empty.turns.append(conversation, "bench", "user", harness.PAYLOAD)

        async def at_full() -> None:
            await full.turns.append(conversation, "bench", "user", harness.PAYLOAD)

        small, big = await harness.side_by_side([at_empty, at_full], scale(2000, 100))
    return at_most(f"append at {scale(1_000_000, 10_000):,} turns", big, small, 1.2, "ms", "empty table")


WEIGHT = """
SELECT pg_relation_size('agent_turns') + pg_relation_size('agent_turns_pkey')
       + pg_relation_size('agent_turns_conv_time') AS raw,
       pg_relation_size('agent_turns') + pg_indexes_size('agent_turns')
       - pg_relation_size('agent_turns_embedding') - pg_relation_size('agent_turns_text') AS without_words,
       pg_relation_size('agent_turns') + pg_indexes_size('agent_turns')
       - pg_relation_size('agent_turns_embedding') AS everything
"""

SEED_TABLE = """
CREATE TABLE seed_turns (
    id uuid PRIMARY KEY, conversation uuid NOT NULL, agent text NOT NULL, kind text NOT NULL, payload jsonb NOT NULL,
    embedding vector(1024), created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX seed_turns_conv_time ON seed_turns (conversation, created_at);
"""


async def weight(scale: Scale) -> AsyncIterator[Row]:
    count = scale(50_000, 2_000)
    async with harness.database() as db:
        await db.execute(SEED_TABLE)
        for start in range(0, count, 1000):
            conversation = uuid4()
            batch = [
                et.NewTurn(conversation, "bench", "user", {"text": text(start + n), "runId": str(conversation)})
                for n in range(1000)
            ]
            await db.turns.append_many(batch)
        await db.execute(
            "INSERT INTO seed_turns SELECT id, conversation, agent, kind, payload, embedding, created_at"
            " FROM agent_turns ORDER BY seq"
        )
        await db.execute("VACUUM agent_turns")
        [ours] = await db.fetch(WEIGHT)
        [seed] = await db.fetch(
            "SELECT pg_relation_size('seed_turns') + pg_relation_size('seed_turns_pkey')"
            " + pg_relation_size('seed_turns_conv_time') AS bytes"
        )
    raw = seed["bytes"] / count
    yield at_most("bytes a turn, no lexical index", ours["without_words"] / count, raw, 1.2, "B", "seed's row")
    yield at_most("bytes a turn, all indexes", ours["everything"] / count, raw, 1.6, "B", "seed's row")


VOCABULARY = """
parser hunk header comment line reviewer file path binary review finding rule tool budget window retry
model turn conversation index query plan cache commit branch merge conflict token stream event replay
dataset judge verdict
"""
WORDS = VOCABULARY.split()


def text(number: int) -> str:
    """400 characters of words that differ from turn to turn."""
    words = [WORDS[(number * 7 + n * n) % len(WORDS)] for n in range(60)]
    return f"turn {number} " + " ".join(words)[:388]
