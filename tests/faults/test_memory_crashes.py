"""Memory under kills, lost connections and many writers: the log and the tables never disagree."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

import everyturn as et
from everyturn.errors import MemoryNotFound

TABLES = ("episodic", "semantic", "procedural")
WRITER = """
import asyncio, sys
import everyturn as et

async def main(url, seed):
    async with et.connect(url, embedder=False) as db:
        number = 0
        print("ready", flush=True)
        while True:
            number += 1
            scope = f"s{seed}"
            await db.memory.remember("episodic", text=f"event {number}", scope=scope)
            fact = await db.memory.remember("semantic", text=f"fact {number}", scope=scope)
            await db.memory.supersede(fact.id, text=f"newer {number}")
            await db.memory.remember("procedural", cache_key=f"k{number % 5}", value=number, scope="shared")
            await db.memory.remember_many("semantic", [{"text": f"many {n}", "scope": scope} for n in range(5)])
            if number % 3 == 0:
                await db.memory.forget("semantic", ids=[fact.id], scope=scope)
                await db.memory.forget("procedural", subjects=["k1"], scope="shared", from_log=number % 2 == 0)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


def disagreements(url: str) -> dict[str, int]:
    """For each table, how many rows it and the log do not agree on."""
    found = {}
    with psycopg.connect(url) as conn:
        for kind in TABLES:
            columns = [
                row[0]
                for row in conn.execute(
                    "SELECT attname FROM pg_attribute"
                    " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
                    (f"agent_{kind}",),
                )
            ]
            names = ", ".join(columns)
            row = conn.execute(
                f"SELECT (SELECT count(*) FROM (SELECT {names} FROM agent_{kind} EXCEPT"  # noqa: S608
                f"                              SELECT {names} FROM everyturn_{kind}_from_log()) AS a)"
                f"     + (SELECT count(*) FROM (SELECT {names} FROM everyturn_{kind}_from_log() EXCEPT"
                f"                              SELECT {names} FROM agent_{kind}) AS b)".encode()
            ).fetchone()
            assert row is not None
            found[kind] = row[0]
    return found


def test_killed_at_any_instant_log_and_tables_agree(everyturn_url: str, tmp_path: Path) -> None:
    program = tmp_path / "writer.py"
    program.write_text(WRITER)
    chance = random.Random(4)
    for attempt in range(3):
        writers = [
            subprocess.Popen(
                [sys.executable, str(program), everyturn_url, str(seed)], stdout=subprocess.PIPE, env=os.environ
            )
            for seed in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0.05, 0.4))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
        # What the killed processes had sent may still be committed.
        with psycopg.connect(everyturn_url, autocommit=True) as conn:
            while conn.execute(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            ).fetchone():
                time.sleep(0.01)
        assert disagreements(everyturn_url) == {"episodic": 0, "semantic": 0, "procedural": 0}, attempt
    with psycopg.connect(everyturn_url) as conn:
        counted = conn.execute("SELECT count(*) FROM agent_semantic").fetchone()
        assert counted is not None
        assert counted[0] > 20


async def test_two_writers_of_one_key_leave_table_and_log_alike(everyturn_url: str) -> None:
    async def writer(name: str) -> None:
        async with et.connect(everyturn_url, embedder=False) as db:
            for number in range(30):
                await db.memory.remember("procedural", cache_key=f"k{number % 2}", value=f"{name}{number}")
                if number % 10 == 9:
                    await db.memory.forget("procedural", subjects=["k0"])

    await asyncio.gather(*(writer(name) for name in "abcd"))
    assert await asyncio.to_thread(disagreements, everyturn_url) == dict.fromkeys(TABLES, 0)


async def test_many_keys_by_many_writers_do_not_deadlock(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False) as db:
        chance = random.Random(2)

        async def writer(name: int) -> None:
            for number in range(10):
                keys = chance.sample(range(30), 20)
                await db.memory.remember_many(
                    "procedural", [{"cache_key": f"k{key}", "value": [name, number]} for key in keys]
                )

        await asyncio.gather(*(writer(name) for name in range(6)))
    assert await asyncio.to_thread(disagreements, everyturn_url) == dict.fromkeys(TABLES, 0)


async def test_one_of_many_supersedes_a_fact(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False) as db:
        fact = await db.memory.remember("semantic", text="first")
        done = await asyncio.gather(
            *(db.memory.supersede(fact.id, text=f"second {n}") for n in range(8)), return_exceptions=True
        )
        assert sum(isinstance(one, et.Remembered) for one in done) == 1
        assert all(isinstance(one, et.Remembered | et.InvalidValue | MemoryNotFound) for one in done)
        assert len(await db.memory.recall("semantic")) == 1
    assert await asyncio.to_thread(disagreements, everyturn_url) == dict.fromkeys(TABLES, 0)


async def test_of_writers_of_one_fact_one_stays(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False) as db:
        done = await asyncio.gather(
            *(db.memory.remember("semantic", text="the same", on_duplicate="skip") for _ in range(8))
        )
        assert sorted(one.action for one in done) == ["added", *["skipped"] * 7]
        assert len({one.id for one in done}) == 1


async def test_rebuilding_under_writers_loses_nothing(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False) as db:
        stop = asyncio.Event()
        written: list[Any] = []

        async def writer() -> None:
            while not stop.is_set():
                written.append(await db.memory.remember("semantic", text=f"fact {len(written)}"))

        task = asyncio.create_task(writer())
        for _ in range(5):
            await asyncio.sleep(0.02)
            assert sum(one.removed + one.written for one in await db.memory.rebuild()) == 0
        stop.set()
        await task
        assert len(await db.fetch("SELECT 1 FROM agent_semantic")) == len(written) > 0


@pytest.mark.parametrize("kind", ["semantic", "procedural"])
async def test_a_lost_connection_is_not_a_second_memory(everyturn_url: str, kind: str) -> None:
    """field case 46: the server ends the connections between two writes; each memory is there once."""
    async with et.connect(everyturn_url, embedder=False) as db:
        for number in range(3):
            with psycopg.connect(everyturn_url, autocommit=True) as conn:
                conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            if kind == "semantic":
                await db.memory.remember("semantic", text=f"fact {number}")
            else:
                await db.memory.remember("procedural", cache_key=f"k{number}", value=number)
        rows = await db.fetch(f"SELECT 1 FROM agent_{kind}")  # noqa: S608
        assert len(rows) == 3
    assert await asyncio.to_thread(disagreements, everyturn_url) == dict.fromkeys(TABLES, 0)
