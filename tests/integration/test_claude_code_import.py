"""Transcripts of Claude Code in the log."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import psycopg
import pytest
from claude_code_transcripts import Transcript, call, session, text

import everyturn as et
from everyturn import blocks, history
from everyturn.integrations.claude_code import files, importing, transcript
from everyturn.integrations.claude_code.capture import capture_tail
from everyturn.integrations.claude_code.importing import import_file, import_files
from everyturn.testing import database_url

Db = et.Database
TABLES = ("agent_evals", "agent_turns", "claude_code_files", "claude_code_lines", "eval_case")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database_url() as url:
        yield url


@pytest.fixture
def db(url: str) -> Iterator[Db]:
    """A database, emptied for each test: making one takes longer than most of them."""
    with psycopg.connect(url, autocommit=True) as conn:
        for table in TABLES:
            conn.execute(f"DELETE FROM {table}")  # noqa: S608
    made = Db(url)
    yield made
    asyncio.run(made.close())


async def kinds(db: Db, conversation: str | UUID) -> list[str]:
    return [turn.kind for turn in await db.turns.load(conversation)]


async def tokens(db: Db) -> int:
    rows = await db.fetch(
        "SELECT sum((payload #>> '{usage,outputTokens}')::int) AS n FROM agent_turns WHERE kind = 'model'"
    )
    return int(rows[0]["n"] or 0)


async def total(db: Db) -> int:
    return int((await db.fetch("SELECT count(*) AS n FROM agent_turns"))[0]["n"])


async def test_a_session_becomes_turns_with_the_keys_of_the_contract(db: Db, tmp_path: Path) -> None:
    """field case 112"""
    made = session()
    report = await import_file(db, made.write(tmp_path))
    turns = await db.turns.load(made.session)
    assert [turn.kind for turn in turns] == ["user", "model", "tool_call", "tool_result", "model"]
    prompt, answer, called, result, last = (turn.payload for turn in turns)
    assert prompt["text"] == "Why does the parser fail on an empty file?"
    assert (prompt["cwd"], prompt["gitBranch"], prompt["sessionId"]) == ("/home/ada/shop", "main", made.session)
    assert answer["text"] == "I read the parser."
    assert answer["reasoning"] == "Look at the reader first."
    assert answer["toolCalls"] == [{"id": "toolu_1", "name": "Read", "args": {"file_path": "/home/ada/shop/parser.py"}}]
    assert answer["usage"] == {
        "inputTokens": 143,
        "outputTokens": 120,
        "totalTokens": 263,
        "cachedInputTokens": 100,
        "cacheCreationInputTokens": 40,
    }
    assert (answer["finishReason"], last["finishReason"]) == ("tool_calls", "stop")
    assert answer["costUsd"] > 0
    assert answer["latencyMs"] == 6000
    assert called["toolName"] == result["toolName"] == "Read"
    assert called["toolCallId"] == result["toolCallId"] == "toolu_1"
    assert called["implHash"] == result["implHash"] == "v1:unknown"
    assert result["result"] == "1→def parse(text):"
    assert result["file_path"] == "/home/ada/shop/parser.py"
    assert {turn.payload["runId"] for turn in turns} == {str(turns[0].id)}
    assert turns[0].created_at.isoformat() == "2026-11-02T09:00:04+00:00"
    assert {turn.agent for turn in turns} == {"claude-code"}
    assert blocks.finished(turns) is not None
    assert report.turns == {"user": 1, "model": 2, "tool_call": 1, "tool_result": 1}
    assert report.usage.output_tokens == 150
    assert report.counts.skipped == {"summary": 1, "file-history-snapshot": 1, "meta": 1, "system": 1}
    assert report.counts.bad == 0


async def test_twice_appends_nothing_and_a_grown_file_only_what_is_new(db: Db, tmp_path: Path) -> None:
    made = session()
    path = made.write(tmp_path)
    await import_file(db, path)
    again = await import_file(db, path)
    assert (again.turns, again.counts.lines) == ({}, 0)
    made.user("And with one line?")
    made.answer("Then it works.", out=7)
    path = made.write(tmp_path)
    grown = await import_file(db, path)
    assert (grown.turns, grown.counts.lines) == ({"user": 1, "model": 1}, 2)
    assert await kinds(db, made.session) == [
        "user", "model", "tool_call", "tool_result", "model", "user", "model",
    ]  # fmt: skip
    # Even without a note of how far it was read.
    await db.execute("DELETE FROM claude_code_files")
    anew = await import_file(db, path)
    assert (anew.turns, anew.counts.repeated) == ({}, 8)
    # And moved, or written anew.
    path.rename(tmp_path / "other.jsonl")
    assert not (await import_file(db, tmp_path / "other.jsonl")).turns
    made.lines = made.lines[:6]
    assert not (await import_file(db, made.write(tmp_path))).turns


@pytest.mark.parametrize("outputs", [[1, 50, 120], [50, 50, 50], [120]])
@pytest.mark.parametrize("cut", [None, 1, 2])
async def test_usage_is_counted_once_a_message(db: Db, tmp_path: Path, outputs: list[int], cut: int | None) -> None:
    """field case 112: also when the file ends within the message, and the rest comes later."""
    made = Transcript()
    made.user("Go on")
    for number, out in enumerate(outputs):
        made.answer(f"Part {number}.", id="msg_1", out=out)
    if cut is not None:
        whole, made.lines = made.lines, made.lines[: 1 + cut]
        await import_file(db, made.write(tmp_path))
        made.lines = whole
    await import_file(db, made.write(tmp_path))
    assert await tokens(db) == outputs[-1]
    models = [turn for turn in await db.turns.load(made.session) if turn.kind == "model"]
    assert "\n\n".join(turn.payload["text"] for turn in models) == "\n\n".join(
        f"Part {number}." for number in range(len(outputs))
    )
    assert len(models) == (1 if cut is None or cut >= len(outputs) else 2)


async def test_results_between_the_records_of_a_message(db: Db, tmp_path: Path) -> None:
    made = Transcript()
    made.user("Compare both files")
    made.answer(call("t1", "Read", file_path="a"), id="m", out=5)
    made.result("t1", "A")
    made.answer(call("t2", "Read", file_path="b"), id="m", out=9)
    made.result("t2", [text("B"), {"type": "text", "text": "B2"}])
    made.answer("They differ.", out=4)
    await import_file(db, made.write(tmp_path))
    turns = await db.turns.load(made.session)
    assert [turn.kind for turn in turns] == [
        "user", "model", "tool_call", "tool_call", "tool_result", "tool_result", "model",
    ]  # fmt: skip
    assert [turn.payload["result"] for turn in turns if turn.kind == "tool_result"] == ["A", "B\nB2"]
    assert await tokens(db) == 13
    assert [type(message).__name__ for message in history.messages(turns)][:5] == [
        "UserMessage", "AssistantMessage", "ToolMessage", "ToolMessage", "AssistantMessage",
    ]  # fmt: skip


async def test_failed_and_interrupted_calls(db: Db, tmp_path: Path) -> None:
    made = Transcript()
    made.user("Run the tests")
    made.answer(call("t1", "Bash", command="make test"), out=1)
    made.result("t1", "Exit code 2", is_error=True)
    made.answer(call("t2", "Bash", command="make"), out=1)
    made.user([text("[Request interrupted by user for tool use]")])
    made.user("Stop it")
    made.answer("API Error: 529 Overloaded", isApiErrorMessage=True)
    await import_file(db, made.write(tmp_path))
    turns = await db.turns.load(made.session)
    assert [(turn.kind, turn.payload.get("stage")) for turn in turns if turn.kind == "error"] == [
        ("error", "tool"),
        ("error", "interrupted"),
        ("error", "cancelled"),
        ("error", "model"),
    ]
    assert turns[3].payload["toolCallId"] == "t1"
    assert not blocks.open_calls(turns)


async def test_an_open_call_gets_its_outcome_when_it_comes(db: Db, tmp_path: Path) -> None:
    made = Transcript()
    made.user("Build")
    made.answer(call("t1", "Bash", command="make", repo="o/r"), out=1)
    await import_file(db, made.write(tmp_path))
    assert await kinds(db, made.session) == ["user", "model", "tool_call"]
    made.result("t1", "ok")
    await import_file(db, made.write(tmp_path))
    last = (await db.turns.load(made.session))[-1]
    assert (last.kind, last.payload["toolName"], last.payload["repo"]) == ("tool_result", "Bash", "o/r")
    assert last.payload["latencyMs"] == 2000


async def test_ids_of_calls_that_come_again_and_outcomes_that_come_late(db: Db, tmp_path: Path) -> None:
    made = Transcript()
    made.user("Read both")
    for n in range(2):
        made.answer(call("t1", "Read", n=n), out=1)
        made.user(f"typed while it ran {n}")
        made.result("t1", f"result {n}")
    made.answer(call("t2", "Bash", command="sleep"), out=1)
    made.answer("I did not wait.", out=1)
    made.result("t2", "done after all")
    made.result("never", "what was this?")
    await import_file(db, made.write(tmp_path))
    turns = await db.turns.load(made.session)
    assert not blocks.open_calls(turns)
    results = [turn.payload for turn in turns if turn.kind == "tool_result"]
    assert [(result["toolName"], result["result"]) for result in results] == [
        ("Read", "result 0"),
        ("Read", "result 1"),
        ("unknown", "done after all"),
        ("unknown", "what was this?"),
    ]
    assert [result.get("toolCallId") for result in results] == ["t1", "t1", None, "never"]
    assert results[2]["lateFor"] == "t2"
    assert sum(turn.kind == "tool_call" for turn in turns) == 3
    assert [turn.payload["stage"] for turn in turns if turn.kind == "error"] == ["interrupted"]


async def test_subagents_have_conversations_of_their_own(db: Db, tmp_path: Path) -> None:
    made = Transcript()
    made.user("Find the parser")
    made.answer(call("toolu_task", "Task", subagent_type="Explore", prompt="Find it"), out=20)
    agent = Transcript(made.session, agent="a2271d1")
    agent.user("Find it")
    agent.answer(call("toolu_g", "Glob", pattern="*.py"), out=3)
    agent.result("toolu_g", "parser.py")
    agent.answer("It is parser.py.", out=4)
    made.result("toolu_task", [text("It is parser.py.")], toolUseResult={"status": "completed", "agentId": "a2271d1"})
    made.answer("Here: parser.py", out=5)
    path = made.write(tmp_path)
    inside = tmp_path / made.session / "subagents"
    agent.write(inside, "agent-a2271d1.jsonl")
    (inside / "agent-a2271d1.meta.json").write_text('{"agentType": "Explore", "toolUseId": "toolu_task"}')
    (inside / "journal.jsonl").write_text("{}\n")
    reports = await import_files(db, files.with_subagents(path))
    assert len(reports) == 2
    turns = await db.turns.load(made.session)
    assert [turn.kind for turn in turns] == ["user", "model", "tool_call", "tool_result", "model"]
    sub = turns[3].payload["subagent"]
    inner = await db.turns.load(sub)
    assert [turn.kind for turn in inner] == ["user", "model", "tool_call", "tool_result", "model"]
    assert inner[0].agent == "claude-code/Explore"
    assert inner[0].payload["parentConversation"] == made.session
    assert inner[0].payload["parentToolCallId"] == "toolu_task"
    assert await tokens(db) == 32
    assert not any(report.turns for report in await import_files(db, files.with_subagents(path)))


async def test_subagents_as_older_versions_wrote_them(db: Db, tmp_path: Path) -> None:
    """Beside the session's file, or as sidechains within it, two at a time."""
    made = Transcript()
    one, two = Transcript(made.session, sidechain=True), Transcript(made.session, sidechain=True)
    made.user("Ask both")
    for n in range(2):
        one.user("first") if n == 0 else one.answer("one", out=1)
        two.user("second") if n == 0 else two.answer("two", out=2)
        made.lines += [one.lines[-1], two.lines[-1]]
    made.answer("Both said so.", out=3)
    beside = Transcript(made.session, agent="beef")
    beside.user("third")
    beside.write(tmp_path, "agent-beef.jsonl")
    Transcript(agent="other").write(tmp_path, "agent-other.jsonl")
    await import_files(db, files.with_subagents(made.write(tmp_path)))
    assert await kinds(db, made.session) == ["user", "model"]
    rows = await db.fetch(
        "SELECT string_agg(payload ->> 'text', ' ' ORDER BY seq) AS said FROM agent_turns "
        "WHERE agent <> 'claude-code' GROUP BY conversation ORDER BY 1"
    )
    assert [row["said"] for row in rows] == ["first one", "second two", "third"]


