"""What did I get wrong, what survived review, who agrees, and the drift guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

import everyturn as et
from everyturn.testing import database

TOOL = "post_review_comment"


@pytest.fixture
async def everyturn_db(everyturn_url: str) -> AsyncIterator[et.Database]:
    """Closed in the loop of the test: connections may still be opening when a worker has ended."""
    async with et.connect(everyturn_url, embedder=False) as db:
        yield db


async def comment(db: et.Database, body: str, *, agent: str = "bot", tool: str = TOOL, **more: Any) -> et.Turn:
    created_at = more.pop("created_at", None)
    payload = {"toolName": tool, "repo": "o/r", "path": "a.py", "body": body, "implHash": "v1:1"} | more
    return await db.turns.append(uuid4(), agent, "tool_result", payload, created_at=created_at)


async def judge(db: et.Database, turn: et.Turn, *verdicts: tuple[str, str] | tuple[str, str, str]) -> None:
    for evaluator, verdict, *reason in verdicts:
        await db.evals.record(turn.id, evaluator, verdict, reason[0] if reason else None)


# Verdicts in order, and whether the turn counts as wrong.
STANDING = [
    ([("human", "bad")], True),
    ([("human", "bad"), ("human", "bad")], True),
    ([("human", "bad"), ("human", "good")], False),
    ([("human", "good"), ("human", "bad")], True),
    ([("human", "bad"), ("human:alice", "good")], False),
    ([("human", "good"), ("rubric:v3", "bad")], False),
    ([("human", "bad"), ("rubric:v3", "good")], True),
    ([("rubric:v3", "bad"), ("llm-judge:m@1", "good")], False),
    ([("rubric:v3", "good"), ("llm-judge:m@1", "bad")], True),
    ([("human", "partial")], False),
    ([("humanoid:v1", "bad"), ("rubric:v3", "good")], False),
    ([], False),
]


@pytest.mark.parametrize(("verdicts", "wrong"), STANDING)
async def test_the_standing_verdict(everyturn_db: et.Database, verdicts: list[tuple[str, str]], wrong: bool) -> None:
    db = everyturn_db
    turn = await comment(db, "a bare except")
    await judge(db, turn, *verdicts)
    assert [one.times_dismissed for one in await db.evals.wrong("bot", tool=TOOL, where={"repo": "o/r"})] == [1] * wrong
    found = await db.evals.similar("bare except", agent="bot", where={"repo": "o/r"})
    assert [one.turn.id for one in found] == ([] if wrong else [turn.id])


async def test_what_did_i_get_wrong(everyturn_db: et.Database) -> None:
    db = everyturn_db
    for number in range(3):
        turn = await comment(db, "use a constant")
        await judge(db, turn, ("rubric:v1", "bad"), ("human", "bad", f"reason {9 - number}"), ("human", "bad"))
    await judge(db, await comment(db, "use a constant", path="b.py"), ("human", "bad", "elsewhere"))
    await judge(db, await comment(db, "not here", repo="o/s"), ("human", "bad"))
    await judge(db, await comment(db, "not I", agent="other"), ("human", "bad"))
    await judge(db, await comment(db, "not this", tool="fetch"), ("human", "bad"))
    old = datetime.now(UTC) - timedelta(days=100)
    await judge(db, await comment(db, "long ago", created_at=old), ("human", "bad"))
    found = await db.evals.wrong("bot", tool=TOOL, where={"repo": "o/r"})
    assert [(one.comment_body, one.path, one.times_dismissed, one.last_reason) for one in found] == [
        ("use a constant", "a.py", 3, "reason 7"),  # the latest, not the greatest
        ("use a constant", "b.py", 1, "elsewhere"),
    ]
    assert {one.comment_body for one in await db.evals.wrong("bot", days=None)} == {
        "use a constant",
        "not here",
        "not this",
        "long ago",
    }
    assert [one.comment_body for one in await db.evals.wrong("bot", where={"path": "b.py"})] == ["use a constant"]
    assert await db.evals.wrong("bot", evaluator="rubric:v2") == []
    [only] = await db.evals.wrong("bot", evaluator="rubric:v1")
    assert only.times_dismissed == 3
    rows = await db.query("what_did_i_get_wrong", agent="bot", repo="o/r", tool=TOOL, days=90, limit=1)
    assert list(rows[0])[:4] == ["comment_body", "path", "times_dismissed", "last_reason"]


@pytest.mark.parametrize(
    "where",
    [
        {"a' = 'x' OR '1'='1' --": "1"},
        {"repo": "' OR '1'='1"},
        {"path": '["x\') OR 1=1 --"]'},
        {"repo": "O'Brien"},
        {"": ""},
        {"path": "%"},
    ],
)
async def test_conditions_are_values(everyturn_db: et.Database, where: dict[str, str]) -> None:
    """Covers field case 143."""
    db = everyturn_db
    await judge(db, await comment(db, "one"), ("human", "bad"))
    await comment(db, "two")
    assert await db.evals.wrong("bot", where=where) == []
    assert await db.evals.similar("two", where=where) == []
    mine = await comment(db, "three", **{key or "x": value for key, value in where.items()})
    await judge(db, mine, ("human", "bad"))
    if "" not in where:
        assert [one.comment_body for one in await db.evals.wrong("bot", where=where)] == ["three"]


async def test_verdicts_on_a_conversation_stand_apart(everyturn_db: et.Database) -> None:
    db = everyturn_db
    turn = await db.turns.append(uuid4(), "bot", "model", {"text": "done"})
    await db.evals.record(turn.id, "rubric", "bad", payload={"target": "conversation"})
    await db.evals.record(turn.id, "style", "good")
    assert [one.comment_body for one in await db.evals.wrong("bot")] == ["done"]
    await db.evals.record(turn.id, "rubric", "good", payload={"target": "conversation"})
    await db.evals.record(turn.id, "style", "bad")
    await db.evals.record(turn.id, "outcome", "good", payload={"target": "conversation"})
    assert [one.comment_body for one in await db.evals.wrong("bot")] == ["done"]
    assert await db.evals.similar("done", agent="bot") == []
    await db.evals.record(turn.id, "style", "good")
    await db.evals.record(turn.id, "outcome", "bad", payload={"target": "conversation"})
    assert [one.verdict for one in await db.evals.similar("done", agent="bot")] == ["good"]


async def embed(texts: list[str], kind: str) -> list[list[float]]:
    return [[float(text.count(letter)) + 0.01 for letter in "abcdefgh"] for text in texts]


async def test_what_survived_review_by_meaning() -> None:
    async with database(embedder=embed) as db:
        bodies = ["aaab", "aaac", "aaad", "bbbb", "aaae"]
        turns = [await comment(db, body) for body in bodies]
        await judge(db, turns[0], ("human", "bad"), ("rubric", "good"), ("rubric", "good"))
        await judge(db, turns[1], ("human", "bad"), ("human", "good"), ("rubric", "bad"))
        await comment(db, "aaaa", repo="o/s")
        await comment(db, "aaaa", tool="other")
        found = await db.evals.similar("aaaa", agent="bot", tool=TOOL, where={"repo": "o/r"}, limit=3)
        assert {one.turn.payload["body"]: one.verdict for one in found} == {"aaac": "good", "aaad": None, "aaae": None}
        assert found[0].similarity == pytest.approx(0.95, abs=0.05)
        everything = await db.evals.similar("aaaa", where={"repo": "o/r"}, not_verdict="good", limit=9)
        assert {one.turn.payload["body"] for one in everything} == {"aaab", "aaad", "aaae", "aaaa", "bbbb"}
        assert everything[0].turn.payload["body"] == "aaaa"
        assert await db.evals.similar("  ", where={"repo": "o/r"}) == []
        with pytest.raises(et.InvalidValue):
            await db.evals.similar("a", not_verdict="worse")


async def test_agreement_counts_the_latest_of_each_turn_once(everyturn_db: et.Database) -> None:
    db = everyturn_db
    said = [("good", "good"), ("good", "bad"), ("bad", "bad"), ("partial", "bad"), ("good", "good")]
    for judged, human in said:
        turn = await comment(db, judged)
        await judge(db, turn, ("judge", "bad"), ("human", "good"), ("judge", judged), ("human", human))
    await judge(db, await comment(db, "only one"), ("judge", "good"))
    found = await db.evals.agree("judge", "human")
    assert (found.turns, found.agreed, found.agreement) == (5, 3, 0.6)
    assert found.confusion["good"] == {"good": 2, "partial": 0, "bad": 1}
    assert (await db.evals.agree("judge", "human", agent="nobody")).turns == 0
    rows = await db.query("disagreements", evaluator="judge", against="human")
    assert [(row["verdict"], row["against_verdict"]) for row in rows] == [("good", "bad"), ("partial", "bad")]
    assert rows[0]["text"] == "good"


# The drift guard


async def reviewed(db: et.Database, *verdicts: str, model: str = "m1", prompt: str = "p1", **more: Any) -> None:
    for verdict in verdicts:
        id = uuid4()
        payload = {"toolName": TOOL, "body": "x", "implHash": "v1:1"} | more
        answer = {"text": "", "model": model, "promptRev": prompt, "toolCalls": [{"id": "1", "name": TOOL, "args": {}}]}
        turns = await db.turns.append_many(
            [
                et.NewTurn(id, "bot", "model", answer),
                et.NewTurn(id, "bot", "tool_result", {key: value for key, value in payload.items() if value}),
            ]
        )
        await db.evals.record(turns[1].id, "human", verdict)


async def test_models_and_prompts_are_compared(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await reviewed(db, "good", "bad", "bad", "bad", model="m1", prompt="abc1")
    await reviewed(db, "good", "good", "good", "partial", model="m2", prompt="def2")
    found = await db.evals.compare("bot", TOOL, baseline={"model": "m1"}, candidate=et.Side(model="m2"))
    assert (found.baseline.good_rate, found.candidate.good_rate, found.difference) == (0.25, 0.75, 0.5)
    assert found.more_than_noise is False
    by_prompt = await db.evals.compare("bot", TOOL, baseline={"prompt_rev": "abc"}, candidate={"prompt_rev": "def"})
    assert (by_prompt.baseline, by_prompt.candidate) == (found.baseline, found.candidate)
    for bad in ({"modell": "x"}, "m1", {"since": "7d"}):
        with pytest.raises(et.InvalidValue):
            await db.evals.compare("bot", TOOL, baseline=bad, candidate={})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after"), [("v1:1", "v1:2"), ("v1:unknown", "v1:unknown"), (None, None), ("v1:1", None)]
)
async def test_a_changed_tool_is_refused(everyturn_db: et.Database, before: str | None, after: str | None) -> None:
    db = everyturn_db
    await reviewed(db, "good", implHash=before)
    middle = datetime.now(UTC)
    await reviewed(db, "bad", "bad", implHash=after)
    sides: dict[str, Any] = {"baseline": (None, middle), "candidate": (middle, None)}
    with pytest.raises(et.ImplementationChanged) as refused:
        await db.evals.compare("bot", TOOL, **sides)
    assert TOOL in str(refused.value)
    assert (before or "v1:unknown") in str(refused.value)
    assert (after or "v1:unknown") in str(refused.value)
    with pytest.raises(et.ImplementationChanged):
        await db.evals.compare("bot", None, **sides)
    found = await db.evals.compare("bot", TOOL, **sides, allow_changed=True)
    assert (found.baseline.good, found.candidate.bad) == (1, 2)
    assert list(found.changed) == [TOOL]


async def test_only_judged_turns_and_used_tools_matter(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await reviewed(db, "good")
    await reviewed(db, "good", toolName="other", implHash="v1:9")
    middle = datetime.now(UTC)
    await comment(db, "never judged", implHash="v1:7")
    await reviewed(db, "bad")
    found = await db.evals.compare("bot", baseline=(None, middle), candidate=(middle, None))
    assert (found.baseline.turns, found.candidate.turns, found.changed) == (2, 1, {})
    nothing = await db.evals.compare("bot", baseline={"until": datetime(2001, 1, 1)}, candidate={})
    assert (nothing.difference, nothing.more_than_noise) == (None, None)


async def test_the_hash_of_a_tool_that_changed(everyturn_db: et.Database) -> None:
    """Changing what a tool does is noticed; its comments and docstring do not matter."""
    db = everyturn_db

    def posting(source: str) -> et.Tool:
        names: dict[str, Any] = {}
        exec(compile(source, "<tool>", "exec"), names)
        return et.tool(names["post"])

    same = "def post(body: str) -> str:\n    return body.upper()\n"
    changed = "def post(body: str) -> str:\n    return body.lower()\n"

    async def run(source: str) -> datetime:
        from everyturn.testing import ScriptedModel

        model = ScriptedModel([et.ModelTurn(tool_calls=[et.ToolCall("1", "post", {"body": "x"})]), "done"])
        result = await et.Agent(db, "poster", tools=[posting(source)], model=model).run("go")
        [posted] = [turn for turn in result.turns if turn.kind == "tool_result"]
        await db.evals.record(posted.id, "human", "good")
        return datetime.now(UTC)

    first = await run(same)
    second = await run("# a comment\n\n" + same.replace("    return", "    # why\n    return"))
    await run(changed)
    assert (await db.evals.compare("poster", "post", baseline=(None, first), candidate=(first, second))).changed == {}
    with pytest.raises(et.ImplementationChanged, match="'post'"):
        await db.evals.compare("poster", "post", baseline=(first, second), candidate=(second, None))
