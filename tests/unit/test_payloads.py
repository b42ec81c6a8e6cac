"""The keys of payloads, and reading them back from rows that anybody may have written."""

from __future__ import annotations

import math
import subprocess
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import everyturn as et
from everyturn import payloads
from everyturn.results import stored_result


def test_the_prompt_revision_is_what_git_says(tmp_path: Path) -> None:
    for text in ("", "Be kind.\n", "Æ 東京"):
        file = tmp_path / "prompt"
        file.write_text(text, "utf-8", newline="")
        said = subprocess.run(["git", "hash-object", str(file)], capture_output=True, text=True, check=True).stdout
        assert payloads.prompt_rev(text) == said.strip()
    assert payloads.prompt_rev(None) == payloads.prompt_rev("")


def test_what_an_exception_says() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("mute")

    assert payloads.said(Mute()) == "Mute"
    assert payloads.said(ValueError()) == "ValueError"
    assert payloads.said(ValueError("x" * 50_000)).endswith("… (cut)")


def test_usage_from_anything() -> None:
    for odd in (None, [], "x", 3, {"inputTokens": "5"}, {"inputTokens": math.nan}, {"inputTokens": True}):
        assert et.Usage.from_payload(odd) == et.Usage()
    usage = et.Usage(5, 4, 3, 2)
    assert et.Usage.from_payload(usage.as_payload()) == usage
    assert usage.as_payload()["totalTokens"] == (usage + usage).total_tokens / 2 == 9


def turn(kind: str, payload: Any) -> et.Turn:
    return et.Turn(uuid4(), 1, UUID(int=1), "a", kind, payload, datetime(2026, 1, 1, tzinfo=UTC))


def test_the_stored_result_of_any_answer() -> None:
    for payload in ([], "x", {}, {"text": 5, "usage": [], "costUsd": "dear", "runId": 7}, {"costUsd": math.inf}):
        done = turn("model", payload)
        result = stored_result([turn("user", {}), done], done)
        assert (result.output, result.run_id, result.usage, result.cost_usd) == ("", "", et.Usage(), None)
    done = turn("model", {"text": "ok", "runId": "r", "costUsd": 0.1})
    other = turn("model", {"runId": "q", "costUsd": 5})
    before = turn("model", {"runId": "r", "costUsd": 0.2})
    result = stored_result([other, before, done], done)
    assert (result.output, result.cost_usd, result.turns) == ("ok", Decimal("0.3"), [before, done])
