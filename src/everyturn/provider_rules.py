"""What the strictest provider refuses in a history: for tests of agents, and of functions that choose the history."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import ModelError
from .messages import AssistantMessage, Message, ToolMessage, UserMessage

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_messages(messages: Sequence[Message]) -> None:
    """Raise ModelError where a provider would answer 400.

    The first message is the user's, the last one is not the model's, texts are not blank, sides take turns, and every
    tool call is answered right after it, in call order, under an id that occurs once.
    """
    if not messages:
        raise ModelError("The history is empty.")
    if not isinstance(messages[0], UserMessage):
        raise ModelError(f"The first message is a {type(messages[0]).__name__}, not the user's.")
    if isinstance(messages[-1], AssistantMessage):
        raise ModelError("The last message is the model's own: there is nothing to answer.")
    used: set[str] = set()
    place = 0
    before: Message | None = None
    while place < len(messages):
        message = messages[place]
        place += 1
        if isinstance(message, UserMessage):
            if isinstance(before, UserMessage):
                raise ModelError(f"Message {place - 1} is the second user message in a row.")
            if not message.text.strip():
                raise ModelError(f"Message {place - 1}, the user's, is blank.")
        elif isinstance(message, AssistantMessage):
            if isinstance(before, AssistantMessage):
                raise ModelError(f"Message {place - 1} is the second message of the model in a row.")
            place = _check_answer(messages, message, place, used)
        else:
            raise ModelError(f"Message {place - 1} is an outcome that no call asked for: {message.tool_call_id!r}.")
        before = messages[place - 1]


def _check_answer(messages: Sequence[Message], answer: AssistantMessage, place: int, used: set[str]) -> int:
    """Check an answer and the outcomes after it; the place behind them."""
    if not answer.text.strip() and (answer.text or not answer.tool_calls):
        raise ModelError(f"Message {place - 1}, the model's, is blank.")
    for call in answer.tool_calls:
        if not _ID.fullmatch(call.id) or call.id in used:
            raise ModelError(f"The call id {call.id!r} is not of the form {_ID.pattern}, or occurs twice.")
        if not _ID.fullmatch(call.name):
            raise ModelError(f"The tool name {call.name!r} of a call is not of the form {_ID.pattern}.")
        used.add(call.id)
    for call in answer.tool_calls:
        outcome = messages[place] if place < len(messages) else None
        if not isinstance(outcome, ToolMessage) or outcome.tool_call_id != call.id:
            raise ModelError(
                f"The call {call.id!r} is not followed by its outcome in call order, but by {outcome!r:.80}."
            )
        if outcome.is_error and not outcome.content.strip():
            raise ModelError(f"The outcome of {call.id!r} is an error that says nothing.")
        place += 1
    return place
