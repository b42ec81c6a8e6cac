"""The events of a run, as they are streamed and stored. Shapes and key names are those of the events' contract."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from . import jsonable
from .messages import ModelTurn, ToolCall
from .values import Usage


class StreamEvent(dict[str, Any]):
    """An event: a JSON object whose keys can also be read as attributes (`event.type`, `event.delta`)."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"This {self.get('type')} event has no {name!r}; it has {', '.join(self)}.") from None


def turn_start(turn: int, prompt: dict[str, Any]) -> StreamEvent:
    # The history is in the log; repeating it every turn would grow with the square of the conversation.
    return StreamEvent(type="turn_start", turn=turn, prompt=prompt, history=[])


def user_prompt(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def tool_prompt(calls: Sequence[ToolCall]) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": [{"type": "tool_result", "id": call.id, "toolName": call.name} for call in calls],
    }


def generation_start(turn: int, model: str, prompt_rev: str, tools: Sequence[str]) -> StreamEvent:
    return StreamEvent(
        type="generation_start",
        turn=turn,
        # As with turn_start: neither the history nor the schemas, which are in the log and in the registry.
        request={
            "chatHistory": [],
            "documents": [],
            "tools": [{"name": name} for name in tools],
            "promptRev": prompt_rev,
        },
        modelInfo={"defaultModel": model},
    )


def text_delta(turn: int, delta: str) -> StreamEvent:
    return StreamEvent(type="text_delta", turn=turn, delta=delta)


def reasoning_delta(turn: int, delta: str) -> StreamEvent:
    return StreamEvent(type="reasoning_delta", turn=turn, delta=delta)


def tool_call_delta(turn: int, id: str, name: str | None, arguments: str) -> StreamEvent:
    event = StreamEvent(type="tool_call_delta", turn=turn, id=id)
    if name is not None:
        event["name"] = name
    event["argumentsDelta"] = arguments
    event["argumentsMode"] = "append"
    return event


def tool_call(turn: int, call: ToolCall) -> StreamEvent:
    return StreamEvent(
        type="tool_call",
        turn=turn,
        toolCall={
            "type": "tool_call",
            "id": call.id,
            "callId": call.id,
            "function": {"name": call.name, "arguments": call.args},
        },
    )


def turn_end(turn: int, answer: ModelTurn, calls: Sequence[ToolCall], first_delta_ms: int | None) -> StreamEvent:
    choice: list[dict[str, Any]] = []
    if answer.reasoning:
        choice.append({"type": "reasoning", "text": answer.reasoning})
    if answer.text:
        choice.append({"type": "text", "text": answer.text})
    choice.extend(tool_call(turn, call)["toolCall"] for call in calls)
    event = StreamEvent(
        type="turn_end",
        turn=turn,
        response={"choice": choice, "usage": (answer.usage or Usage()).as_payload()},
    )
    if first_delta_ms is not None:
        event["firstDeltaMs"] = first_delta_ms
    return event


def tool_result(turn: int, call: ToolCall, internal_id: str, args: Any, result: str, *, is_error: bool) -> StreamEvent:
    """`args` are those of the call as they are stored."""
    event = StreamEvent(
        type="tool_result",
        turn=turn,
        toolName=call.name,
        toolCallId=call.id,
        internalCallId=internal_id,
        args=args if isinstance(args, str) else jsonable.dumps_lenient(args),
        result=result,
    )
    if is_error:
        event["isError"] = True
    return event


def agent_tool_event(turn: int, call: ToolCall, internal_id: str, agent: str, inner: StreamEvent) -> StreamEvent:
    return StreamEvent(
        type="agent_tool_event",
        turn=turn,
        toolName=call.name,
        toolCallId=call.id,
        internalCallId=internal_id,
        agentId=agent,
        agentName=agent,
        event=inner,
    )


def error(run_id: str, name: str, message: str, usage: Usage) -> StreamEvent:
    return StreamEvent(type="error", runId=run_id, error={"name": name, "message": message}, usage=usage.as_payload())


def final(run_id: str, output: str, usage: Usage) -> StreamEvent:
    return StreamEvent(type="final", runId=run_id, output=output, usage=usage.as_payload(), messages=[])


def internal_call_id() -> str:
    """Joins the events of one call; made by the run, not by the model."""
    return str(uuid.uuid4())
