"""From the log to what a model is sent: always a history that the strictest provider takes, whatever wrote the log.

It begins with a user message and ends with something to answer. Outcomes follow their answer in call order, one for
each call; a call without an outcome is shown as interrupted. Ids are unique and made of what every provider allows.
Texts that no provider takes (blank ones) are left out or named as such, and two messages of one side in a row are one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from . import jsonable
from .blocks import Block, Call, blocks, calls_of, payload_of
from .errors import InvalidValue
from .messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from .values import Turn

INTERRUPTED = "This call was interrupted: its outcome is not known. It may or may not have taken effect."
BEGINNING = "(the beginning of the conversation is not shown)"
GO_ON = "(go on)"
EMPTY = "(empty message)"

_NOT_OF_THE_RESULT = frozenset(("toolName", "toolCallId", "implHash", "latencyMs", "runId"))
_NOT_OF_AN_ID = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_ID = 48
_LONGEST_NAME = 64

History: TypeAlias = Callable[[list[Turn]], "Iterable[Turn] | Awaitable[Iterable[Turn]]"]


def messages(turns: Sequence[Turn], keep: Sequence[Turn] | None = None) -> list[Message]:
    """The messages of a conversation; with `keep`, only of the blocks that a turn in it belongs to.

    The newest block is always sent, and the user turn before the first one: it is what the rest answers. A turn in
    `keep` whose payload was changed is sent as changed, and one that is not in the log is sent where it stands.
    """
    chosen = blocks(turns)
    if keep is not None:
        chosen = _kept(chosen, keep)
    out: list[Message] = []
    used: set[str] = set()
    for index, block in enumerate(chosen):
        followed = index + 1 < len(chosen) and chosen[index + 1].turn.kind == "user"
        for message in block_messages(block, used, followed_by_user=followed):
            _add(out, message)
    if not out or isinstance(out[0], AssistantMessage):
        out.insert(0, UserMessage(BEGINNING))
    if isinstance(out[-1], AssistantMessage):
        out.append(UserMessage(GO_ON))
    return out


def _kept(every: list[Block], keep: Sequence[Turn]) -> list[Block]:
    owner: dict[UUID, Block] = {}
    for block in every:
        owner[block.turn.id] = block
        for call in block.calls:
            owner.update({turn.id: block for turn in (call.started, call.outcome) if turn is not None})
    as_kept = {turn.id: turn for turn in keep}
    chosen: dict[int, Block] = {}
    for turn in keep:
        found = owner.get(turn.id)
        if found is None and turn.kind in ("user", "model"):
            found = Block(turn, calls_of(turn))
        if found is not None:
            chosen.setdefault(id(found), found)
    for newest in every[-1:]:
        chosen.pop(id(newest), None)
        chosen[id(newest)] = newest
    first = next(iter(chosen.values()), None)
    sent = [_as_kept(block, as_kept) for block in chosen.values()]
    if first is not None and first.turn.kind != "user":
        place = next((index for index, block in enumerate(every) if block is first), 0)
        question = next((block for block in reversed(every[:place]) if block.turn.kind == "user"), None)
        if question is not None:
            sent = [question, *(block for block in sent if block.turn.id != question.turn.id)]
    return sent


def _as_kept(block: Block, as_kept: dict[UUID, Turn]) -> Block:
    """The block with the turns as the history function returned them."""
    calls = [
        Call(call.call, call.started, as_kept.get(call.outcome.id, call.outcome) if call.outcome else None)
        for call in block.calls
    ]
    return Block(as_kept.get(block.turn.id, block.turn), calls)


def block_messages(block: Block, used: set[str], *, followed_by_user: bool = False) -> list[Message]:
    """The messages of one block; `used` holds the call ids the history has so far."""
    text = _text(block.turn) if block.turn.kind in ("user", "model") else ""
    if block.turn.kind == "user":
        return [UserMessage(text or EMPTY)]
    # A broken-off answer matters only to what the user said next; otherwise the model is asked again.
    calls = [call for call in block.calls if call.started is not None] if block.incomplete else block.calls
    if not calls and (not text or (block.incomplete and not followed_by_user)):
        return []
    renamed = [ToolCall(_fresh(call.call.id, used), _name(call.call.name), call.call.args) for call in calls]
    payload = payload_of(block.turn)
    reasoning = payload.get("reasoning")
    answer = AssistantMessage(
        text, tuple(renamed), reasoning if isinstance(reasoning, str) else None, payload.get("provider")
    )
    return [answer, *(outcome_message(new, call.outcome) for new, call in zip(renamed, calls, strict=True))]


def outcome_message(call: ToolCall, outcome: Turn | None) -> ToolMessage:
    """What the model is told of a call's outcome."""
    if outcome is None:
        return ToolMessage(call.id, call.name, INTERRUPTED, is_error=True)
    payload = payload_of(outcome)
    if outcome.kind == "error":
        said = payload.get("message")
        said = said if isinstance(said, str) else result_text(said)
        return ToolMessage(call.id, call.name, said if said.strip() else "The call failed.", is_error=True)
    if "result" in payload:
        return ToolMessage(call.id, call.name, result_text(payload["result"]))
    # Another program's, or a redacted one: what it says beside its keys.
    rest = {key: value for key, value in payload.items() if key not in _NOT_OF_THE_RESULT}
    return ToolMessage(call.id, call.name, result_text(rest))