@pytest.mark.parametrize("renamed", [False, True], ids=["old ids kept", "ids of the new session"])
async def test_a_resumed_session_repeats_lines_that_are_stored_once(db: Db, tmp_path: Path, renamed: bool) -> None:
    made = session()
    before = made.write(tmp_path)
    resumed = Transcript()
    for line in made.lines[3:]:
        record = json.loads(line)
        if renamed:
            record["sessionId"] = resumed.session
        resumed.raw(record)
    resumed.user("Thanks. Fix it.")
    resumed.answer("Done.", out=9)
    after = resumed.write(tmp_path)
    reports = await import_files(db, files.in_order([after, before]))
    assert sum(report.turns.total() for report in reports) == 7
    assert await total(db) == 7
    assert await tokens(db) == 159
    new = await db.turns.load(resumed.session)
    assert [turn.payload["text"] for turn in new] == ["Thanks. Fix it.", "Done."]
    assert new[0].payload["continues"] == made.session
    assert not any(report.turns for report in await import_files(db, [after, before]))


async def test_sessions_that_use_the_same_ids_are_two(db: Db, tmp_path: Path) -> None:
    for name in ("one", "two"):
        made = Transcript()
        record = {"type": "user", "uuid": "u1", "sessionId": made.session, "message": {"content": f"I am {name}"}}
        made.raw(record)
        made.raw(record)
        await import_file(db, made.write(tmp_path))
    assert await total(db) == 2


