"""The review bot, run as its users run it: what it leaves in the database and on the forge."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

ROOT = Path(__file__).resolve().parents[2]
BOT = ROOT / "examples" / "review_bot.py"
REVIEWER = ROOT / "examples" / "play_reviewer.py"

FIRST = """\
import os


def load(path, seen=[]):
    try:
        return open(path, encoding="utf-8")
    except:
        return None
"""
SECOND = """\
import os


def load(path, seen=[]):
    try:
        return open(path, encoding="utf-8")
    except:
        return None


def same(a):
    return a == None
"""


def git(repository: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(repository), *identity, *arguments], check=True, capture_output=True)


def commit(repository: Path, message: str, files: dict[str, str]) -> None:
    for name, content in files.items():
        (repository / name).write_text(content, "utf-8")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", message)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "a repo"
    path.mkdir()
    git(path, "init", "--quiet")
    commit(path, "Load files", {"load.py": FIRST})
    commit(path, "Compare [with] None", {"load.py": SECOND, "notes.md": "nothing to see\n"})
    return path


class Bot:
    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self.home = home

    def run(self, *arguments: str, code: int = 0, script: Path = BOT, **environment: str) -> str:
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("EVERYTURN", "MODEL", "ANTHROPIC", "GITHUB_"))
        }
        kept |= {"EVERYTURN_DATABASE": self.url, "XDG_DATA_HOME": str(self.home), "COLUMNS": "160"} | environment
        done = subprocess.run(
            [sys.executable, str(script), *arguments], env=kept, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if code in {0, 3} else done.stderr

    def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, row_factory=dict_row) as conn:
            return conn.execute(sql, parameters).fetchall()

    @property
    def comments(self) -> list[dict[str, Any]]:
        (store,) = (self.home / "everyturn" / "review-bot").glob("*.json")
        found: list[dict[str, Any]] = json.loads(store.read_text("utf-8"))["comments"]
        return found


@pytest.fixture
def bot(everyturn_url: str, tmp_path: Path) -> Bot:
    return Bot(everyturn_url, tmp_path / "share")


def test_two_reviews_find_three_things_and_say_each_once(bot: Bot, repository: Path) -> None:
    said = bot.run("review", "--local", str(repository), "--last", "5")
    assert "Load files" in said
    assert "Compare [with] None" in said
    assert "load.py:12 [none-comparison] `return a == None`: " in said
    assert "3 new comments on 2 commits" in said
    found = {(comment["path"], comment["line"], comment["body"].split("]")[0]) for comment in bot.comments}
    assert found == {
        ("load.py", 4, "[mutable-default"),
        ("load.py", 7, "[bare-except"),
        ("load.py", 12, "[none-comparison"),
    }

    again = bot.run("review", "--local", str(repository), "--last", "5")
    assert "0 new comments on 2 commits" in again
    assert "3 from earlier reviews" in again
    assert len(bot.comments) == 3

    turns = bot.rows(
        "SELECT kind, count(*) FROM agent_turns WHERE NOT starts_with(coalesce(payload ->> 'toolName', ''), 'memory.')"
        " GROUP BY 1 ORDER BY 1"
    )
    assert {row["kind"]: row["count"] for row in turns} == {
        "user": 4,
        "model": 14,
        "tool_call": 17,
        "tool_result": 17,
    }


def test_the_log_answers_the_questions_people_ask_of_it(bot: Bot, repository: Path) -> None:
    bot.run("review", "--local", str(repository), "--repo", "o/r")
    posted = bot.rows(
        "SELECT t.payload ->> 'repo' AS repo, t.payload ->> 'path' AS path, t.payload ->> 'line' AS line,"
        " t.payload ->> 'body' AS body, t.payload ->> 'url' AS url, t.payload ->> 'implHash' AS impl_hash"
        " FROM agent_turns t WHERE t.agent = 'code-reviewer' AND t.kind = 'tool_result'"
        " AND t.payload ->> 'toolName' = 'post_review_comment' ORDER BY (t.payload ->> 'line')::int"
    )
    assert [(row["repo"], row["path"], row["line"]) for row in posted] == [
        ("o/r", "load.py", "4"),
        ("o/r", "load.py", "7"),
        ("o/r", "load.py", "12"),
    ]
    assert {row["url"] for row in posted} == {comment["url"] for comment in bot.comments}
    assert all(row["impl_hash"].startswith("v1:") for row in posted)
    models = bot.rows(
        "SELECT DISTINCT payload ->> 'model' AS model, (payload ->> 'costUsd')::numeric AS cost"
        " FROM agent_turns WHERE kind = 'model'"
    )
    assert models == [{"model": "offline:rules", "cost": 0}]
    tools = bot.rows("SELECT name, rate_budget FROM agent_tools WHERE agent = 'code-reviewer' ORDER BY name")
    assert [tool["name"] for tool in tools] == [
        "fetch_pr_diff",
        "past_reviews",
        "post_review_comment",
        "prior_findings",
    ]
    assert all(tool["rate_budget"]["window_seconds"] == 60 for tool in tools)
    (cached,) = bot.rows("SELECT value FROM agent_procedural WHERE cache_key LIKE 'o/r#1@%%'")
    assert "hunk:" in cached["value"]
    memories = bot.rows("SELECT subjects, (attributes ->> 'line')::int AS line FROM agent_semantic ORDER BY line")
    assert [memory["line"] for memory in memories] == [4, 7, 12]
    assert all("repo:o/r" in memory["subjects"] for memory in memories)


def test_the_report_prints_what_was_done(bot: Bot, repository: Path) -> None:
    assert "Turns by kind: none" in bot.run("report")
    bot.run("review", "--local", str(repository))
    said = bot.run("report")
    for title in ("Turns by kind", "Findings by rule", "Cost by model", "Slowest tools"):
        assert title in said
    for word in ("tool_result", "bare-except", "offline:rules", "post_review_comment"):
        assert word in said


def test_a_comment_that_a_crash_left_unremembered_is_not_posted_again(bot: Bot, repository: Path) -> None:
    bot.run("review", "--local", str(repository))
    bot.rows("DELETE FROM agent_semantic RETURNING id")
    assert "0 new comments" in bot.run("review", "--local", str(repository))
    assert len(bot.comments) == 3
    assert len(bot.rows("SELECT id FROM agent_semantic")) == 3


def test_a_dismissed_finding_is_a_verdict_with_its_reason_and_is_not_said_again(bot: Bot, repository: Path) -> None:
    here = ("--local", str(repository), "--repo", "o/r")
    assert "has not commented on o/r yet" in bot.run(*here, "--reason", "x", script=REVIEWER, code=3)
    bot.run("review", *here)
    (number,) = [str(each["id"]) for each in bot.comments if each["line"] == 4]
    said = bot.run(*here, "--comment", number, "--reason", "It is a cache.", script=REVIEWER)
    assert "load.py:4 [mutable-default" in said
    assert "dismissed: It is a cache." in said
    # Asked again without a number, it leaves things as they are.
    assert "It is a cache." in bot.run(*here, "--reason", "Another.", script=REVIEWER)
    assert "1 new verdict on 3 comments of o/r" in bot.run("sync", *here)
    assert "0 new verdicts on 3 comments of o/r" in bot.run("sync", *here)
    assert "0 new comments on 2 commits" in bot.run("review", *here)
    assert len(bot.comments) == 3
    wrong = bot.run("wrong", "--repo", "o/r", COLUMNS="200")
    assert "[mutable-default" in wrong
    assert "It is a cache." in wrong
    assert "bare-except" not in wrong
    assert "What I got wrong: none" in bot.run("wrong", "--repo", "o/other")

    # A reviewer may change their mind: the last word stands.
    bot.run(*here, "--comment", number, "--accept", "--reason", "Good catch after all.", script=REVIEWER)
    assert "1 new verdict on 3 comments" in bot.run("sync", *here)
    verdicts = bot.rows("SELECT verdict, evaluator, rationale, payload ->> 'sign' AS sign FROM agent_evals ORDER BY id")
    assert [tuple(row.values()) for row in verdicts] == [
        ("bad", "human", "It is a cache.", "reply"),
        ("good", "human", "Good catch after all.", "reply"),
    ]
    assert "What I got wrong: none" in bot.run("wrong", "--repo", "o/r")


class Clone:
    """A clone of this repository as `make demo` needs it: its script, its examples, and commits to review."""

    def __init__(self, path: Path, bot: Bot) -> None:
        self.path = path
        self._bot = bot
        for part in ("scripts", "examples"):
            shutil.copytree(ROOT / part, path / part, ignore=shutil.ignore_patterns("__pycache__"))
        (path / ".venv").symlink_to(sys.prefix)
        (path / ".gitignore").write_text(".venv\nscripts\nexamples\nbuild\n", "utf-8")
        git(path, "init", "--quiet")

    def demo(self, **environment: str) -> str:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("EVERYTURN", "MODEL", "LAST"))}
        kept |= {"EVERYTURN_DATABASE": self._bot.url, "EVERYTURN_EMBEDDER": "none", "COLUMNS": "160"}
        kept |= {"XDG_DATA_HOME": str(self._bot.home)} | environment
        done = subprocess.run(
            [str(self.path / "scripts" / "demo")],
            env=kept,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout


@pytest.fixture
def clone(bot: Bot, tmp_path: Path) -> Clone:
    path = tmp_path / "a clone"
    path.mkdir()
    return Clone(path, bot)


def test_the_demo_ends_with_a_gate_that_stops_a_prompt_and_lets_its_repair_pass(bot: Bot, clone: Clone) -> None:
    commit(clone.path, "Load files", {"load.py": FIRST})
    for repeated in (False, True):
        said = clone.demo()
        at = [
            said.index(words)
            for words in (
                "$ everyturn case capture --from-evals bad",
                "\ncore@1\n",
                "--prompt build/demo/learned.md",
                "--prompt examples/prompts/shorter.md",
                "1 regressed",
                "\nfail: offline:rules@",
                "The gate says 1: the shorter prompt may not be released.",
                "--prompt build/demo/repaired.md",
                "\npass: offline:rules@",
            )
        ]
        assert at == sorted(at)
        assert ("is not a case yet" in said) is repeated
        assert ("holds exactly these cases" in said) is repeated
    assert "We do this on purpose." in (clone.path / "build" / "demo" / "learned.md").read_text("utf-8")
    assert bot.rows("SELECT name, version, cardinality(case_ids) AS cases FROM eval_dataset") == [
        {"name": "core", "version": 1, "cases": 1}
    ]
    runs = bot.rows("SELECT output, pass, error, drift FROM eval_run ORDER BY ran_at")
    assert [run["pass"] for run in runs] == [True, False, True] * 2
    assert {run["error"] for run in runs} == {None}
    assert runs[1]["output"] == "2 new, 0 said before."
    assert runs[2]["output"] == "1 new, 0 said before, 1 unsaid because reviewers dismissed the like."
    # The bot's tools were answered from the record: nothing more was posted.
    assert len(bot.comments) == 2


def test_the_demo_goes_on_where_there_is_nothing_to_dismiss(bot: Bot, clone: Clone) -> None:
    commit(clone.path, "Say nothing", {"notes.md": "nothing to see\n"})
    said = clone.demo(LAST="1")
    assert "No finding was dismissed, so there is no case to make a dataset of." in said
    assert bot.rows("SELECT id FROM eval_dataset") == []


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("review",), 2, "--local PATH"),
        (("review", "--pr", "7"), 2, "--repo owner/name"),
        (("review", "--pr", "7", "--local", "{repo}"), 2, "--local PATH"),
        (("review", "--pr", "7", "--repo", "o/r"), 4, "GITHUB_TOKEN is not set"),
        (("review", "--local", "/nowhere"), 4, "/nowhere is not a directory"),
        (("review", "--local", "{tmp}"), 4, "is not a git working copy"),
        (("review", "--local", "{repo}", "--last", "0"), 2, "--last"),
        (("review", "--local", "{repo}", "--database", "postgresql://127.0.0.1:1/x"), 4, "127.0.0.1"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    bot: Bot, repository: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    given = [each.format(tmp=tmp_path, repo=repository) for each in arguments]
    assert sentence in bot.run(*given, code=code)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [("anthropic:claude-opus-4-7", "ANTHROPIC_API_KEY"), ("nonsense", "does not name a provider")],
)
def test_a_model_that_cannot_be_asked_is_said_in_a_sentence(
    bot: Bot, repository: Path, model: str, sentence: str
) -> None:
    assert sentence in bot.run("review", "--local", str(repository), code=4, MODEL=model)
    assert bot.comments == []


def test_a_repository_without_commits_has_nothing_to_review(bot: Bot, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "empty")
    assert "nothing to review" in bot.run("review", "--local", str(tmp_path / "empty"))
