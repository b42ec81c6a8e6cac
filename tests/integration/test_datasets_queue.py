"""Replays through the queue."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from datasets_helpers import numbers, quick  # noqa: F401

import everyturn as et
from everyturn.errors import InvalidValue

pytest.importorskip("procrastinate")

LEAVES = """
import time
import everyturn as et

def echo(request):
    return et.ModelTurn(text=request.messages[-1].text.split()[-1], usage=et.Usage(1, 1), cost_usd="0.001")

def free(request):
    return et.ModelTurn(text="0", usage=et.Usage(1, 1), model="nobodys")

def slow(request):
    time.sleep(0.15)
    return echo(request)
"""


@pytest.fixture
def leaves(tmp_path: Path) -> str:
    file = tmp_path / "queue_leaves.py"
    file.write_text(LEAVES)
    return f"python:{file}"


async def test_workers_take_every_case_once(everyturn_db: et.Database, leaves: str) -> None:
    from everyturn.datasets.queue import enqueue, work

    db = everyturn_db
    await numbers(db, 6)
    done = await db.datasets.replay("core", model=f"{leaves}:echo", trials=2, queue=True)
    assert (done.status, done.progress.done, done.progress.total) == ("running", 0, 12)
    await enqueue(db, done.id)  # a second time: the jobs find their runs stored, or wait for one another
    await asyncio.gather(work(db, drain=True, concurrency=4), work(db, drain=True, concurrency=4))
    rows = await db.fetch("SELECT case_id, trial, outcome FROM eval_run")
    assert len({(row["case_id"], row["trial"]) for row in rows}) == len(rows) == 12
    assert {row["outcome"] for row in rows} == {"pass"}
    [replay] = await db.fetch("SELECT status FROM eval_replay")
    assert replay["status"] == "finished"
    with pytest.raises(InvalidValue, match="python:module:name"):
        await db.datasets.replay("core", model=lambda request: "x", queue=True)


async def test_workers_keep_to_what_a_replay_may_cost(everyturn_db: et.Database, leaves: str) -> None:
    from everyturn.datasets.queue import enqueue, work

    db = everyturn_db
    await numbers(db, 20)
    begun = await db.datasets.replay("core", model=f"{leaves}:echo", max_cost=0.0105, queue=True)

    async def two_workers() -> tuple[str, int]:
        await asyncio.gather(work(db, drain=True, concurrency=3), work(db, drain=True, concurrency=3))
        [row] = await db.fetch("SELECT status, (SELECT count(*) FROM eval_run) AS runs FROM eval_replay")
        return row["status"], row["runs"]

    status, runs = await two_workers()
    assert status == "stopped"
    assert 5 <= runs <= 10
    await enqueue(db, begun.id)  # what is left of the limit may be spent, and no more
    status, runs = await two_workers()
    assert status == "stopped"
    assert runs <= 10
    done = await db.datasets.resume(begun.id, max_cost=1)
    assert (done.status, done.progress.done) == ("finished", 20)


async def test_workers_stop_where_a_limit_cannot_be_kept(everyturn_db: et.Database, leaves: str) -> None:
    from everyturn.datasets.queue import work

    await numbers(everyturn_db, 6)
    await everyturn_db.datasets.replay("core", model=f"{leaves}:free", max_cost=1, queue=True)
    await work(everyturn_db, drain=True, concurrency=1)
    [row] = await everyturn_db.fetch("SELECT status, (SELECT count(*) FROM eval_run) AS runs FROM eval_replay")
    assert (row["status"], row["runs"]) == ("stopped", 1)


def worker(url: str) -> subprocess.Popen[bytes]:
    everyturn = Path(sys.executable).parent / "everyturn"
    command = [everyturn, "-q", "-d", url, "worker", "--embedder", "none", "-j", "2", "--stalled-after", "1"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_worker_that_is_killed_loses_and_doubles_nothing(everyturn_url: str, leaves: str) -> None:
    async def begin() -> None:
        async with et.connect(everyturn_url, embedder=False) as db:
            await numbers(db, 14)
            await db.datasets.replay("core", model=f"{leaves}:slow", queue=True)

    async def stored() -> list[str]:
        async with et.connect(everyturn_url, embedder=False) as db:
            return [row["outcome"] for row in await db.fetch("SELECT outcome FROM eval_run")]

    asyncio.run(begin())
    first = worker(everyturn_url)
    try:
        deadline = time.monotonic() + 30
        while len(asyncio.run(stored())) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    second = worker(everyturn_url)
    try:
        while len(asyncio.run(stored())) < 14:
            assert time.monotonic() < deadline + 30
            time.sleep(0.1)
    finally:
        second.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            second.wait(10)
        second.kill()
        second.wait()
    assert asyncio.run(stored()) == ["pass"] * 14
