"""What one record of a transcript says, whichever version of Claude Code wrote it.

A record becomes turns (what was asked, answered, called and returned), or it is counted under a label: records about
the session (`summary`, `system`, `file-history-snapshot` …), text that nobody typed (`meta`, `compact summary`,
`local command`), and types that this version does not know.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from everyturn.values import Usage

_COMMAND = re.compile(r"<command-name>\s*/?([^<]*?)\s*</command-name>")
_COMMAND_ARGS = re.compile(r"<command-args>(.*?)</command-args>", re.S)
_LOCAL = re.compile(r"\s*<(?:local-command-|bash-(?:input|stdout|stderr)|task-notification|user-memory-input)")
_REMINDER = re.compile(r"\s*<system-reminder>(?:(?!</system-reminder>).)*</system-reminder>\s*\Z", re.S)
_INTERRUPTED = "[Request interrupted by user"
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "refusal": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that an answer names."""

    id: str
    name: str
    args: Any


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a call."""

    call_id: str
    content: Any
    is_error: bool
    agent_id: str | None = None
    """The subagent that the call started."""


@dataclass(slots=True)
class Answer:
    """One record of a message of the model: its blocks, and its usage so far."""

    message_id: str
    model: str
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    usage: Usage | None = None
    finish: str | None = None
    cost: float | None = None
    request_id: str | None = None
    blocks: int = 0


@dataclass(slots=True)
class Entry:
    """A record, read."""

    label: str
    """What it is counted under where it is no turn."""
    uuid: str = ""
    session: str = ""
    agent_id: str | None = None
    sidechain: bool = False
    parent: str | None = None
    at: datetime | None = None
    prompt: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    """Where the prompt was typed: the directory, the branch, the version."""
    answer: Answer | None = None
    results: list[Result] = field(default_factory=list)
    failure: tuple[str, str, str] | None = None
    """Type, message and stage of an error."""
    identity: Any = None
    """What stays the same when another session's file repeats the record."""

    @property
    def is_turn(self) -> bool:
        return bool(self.prompt is not None or self.answer or self.results or self.failure)


def read(record: Mapping[str, Any]) -> Entry:
    """One record of a transcript."""
    kind = _text(record.get("type")) or "untyped"
    message = record.get("message")
    entry = Entry(
        label=kind[:64],
        uuid=_text(record.get("uuid")),
        session=_text(record.get("sessionId")),
        agent_id=_text(record.get("agentId")) or None,
        sidechain=record.get("isSidechain") is True,
        parent=_text(record.get("parentUuid")) or None,
        at=_moment(record.get("timestamp")),
    )
    if kind == "attachment":
        _queued(entry, record.get("attachment"))
    elif isinstance(message, Mapping) and kind not in ("system", "progress", "summary"):
        role = message.get("role") if kind not in ("user", "assistant") else kind
        if role == "assistant":
            _answered(entry, record, message)
        elif role == "user":
            _asked(entry, record, message.get("content"))
        entry.identity = [kind, record.get("timestamp"), message.get("id"), message.get("content")]
    if entry.prompt is not None:
        entry.about = {
            key: record[key][:1024]
            for key in ("cwd", "gitBranch", "version")
            if isinstance(record.get(key), str) and record[key]
        }
    return entry


def _queued(entry: Entry, attachment: Any) -> None:
    """A prompt that was typed while the model was at work is told to it as an attachment."""
    if not isinstance(attachment, Mapping) or attachment.get("type") != "queued_command":
        return
    if attachment.get("commandMode") not in (None, "prompt"):
        return
    text, images = _user_content(attachment.get("prompt"), [])
    if text.strip() or images:
        entry.prompt = text
        entry.attributes = {"queued": True} | ({"images": images} if images else {})
        entry.identity = ["attachment", text, str(entry.at)]


def _asked(entry: Entry, record: Mapping[str, Any], content: Any) -> None:
    if record.get("isCompactSummary") is True or record.get("isVisibleInTranscriptOnly") is True:
        entry.label = "compact summary"
        return
    told = record.get("toolUseResult")
    agent = _text(told.get("agentId")) if isinstance(told, Mapping) else ""
    text, images = _user_content(content, entry.results, agent or None)
    if record.get("isMeta") is True:
        entry.label = "meta"
    elif text.startswith(_INTERRUPTED):
        entry.failure = ("Interrupted", text.strip(), "cancelled")
    elif _LOCAL.match(text):
        entry.label = "local command"
    elif _REMINDER.match(text):
        entry.label = "meta"
    elif command := _COMMAND.search(text):
        arguments = _COMMAND_ARGS.search(text)
        name = "/" + command[1]
        entry.prompt = f"{name} {arguments[1].strip() if arguments else ''}".strip()
        entry.attributes = {"command": name}
    elif text.strip() or images:
        entry.prompt = text
        entry.attributes = {"images": images} if images else {}


