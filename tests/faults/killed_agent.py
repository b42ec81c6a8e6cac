"""The program that test_kill_and_resume kills: it resumes what crashed, then runs on until it is killed.

Every line of its journal claims something that must be in the database. It is written before the program goes on: what
the kernel has taken outlives the process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import everyturn as et
from everyturn.provider_rules import check_messages

_url, _journal, _mode = sys.argv[1:4]
_file = os.open(_journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def claim(what: str, *values: Any) -> None:
    os.write(_file, (json.dumps([what, *map(str, values)]) + "\n").encode())


def started(ctx: et.Context) -> None:
    claim("started", ctx.conversation, ctx.run_id, ctx.tool_call_id)


@et.tool
async def quick(ctx: et.Context) -> str:
    started(ctx)
    return "quick"


@et.tool(rate_budget=et.RateBudget(3600, 1_000_000))
async def counted(ctx: et.Context) -> str:
    started(ctx)
    await asyncio.sleep(0.002)
    return "counted"


@et.tool
def threaded(ctx: et.Context) -> dict[str, int]:
    started(ctx)
    return {"turns": len(ctx.db.turns.load(ctx.conversation))}


async def model(request: et.ModelRequest) -> AsyncIterator[Any]:
    try:
        check_messages(request.messages)
    except et.ModelError as error:
        claim("invalid", error)
        raise
    yield et.TextDelta("thinking ")
    await asyncio.sleep(0.001)
    yield et.TextDelta("about it")
    if sum(isinstance(message, et.AssistantMessage) for message in request.messages) >= 3:
        yield et.ModelTurn(text="done", usage=et.Usage(1, 1))
        return
    names = random.sample(["quick", "counted", "threaded", "unknown", "quick"], k=random.randint(1, 4))
    # The ids come again in every answer.
    yield et.ModelTurn(tool_calls=[et.ToolCall(f"call_{n}", name, {}) for n, name in enumerate(names)])


async def turn_complete(turn: et.Turn) -> None:
    claim("turn", turn.id)


async def main() -> None:
    # Importing takes longer than what is to be interrupted: the test keeps the next process waiting here.
    sys.stdin.readline()
    async with et.connect(_url, embedder=False) as db:
        hooks = et.EvalHooks(turn_complete)
        bot = et.Agent(db, "killed", tools=[quick, counted, threaded], model=model, hooks=hooks)
        crashed = await db.query("conversations_by_status", status="crashed", agent="", before="", limit=None)
        print("ready", flush=True)
        for row in crashed:
            result = await bot.resume(row["id"])
            claim("finished", result.conversation)
        for number in itertools.count():
            if _mode == "finish":
                return
            if number % 2:
                claim("finished", (await bot.run("go")).conversation)
            else:
                conversation = uuid4()
                stream = bot.run_stream("go", conversation)
                received = 0
                async for event in stream:
                    received += 1
                    claim("event", conversation, received, event.type)
            note = await db.turns.append(uuid4(), "note", "user", {"text": "kept"})
            claim("turn", note.id)


asyncio.run(main())
