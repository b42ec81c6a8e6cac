"""The command line on a filled database: every list, show and search."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

import everyturn as et
from everyturn.cli import main
from everyturn.ids import uuid7
from everyturn.testing import database_url

Capture = pytest.CaptureFixture[str]
FIXTURE = Path(__file__).parent.parent / "fixtures" / "anvia-events.jsonl"
AGENTS = f"python:{Path(__file__).parent}/cli_agents.py"
LONG = 250
HOSTILE = "\x1b]0;owned\x07 [bold]not bold[/bold] 🐙\nsecond line"


class Filled:
    """A database with known rows; `run` is the command line on it, without noise."""

    def __init__(self, url: str, capsys: Capture) -> None:
        self.url = url
        self.capsys = capsys
        self.err = ""

    def run(self, *words: str, code: int = 0) -> str:
        self.capsys.readouterr()
        assert main(["-q", "-d", self.url, *words]) == code
        captured = self.capsys.readouterr()
        self.err = captured.err
        assert "Traceback" not in captured.err
        return captured.out

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def lines(self, *words: str) -> list[dict[str, str]]:
        header, *rows = self.run(*words).rstrip("\n").split("\n")
        return [dict(zip(header.split("\t"), row.split("\t"), strict=True)) for row in rows]


IDS: dict[str, UUID] = {}


def fixture_lines() -> list[str]:
    return FIXTURE.read_text(encoding="utf-8").rstrip("\n").split("\n")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database_url() as url:
        asyncio.run(fill(url))
        yield url


@pytest.fixture
def cli(url: str, capsys: Capture) -> Filled:
    return Filled(url, capsys)


async def fill(url: str) -> None:
    async with et.connect(url, embedder=False) as db:
        for name in ("crashed", "finished", "failed", "recorded"):
            IDS[name] = uuid7()
        run = {"runId": "run-1"}
        call = {"toolName": "shout", "toolCallId": "c1", "args": {"text": "hi", "repo": "o'r/x"}}
        log: list[tuple[str, str, dict[str, Any]]] = [
            ("recorded", "user", {"text": "appended by hand"}),
            ("failed", "user", {"text": "too much", **run}),
            ("failed", "error", {"stage": "limit", "type": "MaxTurnsExceeded", "message": "No more.", **run}),
            ("finished", "user", {"text": HOSTILE, **run}),
            ("finished", "model", {"text": "", "toolCalls": [{"id": "c1", "name": "shout", "args": {}}], **run}),
            ("finished", "tool_call", {**call, **run}),
            ("finished", "tool_result", {**call, "result": "HI", "repo": "o'r/x", **run}),
            ("finished", "model", {"text": "Done: it was HI.", "toolCalls": [], "finishReason": "stop", **run}),
            ("finished", "tool_result", {"toolName": "memory.remember", "text": "noted", **run}),
            ("finished", "error", {"stage": "hook", "type": "E", "message": "hook failed", **run}),
            ("crashed", "user", {"text": "go on", **run}),
            ("crashed", "tool_call", {**call, **run}),
        ]
        for name, kind, payload in log:
            turn = await db.turns.append(IDS[name], "other" if name == "failed" else "crier", kind, payload)
            IDS[f"{name} {kind}"] = turn.id
        await db.evals.record(IDS["finished model"], "human", "bad", "too short")
        await db.evals.record(IDS["finished model"], "rubric:v1", "good")
        start = datetime(2026, 11, 1, tzinfo=UTC)
        for n in range(LONG):
            await db.events.append(
                et.EventRecord("long", "crier", {"type": "note", "n": n}, created_at=start + timedelta(seconds=n))
            )
    async with await psycopg.AsyncConnection.connect(url) as conn:
        columns = [key for key in json.loads(fixture_lines()[0]) if key not in ("scenario", "id")]
        async with conn.cursor().copy(f"COPY agent_events ({', '.join(columns)}) FROM STDIN") as copy:
            for line in fixture_lines():
                row = json.loads(line)
                row["event"] = json.dumps(row["event"])
                await copy.write_row([row[column] for column in columns])


def test_turns_are_listed_newest_first_and_a_conversation_in_log_order(cli: Filled) -> None:
    """field case 22"""
    everything = cli.json("turn", "list")
    assert [turn["seq"] for turn in everything] == sorted((turn["seq"] for turn in everything), reverse=True)
    assert set(everything[0]) == {"id", "seq", "conversation", "agent", "kind", "payload", "created_at"}
    one = cli.json("turn", "list", "--conversation", str(IDS["finished"]))
    assert [turn["kind"] for turn in one][:5] == ["user", "model", "tool_call", "tool_result", "model"]
    newest = cli.json("turn", "list", "-c", str(IDS["finished"]), "--newest-first", "-n", "1")
    assert newest[0]["seq"] == one[-1]["seq"]
    assert cli.json("turn", "list", "--oldest-first", "--limit", "1")[0]["seq"] == everything[-1]["seq"]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--agent", "other"], 2),
        (["--agent", "nobody"], 0),
        (["--kind", "error"], 2),
        (["--tool", "shout"], 3),
        (["--where", "repo=o'r/x"], 1),
        (["--where", "stage=limit", "--where", "type=MaxTurnsExceeded"], 1),
        (["--where", "stage=limit", "--where", "type=other"], 0),
        (["--since", "1h"], 12),
        (["--until", "1h"], 0),
        (["--since", "2000-01-01", "--until", "2001-01-01T00:00:00+09:00"], 0),
        (["--tool", "shout", "--kind", "tool_result", "--agent", "crier"], 1),
    ],
)
def test_filters_of_turns(cli: Filled, words: list[str], count: int) -> None:
    assert len(cli.json("turn", "list", *words)) == count


@pytest.mark.parametrize(
    "condition",
    ["a' = 'x' OR '1'='1' --=1", "stage=x') OR 1=1 --", '["x\') OR 1=1 --"]=1', "%s=%(x)s", "stage=%", "é=\\"],
)
def test_filter_keys_and_values_are_data(cli: Filled, condition: str) -> None:
    """field case 143"""
    assert cli.json("turn", "list", "--where", condition) == []
    assert cli.json("turn", "list", "--agent", condition, "--tool", condition) == []
    assert cli.json("turn", "search", condition, "--mode", "lexical", "--where", condition) == []


@pytest.mark.parametrize("words", [["turn", "list", "--agent"], ["turn", "search", "--mode", "lexical"]])
def test_arguments_that_are_not_utf8_are_read_as_replaced(cli: Filled, words: list[str]) -> None:
    """field case 4"""
    cli.run(*words, os.fsdecode(b"caf\xe9 \xff"))


def test_the_database_is_named_once_on_stderr_without_its_password(url: str, capsys: Capture) -> None:
    assert main(["-d", f"{url} password=hunter2", "tool", "list"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("Database: ") == 1
    assert "hunter2" not in captured.err + captured.out
    for words in (["-q", "tool", "list"], ["tool", "list", "--quiet"]):
        assert main(["-d", url, *words]) == 0
        assert capsys.readouterr().err == ""


def test_the_database_may_be_named_after_the_verb_and_by_the_environment(
    cli: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = cli.run("turn", "list")
    assert main(["-q", "turn", "list", "--database", cli.url]) == 0
    assert cli.capsys.readouterr().out == shown
    monkeypatch.setenv("EVERYTURN_DATABASE", cli.url)
    assert main(["-q", "turn", "list"]) == 0
    assert cli.capsys.readouterr().out == shown


def test_a_pipe_gets_only_data(cli: Filled) -> None:
    rows = cli.lines("turn", "list", "--conversation", str(IDS["finished"]))
    assert cli.err == ""
    assert rows[0]["summary"] == "\\x1b]0;owned\\x07 [bold]not bold[/bold] 🐙\\nsecond line"
    assert rows[1]["summary"] == "-> shout({})"
    assert rows[2]["tool"] == "shout"
    assert json.loads(rows[2]["summary"]) == {"text": "hi", "repo": "o'r/x"}
    assert rows[3]["summary"] == "HI"


def test_a_list_that_was_cut_says_so(cli: Filled) -> None:
    """field case 122"""
    assert len(cli.json("turn", "list", "--limit", "5")) == 5
    assert "Showing 5 of more" in cli.err
    cli.json("turn", "list", "--all")
    assert cli.err == ""


def test_a_turn_is_shown_whole_with_its_verdicts(cli: Filled) -> None:
    turn = cli.json("turn", "show", str(IDS["finished model"]))
    assert turn["payload"]["text"] == "Done: it was HI."
    assert [verdict["verdict"] for verdict in turn["verdicts"]] == ["bad", "good"]
    text = cli.run("turn", "show", str(IDS["finished model"]))
    assert "payload.text\tDone: it was HI." in text
    assert "bad: too short" in text
    cli.run("turn", "show", str(uuid7()), code=4)
    assert "There is no turn" in cli.err


def test_turns_are_found_by_their_words(cli: Filled) -> None:
    found = cli.json("turn", "search", "done", "--mode", "lexical", "--agent", "crier")
    assert [turn["id"] for turn in found] == [str(IDS["finished model"])]
    assert found[0]["score"] > 0
    rows = cli.lines("turn", "search", "too much", "--mode", "lexical", "--kind", "user")
    assert rows[0]["summary"] == "too much"
    assert cli.json("turn", "search", "done", "--mode", "lexical", "--tool", "shout") == []


def test_conversations_and_how_they_ended(cli: Filled) -> None:
    listed = cli.json("conversation", "list")
    assert {row["id"]: row["status"] for row in listed} == {
        str(IDS[status]): status for status in ("crashed", "finished", "failed", "recorded")
    }
    assert [row["status"] for row in listed] == ["crashed", "finished", "failed", "recorded"]
    assert listed[1]["turns"] == 7
    assert [row["id"] for row in cli.json("conversation", "list", "--status", "crashed")] == [str(IDS["crashed"])]
    assert [row["agent"] for row in cli.json("conversation", "list", "--agent", "other")] == ["other"]


def test_a_conversation_that_is_held_is_running(cli: Filled) -> None:
    with psycopg.connect(cli.url, autocommit=True) as conn:
        conn.execute("SELECT pg_advisory_lock(everyturn_lock_key(%s))", (IDS["crashed"],))
        assert cli.json("conversation", "list", "--status", "crashed") == []
        assert [row["id"] for row in cli.json("conversation", "list", "--status", "running")] == [str(IDS["crashed"])]


def test_a_conversation_is_shown_in_log_order(cli: Filled) -> None:
    shown = cli.json("conversation", "show", str(IDS["finished"]))
    assert shown["status"] == "finished"
    assert [turn["kind"] for turn in shown["turns"]][:3] == ["user", "model", "tool_call"]
    assert shown["turns"][0]["payload"]["text"] == HOSTILE
    rows = cli.lines("conversation", "show", str(IDS["finished"]))
    assert len(rows) == 7
    cli.run("conversation", "show", str(uuid7()), code=4)


def test_runs_and_how_they_ended(cli: Filled) -> None:
    runs = cli.json("event", "runs", "--all")
    assert runs[0]["started_at"] >= "2026"
    by_id = {run["run_id"]: run for run in runs}
    assert by_id["long"]["status"] == "running"  # its last event is young, and nobody can tell who writes it
    assert by_id["long"]["events"] == LONG
    ends: dict[str, str] = {}
    for line in fixture_lines():
        row = json.loads(line)
        young = datetime.fromisoformat(row["created_at"]) > datetime.now(UTC) - timedelta(minutes=15)
        no_end = "running" if young else "cut off"
        ends[row["run_id"]] = {"final": "finished", "error": "failed"}.get(row["event"]["type"], no_end)
    assert {run: by_id[run]["status"] for run in ends} == ends
    failed = cli.json("event", "runs", "--status", "failed", "--all")
    assert {run["run_id"] for run in failed} == {run for run, end in ends.items() if end == "failed"}
    assert cli.json("event", "runs", "--agent", "nobody") == []


def test_a_long_run_is_shown_whole(cli: Filled) -> None:
    """field case 122"""
    assert len(cli.json("event", "show", "long")) == LONG
    assert len(cli.lines("event", "show", "long")) == LONG
    raw = cli.run("event", "show", "long", "--raw").rstrip("\n").split("\n")
    assert [json.loads(line)["n"] for line in raw] == list(range(LONG))
    cli.run("event", "show", "no such run", code=4)
    assert "no such run" in cli.err


def test_every_run_of_another_program_is_shown(cli: Filled) -> None:
    stored: dict[str, list[Any]] = {}
    for line in fixture_lines():
        row = json.loads(line)
        stored.setdefault(row["run_id"], []).append(row["event"])
    for run, events in stored.items():
        assert [row["event"] for row in cli.json("event", "show", run)] == events
        assert cli.lines("event", "show", run)


def test_tools_are_listed(cli: Filled) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REGISTER, cli.url, AGENTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    [tool] = cli.json("tool", "list")
    assert (tool["agent"], tool["name"], tool["rate_budget"]) == ("crier", "shout", {})
    assert tool["schema"]["properties"]["text"]
    assert tool["last_used_at"] is not None
    assert cli.lines("tool", "list")[0]["budget"] == "unlimited"


REGISTER = """
import asyncio, sys
import everyturn as et
from everyturn.cli.objects import load_object

async def main():
    async with et.connect(sys.argv[1], embedder=False) as db:
        await load_object(sys.argv[2] + ":agent")(db).register()

asyncio.run(main())
"""
