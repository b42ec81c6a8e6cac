"""The SQL printed in the documents the project comes from runs unchanged on a database that everyturn made and filled.

Two statements no Postgres accepts as they are printed, and each needs one addition: coverage by tag a cast to uuid[],
and publishing the column captured_at in what it picks.
"""

from __future__ import annotations

import csv
import hashlib
import io
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import everyturn as et
from everyturn import embedded, testing

SEEDS = Path(__file__).parent / "seeds"
REPO = "o/r"
COMMENTS = ["a bare except hides the reason", "a mutable default argument is shared", "this file is never closed"]


def sql(name: str) -> str:
    return (SEEDS / f"{name}.sql").read_text(encoding="utf-8").strip()


def psql(url: str, statement: str, *parameters: str | None) -> list[dict[str, str]]:
    """Run a statement in psql, its parameters bound as a person would with \\bind."""
    script = statement.rstrip().rstrip(";")
    if parameters:
        quoted = " ".join("'" + value.replace("'", "''") + "'" for value in parameters if value is not None)
        script += f" \\bind {quoted}"
    script += " \\g\n"
    done = subprocess.run(
        [embedded.binary("psql"), "--no-psqlrc", "--csv", "--quiet", "-v", "ON_ERROR_STOP=1", "-d", url, "-f", "-"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def vector_of(text: str) -> list[float]:
    """A vector whose direction depends on the words of a text: texts that share words are near."""
    vector = [0.0] * 1024
    for word in text.lower().split():
        seeded = random.Random(hashlib.sha256(word.encode()).digest())
        for _ in range(16):
            vector[seeded.randrange(1024)] += 1.0
    return vector


async def embed(texts: list[str], kind: str) -> list[list[float]]:
    return [vector_of(text) for text in texts]


def literal(vector: list[float]) -> str:
    return "[" + ",".join(str(number) for number in vector) + "]"


@et.tool
async def post_review_comment(repo: str, pr: int, path: str, line: int, body: str, hunk_hash: str) -> dict[str, str]:
    """Post a review comment."""
    return {"url": f"https://forge.example/{repo}/pull/{pr}#{line}"}


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[str, list[UUID]]]:
    """A database filled by runs of an agent; and the turns that posted its comments."""
    import asyncio

    with testing.database_url() as url:

        async def fill() -> list[UUID]:
            async with et.connect(url, embedder=et.Embedder(embed, name="words", dimensions=1024)) as db:
                calls = [
                    et.ToolCall(
                        f"call_{n}",
                        "post_review_comment",
                        {"repo": REPO, "pr": 7, "path": "src/a.py", "line": n, "body": body, "hunk_hash": f"h{n}"},
                    )
                    for n, body in enumerate(COMMENTS)
                ]
                model = testing.ScriptedModel([et.ModelTurn(tool_calls=calls), "Three findings."])
                agent = et.Agent(db, "code-reviewer", tools=[post_review_comment], model=model)
                await agent.register()
                result = await agent.run(f"Review PR {REPO}#7")
                posted = [turn for turn in result.turns if turn.kind == "tool_result"]
                by_line = sorted(posted, key=lambda turn: turn.payload["line"])
                return [turn.id for turn in by_line]

        yield url, asyncio.run(fill())


def test_what_did_i_get_wrong(filled: tuple[str, list[UUID]]) -> None:
    url, posted = filled
    for reason in ("we like it so", "not in this repo"):
        psql(
            url,
            "INSERT INTO agent_evals (turn_id, evaluator, verdict, rationale) VALUES ($1, 'human', 'bad', $2)",
            str(posted[0]),
            reason,
        )
    rows = psql(url, sql("wrong"), REPO)
    assert rows == [
        {"comment_body": COMMENTS[0], "path": "src/a.py", "times_dismissed": "2", "last_reason": "we like it so"}
    ]
    assert psql(url, sql("wrong"), "other/repo") == []


def test_similar_comments_that_survived(filled: tuple[str, list[UUID]]) -> None:
    url, posted = filled
    psql(
        url,
        "INSERT INTO agent_evals (turn_id, evaluator, verdict) SELECT $1, 'rubric:v3', 'good'",
        str(posted[1]),
    )
    rows = psql(url, sql("similar_accepted"), literal(vector_of("mutable default argument")), REPO)
    assert COMMENTS[1] in rows[0]["payload"]
    sims = [float(row["sim"]) for row in rows if row["sim"]]
    assert sims == sorted(sims, reverse=True)


def test_rows_written_by_hand_take_part(filled: tuple[str, list[UUID]]) -> None:
    """Other programs INSERT with the columns of the documents alone."""
    url, _ = filled
    [row] = psql(
        url,
        "INSERT INTO agent_turns (conversation, agent, kind, payload, embedding)"
        " VALUES ($1, 'hand', 'user', '{\"text\": \"hello\"}', $2) RETURNING id, seq, created_at",
        str(uuid4()),
        literal(vector_of("hello")),
    )
    assert UUID(row["id"]).version == 7
    assert int(row["seq"]) > 0
    psql(
        url,
        "INSERT INTO agent_tools (name, agent, schema, impl_hash, rate_budget)"
        " VALUES ('t', 'hand', '{}', 'v1:x', '{\"window_seconds\": 60, \"max_calls\": 30}')",
    )


def test_datasets_from_capture_to_diff(filled: tuple[str, list[UUID]]) -> None:
    url, _ = filled
    for _ in range(3):
        psql(url, sql("capture"))
    psql(url, sql("publish"))
    [dataset] = psql(url, sql("dataset"), "core", "4")
    cases = psql(url, sql("cases"), dataset["case_ids"])
    assert len(cases) == 3
    for model, passes in (("claude-opus-4-6", "ttt"), ("claude-opus-4-7", "tft")):
        for case, passed in zip(cases, passes, strict=True):
            psql(
                url,
                sql("record_run"),
                dataset["id"],
                case["id"],
                model,
                "a1b2c3",
                "an answer",
                passed,
                "0.75",
                "because",
                "812",
                "120",
                "20",
                "0.0031",
            )
    rates = psql(url, sql("pass_rate"))
    assert [(row["model"], row["n"], row["pass_rate"]) for row in rates] == [
        ("claude-opus-4-6", "3", "1.000"),
        ("claude-opus-4-7", "3", "0.667"),
    ]
    [regression] = psql(url, sql("regressions"))
    assert regression["id"] == cases[1]["id"]
    assert {row["tag"]: row["cases"] for row in psql(url, sql("coverage"))} == {"long-context": "3", "tool-use": "3"}
    assert len(psql(url, sql("similar_cases"), cases[0]["id"])) == 3


def test_events(filled: tuple[str, list[UUID]]) -> None:
    url, _ = filled
    event = '{"type": "tool_result", "toolName": "lookup_order", "result": "{}"}'
    psql(url, sql("append_event"), "run_123", "support", "Support", "1", "lookup_order", "fc_1", "ti_1", event)
    [row] = psql(url, sql("load_events"), "run_123")
    assert (row["agent_id"], row["turn"], row["tool_call_id"]) == ("support", "1", "fc_1")
    psql(url, sql("clear_events"), "run_123")
    assert psql(url, sql("load_events"), "run_123") == []


FILL = """
INSERT INTO agent_turns (conversation, agent, kind, payload)
SELECT md5((n / 50)::text)::uuid, CASE WHEN n %% 10 = 0 THEN 'code-reviewer' ELSE 'other' END,
       CASE WHEN n %% 2 = 0 THEN 'tool_result' ELSE 'user' END,
       CASE WHEN n %% 2 = 0
            THEN jsonb_build_object('toolName', CASE WHEN n %% 20 = 0 THEN 'post_review_comment' ELSE 'look' END,
                                    'repo', 'o/r' || n %% 97, 'body', 'text ' || n)
            ELSE jsonb_build_object('text', 'turn ' || n) END
  FROM generate_series(1, %s) AS n
"""


@pytest.fixture(scope="module")
def large() -> Iterator[psycopg.Connection[Any]]:
    """100,000 turns and 2,000 verdicts."""
    with testing.database_url() as url, psycopg.connect(url, autocommit=True) as conn:
        # The words are not asked for here, and their index takes most of the filling.
        conn.execute("DROP INDEX agent_turns_text")
        conn.execute(FILL, (100_000,))
        conn.execute(
            "INSERT INTO agent_evals (turn_id, evaluator, verdict)"
            " SELECT id, 'human', 'bad' FROM agent_turns WHERE kind = 'tool_result' LIMIT 2000"
        )
        conn.execute("VACUUM ANALYZE agent_turns, agent_evals")
        yield conn


def plan(conn: psycopg.Connection[Any], statement: str, *parameters: str) -> str:
    """The plan of a statement of the documents, its parameters bound as literals."""
    for number, value in enumerate(parameters, 1):
        statement = statement.replace(f"${number}", "'" + value + "'")
    rows = conn.execute(f"EXPLAIN {statement}").fetchall()  # type: ignore[arg-type]
    return "\n".join(row[0] for row in rows)


def test_at_100_000_turns_the_documents_sql_is_answered_from_indexes(large: psycopg.Connection[Any]) -> None:
    wrong = plan(large, sql("wrong"), "o/r10")
    assert "agent_turns_tool_time" in wrong or "agent_turns_repo_time" in wrong
    assert "Seq Scan on agent_turns" not in wrong
    similar = plan(large, sql("similar_accepted"), literal([1.0] + [0.0] * 1023), "o/r10")
    assert "agent_turns_repo_time" in similar or "agent_turns_embedding" in similar
    assert "Seq Scan on agent_turns" not in similar
    by_conversation = plan(
        large, "SELECT * FROM agent_turns WHERE conversation = $1 ORDER BY created_at", str(UUID(int=1))
    )
    assert "agent_turns_conv_time" in by_conversation