async def test_damaged_lines_are_told_and_the_rest_is_imported(db: Db, tmp_path: Path) -> None:
    """field case 110"""
    made = Transcript()
    made.user("one")
    made.answer("two", out=2)
    made.user("three")
    made.answer("four", out=4)
    made.user("five")
    made.answer("six", out=6)
    one, two, three, four, five, six = made.lines
    data = [
        one, b"", two[: len(two) // 2], two + three, b"\0" * 70_000, four[:30] + four, b"[1, 2]", b'"text"', b"{}",
        b"\xff\xfe not json", b"\0" * 10 + five, six[:-20],
    ]  # fmt: skip
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"\n".join(data))
    report = await import_file(db, path)
    turns = await db.turns.load(made.session)
    assert [turn.payload["text"] for turn in turns] == ["one", "two", "three", "four", "five"]
    assert report.counts.blank == 1
    assert [problem.line for problem in report.counts.problems] == [3, 4, 5, 6, 7, 8, 10, 11]
    assert report.counts.bad == 8
    assert report.unfinished
    with path.open("ab") as file:
        file.write(six[-20:])
    rest = await import_file(db, path)
    assert (rest.turns, rest.unfinished) == ({"model": 1}, False)
    with path.open("ab") as file:
        file.write(b"\n\n" + one.replace(b'"one"', b'"seven"').replace(json.loads(one)["uuid"].encode(), b"u7") + b"\n")
    more = await import_file(db, path)
    assert (more.turns, more.counts.blank, more.counts.bad) == ({"user": 1}, 1, 0)


