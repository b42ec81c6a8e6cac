"""How the turns of a conversation belong together: each answer of a model, its calls and their outcomes.

Calls are paired with outcomes per answer and run, because providers reuse ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .messages import ToolCall
from .redaction import MASK
from .values import Turn


@dataclass(slots=True, eq=False)
class Call:
    """A call named by a model turn, and what became of it."""

    call: ToolCall
    started: Turn | None = None
    """Its `tool_call` turn; None when it never started."""
    outcome: Turn | None = None
    """Its `tool_result` or `error` turn; None while it is open."""
    masked: bool = False
    """Whether the stored arguments are not those the model gave: redaction changed them."""


@dataclass(slots=True, eq=False)
class Block:
    """A user turn, a model turn with its calls, or a call that no model turn names."""

    turn: Turn
    calls: list[Call] = field(default_factory=list)

    @property
    def incomplete(self) -> bool:
        """Whether it is an answer that broke off."""
        return self.turn.kind == "model" and bool(payload_of(self.turn).get("incomplete"))


def payload_of(turn: Turn) -> dict[str, Any]:
    """The payload, an empty one where it is not an object."""
    payload: Any = turn.payload
    return payload if isinstance(payload, dict) else {}


def run_of(turn: Turn) -> str | None:
    """The run that wrote the turn; None for a turn that no run wrote."""
    run = payload_of(turn).get("runId")
    return run if isinstance(run, str) else None


class _Named:
    """The calls that have one id, answer by answer."""

    def __init__(self) -> None:
        self.groups: list[tuple[str | None, list[Call]]] = []
        self.runs: set[str] = set()

    def add(self, run: str | None, call: Call, *, same_answer: bool) -> None:
        if same_answer:
            self.groups[-1][1].append(call)
            return
        self.groups.append((run, [call]))
        if run is not None:
            self.runs.add(run)

    def pick(self, turn: Turn) -> Call | None:
        """The call that a `tool_call` turn or an outcome belongs to: in the newest answer that still waits for it.

        Answers of the turn's own run come first: of two runs that write to one conversation, each has its own calls.
        """
        run = run_of(turn)
        own = run is not None and run in self.runs
        for of, calls in reversed(self.groups):
            if own and of != run:
                continue
            if turn.kind == "tool_call":
                waiting = [call for call in calls if call.started is None]
            else:
                open_calls = [call for call in calls if call.outcome is None]
                waiting = [call for call in open_calls if call.started is not None] or open_calls
            if waiting:
                return waiting[0]
        return None


def blocks(turns: Sequence[Turn]) -> list[Block]:
    """Pair every call with its `tool_call` turn and its outcome; an outcome without a call is in no block."""
    found: list[Block] = []
    named: dict[str, _Named] = {}
    for turn in turns:
        if turn.kind in ("user", "model"):
            block = Block(turn, calls_of(turn))
            found.append(block)
            seen: set[str] = set()
            for call in block.calls:
                key = call.call.id
                named.setdefault(key, _Named()).add(run_of(turn), call, same_answer=key in seen)
                seen.add(key)
            continue
        call_id = _id(payload_of(turn).get("toolCallId"))
        match = named[call_id].pick(turn) if call_id is not None and call_id in named else None
        if turn.kind == "tool_call":
            if match is None:
                match = _unnamed(turn)
                found.append(Block(turn, [match]))
                named.setdefault(match.call.id, _Named()).add(run_of(turn), match, same_answer=False)
            match.started = turn
        elif match is not None:
            match.outcome = turn
    return found


def calls_of(turn: Turn) -> list[Call]:
    """The calls a model turn names."""
    calls = payload_of(turn).get("toolCalls") if turn.kind == "model" else None
    found = []
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            args = _args(call.get("args"))
            masked = call.get("masked") is True or _holds_mask(args)
            found.append(Call(ToolCall(_id(call.get("id")) or "", _name(call.get("name")), args), masked=masked))
    return found


def _unnamed(turn: Turn) -> Call:
    """The call of a `tool_call` turn that no model turn names: another program's, or one whose answer was redacted."""
    payload = payload_of(turn)
    call = ToolCall(_id(payload.get("toolCallId")) or "", _name(payload.get("toolName")), _args(payload.get("args")))
    return Call(call, started=turn)


def open_calls(turns: Sequence[Turn]) -> list[tuple[Block, Call]]:
    """The calls without an outcome, each with its block; those of a broken-off answer count only if they started."""
    return [
        (block, call)
        for block in blocks(turns)
        for call in block.calls
        if call.outcome is None and (call.started is not None or not block.incomplete)
    ]


def finished(turns: Sequence[Turn]) -> Turn | None:
    """The answer that ended the conversation; None when there is more to do."""
    newest = next((turn for turn in reversed(turns) if turn.kind in ("user", "model")), None)
    if newest is None or newest.kind != "model" or payload_of(newest).get("incomplete") or calls_of(newest):
        return None
    # A call that another program appended after the answer is still to be closed.
    last = blocks(turns)[-1]
    return newest if last.turn is newest else None


def _id(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _name(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _args(value: Any) -> dict[str, Any] | str:
    return value if isinstance(value, dict | str) else {}


def _holds_mask(value: Any) -> bool:
    if isinstance(value, str):
        return MASK in value
    if isinstance(value, dict):
        return any(_holds_mask(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(_holds_mask(part) for part in value)
