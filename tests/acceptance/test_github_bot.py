"""The review bot on GitHub's API, end to end: two pull requests, what reviewers did between, and what it learned."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from github_server import TOKEN, GitHubServer, github_server
from psycopg.rows import dict_row

import everyturn as et
import review_bot

CONVERSATION = "0190b6a0-0000-7000-8000-000000000001"
ROOT = Path(__file__).resolve().parents[2]

LOAD = """\
diff --git a/load.py b/load.py
index 1111111..2222222 100644
--- a/load.py
+++ b/load.py
@@ -1,3 +1,5 @@
 import os
 import sys
+def load(path, seen=[]):
+    return same(path) == None
 DEBUG = False
"""
# The same change, further down: other lines were put before it.
LOAD_LATER = LOAD.replace("@@ -1,3 +1,5 @@", "@@ -41,3 +45,5 @@")
OTHER = """\
diff --git a/other.py b/other.py
new file mode 100644
index 0000000..2222222
--- /dev/null
+++ b/other.py
@@ -0,0 +1,6 @@
+def load(path, seen=[]):
+    try:
+        return path
+    except:
+        return None
+    return path == None
"""
WRONG = """
    SELECT t.payload ->> 'body' AS comment_body, t.payload ->> 'path' AS path, count(*) AS times_dismissed,
           max(e.rationale) AS last_reason
      FROM agent_turns t JOIN agent_evals e ON e.turn_id = t.id
     WHERE t.agent = 'code-reviewer' AND t.kind = 'tool_result'
       AND t.payload ->> 'toolName' = 'post_review_comment' AND e.verdict = 'bad'
       AND t.payload ->> 'repo' = %s AND t.created_at > now() - interval '90 days'
     GROUP BY 1, 2 ORDER BY times_dismissed DESC LIMIT 20"""


@pytest.fixture
def server() -> Iterator[GitHubServer]:
    with github_server() as server:
        yield server


@pytest.fixture
def environment(server: GitHubServer, everyturn_url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    given = {"GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": server.url, "EVERYTURN_DATABASE": everyturn_url}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MODEL", raising=False)
    return {name: value for name, value in os.environ.items() if name != "MODEL"} | {"COLUMNS": "200"}


@pytest.fixture
def bot(environment: dict[str, str], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The commands of the bot, in this process."""

    def run(*arguments: str) -> str:
        review_bot.app(arguments, standalone_mode=False)
        return capsys.readouterr().out

    return run