async def test_only_a_line_feed_ends_a_line(db: Db, tmp_path: Path) -> None:
    """field case 114"""
    odd = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\rh"
    made = Transcript()
    made.user(odd)
    made.answer(f"<{odd}>", out=1)
    path = made.write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"\\r", b"\r").replace(b"\\u000b", b"\x0b").replace(b"\n", b"\r\n"))
    report = await import_file(db, path)
    assert [turn.payload["text"] for turn in await db.turns.load(made.session)] == [odd, f"<{odd}>"]
    assert report.counts.bad == 0


async def test_text_that_postgres_cannot_hold(db: Db, tmp_path: Path) -> None:
    """field case 3; field case 4; field case 6"""
    made = Transcript()
    made.user("a\0b")
    made.answer(call("t\0", "Ba\0sh", **{"k\0": "\ud83d", "n": float("nan")}), out=1)
    made.result("t\0", "x\0y\udc81")
    path = made.write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"a\\u0000b"', b'"a\\u0000b \xff"'))
    report = await import_file(db, path)
    turns = await db.turns.load(made.session)
    assert [turn.kind for turn in turns] == ["user", "model", "tool_call", "tool_result"]
    assert turns[0].payload["text"] == "a\ufffdb \ufffd"
    assert turns[3].payload["result"].startswith("x\ufffdy")
    assert report.counts.bad == 0


async def test_a_stop_hook_that_fires_before_the_last_message_is_written(db: Db, tmp_path: Path) -> None:
    """field case 111"""
    made = session()
    whole = made.data
    last = made.lines[8]
    path = tmp_path / f"{made.session}.jsonl"
    for size in (whole.index(last), whole.index(last) + 40, len(whole), len(whole)):
        path.write_bytes(whole[:size])
        await import_file(db, path)
    assert await kinds(db, made.session) == ["user", "model", "tool_call", "tool_result", "model"]
    assert await tokens(db) == 150


