"""Secrets and the disk: what is written is masked, and what was written can be."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any
from uuid import UUID

import psycopg
import pytest

import everyturn as et
from everyturn import embedded as server
from everyturn.testing import ScriptedModel, database

KEY = "sk-ant-api03-" + "SECRETsecret1234567890"
WORD = "tr0ub4dor-and-3"
PIN = 987123


def dump(db: et.Database) -> str:
    done = subprocess.run(
        [str(server.binary("pg_dump")), "--data-only", "-d", db.url], capture_output=True, text=True, check=True
    )
    return done.stdout


def embedder(seen: list[str]) -> et.Embedder:
    async def embed(texts: list[str], kind: str) -> list[list[float]]:
        seen.extend(texts)
        return [[1.0] * 1024 for _ in texts]

    return et.Embedder(embed, name="words", dimensions=1024)


@et.tool
def login(user: str, password: str, headers: dict[str, str], pin: int) -> dict[str, Any]:
    """Log in."""
    assert password == WORD
    return {"token": KEY, "body": f"welcome, {WORD}", "url": f"https://me:{WORD}@host/x"}


@et.tool
def fail(api_key: str) -> str:
    """Fail."""
    raise PermissionError(f"401 for {api_key}, and for {WORD}")


@et.tool
async def note(text: str, ctx: et.Context) -> str:
    """Remember."""
    await ctx.memory.remember("semantic", text=text, attributes={"password": WORD, "n": 1}, subjects=["login", text])
    await ctx.memory.remember("episodic", text=f"saw {text}")
    await ctx.memory.remember("procedural", cache_key="login", value={"api_key": KEY})
    return "noted"


def script() -> list[Any]:
    return [
        et.ModelTurn(
            text=f"I will use {KEY}.",
            reasoning=f"the key is {KEY}",
            tool_calls=[
                et.ToolCall(
                    "a",
                    "login",
                    {"user": "me", "password": WORD, "headers": {"Authorization": f"Bearer {KEY}"}, "pin": PIN},
                ),
                et.ToolCall("b", "fail", {"api_key": KEY}),
                et.ToolCall("c", "note", {"text": f"the key is {KEY}"}),
            ],
        ),
        f"done with {KEY}",
    ]


async def run_once(db: et.Database) -> tuple[et.RunResult, list[Any]]:
    agent = et.Agent(
        db, "bot", tools=[login, fail, note], model=ScriptedModel(script()), instructions=f"Your key: {KEY}"
    )
    await agent.register()
    events = [event async for event in agent.run_stream(f"my key is {KEY}", attributes={"password": WORD})]
    [row] = await db.fetch(
        "SELECT conversation FROM agent_turns WHERE kind = 'user' AND payload ->> 'runId' IS NOT NULL"
    )
    done = await agent.resume(row["conversation"])
    model = next(turn for turn in done.turns if turn.kind == "model")
    await db.evals.record(model.id, "human", "bad", f"it said {KEY}", {"password": WORD})
    await db.cases.capture(turn=model.id, context={"api_key": KEY}, reference=f"never say {KEY}")
    return done, events


async def test_a_secret_is_in_no_table() -> None:
    """field case 149: in instructions, arguments, results, exceptions, headers, memory, verdicts and cases."""
    embedded: list[str] = []
    async with database(embedder=embedder(embedded)) as db:
        _, events = await run_once(db)
        assert embedded
        assert not any(KEY in text or WORD in text for text in embedded)
        assert KEY not in json.dumps(events)
        stored = dump(db)
        assert "[redacted]" in stored
        for secret in (KEY, WORD):
            assert secret not in stored
        counted = {row["name"]: row["masks"] for row in await db.query("masked")}
        assert counted.keys() == {"agent_turns", "agent_events", "eval_case"}
        assert isinstance(db.redact, et.Redaction)
        assert db.redact.counts["key password"] > 0


async def test_a_secret_in_a_dataset_or_a_replay_is_in_no_table(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False) as db:
        case = await db.cases.capture(f"use {KEY}", context={"password": WORD}, reference=f"not {KEY}")
        await db.datasets.publish("d", case_ids=[case.id], notes=f"made with {KEY}")
        model = ScriptedModel([f"I was given {KEY}"])
        await db.datasets.replay("d", model=model, prompt=f"Your key: {KEY}", scorers=["exact"])
        assert model.requests
        [row] = await db.fetch("SELECT prompt FROM eval_replay")
        assert row["prompt"] == "Your key: [redacted]"
        stored = dump(db)
        assert KEY not in stored
        assert WORD not in stored


async def test_unless_redaction_was_switched_off(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False, redact=False) as db:
        await run_once(db)
        assert KEY in dump(db)


async def test_what_is_stored_is_masked_everywhere(everyturn_url: str) -> None:
    """field case 149, afterwards: events, turns, hoisted keys, vectors, cases, memory; field case 153: of one run."""
    async with et.connect(everyturn_url, embedder=embedder([]), redact=False) as db:
        done, _ = await run_once(db)
        other = et.Agent(db, "other", model=ScriptedModel([f"also {KEY}"]))
        kept = await other.run("hello")
        [before] = await db.fetch("SELECT content_hash FROM eval_case")

        tried = await db.events.redact(
            done.run_id, paths=["args.password", "args.pin"], patterns=["sk-ant-[A-Za-z0-9-]+"], dry_run=True
        )
        assert tried.rows > 0
        assert WORD in dump(db)
        gone = await db.events.redact(
            done.run_id, paths=["args.password", "args.pin"], patterns=["sk-ant-[A-Za-z0-9-]+"]
        )
        assert (gone.turns, gone.events, gone.cases) == (tried.turns, tried.events, tried.cases)
        assert (gone.cases, gone.verdicts, gone.memories) == (1, 1, 3)
        assert gone.masked > 20

        for table in ("agent_episodic", "agent_semantic", "agent_procedural", "eval_case", "agent_evals"):
            for row in await db.fetch(f"SELECT t::text AS t FROM {table} t"):  # noqa: S608
                assert KEY not in row["t"]
                assert WORD not in row["t"]
        for table, column in (("agent_turns", "payload ->> 'runId'"), ("agent_events", "run_id")):
            rows = await db.fetch(f"SELECT t::text AS t, {column} AS run FROM {table} t")  # noqa: S608
            for row in rows:
                assert (KEY in row["t"]) <= (row["run"] == kept.run_id)
                assert WORD not in row["t"]
                assert str(PIN) not in row["t"]
        [result] = await db.fetch(
            "SELECT payload FROM agent_turns WHERE payload ->> 'toolName' = 'login' AND kind = 'tool_result'"
        )
        assert result["payload"]["password"] == result["payload"]["pin"] == "[redacted]"
        assert result["payload"]["user"] == "me"

        # The vectors of masked text are gone, and only they.
        [turns] = await db.fetch(
            "SELECT count(*) FILTER (WHERE embedding IS NOT NULL AND payload::text LIKE '%[redacted]%') AS masked,"
            " count(*) FILTER (WHERE embedding IS NOT NULL) AS vectors FROM agent_turns"
        )
        assert turns["masked"] == 0
        assert turns["vectors"] > 0
        [case] = await db.fetch("SELECT embedding, content_hash FROM eval_case")
        assert case["content_hash"] != before["content_hash"]
        [hash] = await db.fetch(
            "SELECT everyturn_case_hash(prompt, context, reference) = content_hash AS same FROM eval_case"
        )
        assert hash["same"]
        # Memory is still what the log tells.
        rebuilt = await db.memory.rebuild()
        assert [(row.kind, row.removed, row.written) for row in rebuilt] == [
            ("episodic", 0, 0),
            ("semantic", 0, 0),
            ("procedural", 0, 0),
        ]
        again = await db.events.redact(done.run_id, patterns=["sk-ant-[A-Za-z0-9-]+"])
        assert again.rows == 0
        with pytest.raises(et.RunNotFound):
            await db.events.redact("no such run")


async def test_without_rules_known_credentials_are_masked_also_between_deltas(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False, redact=False) as db:
        pieces = ["the key is sk-an", "t-api03-abcdef", "ghijkl123456", " and that is it", f" pass {WORD}"]
        for piece in pieces:
            await db.events.append(et.EventRecord("r", "a", {"type": "text_delta", "turn": 1, "delta": piece}))
        for piece in ('{"pass', 'word": "', WORD[:5], WORD[5:] + '"', ', "n": 1}'):
            delta = {"type": "tool_call_delta", "turn": 1, "id": "c", "argumentsDelta": piece}
            await db.events.append(et.EventRecord("r", "a", delta))
        inner = {"type": "text_delta", "turn": 1, "delta": f"child says {KEY}"}
        wrapped = {"type": "agent_tool_event", "internalCallId": "i", "agentId": "b", "event": inner}
        await db.events.append(et.EventRecord("r", "a", wrapped))
        done = await db.events.redact("r")
        assert done.events == len(await db.events.load("r")) - 1
        loaded = await db.events.load("r")
        text = "".join(record.event["delta"] for record in loaded if record.type == "text_delta")
        assert text == "the key is [redacted] and that is it pass [redacted]"
        args = "".join(record.event["argumentsDelta"] for record in loaded if record.type == "tool_call_delta")
        assert json.loads(args) == {"password": "[redacted]", "n": 1}
        assert loaded[-1].event["event"]["delta"] == "child says [redacted]"


async def test_a_child_agents_conversation_is_masked_with_its_parents_run(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False, redact=False) as db:
        child = et.Agent(db, "child", model=ScriptedModel([f"I saw {KEY}"]))
        call = et.ToolCall("c", "child", {"input": f"use {KEY}"})
        parent = et.Agent(
            db, "parent", tools=[child.as_tool()], model=ScriptedModel([et.ModelTurn(tool_calls=[call]), "done"])
        )
        done = await parent.run("go")
        assert (await db.events.redact(done.run_id)).turns >= 4
        assert KEY not in dump(db)


async def test_the_function_lets_nothing_but_masks_through(everyturn_db: et.Database) -> None:
    turn = await everyturn_db.turns.append(UUID(int=1), "bot", "user", {"text": "a secret", "n": [1, {"k": "v"}]})
    wrong = [
        {"text": "another text", "n": [1, {"k": "v"}]},
        {"text": "a [redacted]", "n": [2, {"k": "v"}]},
        {"text": "a [redacted]", "n": [1]},
        {"text": "a [redacted]"},
        {"text": "a [redacted]", "n": [1, {"k": "v", "more": "[redacted]"}]},
        {},
    ]
    for payload in wrong:
        with pytest.raises(psycopg.errors.RestrictViolation, match="only masks"):
            await everyturn_db.fetch(
                "SELECT everyturn_redact(ARRAY[%s]::uuid[], ARRAY[%s]::jsonb[])", (turn.id, json.dumps(payload))
            )
    right = {"text": "a [redacted]", "n": ["[redacted]", {"k": "[redacted]"}]}
    [row] = await everyturn_db.fetch(
        "SELECT everyturn_redact(ARRAY[%s]::uuid[], ARRAY[%s]::jsonb[]) AS n", (turn.id, json.dumps(right))
    )
    assert row["n"] == 1
    assert (await everyturn_db.turns.get(turn.id)).payload == right


async def test_rules_of_ones_own(everyturn_url: str) -> None:
    def lower(value: Any) -> Any:
        return {**value, "name": "***"} if isinstance(value, dict) and "name" in value else value

    rules = ["customer.email", re.compile(r"\b\d{3}-\d{2}-\d{4}\b"), lower]
    async with et.connect(everyturn_url, embedder=False, redact=rules) as db:
        payload = {"text": "ssn 078-05-1120", "customer": {"email": "x@y.z"}, "name": "Ann", "password": "x"}
        turn = await db.turns.append(UUID(int=1), "bot", "user", payload)
        assert turn.payload == {
            "text": "ssn [redacted]",
            "customer": {"email": "[redacted]"},
            "name": "***",
            "password": "[redacted]",
        }
        await db.events.append(et.EventRecord("r", "a", payload))
        await db.memory.remember("semantic", text="078-05-1120", attributes={"customer": {"email": "x@y.z"}})
        await db.cases.capture("078-05-1120", context=payload)
        stored = dump(db)
        assert "078-05-1120" not in stored
        assert "x@y.z" not in stored


@pytest.mark.parametrize("rules", [None, ["args.n"]], ids=["known", "path"])
async def test_a_call_whose_arguments_were_masked_is_never_run_from_the_log(everyturn_url: str, rules: Any) -> None:
    """field case 36 and 149: resume ends it as interrupted."""
    called = []

    @et.tool
    def pay(password: str, n: int) -> str:
        """Pay."""
        called.append((password, n))
        return "paid"

    async with et.connect(everyturn_url, embedder=False, redact=rules) as db:
        args = {"password": WORD if rules is None else "", "n": 7}
        # What a run leaves that was killed after its model answered: the call never started.
        conversation = UUID(int=5)
        payload = {"text": "", "toolCalls": [{"id": "c", "name": "pay", "args": args}], "runId": "old"}
        await db.turns.append(conversation, "bot", "user", {"text": "pay", "runId": "old"})
        await db.turns.append(conversation, "bot", "model", payload)
        agent = et.Agent(db, "bot", tools=[pay], model=ScriptedModel(["It was not paid."]))
        done = await agent.resume(conversation)
        assert called == []
        [error] = [turn for turn in done.turns if turn.kind == "error"]
        assert (error.payload["stage"], error.payload["toolCallId"]) == ("interrupted", "c")
        assert done.output == "It was not paid."
