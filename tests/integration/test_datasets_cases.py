"""Capturing cases, and finding them again."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from datasets_helpers import embedder, quick  # noqa: F401

import everyturn as et
from everyturn import testing
from everyturn.errors import CaseNotFound, InvalidValue
from everyturn.testing import ScriptedModel


@et.tool
async def weather(city: str) -> dict[str, Any]:
    """The weather in a city."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "sky": "clear"}


async def test_a_prompt_is_kept_as_the_contract_says(everyturn_db: et.Database) -> None:
    case = await everyturn_db.cases.capture(
        "What is 2 + 2?", reference="4", tags=["math", "O'Brien", "math"], context={"at": date(2026, 1, 2), "n": 1.0}
    )
    [row] = await everyturn_db.fetch("SELECT * FROM eval_case")
    assert row["id"] == case.id
    assert (row["source"], row["prompt"], row["reference"]) == ("handcrafted", "What is 2 + 2?", "4")
    assert row["tags"] == ["math", "O'Brien"]
    assert row["context"] == {"at": "2026-01-02", "n": 1}
    assert row["captured_by"]
    assert len(row["content_hash"]) == 64
    assert await everyturn_db.cases.get(case.id) == et.Case(
        **{name: getattr(case, name) for name in et.Case.__dataclass_fields__}
    )


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b", "it's %s 50% \\ $1 :'x'", "今天 🐙 \u2028"])
async def test_any_text_is_stored(everyturn_db: et.Database, text: str) -> None:
    """Field case 1, 4, 50: in a prompt, a reference and a context."""
    case = await everyturn_db.cases.capture(text, reference=text, context={"k": text})
    clean = text.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    assert (case.prompt, case.reference, case.context) == (clean, clean, {"k": clean})


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": ""},
        {"prompt": " \n"},
        {},
        {"prompt": "a", "turn": uuid4()},
        {"prompt": "a", "reference": 4},
        {"prompt": "a", "context": ["x"]},
        {"prompt": "a", "tags": "x"},
        {"prompt": "a", "tags": ["x" * 3000]},
        {"prompt": "a", "source": ""},
        {"prompt": "a", "on_duplicate": "merge"},
    ],
)
async def test_what_is_no_case_is_refused(everyturn_db: et.Database, wrong: dict[str, Any]) -> None:
    """Field case 68: nothing is written."""
    with pytest.raises(InvalidValue):
        await everyturn_db.cases.capture(**wrong)
    assert await everyturn_db.fetch("SELECT 1 FROM eval_case") == []


async def test_long_prompts_are_compared_by_hash(everyturn_db: et.Database) -> None:
    """Field case 69."""
    text = "x" * 10_000
    first = await everyturn_db.cases.capture(text)
    await everyturn_db.cases.capture(text + "y")
    again = await everyturn_db.cases.capture(text)
    assert again.duplicates == [first.id]
    skipped = await everyturn_db.cases.capture(text, on_duplicate="skip", context={}, tags=["other"])
    assert (skipped.stored, skipped.id) == (False, first.id)
    assert len(await everyturn_db.cases.list()) == 3


async def test_content_is_compared_by_value(everyturn_db: et.Database) -> None:
    """Field case 17: key order and 1.0 for 1 make no other case."""
    one = await everyturn_db.cases.capture("p", context={"b": 1, "a": [1.0]})
    other = await everyturn_db.cases.capture("p", context={"a": [1], "b": 1.0})
    assert one.content_hash == other.content_hash
    assert (await everyturn_db.cases.capture("p", context={"a": [1, 1], "b": 1})).content_hash != one.content_hash


async def test_secrets_are_redacted_before_they_are_stored() -> None:
    """Field case 149."""

    def mask(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: mask(inner) for key, inner in value.items()}
        return value.replace("sk-123", "***") if isinstance(value, str) else value

    async with testing.database(redact=mask) as db:
        case = await db.cases.capture("my key is sk-123", context={"h": {"a": "sk-123"}}, reference="sk-123")
        [row] = await db.fetch("SELECT eval_case::text AS text FROM eval_case")
        assert "sk-123" not in row["text"]
        assert case.prompt == "my key is ***"


async def test_the_vector_is_written_with_the_row_or_owed() -> None:
    calls = 0

    async def failing(texts: list[str], kind: str) -> list[list[float]]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("down")
        return [[1.0] * 8 for _ in texts]

    async with testing.database(embedder=et.Embedder(failing, name="f", dimensions=8)) as db:
        await db.cases.capture("first")
        await db.cases.capture("second")
        rows = await db.fetch("SELECT embedding IS NULL AS owed, embedded_by FROM eval_case ORDER BY captured_at")
        assert [(row["owed"], row["embedded_by"]) for row in rows] == [(True, None), (False, "f")]


