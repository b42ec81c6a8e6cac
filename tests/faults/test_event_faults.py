"""Runs that are killed while somebody reads them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from uuid import UUID

import everyturn as et
from everyturn.testing import ScriptedModel, database

PROGRAM = """
import asyncio, sys
import everyturn as et

async def model(request):
    n = 0
    while True:
        yield et.TextDelta(f"word{n} ")
        n += 1
        await asyncio.sleep(0.002)

async def main():
    async with et.connect(sys.argv[1], embedder=False) as db:
        agent = et.Agent(db, "bot", model=model)
        async for event in agent.run_stream("go on for ever"):
            print(event.get("delta", event["type"]), flush=True)

asyncio.run(main())
"""


def start(program: str, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True)


async def test_a_run_killed_in_the_middle() -> None:
    """field case 40: what the reader had seen is there; field case 36: the run is taken up under a new name."""
    async with database() as db:
        process = start(PROGRAM, db.url)
        assert process.stdout is not None
        received = [process.stdout.readline().rstrip("\n") for _ in range(60)]
        os.kill(process.pid, signal.SIGKILL)
        with process.stdout:
            received += [line.rstrip("\n") for line in process.stdout if line.endswith("\n")]
        process.wait()

        [run] = await db.events.runs()
        assert run.status == "cut off"
        assert [found.run_id for found in await db.events.runs(status="cut off")] == [run.run_id]
        stored = [record.event.get("delta", record.type) for record in await db.events.load(run.run_id)]
        assert stored[: len(received)] == received
        # A follower is told all of it, and let go.
        followed = [record.event.get("delta", record.type) async for record in db.events.follow(run.run_id)]
        assert followed == stored

        assert run.conversation is not None
        done = await et.Agent(db, "bot", model=ScriptedModel(["Enough."])).resume(UUID(run.conversation))
        assert done.run_id != run.run_id
        [new] = await db.events.runs(status="finished")
        assert (new.run_id, new.resumes, new.conversation) == (done.run_id, run.run_id, run.conversation)
        assert await db.events.status(run.run_id) == "cut off"
        [model] = [turn for turn in done.turns if turn.kind == "model"]
        assert model.payload["resumes"] == run.run_id


SECRET = "sk-ant-api03-" + "KILLEDkilled1234567890"


async def test_a_secret_is_not_left_by_a_run_that_is_killed() -> None:
    """field case 149: not even the first half of one."""
    program = PROGRAM.replace('f"word{n} "', f"{SECRET!r}[n % {len(SECRET)}]")
    async with database() as db:
        process = start(program, db.url)
        assert process.stdout is not None
        for _ in range(8):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
        rows = await db.fetch("SELECT event FROM agent_events ORDER BY id")
        text = "".join(row["event"].get("delta", "") for row in rows)
        assert SECRET[8:] not in text
        assert SECRET[8:24] not in json.dumps([row["event"] for row in rows])
