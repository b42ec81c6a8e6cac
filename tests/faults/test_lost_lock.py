"""A run whose connection breaks: it goes on, unless another run has taken its conversation meanwhile."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import everyturn as et
from everyturn.locks import lock_key

TERMINATE = """
SELECT pg_terminate_backend(pid, 2000)
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


@et.tool
async def step() -> str:
    return "ok"


async def test_a_run_goes_on_after_its_connections_were_closed(everyturn_db: et.Database) -> None:
    """field case 46: no turn twice, none lost."""
    conversation = uuid4()
    asked = 0

    async def model(request: et.ModelRequest) -> et.ModelTurn:
        nonlocal asked
        asked += 1
        with psycopg.connect(everyturn_db.url, autocommit=True) as other:
            other.execute(TERMINATE)
        if asked == 3:
            return et.ModelTurn(text="done")
        return et.ModelTurn(tool_calls=[et.ToolCall("c", "step", {})])

    result = await et.Agent(everyturn_db, "a", tools=[step], model=model).run("x", conversation)
    turns = await everyturn_db.turns.load(conversation)
    assert turns == result.turns
    assert len(turns) == 8
    events = [record.event["type"] for record in await everyturn_db.events.load(result.run_id)]
    assert events.count("turn_start") == 3
    assert events[-1] == "final"


async def test_a_run_that_lost_its_conversation_writes_no_more(everyturn_db: et.Database) -> None:
    """field case 23"""
    conversation = uuid4()
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(psycopg.connect(everyturn_db.url, autocommit=True))

        async def model(request: et.ModelRequest) -> str:
            other.execute(TERMINATE)
            row: Any = other.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(conversation),)).fetchone()
            assert row[0]
            return "too late"

        with pytest.raises(et.ConversationConflict):
            await et.Agent(everyturn_db, "a", model=model).run("x", conversation)
        assert [turn.kind for turn in await everyturn_db.turns.load(conversation)] == ["user"]
    later = et.Agent(everyturn_db, "a", model=lambda request: "taken up")
    assert (await later.resume(conversation)).output == "taken up"