async def test_only_what_is_new_is_read(db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 118"""
    read = 0

    class Counting:
        def __init__(self, file: IO[bytes]) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def __enter__(self) -> Counting:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def read(self, size: int) -> bytes:
            nonlocal read
            data = self._file.read(size)
            read += len(data)
            return data

    opened = transcript.open_regular
    monkeypatch.setattr(transcript, "open_regular", lambda path: Counting(opened(path)))
    made = session()
    path = made.write(tmp_path)
    with path.open("ab") as file:  # 300 MB that take no space: a hole reads as zero bytes
        file.truncate(300 * 1024 * 1024)
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    first = await import_file(db, path)
    assert first.counts.bad == 1
    assert read > 300 * 1024 * 1024
    start = path.stat().st_size
    read = 0
    for number in range(50):
        made.lines.clear()
        made.user(f"prompt {number}")
        made.answer(f"answer {number}", out=1)
        with path.open("ab") as file:
            file.write(made.data)
        assert (await import_file(db, path)).turns == {"user": 1, "model": 1}
    assert read == path.stat().st_size - start
    assert len(await kinds(db, made.session)) == 105


async def test_a_big_transcript_goes_in_batches_and_an_import_that_was_killed_goes_on(
    db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_MAX_LINES", 7)
    made = Transcript()
    for n in range(40):
        made.user(f"prompt {n}")
        for part in range(3):
            made.answer(call(f"t{n}.{part}", "Read", n=n), id=f"m{n}", out=part + 1)
            made.result(f"t{n}.{part}", f"result {n}.{part}")
        made.answer("Done.", out=1)
    path = made.write(tmp_path)
    writes = 0
    original = importing._Importer._write

    async def failing(self: Any, *args: Any) -> None:
        nonlocal writes
        writes += 1
        if writes % 4 == 0:
            raise RuntimeError("killed")
        await original(self, *args)

    monkeypatch.setattr(importing._Importer, "_write", failing)
    for _ in range(40):
        try:
            await import_file(db, path)
            break
        except RuntimeError:
            continue
    turns = await db.turns.load(made.session)
    assert len(turns) == 40 * (1 + 1 + 3 + 3 + 1)
    assert [turn.kind for turn in turns[:9]] == [
        "user", "model", "tool_call", "tool_call", "tool_call", "tool_result", "tool_result", "tool_result", "model",
    ]  # fmt: skip
    assert await tokens(db) == 40 * 4
    assert not blocks.open_calls(turns)


async def test_several_imports_at_once(db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_MAX_LINES", 3)
    made = session()
    for n in range(10):
        made.user(f"p{n}")
        made.answer(f"a{n}", out=1)
    path = made.write(tmp_path)
    copy = Transcript()
    copy.lines = list(made.lines)
    reports = await asyncio.gather(*(import_files(db, [path, copy.write(tmp_path)]) for _ in range(4)))
    assert await total(db) == 25
    assert sum(report.turns.total() for several in reports for report in several) == 25


async def test_hostile_transcripts(db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 148: names are data, never paths; no line is too long or too deep."""
    monkeypatch.setattr(transcript, "MAX_LINE", 100_000)
    made = Transcript("../../../etc/passwd")
    made.user("hello")
    made.answer(call("t1", "x" * 5000, text="y" * 50_000, repo="z" * 5000), out=-5)
    made.result("t1", "r" * 200_000)
    made.lines.append(b'{"type":"user","message":' * 5000)
    made.lines.append(b'{"type":"user","uuid":"deep","message":{"content":[' + b"[" * 900 + b"]" * 900 + b"]}}")
    made.user("still here", agentId="../../x", isSidechain=True)
    made.answer("\x1b[2Jcleared", out=10**30, cwd=7, timestamp="yesterday")
    made.raw({"type": ["user"], "message": {"content": 5}, "uuid": 5, "sessionId": {}})
    made.raw({"type": "user", "message": {"role": "user", "content": [None, 3, {"type": "tool_result"}]}})
    made.raw({"type": "assistant", "message": {"content": {"a": 1}, "usage": [], "id": 3}, "timestamp": 1e300})
    report = await import_file(db, made.write(tmp_path, "evil.jsonl"))
    assert [problem.line for problem in report.counts.problems] == [3, 4]
    rows = await db.fetch("SELECT kind, payload ->> 'text' AS text FROM agent_turns ORDER BY seq")
    assert [row["text"] for row in rows if row["kind"] == "user"] == ["hello", "still here"]
    assert (await import_file(db, tmp_path)).error
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert (await import_file(db, tmp_path / "pipe.jsonl")).error == "Not a regular file"
    assert (await import_file(db, tmp_path / "gone.jsonl")).error == "No such file or directory"


async def test_what_a_redaction_rule_names_is_nowhere(everyturn_url: str, tmp_path: Path) -> None:
    def masked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: masked(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [masked(inner) for inner in value]
        return value.replace("hunter2", "[redacted]") if isinstance(value, str) else value

    made = Transcript()
    made.user("My password is hunter2")
    made.answer(call("t1", "Bash", command="login hunter2"), out=1)
    async with et.connect(everyturn_url, embedder=False, redact=masked) as db:
        await import_file(db, made.write(tmp_path))
        for table in ("agent_turns", "claude_code_files"):
            assert not await db.fetch(f"SELECT 1 FROM {table} AS t WHERE t::text LIKE '%hunter2%'")  # noqa: S608
        assert await total(db) == 3


async def test_files_in_messages_are_noted_and_not_stored(db: Db, tmp_path: Path) -> None:
    data = base64.b64encode(os.urandom(3000)).decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    made = Transcript()
    made.user([text("What is this?"), image])
    made.answer(call("t1", "Read", file_path="a.png"), out=1)
    made.result("t1", [image])
    await import_file(db, made.write(tmp_path))
    turns = await db.turns.load(made.session)
    [noted] = turns[0].payload["attributes"]["images"]
    assert (noted["mediaType"], noted["bytes"]) == ("image/png", 3000)
    assert turns[3].payload["result"] == [noted]


async def test_what_nobody_typed_is_counted(db: Db, tmp_path: Path) -> None:
    made = Transcript()
    made.user("This session is being continued from a previous conversation …", isCompactSummary=True)
    made.user("<command-message>review</command-message>\n<command-name>/review</command-name>\n"
              "<command-args>the parser</command-args>")  # fmt: skip
    made.user([text("You review code.")], isMeta=True)
    made.answer("Looks good.", out=1)
    made.user("<local-command-stdout>Set model</local-command-stdout>")
    made.user("<system-reminder>The date changed.</system-reminder>")
    made.record("system", None, subtype="compact_boundary", content="Conversation compacted")
    made.record("progress", {"type": "agent_progress"}, data={})
    made.record("attachment", None, attachment={"type": "queued_command", "prompt": "also the lexer"})
    made.record("attachment", None, attachment={"type": "todo", "content": []})
    made.record("hologram", {"role": "assistant", "content": [{"type": "text", "text": "From the future."}]})
    made.raw({"type": "mode", "mode": "normal"})
    report = await import_file(db, made.write(tmp_path))
    turns = await db.turns.load(made.session)
    assert [turn.payload["text"] for turn in turns] == [
        "/review the parser",
        "Looks good.",
        "also the lexer",
        "From the future.",
    ]
    assert turns[0].payload["attributes"] == {"command": "/review"}
    assert report.counts.skipped == {
        "compact summary": 1, "meta": 2, "local command": 1, "system": 1, "progress": 1, "attachment": 1, "mode": 1,
    }  # fmt: skip


async def test_the_tail_of_a_session_becomes_a_case(db: Db, tmp_path: Path) -> None:
    made = session()
    made.user("Fix it, please.")
    made.answer(call("t9", "Edit", file_path="parser.py"), out=5)
    made.result("t9", "edited")
    made.answer("Fixed.", out=5)
    made.user("<command-name>/clear-screen</command-name>")
    made.user("<command-name>/eval-capture</command-name>\n<command-args>parser</command-args>")
    path = made.write(tmp_path)
    tail = await capture_tail(db, path, tags=["parser"])
    assert tail.case.prompt == "Fix it, please."
    assert tail.case.source == "handcrafted"
    assert tail.case.context["toolCalls"] == [{"name": "Edit", "args": {"file_path": "parser.py"}, "result": "edited"}]
    assert len(tail.case.context["history"]) == 5
    assert tail.turn.payload["text"] == "Fixed."
    again = await capture_tail(db, path, tags=["parser"])
    assert (again.case.stored, again.case.id) == (False, tail.case.id)
    bad = await capture_tail(db, path, tags=["bad"], verdict="bad", rationale="It broke the tests.")
    assert (bad.case.source, bad.case.turn_id) == ("production", tail.turn.id)
    [row] = await db.fetch("SELECT turn_id, verdict, rationale FROM agent_evals")
    assert row == {"turn_id": tail.turn.id, "verdict": "bad", "rationale": "It broke the tests."}
    empty = Transcript().write(tmp_path)
    with pytest.raises(et.ConversationNotFound, match="holds no prompt yet"):
        await capture_tail(db, empty)
