"""Agents that the command line tests name as `python:…/cli_agents.py:…`."""

from __future__ import annotations

import os
import signal
from typing import Any

import everyturn as et


@et.tool
async def shout(text: str) -> str:
    """Say it louder.

    Args:
        text: What to say.
    """
    if os.environ.get("CLI_AGENTS_DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    return text.upper()


def model(request: et.ModelRequest) -> et.ModelTurn:
    last = request.messages[-1]
    if isinstance(last, et.ToolMessage):
        return et.ModelTurn(text=f"heard: {last.content}")
    return et.ModelTurn(tool_calls=[et.ToolCall("call_1", "shout", {"text": "hello"})])


def agent(db: Any) -> et.Agent:
    return et.Agent(db, "crier", tools=[shout], model=model)


async def later(db: Any) -> et.Agent:
    return agent(db)


NOT_AN_AGENT = 7
