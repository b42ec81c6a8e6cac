"""Workers of one evaluator that are killed: every turn has exactly one verdict in the end.

EVERYTURN_TEST_EVAL_TURNS is the number of turns; 10000 takes about a minute.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

import everyturn as et

TURNS = int(os.environ.get("EVERYTURN_TEST_EVAL_TURNS", "400"))
EVALUATORS = f"{Path(__file__).parent.parent}/acceptance/cli_evaluators.py"


@pytest.fixture
async def everyturn_db(everyturn_url: str) -> AsyncIterator[et.Database]:
    """Closed in the loop of the test: connections may still be opening when a worker has ended."""
    async with et.connect(everyturn_url, embedder=False) as db:
        yield db


def test_two_of_four_workers_are_killed(everyturn_url: str) -> None:
    """Exactly one verdict per turn and evaluator, though two of four workers die at work.

    The kind of field case 87: to look and then to insert lets parallel callers pass.
    """
    with psycopg.connect(everyturn_url, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO agent_turns (conversation, agent, kind, payload)"
            " SELECT gen_random_uuid(), 'a', 'model', jsonb_build_object('text', n) FROM generate_series(1, %s) AS n",
            (TURNS,),
        )
        command = [
            sys.executable,
            "-m",
            "everyturn.cli",
            "-q",
            "-d",
            everyturn_url,
            "eval",
            "run",
            f"{EVALUATORS}:slow",
        ]
        environment = os.environ | {"SLOW": "0.01"}
        workers = [
            subprocess.Popen([*command, "--embedder", "none"], env=environment, stdout=subprocess.DEVNULL)
            for _ in range(4)
        ]
        try:
            for worker, share in zip(workers[:2], (0.2, 0.4), strict=True):
                while judged(conn) < TURNS * share:
                    assert worker.poll() is None
                    time.sleep(0.02)
                worker.send_signal(signal.SIGKILL)
            assert [worker.wait(300) for worker in workers[2:]] == [0, 0]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        assert judged(conn) == TURNS
        row = conn.execute("SELECT count(DISTINCT turn_id), min(verdict), max(verdict) FROM agent_evals").fetchone()
        assert row == (TURNS, "good", "good")
        # Nothing is left locked, and there is nothing left to do.
        assert conn.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)
        assert subprocess.run([*command, "--embedder", "none"], env=environment, capture_output=True).returncode == 0
        assert judged(conn) == TURNS


def judged(conn: psycopg.Connection) -> int:
    row = conn.execute("SELECT count(*) FROM agent_evals WHERE evaluator = 'slow:v1'").fetchone()
    return int(row[0]) if row is not None else 0


async def test_a_worker_that_lost_its_connection_goes_on(everyturn_db: et.Database) -> None:
    """The server ends every connection in the middle: claims are taken again, and each turn is judged once."""
    db = everyturn_db
    conversation = uuid4()
    await db.turns.append_many([et.NewTurn(conversation, "a", "model", {"text": str(n)}) for n in range(60)])
    calls = 0

    async def cut(turn: et.Turn) -> str:
        nonlocal calls
        calls += 1
        if calls == 20:
            with psycopg.connect(db.url, autocommit=True) as conn:
                conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        await asyncio.sleep(0.002)
        return "good"

    evaluator = et.Evaluator("cut", cut)
    done = await db.evals.run(evaluator, concurrency=4)
    assert done.recorded + done.elsewhere == 60
    assert (done.failed, calls) == (0, 60)
    assert len(await db.evals.list()) == 60