def process(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(environment: dict[str, str], sql: str, *parameters: Any) -> list[dict[str, Any]]:
    with psycopg.connect(environment["EVERYTURN_DATABASE"], row_factory=dict_row) as conn:
        return conn.execute(sql, parameters).fetchall()


def said_on(server: GitHubServer, pr: int) -> set[tuple[str, int, str]]:
    return {(each["path"], each["line"], each["body"].partition("]")[0][1:]) for each in server.by_bot(pr)}


def test_a_dismissed_finding_is_not_repeated_on_the_next_pull_request(
    server: GitHubServer, environment: dict[str, str], bot: Callable[..., str]
) -> None:
    server.open(1, LOAD)
    first = process(
        [sys.executable, str(ROOT / "examples/review_bot.py"), "review", "--repo", "o/r", "--pr", "1"], environment
    )
    assert "Change 1" in first
    assert "load.py:3 [mutable-default]" in first
    assert said_on(server, 1) == {("load.py", 3, "mutable-default"), ("load.py", 4, "none-comparison")}

    by_rule = {each["body"].partition("]")[0][1:]: each["id"] for each in server.by_bot(1)}
    server.reply(by_rule["mutable-default"], "ann", "False positive, the list is a cache.")
    server.resolved[by_rule["none-comparison"]] = "ann"
    assert "2 new verdicts on 2 comments of o/r" in bot("sync", "--repo", "o/r")
    assert "0 new verdicts on 2 comments of o/r" in bot("sync", "--repo", "o/r")
    verdicts = rows(
        environment,
        "SELECT t.payload ->> 'line' AS line, e.evaluator, e.verdict, e.rationale FROM agent_evals e"
        " JOIN agent_turns t ON t.id = e.turn_id AND t.conversation = e.conversation ORDER BY 1",
    )
    assert [tuple(each.values()) for each in verdicts] == [
        ("3", "human", "bad", "False positive, the list is a cache."),
        ("4", "human", "good", "resolved by ann"),
    ]

    # The same hunk again, the dismissed words on other code, and something new.
    server.open(2, LOAD_LATER + OTHER)
    second = bot("review", "--repo", "o/r", "--pr", "2")
    assert said_on(server, 2) == {("other.py", 4, "bare-except"), ("other.py", 6, "none-comparison")}
    assert "2 new, 2 said before, 1 unsaid because reviewers dismissed the like." in second
    assert "0 new, 4 said before, 1 unsaid" in bot("review", "--repo", "o/r", "--pr", "2")
    assert len(server.by_bot(2)) == 2

    for said in (
        bot("wrong", "--repo", "o/r"),
        process(
            [
                str(Path(sys.executable).parent / "everyturn"),
                *("eval", "wrong", "--agent", "code-reviewer", "--where", "repo=o/r", "--tool", "post_review_comment"),
            ],
            environment,
        ),
    ):
        assert "False positive" in said
        assert "is a cache." in said
        assert "bare-except" not in said
    (wrong,) = rows(environment, WRONG, "o/r")
    assert (wrong["path"], wrong["times_dismissed"]) == ("load.py", 1)
    assert rows(environment, WRONG, "o/other") == []


def test_it_takes_the_wording_that_reviewers_accepted(
    server: GitHubServer, environment: dict[str, str], bot: Callable[..., str]
) -> None:
    async def accepted() -> None:
        async with et.connect() as db:
            body = "[none-comparison] `return same(path) == None`: Write `is None`; `==` may be overloaded."
            payload = {"toolName": "post_review_comment", "toolCallId": "c", "repo": "o/r", "pr": 9, "body": body}
            turn = await db.turns.append(CONVERSATION, "code-reviewer", "tool_result", payload)
            await db.evals.record(turn.id, "human", "good", "resolved by ann")

    asyncio.run(accepted())
    server.open(1, LOAD)
    bot("review", "--repo", "o/r", "--pr", "1")
    (worded,) = [each["body"] for each in server.by_bot() if each["body"].startswith("[none-comparison]")]
    assert "`return same(path) == None`: Write `is None`; `==` may be overloaded." in worded


def test_a_change_of_mind_is_a_further_verdict_and_a_new_push_is_reviewed_anew(
    server: GitHubServer, environment: dict[str, str], bot: Callable[..., str]
) -> None:
    server.open(1, LOAD)
    bot("review", "--repo", "o/r", "--pr", "1")
    comment = server.by_bot()[0]["id"]
    server.react(comment, "ann", "-1")
    bot("sync", "--repo", "o/r")
    server.reply(comment, "ann", "Looked again: you're right.")
    assert "good: Looked again: you're right." in bot("sync", "--repo", "o/r")
    evals = rows(environment, "SELECT verdict, payload ->> 'sign' AS sign FROM agent_evals ORDER BY created_at, id")
    assert [tuple(each.values()) for each in evals] == [("bad", "thumb"), ("good", "reply")]
    assert "What I got wrong: none" in bot("wrong", "--repo", "o/r")

    server.open(1, LOAD + OTHER, sha="f" * 40)
    assert "3 new, 2 said before." in bot("review", "--repo", "o/r", "--pr", "1")


def test_one_pull_request_that_cannot_be_asked_about_does_not_keep_the_others(
    server: GitHubServer, environment: dict[str, str], bot: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.open(1, LOAD)
    server.open(2, OTHER)
    for pr in ("1", "2"):
        bot("review", "--repo", "o/r", "--pr", pr)
    del server.pulls[1]
    server.react(server.by_bot(2)[0]["id"], "ann", "+1")
    with pytest.raises(SystemExit, match="4"):
        sys.exit(review_bot.app(["sync", "--repo", "o/r"], standalone_mode=False))
    said = capsys.readouterr()
    assert "1 new verdict on 5 comments" in said.out
    assert "GitHub does not show the reviews of o/r#1: there is none, or" in said.err
