"""From the log to what a model is sent: always a valid history, whatever happened to the run that wrote it.

Each answer of a model and the outcomes of its calls form one block, in call order. Calls are paired with outcomes per answer,
because providers reuse ids; a call without an outcome is shown as interrupted.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from . import jsonable
from .messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from .values import Turn

INTERRUPTED = "This call was interrupted: its outcome is not known. It may or may not have taken effect."

History: TypeAlias = Callable[[list[Turn]], "list[Turn] | Awaitable[list[Turn]]"]


@dataclass(slots=True)
class Call:
    """A call named by a model turn, and what became of it."""

    call: ToolCall
    started: Turn | None = None
    """Its `tool_call` turn; None when it never started."""
    outcome: Turn | None = None
    """Its `tool_result` or `error` turn; None while it is open."""


@dataclass(slots=True)
class Block:
    """A user turn, or a model turn with its calls."""

    turn: Turn
    calls: list[Call] = field(default_factory=list)


def blocks(turns: Sequence[Turn]) -> list[Block]:
    """Pair every call with its `tool_call` turn and its outcome."""
    found: list[Block] = []
    for turn in turns:
        if turn.kind in ("user", "model"):
            found.append(Block(turn, [Call(call) for call in _calls(turn)]))
            continue
        call_id = turn.payload.get("toolCallId")
        if not isinstance(call_id, str):
            continue
        # The newest answer that still has such a call: ids come again in later answers.
        for block in reversed(found):
            match = _waiting(block, call_id, turn)
            if match is not None:
                if turn.kind == "tool_call":
                    match.started = turn
                else:
                    match.outcome = turn
                break
    return found


def _calls(turn: Turn) -> list[ToolCall]:
    calls = turn.payload.get("toolCalls") if turn.kind == "model" else None
    found = []
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(call.get("name"), str):
            args = call.get("args")
            found.append(
                ToolCall(str(call.get("id") or ""), call["name"], args if isinstance(args, dict | str) else {})
            )
    return found


def _waiting(block: Block, call_id: str, turn: Turn) -> Call | None:
    same = [call for call in block.calls if call.call.id == call_id and call.outcome is None]
    if turn.kind == "tool_call":
        return next((call for call in same if call.started is None), None)
    started = [call for call in same if call.started is not None]
    return next(iter(started or same), None)


def open_calls(turns: Sequence[Turn]) -> list[tuple[Turn, Call]]:
    """The calls without an outcome, each with the model turn that named it; a broken-off answer's do not count."""
    return [
        (block.turn, call)
        for block in blocks(turns)
        if not block.turn.payload.get("incomplete")
        for call in block.calls
        if call.outcome is None
    ]


def finished(turns: Sequence[Turn]) -> Turn | None:
    """The answer that ended the conversation's last run; None when that run is unfinished."""
    for turn in reversed(turns):
        if turn.kind == "model":
            done = not turn.payload.get("toolCalls") and not turn.payload.get("incomplete")
            return turn if done else None
        aside = turn.kind == "error" and turn.payload.get("stage") == "hook"
        if not aside and not (turn.kind == "tool_result" and "toolCallId" not in turn.payload):
            return None
    return None


def messages(turns: Sequence[Turn], keep: Sequence[Turn] | None = None) -> list[Message]:
    """The messages of a conversation; with `keep`, only of the blocks whose user or model turn is in it.

    A history that would begin with a model's answer begins with the user turn before it instead: providers want one.
    """
    all_blocks = blocks(turns)
    chosen = all_blocks
    if keep is not None:
        ids = {turn.id for turn in keep}
        chosen = [block for block in all_blocks if block.turn.id in ids]
        if chosen and chosen[0].turn.kind == "model":
            first = all_blocks.index(chosen[0])
            earlier = [block for block in all_blocks[:first] if block.turn.kind == "user"]
            chosen = earlier[-1:] + chosen
    out: list[Message] = []
    used: set[str] = set()
    for index, block in enumerate(chosen):
        if block.turn.kind == "user":
            out.append(UserMessage(_text(block.turn)))
            continue
        followed = index + 1 < len(chosen) and chosen[index + 1].turn.kind == "user"
        out.extend(block_messages(block, used, followed_by_user=followed))
    return out


