"""A replay killed at random instants, and resumed each time, is one whole replay.

EVERYTURN_KILLS sets how often it is killed (50 for the long form).
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import everyturn as et

KILLS = int(os.environ.get("EVERYTURN_KILLS", "5"))
CASES, TRIALS = 30, 2

REPLAY = """
import asyncio, sys
import everyturn as et
from everyturn.judge import Judge

async def model(request):
    word = request.messages[-1].text.split()[-1]
    with open(sys.argv[3], "a") as file:
        file.write(word + "\\n")
    await asyncio.sleep(0.04)
    return et.ModelTurn(text=word, usage=et.Usage(10, 2), cost_usd="0.001")

async def judge(request):
    await asyncio.sleep(0.02)
    return et.ModelTurn(text='{"reason": "r", "score": 1}', cost_usd="0.0001")

async def main():
    async with et.connect(sys.argv[1], embedder=False) as db:
        options = dict(model=model, scorers=[Judge(judge)], concurrency=4, progress=lambda now: None)
        print("ready", flush=True)
        if sys.argv[2] == "new":
            await db.datasets.replay("core", trials=int(sys.argv[4]), **options)
        else:
            await db.datasets.resume(sys.argv[2], **options)

asyncio.run(main())
"""


async def prepare(url: str) -> None:
    async with et.connect(url, embedder=False) as db:
        await db.cases.import_rows({"prompt": f"say {n}", "reference": str(n)} for n in range(CASES))
        await db.datasets.publish("core")


async def state(url: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    async with et.connect(url, embedder=False) as db:
        return await db.fetch("SELECT * FROM eval_replay"), await db.fetch("SELECT * FROM eval_run")


def test_killed_anywhere_and_resumed_it_is_whole(everyturn_url: str, tmp_path: Path) -> None:
    """Field case 91, 93: as many rows as cases and trials, none twice, costs of all parts, no answer thrown away."""
    asyncio.run(prepare(everyturn_url))
    asked = tmp_path / "asked"
    asked.touch()
    what = "new"
    killed = 0
    chance = random.Random(os.environ.get("EVERYTURN_SEED", "7"))
    while True:
        process = subprocess.Popen(
            [sys.executable, "-c", REPLAY, everyturn_url, what, str(asked), str(TRIALS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", process.communicate()
        if killed < KILLS:
            # Spread over the whole of the work, however many kills there are.
            time.sleep(chance.uniform(0, 2 * CASES * TRIALS * 0.06 / 4 / KILLS))
            process.kill()
            process.wait()
            process.stdout.close()
            assert process.stderr is not None
            process.stderr.close()
            killed += 1
        else:
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said.decode()
        replays, runs = asyncio.run(state(everyturn_url))
        if replays:
            what = str(replays[0]["id"])
            if replays[0]["status"] == "finished" and killed >= KILLS:
                break
    assert len(replays) == 1
    assert Counter((run["case_id"], run["trial"]) for run in runs) == {
        (case, trial): 1 for case in replays[0]["case_ids"] for trial in range(1, TRIALS + 1)
    }
    assert {run["outcome"] for run in runs} == {"pass"}
    assert sum(run["cost_usd"] for run in runs) == Decimal("0.001") * CASES * TRIALS
    assert sum(run["judge_cost_usd"] for run in runs) == Decimal("0.0001") * CASES * TRIALS
    # What was under way when it was killed is asked again, and nothing else: at most four answers a kill.
    assert len(asked.read_text().split()) <= CASES * TRIALS + 4 * KILLS
