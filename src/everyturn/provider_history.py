"""Between everyturn's messages and pydantic-ai's: what goes to a provider, and what comes back.

A history that was stored must stay sendable for good, so what the strictest provider refuses is put right
here: calls without outcome and outcomes without call, odd ids and names, blank texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai import messages as pai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from everyturn.messages import (
    AssistantMessage,
    FinishReason,
    ModelRequest,
    ModelTurn,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from everyturn.values import Usage

_FINISH_REASONS: dict[str | None, FinishReason] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "error",
    "error": "error",
}
# What of a response its provider may want back beside the parts.
_RESPONSE_KEYS = ("provider_name", "provider_url", "canonical_system", "provider_response_id")
_NOT_NEEDED_BACK = ("finish_reason", "timestamp", "logprobs")


def to_messages(request: ModelRequest, system: str) -> list[pai.ModelMessage]:
    """The history as pydantic-ai sends it, with the instructions on its last request."""
    history: list[pai.ModelMessage] = []
    parts: list[pai.ModelRequestPart] = []
    messages = list(request.messages)
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        if isinstance(message, UserMessage):
            parts.append(pai.UserPromptPart(_text(message.text, "(empty message)")))
        elif isinstance(message, AssistantMessage):
            response = _response(message, system)
            if not response.parts:
                continue
            history += [pai.ModelRequest(parts), response] if parts else [response]
            outcomes: list[ToolMessage] = []
            while place < len(messages) and isinstance(found := messages[place], ToolMessage):
                outcomes.append(found)
                place += 1
            parts = list(_returns(message.tool_calls, outcomes))
    if parts or not history:
        history.append(pai.ModelRequest(parts))
    for last in reversed(history):
        if isinstance(last, pai.ModelRequest):
            last.instructions = _sendable(request.instructions) if request.instructions else None
            break
    return history


def to_parameters(request: ModelRequest) -> ModelRequestParameters:
    """The tools the model may call."""
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(name=tool.name, description=tool.description or None, parameters_json_schema=tool.schema)
            for tool in request.tools
        ]
    )


def to_turn(response: pai.ModelResponse, name: str) -> ModelTurn:
    """The answer of a provider; its thinking blocks, signatures and ids go into `provider`."""
    text, reasoning = Prose(glued=True), Prose()
    calls: list[ToolCall] = []
    parts: list[dict[str, Any]] = []
    dumped = pai.ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]
    for part, kept in zip(response.parts, dumped["parts"], strict=True):
        index = len(parts)
        if isinstance(part, pai.TextPart):
            text.add(index, part.content)
            kept["content"] = len(part.content)
        elif isinstance(part, pai.ThinkingPart):
            reasoning.add(index, part.content)
            kept["content"] = len(part.content)
        elif isinstance(part, pai.ToolCallPart):
            calls.append(ToolCall(part.tool_call_id, part.tool_name, _arguments(part.args)))
            for key in ("args", "tool_name", "tool_call_id"):
                kept.pop(key, None)
        elif isinstance(part, pai.FilePart):
            continue
        parts.append({key: value for key, value in kept.items() if value is not None})
    usage = response.usage
    return ModelTurn(
        text=text.text,
        tool_calls=calls,
        usage=to_usage(usage),
        model=response.model_name or name,
        finish_reason=_finish_reason(response.finish_reason, calls),
        reasoning=reasoning.text or None,
        provider=_provider_data(dumped, parts, text.text, reasoning.text),
        cost_usd=usage.cost,
    )


def to_usage(usage: RequestUsage) -> Usage | None:
    """The tokens the provider counted; None where it counted none."""
    if not usage.has_values():
        return None
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cache_read_tokens,
        cache_creation_input_tokens=usage.cache_write_tokens,
    )


class Prose:
    """Joins the texts of a response: an empty line between its parts, nothing where `glued` ones adjoin."""

    def __init__(self, *, glued: bool = False) -> None:
        self.text = ""
        self._glued = glued
        self._last = 0

    def add(self, index: int, content: str) -> str:
        """Add what part `index` says; returns it with what separates it from the text before."""
        if not content:
            return ""
        apart = index != self._last and not (self._glued and index == self._last + 1)
        piece = f"\n\n{content}" if self.text and apart else content
        self.text += piece
        self._last = index
        return piece


def _finish_reason(reason: str | None, calls: Sequence[ToolCall]) -> FinishReason | None:
    mapped = _FINISH_REASONS.get(reason)
    # Some providers say "stop" after tool calls.
    return "tool_calls" if mapped == "stop" and calls else mapped


def _arguments(args: Any) -> dict[str, Any] | str:
    if isinstance(args, dict):
        return args
    if args is None or not args.strip():
        return {}
    try:
        found = json.loads(args)
    except (ValueError, RecursionError):
        return cast(str, args)
    return found if isinstance(found, dict) else cast(str, args)


def _provider_data(
    dumped: dict[str, Any], parts: list[dict[str, Any]], text: str, reasoning: str
) -> dict[str, Any] | None:
    """What text, reasoning and calls do not tell. Their words are not repeated here, only their lengths."""
    details = dumped.get("provider_details") or {}
    details = {key: value for key, value in details.items() if key not in _NOT_NEEDED_BACK}
    kinds = [part["part_kind"] for part in parts]
    extra = any(set(part) - {"part_kind", "content"} for part in parts)
    plain = kinds in (["text"] * n + ["tool-call"] * (len(kinds) - n) for n in (0, 1)) and not extra
    if plain and not details:
        return None
    data = {key: dumped[key] for key in _RESPONSE_KEYS if dumped.get(key) is not None}
    if details:
        data["provider_details"] = details
    return {**data, "parts": parts, "digest": _digest(text, reasoning)}


def _digest(text: str, reasoning: str | None) -> str:
    return sha256(f"{text}\0{reasoning or ''}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _response(message: AssistantMessage, system: str) -> pai.ModelResponse:
    restored = _restored(message, system)
    if restored is not None:
        return restored
    parts: list[pai.ModelResponsePart] = []
    if message.text.strip():
        parts.append(pai.TextPart(_sendable(message.text)))
    parts += (pai.ToolCallPart(_name(call.name), _args(call), tool_call_id=_id(call.id)) for call in message.tool_calls)
    return pai.ModelResponse(parts)


def _restored(message: AssistantMessage, system: str) -> pai.ModelResponse | None:
    """The response as its provider made it, or None where it is another's or its words have changed since."""
    data = message.provider
    if not isinstance(data, dict) or not isinstance(data.get("parts"), list):
        return None
    if data.get("provider_name") != system or data.get("digest") != _digest(message.text, message.reasoning):
        return None
    text, reasoning = Prose(glued=True), Prose()
    said = {"text": (text, message.text), "thinking": (reasoning, message.reasoning or "")}
    calls = iter(message.tool_calls)
    parts: list[dict[str, Any]] = []
    try:
        for index, stored in enumerate(data["parts"]):
            part = dict(stored)
            if part["part_kind"] in said:
                prose, whole = said[part["part_kind"]]
                length = part["content"]
                at = len(prose.text)
                if length and len(prose.add(index, "x")) > 1:
                    at += 2
                part["content"] = whole[at : at + length]
                prose.text = whole[: at + length]
                if not part["content"].strip() and part["part_kind"] == "text":
                    continue
            elif part["part_kind"] == "tool-call":
                call = next(calls)
                part |= {
                    "tool_name": _name(call.name),
                    "args": _args(call),
                    "tool_call_id": _id(call.id),
                }
            parts.append(part)
        if any(True for _ in calls):
            return None
        response = {key: value for key, value in data.items() if key not in ("parts", "digest")}
        response |= {"kind": "response", "parts": parts}
        (found,) = pai.ModelMessagesTypeAdapter.validate_python([response])
    except (ValidationError, StopIteration, KeyError, TypeError, ValueError):
        return None
    return found if isinstance(found, pai.ModelResponse) else None