async def test_similar_cases_and_near_duplicates() -> None:
    async with testing.database(embedder=embedder()) as db:
        texts = ["how do I parse a diff", "how do I parse a patch", "what is the capital of France"]
        first, second, third = [await db.cases.capture(text, tags=[text[:3]]) for text in texts]
        assert (await db.cases.capture("How do I parse a diff")).nearest == first.id
        found = await db.cases.similar(first.id)
        assert [case.id for case in found][-2:] == [second.id, third.id]
        assert all(case.id != first.id for case in found)
        assert (await db.cases.similar("capital of France"))[0].id == third.id
        assert [case.id for case in await db.cases.similar("parse", tags=["wha"])] == [third.id]
        named = await db.query("similar_cases", id=third.id, limit=1)
        assert len(named) == 1


async def test_without_an_embedder_words_are_compared(everyturn_db: et.Database) -> None:
    await everyturn_db.cases.capture("What does HttpClient.get do?")
    wanted = await everyturn_db.cases.capture("Why does parse_diff fail on 50% of files?")
    [found, *_] = await everyturn_db.cases.similar("parse_diff failures")
    assert (found.id, found.similarity) == (wanted.id, None)
    assert await everyturn_db.cases.similar("%") == []


async def test_tags_change_and_nothing_else_does(everyturn_db: et.Database) -> None:
    """Field case 106: a captured case never changes."""
    db = everyturn_db
    case = await db.cases.capture("p", tags=["a", "b"])
    [tagged] = await db.cases.tag(case.id, add=["c", "a"], remove=["b"])
    assert tagged.tags == ["a", "c"]
    with pytest.raises(CaseNotFound):
        await db.cases.tag([case.id, uuid4()], add=["d"])
    assert (await db.cases.get(case.id)).tags == ["a", "c"]
    for column in ("prompt", "reference", "source"):
        with pytest.raises(psycopg.errors.RestrictViolation):
            await db.execute(f"UPDATE eval_case SET {column} = 'x'")  # noqa: S608


async def test_superseding(everyturn_db: et.Database) -> None:
    db = everyturn_db
    old, new = await db.cases.capture("p", reference="wrong"), await db.cases.capture("p", reference="right")
    case = await db.cases.supersede(old.id, new.id)
    assert case.tags == ["superseded", f"superseded-by:{new.id}"]
    assert (await db.datasets.publish("core")).case_ids == [new.id]
    with pytest.raises(CaseNotFound):
        await db.cases.supersede(new.id, uuid4())
    with pytest.raises(InvalidValue):
        await db.cases.supersede(new.id, new.id)


@pytest.mark.parametrize("tag", ["a' = 'x' OR '1'='1' --", "O'Brien", "x') OR 1=1 --", "{a,b}", '"', "\\", "%"])
async def test_filters_are_values(everyturn_db: et.Database, tag: str) -> None:
    """Field case 143."""
    mine = await everyturn_db.cases.capture("p", tags=[tag])
    await everyturn_db.cases.capture("q", tags=["other"])
    for found in (
        await everyturn_db.cases.list(tags=[tag]),
        await everyturn_db.cases.list(any_tags=[tag]),
        await everyturn_db.cases.similar("p", tags=[tag]),
    ):
        assert [case.id for case in found] == [mine.id]
    assert await everyturn_db.cases.list(source=tag) == []
    assert (await everyturn_db.datasets.publish("core", any_tags=[tag])).case_ids == [mine.id]


async def test_the_newest_come_first_and_ties_have_an_order(everyturn_db: et.Database) -> None:
    """Field case 22: rows of one transaction have one time."""
    await everyturn_db.cases.import_rows({"prompt": str(n)} for n in range(30))
    found = await everyturn_db.cases.list()
    assert [case.prompt for case in found] == [str(n) for n in reversed(range(30))]
    published = await everyturn_db.datasets.publish("core")
    assert [case.prompt for case in await everyturn_db.datasets.cases(published)] == [str(n) for n in range(30)]


async def test_naive_times_are_utc(everyturn_db: et.Database) -> None:
    """Field case 89."""
    await everyturn_db.cases.capture("p")
    now = datetime.now(UTC).replace(tzinfo=None)
    assert len(await everyturn_db.cases.list(since=now - timedelta(minutes=5), until=now + timedelta(minutes=5))) == 1
    assert await everyturn_db.cases.list(since=now + timedelta(minutes=5)) == []


