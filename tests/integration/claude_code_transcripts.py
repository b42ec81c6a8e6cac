"""Transcripts as Claude Code writes them, for tests."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

BEGAN = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)


class Transcript:
    """One session, record by record; `lines` are what its file holds."""

    def __init__(self, session: str | None = None, *, sidechain: bool = False, agent: str | None = None) -> None:
        self.session = session or str(uuid4())
        self.lines: list[bytes] = []
        self._parent: str | None = None
        self._clock = BEGAN
        self._more: dict[str, Any] = {"isSidechain": sidechain or agent is not None}
        if agent is not None:
            self._more["agentId"] = agent

    def record(self, kind: str, message: dict[str, Any] | None, **more: Any) -> str:
        self._clock += timedelta(seconds=2)
        uuid = str(uuid4())
        record = {
            "parentUuid": self._parent,
            **self._more,
            "userType": "external",
            "cwd": "/home/ada/shop",
            "sessionId": self.session,
            "version": "2.1.45",
            "gitBranch": "main",
            "type": kind,
            **({"message": message} if message is not None else {}),
            "uuid": uuid,
            "timestamp": self._clock.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            **more,
        }
        self._parent = uuid
        self.raw(record)
        return uuid

    def raw(self, record: Any) -> None:
        self.lines.append(json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass"))

    def user(self, content: Any, **more: Any) -> str:
        return self.record("user", {"role": "user", "content": content}, **more)

    def answer(
        self, block: dict[str, Any] | str, *, id: str | None = None, out: int = 10, stop: str | None = None, **more: Any
    ) -> str:
        """One line of a message of the model: one block, and the usage as far as it was counted then."""
        content = [{"type": "text", "text": block} if isinstance(block, str) else block]
        message = {
            "model": "claude-opus-4-5-20251101",
            "id": id or f"msg_{uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 3,
                "cache_creation_input_tokens": 40,
                "cache_read_input_tokens": 100,
                "output_tokens": out,
                "service_tier": "standard",
            },
        }
        return self.record("assistant", message, requestId="req_1", **more)

    def result(self, call: str, content: Any, *, is_error: bool = False, **more: Any) -> str:
        block: dict[str, Any] = {"tool_use_id": call, "type": "tool_result", "content": content}
        if is_error:
            block["is_error"] = True
        return self.user([block], **more)

    @property
    def data(self) -> bytes:
        return b"".join(line + b"\n" for line in self.lines)

    def write(self, folder: Path, name: str | None = None) -> Path:
        path = folder / (name or f"{self.session}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def thought(value: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": value, "signature": "EuYBCkQ"}


def session(*, session_id: str | None = None) -> Transcript:
    """A session as it commonly is: records about the session, a prompt, a call, its result, an answer."""
    made = Transcript(session_id)
    made.raw({"type": "summary", "summary": "Fix the parser", "leafUuid": str(uuid4())})
    made.raw({"type": "file-history-snapshot", "messageId": str(uuid4()), "snapshot": {}, "isSnapshotUpdate": False})
    made.user("<local-command-caveat>Caveat: …</local-command-caveat>", isMeta=True)
    made.user("Why does the parser fail on an empty file?")
    made.answer(thought("Look at the reader first."), id=f"msg_a_{made.session}", out=1)
    made.answer("I read the parser.", id=f"msg_a_{made.session}", out=50)
    made.answer(call("toolu_1", "Read", file_path="/home/ada/shop/parser.py"), id=f"msg_a_{made.session}", out=120)
    made.result("toolu_1", "1→def parse(text):", toolUseResult={"type": "text"})
    made.answer("It indexes the first line of nothing.", id=f"msg_b_{made.session}", out=30, stop="end_turn")
    made.record("system", None, subtype="turn_duration", durationMs=8000)
    return made