def _returns(calls: Sequence[ToolCall], outcomes: Iterable[ToolMessage]) -> Iterable[pai.ToolReturnPart]:
    """One outcome per call, in call order, whatever order they came in."""
    by_id = {outcome.tool_call_id: outcome for outcome in reversed(list(outcomes))}
    for call in calls:
        outcome = by_id.get(call.id)
        if outcome is None:
            outcome = ToolMessage(call.id, call.name, "This call was interrupted and has no result.", True)
        yield pai.ToolReturnPart(
            _name(call.name),
            _text(outcome.content, "(empty result)"),
            _id(call.id),
            outcome="failed" if outcome.is_error else "success",
        )


def _id(call_id: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call_id):
        return call_id
    return "call_" + sha256(_sendable(call_id).encode()).hexdigest()[:24]


def _name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"


def _args(call: ToolCall) -> dict[str, Any] | str:
    if isinstance(call.args, str):
        return _sendable(call.args)
    text = json.dumps(call.args, ensure_ascii=False, default=str)
    clean = _sendable(text)
    return call.args if clean is text else cast("dict[str, Any]", json.loads(clean))


def _text(text: str, blank: str) -> str:
    # Anthropic refuses texts of white space only.
    return _sendable(text) if text.strip() else blank


def _sendable(text: str) -> str:
    """The text, with half surrogate pairs replaced: no request body can carry them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
