"""An agent killed with `kill -9` at random instants and resumed each time.

EVERYTURN_KILLS says how often; the suite does it a dozen times.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

import everyturn as et
from everyturn.blocks import finished, open_calls

KILLS = int(os.environ.get("EVERYTURN_KILLS", "12"))
PROGRAM = Path(__file__).parent / "killed_agent.py"


def start(url: str, journal: Path, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), url, str(journal), mode]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.timeout(60 + 5 * KILLS)
def test_killed_at_random_instants_and_resumed(everyturn_url: str, tmp_path: Path) -> None:
    """field case 36, field case 40: nothing acknowledged is lost, every conversation finishes, no call is left open."""
    journal = tmp_path / "journal"
    journal.touch()
    chance = random.Random()
    following = start(everyturn_url, journal, "run")
    for left in reversed(range(KILLS)):
        process, following = following, start(everyturn_url, journal, "run" if left else "finish")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        if process.stdout.readline() != "ready\n":
            raise AssertionError(process.communicate()[1])
        time.sleep(chance.random() * 0.3)
        process.kill()
        _, said = process.communicate()
        assert "Traceback" not in said, said
    process = following
    _, said = process.communicate("\n", timeout=60)
    assert process.returncode == 0, said
    lines = journal.read_bytes().split(b"\n")
    asyncio.run(check(everyturn_url, [json.loads(line) for line in lines[:-1]]))


async def check(url: str, claims: list[list[str]]) -> None:
    """Every claim of the journal holds, and every conversation is whole."""
    assert [claim for claim in claims if claim[0] == "invalid"] == []
    async with et.connect(url, embedder=False) as db:
        rows = await db.fetch("SELECT conversation, array_agg(id) AS ids FROM agent_turns GROUP BY conversation")
        stored = {str(id) for row in rows for id in row["ids"]}
        acknowledged = {claim[1] for claim in claims if claim[0] == "turn"}
        assert len(acknowledged) > KILLS
        assert acknowledged <= stored

        calls: Counter[tuple[str, str, str]] = Counter()
        conversations = {row["conversation"] for row in rows}
        interrupted = 0
        for conversation in conversations:
            turns = await db.turns.load(conversation)
            if turns[0].agent == "note":
                continue
            assert not open_calls(turns)
            assert finished(turns) is not None
            started = Counter(turn.payload["toolCallId"] for turn in turns if turn.kind == "tool_call")
            named = Counter(c["id"] for turn in turns if turn.kind == "model" for c in turn.payload["toolCalls"])
            ended = Counter(
                turn.payload["toolCallId"]
                for turn in turns
                if turn.kind in ("tool_result", "error") and "toolCallId" in turn.payload
            )
            assert ended == named
            assert started <= named
            calls.update(
                (str(conversation), turn.payload["runId"], turn.payload["toolCallId"])
                for turn in turns
                if turn.kind == "tool_call"
            )
            interrupted += sum(turn.payload.get("stage") == "interrupted" for turn in turns)
        # No handler ran without its call in the log.
        ran = Counter((claim[1], claim[2], claim[3]) for claim in claims if claim[0] == "started")
        assert ran <= calls
        for claim in claims:
            if claim[0] == "finished":
                assert UUID(claim[1]) in conversations
        # What was streamed is there, in its place.
        last = {claim[1]: claim for claim in claims if claim[0] == "event"}
        for conversation, claim in last.items():
            first = (await db.turns.load(conversation))[0]
            events = await db.events.load(first.payload["runId"], limit=int(claim[2]))
            assert len(events) == int(claim[2])
            assert events[-1].event["type"] == claim[3]
        print(f"{KILLS} kills, {len(conversations)} conversations, {len(acknowledged)} turns acknowledged, ", end="")
        print(f"{interrupted} calls interrupted, {sum(ran.values())} handlers run")