def block_messages(block: Block, used: set[str], *, followed_by_user: bool = False) -> list[Message]:
    """The messages of a model turn and its outcomes; `used` holds the call ids the history has so far."""
    turn = block.turn
    text = _text(turn)
    if turn.payload.get("incomplete"):
        # A broken-off answer matters only to what the user said next; otherwise the model is asked again.
        return [AssistantMessage(text)] if text and followed_by_user else []
    if not text and not block.calls:
        return []
    calls = [ToolCall(_fresh(call.call.id, used), call.call.name, call.call.args) for call in block.calls]
    reasoning = turn.payload.get("reasoning")
    answer = AssistantMessage(
        text, tuple(calls), reasoning if isinstance(reasoning, str) else None, turn.payload.get("provider")
    )
    return [
        answer,
        *(outcome_message(renamed, call.outcome) for renamed, call in zip(calls, block.calls, strict=True)),
    ]


def outcome_message(call: ToolCall, outcome: Turn | None) -> ToolMessage:
    """What the model is told of a call's outcome."""
    if outcome is None:
        return ToolMessage(call.id, call.name, INTERRUPTED, is_error=True)
    if outcome.kind == "error":
        return ToolMessage(call.id, call.name, str(outcome.payload.get("message", "")), is_error=True)
    return ToolMessage(call.id, call.name, result_text(outcome.payload.get("result")))


def result_text(result: Any) -> str:
    """A tool's result as text: a string as it is, anything else as JSON."""
    return result if isinstance(result, str) else jsonable.dumps_lenient(result)


def _text(turn: Turn) -> str:
    text = turn.payload.get("text")
    return text if isinstance(text, str) else ""


def _fresh(call_id: str, used: set[str]) -> str:
    """An id no other call of this history has: a provider refuses two calls with one id."""
    base = call_id or "call"
    name, number = base, 2
    while name in used:
        name, number = f"{base}_{number}", number + 1
    used.add(name)
    return name


async def choose(history: History | None, turns: list[Turn]) -> list[Turn] | None:
    """What a history function keeps; None where everything is sent."""
    if history is None:
        return None
    kept = history(turns)
    return await kept if inspect.isawaitable(kept) else kept


def last_turns(n: int) -> History:
    """Send the last `n` turns, and what they cannot be read without."""
    if n < 1:
        raise ValueError(f"last_turns({n}) would send nothing; give a number from 1 up.")

    def keep(turns: list[Turn]) -> list[Turn]:
        return _with_owners(turns, turns[-n:])

    # The log need not be loaded further back than this.
    keep.last = n  # type: ignore[attr-defined]
    return keep


def token_budget(n: int, *, characters_per_token: float = 4.0) -> History:
    """Send the newest turns whose text is about `n` tokens, at four characters a token; at least the newest block."""
    if n < 1:
        raise ValueError(f"token_budget({n}) would send nothing; give a number from 1 up.")

    def keep(turns: list[Turn]) -> list[Turn]:
        left = n * characters_per_token
        start = len(turns)
        for index in range(len(turns) - 1, -1, -1):
            left -= len(jsonable.dumps_lenient(turns[index].payload))
            if left < 0 and start < len(turns):
                break
            start = index
        return _with_owners(turns, turns[start:])

    return keep


def _with_owners(turns: list[Turn], window: list[Turn]) -> list[Turn]:
    """The window, begun at the user or model turn it cuts into."""
    if not window:
        return window
    start = len(turns) - len(window)
    while start > 0 and turns[start].kind not in ("user", "model"):
        start -= 1
    return turns[start:]