async def reviewed(db: et.Database) -> et.RunResult:
    """A conversation of two runs; the second calls a tool twice, once in vain."""
    model = ScriptedModel(
        [
            "Hello.",
            et.ModelTurn(
                tool_calls=[
                    et.ToolCall("x", "weather", {"city": "Paris"}),
                    et.ToolCall("x", "weather", {"city": "Atlantis"}),
                ]
            ),
            "Clear in Paris.",
        ]
    )
    agent = et.Agent(db, "forecaster", tools=[weather], model=model, instructions="Be brief.")
    first = await agent.run("Hi")
    return await agent.run("How is the weather?", first.conversation)


async def test_a_run_is_captured_with_what_its_model_saw(everyturn_db: et.Database) -> None:
    result = await reviewed(everyturn_db)
    case = await everyturn_db.cases.capture(turn=result.turns[-1].id, instructions="Be brief.")
    assert case.prompt == "How is the weather?"
    assert case.source == "production"
    assert case.turn_id == result.turns[-1].id
    assert case.context["agent"] == "forecaster"
    assert case.context["instructions"] == "Be brief."
    assert [turn["payload"]["text"] for turn in case.context["history"]] == ["Hi", "Hello."]
    assert case.context["toolCalls"] == [
        {"name": "weather", "args": {"city": "Paris"}, "result": {"city": "Paris", "sky": "clear"}},
        {"name": "weather", "args": {"city": "Atlantis"}, "error": "no such city"},
    ]
    same = await everyturn_db.cases.capture(conversation=result.conversation, instructions="Be brief.")
    assert same.duplicates == [case.id]
    with pytest.raises(InvalidValue, match="revision"):
        await everyturn_db.cases.capture(turn=result.turns[-1].id, instructions="Be long.")


async def test_the_same_interaction_again_is_the_same_content(everyturn_db: et.Database) -> None:
    """Field case 105: no ids and times of a run are part of the content."""
    one, other = await reviewed(everyturn_db), await reviewed(everyturn_db)
    hashes = {(await everyturn_db.cases.capture(turn=run.turns[-1].id)).content_hash for run in (one, other)}
    assert len(hashes) == 1


async def test_what_cannot_be_captured_is_said(everyturn_db: et.Database) -> None:
    with pytest.raises(et.TurnNotFound):
        await everyturn_db.cases.capture(turn=uuid4())
    with pytest.raises(et.ConversationNotFound):
        await everyturn_db.cases.capture(conversation=uuid4())
    turn = await everyturn_db.turns.append(uuid4(), "a", "model", {"text": "out of nowhere"})
    with pytest.raises(InvalidValue, match="no prompt"):
        await everyturn_db.cases.capture(turn=turn.id)


async def test_verdicts_become_cases_once(everyturn_db: et.Database) -> None:
    db = everyturn_db
    result = await reviewed(db)
    answer = result.turns[-1].id
    await db.evals.record(answer, "human", "bad", "it rains in Atlantis")
    await db.evals.record(answer, "rubric:v3", "bad")
    await db.evals.record(result.turns[0].id, "human", "good")
    [case] = await db.cases.capture_evals("bad", tags=["weekly"])
    assert case.turn_id == answer
    assert [verdict.get("rationale") for verdict in case.context["verdicts"]] == ["it rains in Atlantis", None]
    assert await db.cases.capture_evals("bad") == []
    assert await db.cases.capture_evals("partial") == []
    with pytest.raises(InvalidValue, match="not one of good, bad, partial"):
        await db.cases.capture_evals("wrong")


async def test_retention_leaves_cases(everyturn_db: et.Database) -> None:
    """Field case 151: the turns go, their verdicts with them; cases and datasets stay."""
    db = everyturn_db
    result = await reviewed(db)
    await db.evals.record(result.turns[-1].id, "human", "bad")
    [case] = await db.cases.capture_evals()
    dataset = await db.datasets.publish("core")
    await db.execute("DELETE FROM agent_turns WHERE conversation = %s", (result.conversation,))
    assert await db.fetch("SELECT 1 FROM agent_evals") == []
    assert (await db.cases.get(case.id)).turn_id == result.turns[-1].id
    assert await db.datasets.get("core") == et.Dataset(
        **{name: getattr(dataset, name) for name in et.Dataset.__dataclass_fields__ if name != "created"}
    )
    with pytest.raises(psycopg.errors.RestrictViolation, match="core@1 holds it"):
        await db.execute("DELETE FROM eval_case WHERE id = %s", (case.id,))
