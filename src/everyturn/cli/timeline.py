"""Stream events of a run as lines to read: deltas joined, nested agents indented, unknown types kept.

The rows may have been written by everyturn or by a program in another language, so that nothing is taken for
granted: keys may be missing, and an event may be any JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from everyturn.cli.output import Row
from everyturn.cli.text import plain

_DELTAS = {"text_delta": "text", "reasoning_delta": "reasoning", "tool_call_delta": "tool call"}


@dataclass
class Line:
    """One thing that happened."""

    turn: int | None
    elapsed_ms: int
    """Since the first event of the run."""
    depth: int
    """0 for the agent of the run, 1 for an agent it used as a tool, and so on."""
    agent: str
    what: str
    tool: str = ""
    text: str = ""
    failed: bool = False
    """Whether it is an error, to be shown in full."""


def timeline(rows: Iterable[Row], *, begun: datetime | None = None) -> Iterator[Line]:
    """The lines of a run; `rows` are rows of `agent_events`, in the order of id."""
    reader = Timeline(begun)
    for row in rows:
        yield from reader.feed(row)
    yield from reader.end()


class Timeline:
    """Turns rows into lines one by one, so that a run may be of any length."""

    def __init__(self, begun: datetime | None = None) -> None:
        self._begun = begun
        self._open: Line | None = None
        """The line that further deltas of the same kind go into."""
        self._source: tuple[Any, ...] = ()

    def feed(self, row: Row) -> Iterator[Line]:
        """The lines that are complete once this row is known."""
        if self._begun is None:
            self._begun = row["created_at"]
        elapsed = round((row["created_at"] - self._begun).total_seconds() * 1000)
        agent = row.get("agent_name") or row.get("agent_id") or ""
        yield from self._event(row["event"], row.get("turn"), elapsed, 0, agent, ())

    def end(self) -> Iterator[Line]:
        if self._open is not None:
            yield self._open
            self._open = None

    def _event(
        self, event: Any, turn: int | None, elapsed: int, depth: int, agent: str, source: tuple[Any, ...]
    ) -> Iterator[Line]:
        kind = _text(event.get("type")) if isinstance(event, dict) else ""
        if isinstance(event, dict) and kind == "agent_tool_event":
            child = _text(event.get("agentName") or event.get("agentId")) or "?"
            inner = event.get("event")
            its_turn = inner.get("turn") if isinstance(inner, dict) else None
            source = (*source, event.get("internalCallId"), child)
            yield from self._event(inner, its_turn, elapsed, depth + 1, child, source)
            return
        if isinstance(event, dict) and kind in _DELTAS:
            delta = _text(event.get("argumentsDelta") if kind == "tool_call_delta" else event.get("delta"))
            key = (kind, turn, event.get("id") if kind == "tool_call_delta" else None, *source)
            if self._open is not None and self._source == key:
                replaced = event.get("argumentsMode") == "replace"
                self._open.text = delta if replaced else self._open.text + delta
                self._open.tool = self._open.tool or _text(event.get("name"))
                return
            yield from self.end()
            self._source = key
            self._open = Line(turn, elapsed, depth, agent, _DELTAS[kind], _text(event.get("name")), delta)
            return
        yield from self.end()
        tool, text, failed = describe(event)
        yield Line(turn, elapsed, depth, agent, kind or "event", tool, text, failed)


def describe(event: Any) -> tuple[str, str, bool]:
    """The tool an event is about, what it says, and whether it is an error."""
    if not isinstance(event, dict):
        return "", _text(event), False
    kind = event.get("type")
    if kind == "error":
        return _text(event.get("toolName")), _error(event.get("error")), True
    if kind == "turn_start":
        return "", message_text(event.get("prompt")), False
    if kind == "generation_start":
        info, request = _object(event.get("modelInfo")), _object(event.get("request"))
        model = request.get("model") or event.get("model") or info.get("defaultModel") or info.get("provider")
        return "", _text(model), False
    if kind == "tool_call":
        call = _object(event.get("toolCall"))
        function = _object(call.get("function")) or call or event
        name = function.get("name") or event.get("toolName")
        arguments = function["arguments"] if "arguments" in function else function.get("args")
        return _text(name), _text(arguments), False
    if kind == "provider_tool_call":
        call = _object(event.get("toolCall"))
        return _text(call.get("name")), _text(call.get("status") or call.get("details")), False
    if kind == "tool_result":
        result = event["result"] if "result" in event else event.get("output")
        return _text(event.get("toolName")), _text(result), bool(event.get("isError"))
    if kind == "turn_end":
        response = _object(event.get("response"))
        return "", usage_text(response.get("usage") or event.get("usage")), False
    if kind == "source":
        source = _object(event.get("source"))
        return "", " ".join(filter(None, (_text(source.get("title")), _text(source.get("url"))))), False
    if kind == "guardrail_decision":
        decision = _object(event.get("decision"))
        parts = (decision.get(key) for key in ("action", "boundary", "guardrailId", "reason", "message"))
        return "", " ".join(_text(part) for part in parts if part), decision.get("action") == "error"
    if kind == "final":
        result = _object(event.get("result"))
        output = event["output"] if "output" in event else result.get("output", result.get("status"))
        usage = usage_text(event.get("usage") or result.get("usage"))
        return "", f"{_text(output)} [{usage}]" if usage else _text(output), False
    rest = {key: value for key, value in event.items() if key not in ("type", "turn")}
    return _text(event.get("toolName")), _text(rest) if rest else "", False


def message_text(message: Any) -> str:
    """The text of a message: its parts joined, a part that is not text named by its type."""
    content = message.get("content") if isinstance(message, dict) else message
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return _text(content)
    said = []
    for part in content:
        if not isinstance(part, dict):
            said.append(_text(part))
        elif "text" in part:
            said.append(_text(part["text"]))
        elif part.get("type") == "tool_result":
            result = message_text(part)
            name = _text(part.get("toolName")) or "tool"
            said.append(f"[{name}: {result}]" if result else f"[{name}]")
        else:
            said.append(f"[{_text(part.get('type')) or 'part'}]")
    return " ".join(said)


def usage_text(usage: Any) -> str:
    """Tokens in and out; empty when none were counted."""
    counts = _object(usage)
    read, written = counts.get("inputTokens"), counts.get("outputTokens")
    return f"{read or 0} tokens in, {written or 0} out" if read or written else ""


def _error(error: Any) -> str:
    if not isinstance(error, dict) or not ("message" in error or "name" in error):
        return _text(error)
    said = ": ".join(_text(error[key]) for key in ("name", "message") if error.get(key) not in (None, ""))
    rest = {key: value for key, value in error.items() if key not in ("name", "message", "stack")}
    stack = _text(error.get("stack"))
    if stack.startswith(said):  # a JavaScript stack begins with its message
        said, stack = stack, ""
    return "\n".join(filter(None, (said, stack, _text(rest) if rest else "")))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
