"""Evaluators that the command line tests name as `…/cli_evaluators.py:…`."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import everyturn as et


@et.evaluator("length:v1", kinds=["model"])
def length(turn: et.Turn) -> tuple[bool, str]:
    return len(turn.payload["text"]) > 3, "by its length"


@et.evaluator("fails:v1", kinds=["model"])
def fails(turn: et.Turn) -> str:
    raise ValueError(f"no opinion on {turn.payload['text']}")


@et.evaluator("whole:v1")
async def whole(conversation: et.Conversation, db: Any) -> str:
    return "good"


@et.evaluator("slow:v1", kinds=["model"])
async def slow(turn: et.Turn) -> str:
    await asyncio.sleep(float(os.environ.get("SLOW", "0.02")))
    return "good"


NOT_AN_EVALUATOR = 7
