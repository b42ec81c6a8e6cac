"""Events on the command line: tail, redact, expire, and pruning turns."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import everyturn as et
from everyturn.cli import main

Capture = pytest.CaptureFixture[str]
KEY = "sk-ant-api03-" + "SECRETsecret1234567890"


class Line:
    """The command line on one database."""

    def __init__(self, url: str, capsys: Capture) -> None:
        self.url = url
        self.capsys = capsys
        self.err = ""

    def run(self, *words: str, code: int = 0) -> str:
        self.capsys.readouterr()
        assert main(["-q", "-d", self.url, *words]) == code
        out, self.err = self.capsys.readouterr()
        assert "Traceback" not in self.err
        return out

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code))


@pytest.fixture
def cli(everyturn_url: str, capsys: Capture) -> Line:
    return Line(everyturn_url, capsys)


@pytest.fixture
def db(everyturn_url: str) -> Iterator[Any]:
    with et.connect(everyturn_url, embedder=False, redact=False) as db:
        yield db


def tail(url: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "everyturn.cli", "-q", "-d", url, "event", "tail", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_run_is_tailed_to_its_end(everyturn_url: str, db: Any) -> None:
    db.events.append(et.EventRecord("r", "bot", {"type": "turn_start", "turn": 1, "prompt": {"content": "hi"}}, turn=1))
    process = tail(everyturn_url, "r")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("turn\telapsed_ms")
    assert process.stdout.readline().split("\t")[4:] == ["turn_start", "", "hi\n"]
    for piece in ("Che", "cking"):
        db.events.append(et.EventRecord("r", "bot", {"type": "text_delta", "turn": 1, "delta": piece}, turn=1))
    # Nothing more for a moment: what was said so far is shown.
    assert process.stdout.readline().split("\t")[4:] == ["text", "", "Checking\n"]
    db.events.append(et.EventRecord("r", "bot", {"type": "error", "error": {"name": "E", "message": "a\nb"}}))
    out, err = process.communicate(timeout=20)
    assert out.split("\t")[4:] == ["error", "", "E: a\\nb\n"]
    assert (process.returncode, err) == (0, "")


def test_all_runs_are_tailed_until_ctrl_c(everyturn_url: str, db: Any) -> None:
    db.events.append(et.EventRecord("before", "bot", {"type": "note"}))
    process = tail(everyturn_url, "--json", "--agent", "bot")
    assert process.stdout is not None
    deadline = time.monotonic() + 30
    polls = (
        "SELECT 1 FROM pg_stat_activity WHERE query LIKE '-- How far can the stream events%'"
        " AND pid <> pg_backend_pid()"
    )
    while not db.fetch(polls):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)
    db.events.append(et.EventRecord("one", "bot", {"type": "note", "n": 1}))
    db.events.append(et.EventRecord("two", "other", {"type": "note", "n": 2}))
    db.events.append(et.EventRecord("two", "bot", {"type": "note", "n": 3}))
    rows = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [(row["run_id"], row["event"]["n"]) for row in rows] == [("one", 1), ("two", 3)]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "")


def test_a_run_that_is_not_there(cli: Line) -> None:
    cli.run("event", "tail", "nothing", code=4)
    assert "no stream events of run 'nothing'" in cli.err
    cli.run("event", "redact", "nothing", code=4)
    cli.run("event", "runs", "--status", "open", code=2)
    assert "running, finished, failed, cut off" in cli.err
    assert cli.json("event", "runs", "--status", "cut-off") == []


def test_tail_ends_quietly_when_its_reader_does(everyturn_url: str, db: Any) -> None:
    """field case 119"""
    db.execute(
        "INSERT INTO agent_events (run_id, agent_id, event) SELECT 'r', 'bot', jsonb_build_object("
        " 'type', 'note', 'n', n, 'text', repeat('x', 200)) FROM generate_series(1, 3000) AS n"
    )
    process = tail(everyturn_url, "r", "--raw")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        err = process.stderr.read()
    assert process.wait(20) == 0
    assert err == ""


def test_redact(cli: Line, db: Any) -> None:
    """field case 149: what is stored already."""
    conversation = UUID(int=1)
    args = {"password": "hunter22", "note": "fine"}
    db.turns.append(conversation, "bot", "user", {"text": f"key {KEY}", "runId": "r"})
    db.turns.append(conversation, "bot", "tool_call", {"toolName": "t", "toolCallId": "c", "args": args, "runId": "r"})
    start = {"type": "turn_start", "turn": 1, "conversation": str(conversation), "prompt": {"content": f"key {KEY}"}}
    db.events.append(et.EventRecord("r", "bot", start, turn=1))
    db.events.append(et.EventRecord("r", "bot", {"type": "final", "output": "hunter22 is fine"}))
    tried = cli.json("event", "redact", "r", "--path", "args.password", "--dry-run")
    assert (tried["turns"], tried["events"], tried["dry_run"]) == (1, 1, True)
    assert "hunter22" in cli.run("event", "show", "r", "--raw")
    done = cli.json("event", "redact", "r", "--path", "args.password")
    assert (done["turns"], done["events"], done["masked"]) == (1, 1, 2)
    assert "[redacted] is fine" in cli.run("event", "show", "r", "--raw")
    assert KEY in cli.run("event", "show", "r", "--raw")
    done = cli.json("event", "redact", "r")
    assert (done["turns"], done["events"]) == (1, 1)
    shown = cli.run("conversation", "show", str(conversation), "--json")
    assert KEY not in shown
    assert "hunter22" not in shown
    assert '"note": "fine"' in shown
    assert cli.json("event", "redact", "r", code=1)["masked"] == 0
    cli.run("event", "redact", "r", "--pattern", "(", code=2)
    assert "not a regular expression" in cli.err


def test_expire_and_prune(cli: Line, db: Any) -> None:
    """field case 151, field case 153"""
    conversation = UUID(int=2)
    for n in range(3):
        db.turns.append(conversation, "bot", "user", {"text": f"question {n}", "runId": f"r{n}"})
        db.turns.append(conversation, "bot", "model", {"text": f"answer {n}", "runId": f"r{n}"})
        for kind in ("text_delta", "final"):
            db.events.append(et.EventRecord(f"r{n}", "bot", {"type": kind}))
    db.execute("UPDATE agent_events SET created_at = '2020-01-01' WHERE run_id <> 'r2'")
    tried = cli.json("event", "expire", "--older-than", "14d", "--types", "text_delta, reasoning_delta", "--dry-run")
    assert (tried["events"], tried["dry_run"]) == (2, True)
    assert cli.json("event", "expire", "--older-than", "14d", "--run", "r0", "--keep-failed")["events"] == 2
    assert "events\t2" in cli.run("event", "expire", "--older-than", "2021-01-01")
    assert {run["run_id"] for run in cli.json("event", "runs")} == {"r2"}
    cli.run("event", "expire", code=2)

    assert cli.json("db", "prune", "--keep-last", "2", "--dry-run")["turns"] == 4
    assert cli.json("db", "prune", "--run", "r0")["turns"] == 2
    assert "turns\t2" in cli.run("db", "prune", "--keep-last", "2", "--older-than", "0s")
    assert [turn["payload"]["text"] for turn in cli.json("turn", "list", "--oldest-first")] == [
        "question 2",
        "answer 2",
    ]
    cli.run("db", "prune", "--agent", "bot", code=2)
    assert "would remove every turn" in cli.err
    assert os.environ.get("EVERYTURN_DEBUG", "") == ""


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["events.md", "redaction.md", "retention.md"])
def test_the_commands_of_the_pages_run(page: str, cli: Line, db: Any) -> None:
    for word in ("password", "note"):
        payload = {"toolName": "t", "toolCallId": "c", "args": {word: "cus_12345"}, "runId": "r"}
        db.turns.append(UUID(int=3), "support", "tool_call", payload)
    db.events.append(et.EventRecord("r", "support", {"type": "final", "output": f"cus_1 {KEY}"}))
    blocks = re.findall(r"```console\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    commands = [line.removeprefix("$ everyturn ") for block in blocks for line in block.splitlines()]
    assert commands
    for command in commands:
        if command.startswith("event tail --agent"):
            continue  # it has no end
        cli.run(*["r" if word == "RUN" else word for word in shlex.split(command)])