def result_text(result: Any) -> str:
    """A tool's result as text: a string as it is, anything else as JSON."""
    return result if isinstance(result, str) else jsonable.dumps_lenient(result)


def _add(out: list[Message], message: Message) -> None:
    """Append a message, or join it with the one before where that is of the same side: some providers refuse two."""
    last = out[-1] if out else None
    if isinstance(last, UserMessage) and isinstance(message, UserMessage):
        out[-1] = UserMessage(f"{last.text}\n\n{message.text}")
    elif isinstance(last, AssistantMessage) and isinstance(message, AssistantMessage):
        text, reasoning = (
            "\n\n".join(part for part in parts if part)
            for parts in ((last.text, message.text), (last.reasoning, message.reasoning))
        )
        out[-1] = AssistantMessage(text, message.tool_calls, reasoning or None)
    else:
        out.append(message)


def _text(turn: Turn) -> str:
    text = payload_of(turn).get("text")
    return text if isinstance(text, str) and text.strip() else ""


def _fresh(call_id: str, used: set[str]) -> str:
    """An id that every provider takes and no other call of this history has."""
    base = _NOT_OF_AN_ID.sub("_", call_id)[:_LONGEST_ID] or "call"
    name, number = base, 2
    while name in used:
        name, number = f"{base}_{number}", number + 1
    used.add(name)
    return name


def _name(name: str) -> str:
    """The name of a tool as every provider takes it: a model may have made one up."""
    return _NOT_OF_AN_ID.sub("_", name)[:_LONGEST_NAME] or "unnamed"


async def choose(history: History | None, turns: list[Turn]) -> list[Turn] | None:
    """What a history function keeps; None where everything is sent. Raises InvalidValue."""
    if history is None:
        return None
    kept = history(turns)
    if inspect.isawaitable(kept):
        kept = await kept
    chosen = list(kept) if isinstance(kept, Iterable) else None
    if chosen is None or not all(isinstance(turn, Turn) for turn in chosen):
        raise InvalidValue(
            f"A history function returns the turns that are to be sent, a list of et.Turn; got {kept!r:.100}."
        )
    return chosen


class LastTurns:
    """What `last_turns` returns. The log need not be loaded much further back than `last` turns."""

    def __init__(self, last: int) -> None:
        self.last = last

    def __call__(self, turns: list[Turn]) -> list[Turn]:
        return _from_owner(turns, len(turns) - self.last)

    def __repr__(self) -> str:
        return f"everyturn.last_turns({self.last})"


def last_turns(n: int) -> History:
    """Send the last `n` turns, and what they cannot be read without. Raises InvalidValue."""
    return LastTurns(_positive(n, "last_turns"))


def token_budget(n: int, *, characters_per_token: float = 4.0) -> History:
    """Send the newest turns whose text is about `n` tokens, at four characters a token; at least the newest block.

    Instructions and tools are not counted. Raises InvalidValue.
    """
    budget = _positive(n, "token_budget") * characters_per_token

    def keep(turns: list[Turn]) -> list[Turn]:
        places = {turn.id: place for place, turn in enumerate(turns)}
        left = budget
        start = len(turns)
        for block in reversed(blocks(turns)):
            left -= _size(block)
            if left < 0 and start < len(turns):
                break
            start = places[block.turn.id]
        return turns[start:]

    return keep


def _positive(n: int, function: str) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InvalidValue(f"{function}({n!r}) would send nothing; give a whole number from 1 up.")
    return n


def _size(block: Block) -> int:
    """The characters that a block takes in a request."""
    size = 0
    for message in block_messages(block, set(), followed_by_user=True):
        if isinstance(message, AssistantMessage):
            size += len(message.text) + len(message.reasoning or "")
            size += sum(len(call.name) + len(result_text(call.args)) for call in message.tool_calls)
        else:
            size += len(message.text if isinstance(message, UserMessage) else message.content)
    return size


def _from_owner(turns: list[Turn], start: int) -> list[Turn]:
    """The turns from `start` on, begun at the user or model turn it cuts into."""
    start = max(start, 0)
    while 0 < start < len(turns) and turns[start].kind not in ("user", "model"):
        start -= 1
    return turns[start:]
