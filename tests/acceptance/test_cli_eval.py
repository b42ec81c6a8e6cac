"""`everyturn eval`, and `turn search --not-verdict`."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import everyturn as et
from everyturn.cli import main

EVALUATORS = f"{Path(__file__).parent}/cli_evaluators.py"
TOOL = "post_review_comment"


async def fill(url: str) -> dict[str, UUID]:
    ids = {}
    now = datetime.now(UTC)
    async with et.connect(url, embedder=False) as db:
        for number, body in enumerate(["a bare except", "a bare raise", "an unused import"]):
            id = uuid4()
            answer = {"text": "four" if number else "no", "model": f"m{number % 2}", "promptRev": "p"}
            comment = {
                "toolName": TOOL,
                "repo": "o/r",
                "path": f"{number}.py",
                "body": body,
                "implHash": f"v1:{number}",
            }
            created_at = now - timedelta(days=10 - number)
            turns = await db.turns.append_many(
                [
                    et.NewTurn(id, "bot", "user", {"text": "go"}, created_at),
                    et.NewTurn(id, "bot", "tool_result", comment, created_at),
                    et.NewTurn(id, "bot", "model", answer, created_at),
                ]
            )
            ids[body], ids[f"answer {number}"] = turns[1].id, turns[2].id
        await db.evals.record(ids["a bare except"], "human", "bad", "it is \x1b[31mmeant\n")
        await db.evals.record(ids["a bare except"], "rubric:v3", "good")
        await db.evals.record(ids["an unused import"], "human", "good")
        await db.evals.record(ids["an unused import"], "rubric:v3", "good")
    return ids


class Cli:
    """The command line on a filled database."""

    def __init__(self, url: str, ids: dict[str, UUID], capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self.ids, self.capsys = url, ids, capsys
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
def cli(everyturn_url: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    return Cli(everyturn_url, asyncio.run(fill(everyturn_url)), capsys)


def test_record_and_list(cli: Cli) -> None:
    turn = str(cli.ids["answer 1"])
    made = cli.json("eval", "record", turn, "bad", "--reason", "too short", "--payload", '{"by": "me"}')
    assert (made["evaluator"], made["rationale"], made["payload"]) == ("human", "too short", {"by": "me"})
    assert cli.json("eval", "list", "--turn", turn) == [made]
    assert [row["verdict"] for row in cli.json("eval", "list", "--evaluator", "human")] == ["bad", "good", "bad"]
    assert len(cli.run("eval", "list", "--limit", "2").splitlines()) == 3
    assert "--limit" in cli.err
    assert "\x1b" not in cli.run("eval", "list")
    cli.run("eval", "record", str(uuid4()), "bad", code=4)
    assert "There is no turn" in cli.err
    cli.run("eval", "record", turn, "awful", code=2)
    cli.run("eval", "record", turn, "bad", "--payload", "{", code=2)


def test_run_judges_what_lacks_a_verdict(cli: Cli) -> None:
    first = cli.json("eval", "run", f"{EVALUATORS}:length")
    assert (first["good"], first["bad"], first["recorded"], first["failures"]) == (2, 1, 3, [])
    assert cli.json("eval", "run", f"python:{EVALUATORS}:length")["recorded"] == 0
    assert cli.json("eval", "run", f"{EVALUATORS}:whole", "--limit", "1")["good"] == 1
    assert cli.json("eval", "run", f"{EVALUATORS}:whole", "--since", "9d", "--agent", "bot")["recorded"] in (1, 2)
    assert cli.json("eval", "run", f"{EVALUATORS}:whole", "--agent", "nobody")["recorded"] == 0


def test_run_says_what_failed(cli: Cli) -> None:
    """Covers field case 94."""
    found = cli.json("eval", "run", f"{EVALUATORS}:fails", code=4)
    assert (found["failed"], found["recorded"], len(found["failures"])) == (3, 0, 3)
    assert cli.err.count("was not judged: ValueError: no opinion on") == 3
    for reference, words in (("NOT_AN_EVALUATOR", "not an evaluator"), ("nothing", "has no 'nothing'")):
        cli.run("eval", "run", f"{EVALUATORS}:{reference}", code=2)
        assert words in cli.err


def test_progress_on_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("SLOW", "0.2")
    assert main(["-d", cli.url, "eval", "run", f"{EVALUATORS}:slow", "-j", "1", "--embedder", "none"]) == 0
    said = terminal.getvalue()
    assert "slow:v1" in said
    assert "3/3" in said
    assert "3 good, 0 partial, 0 bad, 0 failed" in said


def test_a_module_of_the_current_directory(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "evals_of_mine.py").write_text(Path(EVALUATORS).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert cli.json("eval", "run", "evals_of_mine:length")["recorded"] == 3


def test_agree(cli: Cli) -> None:
    found = cli.json("eval", "agree", "--evaluator", "rubric:v3")
    assert (found["turns"], found["agreement"], found["kappa"]) == (2, 0.5, 0.0)
    assert found["confusion"]["good"] == {"good": 1, "partial": 0, "bad": 1}
    assert [row["turn_id"] for row in found["disagreements"]] == [str(cli.ids["a bare except"])]
    assert "kappa\t0.000" in cli.run("eval", "agree", "-e", "rubric:v3", "--against", "human")
    cli.run("eval", "agree", "-e", "rubric:v3", "--min-kappa", "0.4", code=1)
    assert "below 0.4" in cli.err
    assert cli.json("eval", "agree", "-e", "nobody", code=3)["kappa"] is None


def test_compare_refuses_a_changed_tool(cli: Cli) -> None:
    sides = ("--agent", "bot", "--tool", TOOL, "--baseline", "until=9d", "--candidate", "since=9d,until=1d")
    assert cli.run("eval", "compare", *sides, code=1) == ""
    assert TOOL in cli.err
    assert "v1:0" in cli.err
    assert "v1:2" in cli.err
    found = cli.json("eval", "compare", *sides, "--allow-changed")
    assert (found["baseline"]["bad"], found["candidate"]["good"], found["difference"]) == (1, 1, 1.0)
    assert "difference\t+100.0% good" in cli.run("eval", "compare", *sides, "--allow-changed")
    cli.run("eval", "compare", "--agent", "bot", "--baseline", "model=m7", "--candidate", "model=m0", code=3)
    cli.run("eval", "compare", "--agent", "bot", "--baseline", "when=9d", "--candidate", "model=m0", code=2)
    cli.run("eval", "compare", "--agent", "bot", "--baseline", "until=soon", "--candidate", "model=m0", code=2)


def test_wrong(cli: Cli) -> None:
    words = ("eval", "wrong", "--agent", "bot", "--tool", TOOL, "--where", "repo=o/r")
    [row] = cli.json(*words)
    assert (row["comment_body"], row["path"], row["times_dismissed"]) == ("a bare except", "0.py", 1)
    assert row["last_reason"] == "it is \x1b[31mmeant\n"
    assert cli.run(*words).splitlines()[1].startswith("1\t0.py\ta bare except\tit is \\x1b[31mmeant\\n\t")
    assert cli.json(*words, "--days", "5") == []
    assert cli.json("eval", "wrong", "--agent", "bot", "--where", "repo=o/s") == []
    cli.run("eval", "record", str(cli.ids["a bare except"]), "good")
    assert cli.json(*words) == []


def test_search_for_what_survived(cli: Cli) -> None:
    """Covers field case 143."""
    words = ("turn", "search", "--similar", "a bare thing", "--where", "repo=o/r", "--embedder", "none")
    found = cli.json(*words, "--not-verdict", "bad")
    assert [row["payload"]["body"] for row in found] == ["a bare raise"]
    assert found[0]["verdict"] is None
    assert cli.json(*words, "--not-verdict", "bad", "--where", "a' = 'x' OR '1'='1' --=1") == []
    assert cli.run(*words, "--not-verdict", "good").count("\n") == 3
    cli.run("turn", "search", "--not-verdict", "bad", code=2)
    cli.run("turn", "search", "one", "--similar", "other", code=2)


def test_watch_goes_on_until_it_is_stopped(everyturn_url: str) -> None:
    ids = asyncio.run(fill(everyturn_url))
    assert ids

    async def judged() -> int:
        async with et.connect(everyturn_url, embedder=False) as db:
            return len(await db.evals.list(evaluator="slow:v1"))

    command = [sys.executable, "-m", "everyturn.cli", "-d", everyturn_url, "eval", "run", f"{EVALUATORS}:slow"]
    worker = subprocess.Popen(
        [*command, "--watch", "--interval", "0.1", "--embedder", "none"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONWARNINGS": "error"},
        text=True,
    )
    try:
        until(lambda: asyncio.run(judged()) == 3)
        asyncio.run(fill(everyturn_url))
        until(lambda: asyncio.run(judged()) == 6)
        worker.send_signal(signal.SIGINT)
        assert worker.wait(10) == 130
        assert "Traceback" not in worker.stderr.read()  # type: ignore[union-attr]
    finally:
        worker.kill()
        worker.communicate()


def until(condition: Any) -> None:
    import time

    for _ in range(100):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come to pass")
