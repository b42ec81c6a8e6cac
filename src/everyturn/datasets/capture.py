"""From turns to a case: the prompt of a run, and the context its model saw, as it can be replayed.

The context of a captured run holds `agent`, `promptRev`, `instructions` (where their text is known), `history` (the
turns before, as `{kind, payload}`) and `toolCalls` (what was called, with its recorded `result` or `error`). It holds
no ids and no times: the same interaction captured twice has the same content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn import payloads
from everyturn.blocks import blocks
from everyturn.errors import ConversationNotFound, InvalidValue
from everyturn.names import as_uuid
from everyturn.turns import NewTurn
from everyturn.values import Turn

if TYPE_CHECKING:
    from everyturn.database import Database

_KEPT = {
    "user": ("text", "attributes"),
    "model": ("text", "reasoning", "toolCalls", "provider"),
    "tool_call": ("toolName", "toolCallId", "args"),
    "tool_result": ("toolName", "toolCallId", "result"),
    "error": ("type", "message", "stage", "toolName", "toolCallId"),
}


@dataclass(frozen=True, slots=True)
class Draft:
    """What a case will be made of."""

    prompt: str
    context: dict[str, Any]
    turn_id: UUID | None
    agent: str | None = None


async def from_turn(db: Database, turn_id: UUID | str, instructions: str | None = None) -> Draft:
    """The run a turn belongs to. Raises TurnNotFound; InvalidValue where no user turn precedes it."""
    turn = await db.turns.get(turn_id)
    return await _draft(db, await db.turns.load(turn.conversation), turn, instructions)


async def from_conversation(db: Database, conversation: UUID | str, instructions: str | None = None) -> Draft:
    """The last run of a conversation. Raises ConversationNotFound."""
    turns = await db.turns.load(as_uuid(conversation, "conversation"))
    if not turns:
        raise ConversationNotFound(
            f"There is no conversation {conversation}. `everyturn conversation list` shows those there are."
        )
    return await _draft(db, turns, turns[-1], instructions)


async def _draft(db: Database, turns: list[Turn], chosen: Turn, instructions: str | None) -> Draft:
    asked = next((turn for turn in reversed(turns) if turn.kind == "user" and turn.seq <= chosen.seq), None)
    if asked is None:
        raise InvalidValue(f"No user turn precedes turn {chosen.id}: there is no prompt to capture.")
    text = asked.payload.get("text")
    if not isinstance(text, str) or not text.strip():
        raise InvalidValue(f"The user turn {asked.id} has no text: there is no prompt to capture.")
    until = next((turn.seq for turn in turns if turn.kind == "user" and turn.seq > asked.seq), None)
    own = [turn for turn in turns if turn.seq > asked.seq and (until is None or turn.seq < until)]
    context: dict[str, Any] = {"agent": asked.agent}
    rev = next((turn.payload["promptRev"] for turn in own if isinstance(turn.payload.get("promptRev"), str)), None)
    if rev is not None:
        context["promptRev"] = rev
    known = await _instructions(db, rev, instructions)
    if known is not None:
        context["instructions"] = known
    before = [turn for turn in turns if turn.seq < asked.seq]
    if before:
        context["history"] = recorded_turns(before)
    calls = recorded_calls(own)
    if calls:
        context["toolCalls"] = calls
    return Draft(text, context, chosen.id, asked.agent)


async def _instructions(db: Database, rev: str | None, given: str | None) -> str | None:
    """The text of the instructions: as given, or of a replay under the same revision. The log has the revision only."""
    if given is not None:
        if rev is not None and payloads.prompt_rev(given) != rev:
            raise InvalidValue(
                f"These instructions have the revision {payloads.prompt_rev(given)[:12]}, and the run was made under "
                f"{rev[:12]}. Give the text the run was made with."
            )
        return given
    if rev is None:
        return None
    rows = await db.query("prompt_of_revision", prompt_rev=rev)
    return rows[0]["prompt"] if rows else None


def recorded_turns(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The turns as a history that can be put before a prompt again; ids of calls are numbered anew."""
    names: dict[str, str] = {}

    def renamed(call_id: Any) -> str:
        return names.setdefault(str(call_id), f"call_{len(names) + 1}")

    found = []
    for turn in turns:
        if turn.kind not in ("user", "model") and "toolCallId" not in turn.payload:
            continue  # a hook's failure, a memory's change: no model saw it
        if turn.payload.get("incomplete"):
            continue
        payload = {key: turn.payload[key] for key in _KEPT[turn.kind] if turn.payload.get(key) not in (None, [], "")}
        if "toolCallId" in payload:
            payload["toolCallId"] = renamed(payload["toolCallId"])
        if isinstance(payload.get("toolCalls"), list):
            payload["toolCalls"] = [
                {**call, "id": renamed(call.get("id"))} if isinstance(call, dict) else call
                for call in payload["toolCalls"]
            ]
        found.append({"kind": turn.kind, "payload": payload})
    return found


def recorded_calls(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The calls of a run in their order, each with what came of it; one left open has neither result nor error."""
    found = []
    for block in blocks(turns):
        for call in block.calls:
            record: dict[str, Any] = {"name": call.call.name, "args": call.call.args}
            if call.outcome is not None and call.outcome.kind == "error":
                record["error"] = str(call.outcome.payload.get("message", ""))
            elif call.outcome is not None:
                record["result"] = call.outcome.payload.get("result")
            found.append(record)
    return found


def new_turns(recorded: Any, conversation: UUID, agent: str, run_id: str) -> list[NewTurn]:
    """The history of a case as turns to append, to a conversation of a replay."""
    found = []
    for entry in recorded if isinstance(recorded, list) else ():
        if not isinstance(entry, Mapping) or entry.get("kind") not in _KEPT:
            raise InvalidValue('The "history" of the case\'s context is not a list of {kind, payload}.')
        payload = dict(entry.get("payload") or {})
        if entry["kind"] == "tool_result":
            payload = payloads.hoisted(payload.get("result")) | payload
        found.append(NewTurn(conversation, agent, entry["kind"], payload | {"runId": run_id}))
    return found
