"""The payloads of turns: the keys of the contract, in camelCase."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any

from . import jsonable
from .messages import ModelTurn, ToolCall
from .values import Usage

MAX_HOISTED_BYTES = 8 * 1024
MAX_INDEXED_BYTES = 1024
"""Of a value under a key that an index holds: a longer one would not fit its entry."""
_MAX_NAME = 256
_MAX_MESSAGE = 20_000
_OWN_KEYS = frozenset(("toolName", "toolCallId", "result", "implHash", "latencyMs", "runId"))


def prompt_rev(instructions: str | None) -> str:
    """The git blob SHA of the instructions: what `git hash-object` says of a file with this content."""
    content = (instructions or "").encode("utf-8", "replace")
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def user(text: str, run_id: str, attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    payload: dict[str, Any] = {"text": text, "runId": run_id}
    if attributes:
        payload["attributes"] = dict(attributes)
    return payload


def model(
    answer: ModelTurn,
    calls: list[ToolCall],
    *,
    model: str,
    prompt_rev: str,
    cost: Decimal | None,
    latency_ms: int,
    run_id: str,
    resumes: str | None,
    incomplete: bool = False,
    masked: Collection[ToolCall] = (),
) -> dict[str, Any]:
    """`masked` are the calls whose arguments redaction will change: they cannot be run from the log."""
    payload: dict[str, Any] = {"text": answer.text}
    if answer.reasoning:
        payload["reasoning"] = answer.reasoning
    payload |= {
        "toolCalls": [
            {"id": call.id, "name": call.name, "args": call.args} | ({"masked": True} if call in masked else {})
            for call in calls
        ],
        "model": model,
        "promptRev": prompt_rev,
        "usage": (answer.usage or Usage()).as_payload(),
        "latencyMs": latency_ms,
        "finishReason": "error" if incomplete else answer.finish_reason,
        "runId": run_id,
    }
    if cost is not None:
        payload["costUsd"] = float(cost)
    if resumes is not None:
        payload["resumes"] = resumes
    if incomplete:
        payload["incomplete"] = True
    if answer.provider is not None:
        payload["provider"] = answer.provider
    return payload


def tool_call(call: ToolCall, impl_hash: str, run_id: str) -> dict[str, Any]:
    return {
        "toolName": call.name,
        "toolCallId": call.id,
        "args": call.args,
        "implHash": impl_hash,
        "runId": run_id,
    }


def tool_result(call: ToolCall, result: Any, impl_hash: str, latency_ms: int, run_id: str) -> dict[str, Any]:
    """`result` and the arguments are cleaned already; their scalar fields are hoisted to the top level."""
    payload = hoisted(call.args) | hoisted(result)
    payload |= {
        "toolName": call.name,
        "toolCallId": call.id,
        "result": result,
        "implHash": impl_hash,
        "latencyMs": latency_ms,
        "runId": run_id,
    }
    return payload


def hoisted(source: Any) -> dict[str, Any]:
    """The scalar fields of an object that a query may ask for by name."""
    if not isinstance(source, dict):
        return {}
    fields = {}
    for key, value in source.items():
        if key in _OWN_KEYS or not isinstance(value, str | int | float):
            continue
        limit = MAX_INDEXED_BYTES if key == "repo" else MAX_HOISTED_BYTES
        if isinstance(value, str) and (len(value) > limit or len(value.encode("utf-8", "replace")) > limit):
            continue
        fields[key] = value
    return fields


def error(
    error: BaseException | None,
    stage: str,
    run_id: str,
    *,
    message: str | None = None,
    type: str | None = None,
    call: ToolCall | None = None,
) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "type": type or error.__class__.__name__,
        "message": said(error) if message is None else message,
        "stage": stage,
    }
    if call is not None:
        # The name is indexed, and it is whatever the model made up.
        payload |= {"toolName": jsonable.clean_text(call.name)[:_MAX_NAME], "toolCallId": call.id}
    payload["runId"] = run_id
    return payload


def said(error: BaseException | None) -> str:
    """What an exception says; its type where it says nothing, or cannot."""
    try:
        text = str(error)
    except Exception:
        text = ""
    text = text or type(error).__name__
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "… (cut)"