def _user_content(content: Any, results: list[Result], agent: str | None = None) -> tuple[str, list[dict[str, Any]]]:
    """The text and the images of a user message; the outcomes of calls in it are added to `results`."""
    if isinstance(content, str):
        return content, []
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    for block in content if isinstance(content, list) else ():
        if isinstance(block, str):
            texts.append(block)
        elif not isinstance(block, Mapping):
            continue
        elif block.get("type") == "tool_result":
            results.append(
                Result(
                    _text(block.get("tool_use_id")), _result(block.get("content")), block.get("is_error") is True, agent
                )
            )
        elif isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif block.get("type") in ("image", "document"):
            images.append(_file(block))
    return "\n".join(texts), images


def _answered(entry: Entry, record: Mapping[str, Any], message: Mapping[str, Any]) -> None:
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    model = _text(message.get("model"))
    answer = Answer(_text(message.get("id")) or entry.uuid, model[:256] or "unknown")
    for block in blocks if isinstance(blocks, list) else ():
        if not isinstance(block, Mapping):
            continue
        answer.blocks += 1
        kind = block.get("type")
        if kind == "text":
            answer.texts.append(_text(block.get("text")))
        elif kind == "thinking":
            answer.reasoning.append(_text(block.get("thinking")))
        elif kind in _CALLS:
            name = _text(block.get("name"))[:256] or "unknown"
            answer.calls.append(Call(_text(block.get("id")), name, block.get("input", {})))
        elif isinstance(kind, str) and kind.endswith("tool_result"):
            failed = block.get("is_error") is True
            entry.results.append(Result(_text(block.get("tool_use_id")), _result(block.get("content")), failed))
    if record.get("isApiErrorMessage") is True or model == "<synthetic>":
        said = "\n".join(answer.texts).strip()
        if said and said != "No response requested.":
            entry.failure = ("ApiError", said[:20_000], "model")
        entry.label = "synthetic"
        entry.results.clear()
        return
    usage = message.get("usage")
    answer.usage = _usage(usage) if isinstance(usage, Mapping) else None
    answer.finish = _FINISH.get(_text(message.get("stop_reason")))
    cost = record.get("costUSD")
    answer.cost = float(cost) if isinstance(cost, int | float) and 0 <= cost < 1e6 else None
    answer.request_id = _text(record.get("requestId")) or None
    entry.answer = answer


def _usage(usage: Mapping[str, Any]) -> Usage:
    """Ours counts what was read from or written to a cache as input too."""
    read = _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=_count(usage.get("input_tokens")) + read + written,
        output_tokens=_count(usage.get("output_tokens")),
        cached_input_tokens=read,
        cache_creation_input_tokens=written,
    )


def _count(value: Any) -> int:
    return min(value, 2**53) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _result(content: Any) -> Any:
    """What a tool returned: text where it is only text, else its blocks with files left out."""
    if isinstance(content, Mapping):
        return dict(content)
    if not isinstance(content, list):
        return "" if content is None else content
    blocks = [
        _file(block) if isinstance(block, Mapping) and block.get("type") in ("image", "document") else block
        for block in content
    ]
    if all(isinstance(block, Mapping) and isinstance(block.get("text"), str) for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return blocks


def _file(block: Mapping[str, Any]) -> dict[str, Any]:
    """An image or document, as what it was: its bytes are not stored."""
    source = block.get("source")
    found: dict[str, Any] = {"type": _text(block.get("type"))}
    if not isinstance(source, Mapping):
        return found
    if isinstance(source.get("media_type"), str):
        found["mediaType"] = source["media_type"][:256]
    data = source.get("data")
    if isinstance(data, str):
        try:
            raw = base64.b64decode(data, validate=True)
        except ValueError:
            raw = data.encode("utf-8", "replace")
        found |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    elif isinstance(source.get("url"), str):
        found["url"] = source["url"][:4096]
    return found


def _moment(value: Any) -> datetime | None:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
