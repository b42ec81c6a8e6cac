"""The writer: exactly once, in order, and no neighbour harmed, whatever goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import everyturn as et
from everyturn import careful, writer
from everyturn.database import Database
from everyturn.errors import ConversationConflict, DatabaseUnavailable, EveryturnError, InvalidValue
from everyturn.ids import uuid7
from everyturn.locks import lock_key
from everyturn.rows import EventRow, TurnRow
from everyturn.wire import Wire


@pytest.fixture
async def db(everyturn_url: str) -> AsyncIterator[Database]:
    async with et.connect(everyturn_url, embedder=False) as opened:
        yield opened


def turn_row(conversation: UUID | None = None, payload: str = '{"n": 1}', **more: Any) -> TurnRow:
    return TurnRow(uuid7(), conversation or uuid4(), "bot", "user", payload, **more)


def event_row(run: str = "run", event: str = '{"type": "x"}', **more: Any) -> EventRow:
    values = dict.fromkeys(("agent_name", "turn", "tool_name", "tool_call_id", "internal_call_id")) | more
    return EventRow(run_id=run, agent_id="bot", event=event, **values)  # type: ignore[arg-type]


async def count(db: Database, table: str = "agent_turns") -> int:
    [row] = await db.fetch(f"SELECT count(*) AS n FROM {table}")  # noqa: S608
    return int(row["n"])


# Durable, and in order


async def test_a_row_is_there_for_everybody_when_append_returns(db: Database) -> None:
    with psycopg.connect(db.url, autocommit=True) as other:

        async def one() -> None:
            row, event = turn_row(), event_row(str(uuid4()))
            await db.writer.append([row], [event])
            assert other.execute("SELECT 1 FROM agent_turns WHERE id = %s", (row.id,)).fetchone()
            assert other.execute("SELECT 1 FROM agent_events WHERE run_id = %s", (event.run_id,)).fetchone()

        await asyncio.gather(*(one() for _ in range(50)))


async def test_first_turns_of_one_conversation_from_many_tasks(db: Database) -> None:
    """field case 25"""
    conversation = uuid4()
    await asyncio.gather(*(db.turns.append(conversation, "bot", "user", {"n": n}) for n in range(8)))
    assert len(await db.turns.load(conversation)) == 8


async def test_order_within_conversations_and_runs_across_64_tasks(db: Database) -> None:
    conversations = [uuid4() for _ in range(64)]

    async def agent(index: int) -> None:
        conversation, run = conversations[index], f"run {index}"
        futures = []
        for n in range(20):
            futures.append(
                db.writer.submit(
                    [turn_row(conversation, json.dumps({"n": n}))] * (index % 3 != 0),
                    [event_row(run, json.dumps({"n": n}))] * (index % 3 != 1),
                )
            )
            if n % (index % 5 + 1) == 0:
                await asyncio.shield(futures[-1])
        await asyncio.gather(*map(asyncio.shield, futures))

    await asyncio.gather(*(agent(index) for index in range(64)))
    for index, conversation in enumerate(conversations):
        turns = [turn.payload["n"] for turn in await db.turns.load(conversation)]
        assert turns == (list(range(20)) if index % 3 != 0 else [])
        events = [record.event["n"] for record in await db.events.load(f"run {index}")]
        assert events == (list(range(20)) if index % 3 != 1 else [])


async def test_appends_that_meet_share_a_commit(db: Database) -> None:
    await db.writer.append([turn_row()], [event_row()])
    await asyncio.gather(*(db.writer.append([turn_row()], [event_row(str(n))]) for n in range(200)))
    rows = await db.fetch("SELECT count(DISTINCT xmin::text) AS n FROM agent_turns")
    assert rows[0]["n"] <= 5


async def test_any_number_of_writers(db: Database) -> None:
    conversation = uuid4()
    async with et.connect(db.url, embedder=False) as other:
        await asyncio.gather(
            *(d.turns.append(conversation, "bot", "user", {"n": n}) for n in range(100) for d in (db, other))
        )
    turns = await db.turns.load(conversation)
    assert len(turns) == 200
    assert [turn.seq for turn in turns] == sorted({turn.seq for turn in turns})


# Bad rows


BAD_ROWS = {
    "a vector of another size": lambda: turn_row(embedding="[1,2,3]", embedded_by="x"),
    "a NUL in the agent": lambda: TurnRow(uuid7(), uuid4(), "a\x00b", "user", "{}"),
    "a NUL in the JSON": lambda: turn_row(payload='{"a": "\\u0000"}'),
    "a lone surrogate": lambda: TurnRow(uuid7(), uuid4(), "a\ud83d", "user", "{}"),
    "another kind": lambda: TurnRow(uuid7(), uuid4(), "bot", "shout", "{}"),
    "broken JSON": lambda: turn_row(payload="{"),
    "an id that is none": lambda: TurnRow("not-a-uuid", uuid4(), "bot", "user", "{}"),  # type: ignore[arg-type]
    "a time that is none": lambda: turn_row(created_at="no time"),
}


@pytest.mark.parametrize("make", BAD_ROWS.values(), ids=BAD_ROWS)
async def test_one_bad_row_among_many(db: Database, make: Any) -> None:
    """field case 1: other rows of the batch are kept. field case 51: so are they for a vector of the wrong size."""
    await db.writer.append([turn_row()])
    good = [turn_row() for _ in range(30)]
    bad = make()
    futures = [db.writer.submit([row]) for row in good[:13]]
    failing = db.writer.submit([bad])
    futures += [db.writer.submit([row]) for row in good[13:]]
    appended = await asyncio.gather(*futures)
    with pytest.raises(Exception) as caught:
        await failing
    if isinstance(caught.value, EveryturnError):
        assert isinstance(caught.value, InvalidValue)
        assert str(caught.value).endswith("Nothing of it was stored.")
    stored = {row["id"]: row["seq"] for row in await db.fetch("SELECT id, seq FROM agent_turns")}
    assert len(stored) == 31
    assert [stored[row.id] for row in good] == [new[0].seq for new in appended]


async def test_a_duplicate_id_is_refused_and_its_neighbours_are_not(db: Database) -> None:
    row = turn_row()
    outcomes = await asyncio.gather(
        *(db.writer.append([one]) for one in (row, turn_row(), row, turn_row())), return_exceptions=True
    )
    assert [isinstance(outcome, InvalidValue) for outcome in outcomes] == [False, False, True, False]
    with pytest.raises(InvalidValue, match="duplicate key"):
        await db.turns.append(uuid4(), "bot", "user", {}, id=row.id)
    assert await count(db) == 3


async def test_units_are_all_or_nothing(db: Database) -> None:
    good, bad = [turn_row() for _ in range(3)], turn_row(payload="{")
    outcomes = await asyncio.gather(
        db.writer.append([*good, bad], [event_row("a")]),
        db.writer.append([turn_row()], [event_row("b")]),
        db.writer.append([], [event_row("c"), event_row("c", "{")]),
        return_exceptions=True,
    )
    assert [isinstance(outcome, InvalidValue) for outcome in outcomes] == [True, False, True]
    assert await count(db) == 1
    assert [row["run_id"] for row in await db.fetch("SELECT run_id FROM agent_events")] == ["b"]


# Values at the edges


async def test_empty_and_odd_strings_are_stored_as_they_are_however_many_share_a_statement(db: Database) -> None:
    odd = ["", " ", "\x1d", "é\u2028\U0001f600", "NULL", "{}", '"', "\\", "%s", "a,b", "null"]

    def made(run: str) -> list[EventRow]:
        return [
            event_row(run, json.dumps({"v": text}), agent_name=text, tool_name=text, tool_call_id=text, turn=n)
            for n, text in enumerate(odd)
        ] + [event_row(run, "null")]

    for row in made("alone"):
        await db.writer.append([], [row])
    for row in made("with a turn"):
        await db.writer.append([turn_row()], [row])
    await db.writer.append([], made("together"))
    await db.writer.append([turn_row()], made("together with a turn"))
    for run in ("alone", "with a turn", "together", "together with a turn"):
        records = await db.events.load(run)
        assert [record.event for record in records] == [*({"v": text} for text in odd), None]
        for column in ("agent_name", "tool_name", "tool_call_id"):
            assert [getattr(record, column) for record in records] == [*odd, None], (run, column)
        assert [record.turn for record in records] == [*range(len(odd)), None]
        assert [record.internal_call_id for record in records] == [None] * (len(odd) + 1)


async def test_separators_in_names_are_refused_or_replaced_before_the_writer(db: Database) -> None:
    with pytest.raises(InvalidValue):
        await db.turns.append(uuid4(), "a\x1fb", "user", {})
    record = et.EventRecord("run\x1f1", "agent\x1e", {"text": "a\x1f\x1eb"}, agent_name="\x1e", tool_name="\x1f")
    await db.events.append(record)
    [stored] = await db.fetch("SELECT run_id, agent_id, agent_name, tool_name, event FROM agent_events")
    assert stored == {
        "run_id": "run\ufffd1",
        "agent_id": "agent\ufffd",
        "agent_name": "\ufffd",
        "tool_name": "\ufffd",
        "event": {"text": "a\x1f\x1eb"},
    }


async def test_payloads_keep_every_character_in_batches_too(db: Database) -> None:
    payloads = [
        {"text": "a\x1f\x1e\x7f\u0085\u2028\ufeff\U0010ffff\t\n\\\"'", "n": n, "": [], "e": ""} for n in range(5)
    ]
    conversation = uuid4()
    await db.turns.append_many([et.NewTurn(conversation, "агент", "user", payload) for payload in payloads])
    assert [turn.payload for turn in await db.turns.load(conversation)] == payloads


async def test_given_times_come_back_as_given(db: Database) -> None:
    """field case 89"""
    times = [
        datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45))),
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28))),
        None,
    ]
    rows = [turn_row(created_at=moment) for moment in times]
    appended = await db.writer.append(rows)
    appended += [(await db.writer.append([turn_row(created_at=moment)]))[0] for moment in times]
    for new, moment in zip(appended, times * 2, strict=True):
        assert moment is None or new.created_at == moment
    stored = await db.fetch("SELECT seq, created_at FROM agent_turns ORDER BY seq")
    assert [(row["seq"], row["created_at"]) for row in stored] == [(new.seq, new.created_at) for new in appended]


async def test_more_rows_than_a_statement_holds_are_still_one_unit(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (writer, careful):
        monkeypatch.setattr(module, "MAX_ROWS", 10)
    conversation = uuid4()
    rows = [turn_row(conversation, json.dumps({"n": n})) for n in range(350)]
    events = [event_row("run", json.dumps({"n": n})) for n in range(250)]
    appended = await db.writer.append(rows, events, lock=lock_key(conversation))
    assert [new.seq for new in appended] == sorted({new.seq for new in appended})
    assert [turn.payload["n"] for turn in await db.turns.load(conversation)] == list(range(350))
    assert [record.event["n"] for record in await db.events.load("run")] == list(range(250))
    assert db.lock_session.held == {lock_key(conversation)}
    with pytest.raises(InvalidValue):
        await db.writer.append([turn_row() for _ in range(300)], [event_row("bad", "{")])
    assert await count(db) == 350


async def test_many_large_rows_are_split_by_size(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (writer, careful):
        monkeypatch.setattr(module, "MAX_SIZE", 10_000)
    rows = [turn_row(payload=json.dumps({"text": "x" * size})) for size in (9_000, 9_000, 50_000, 10, 10)]
    await db.writer.append(rows)
    await asyncio.gather(*(db.writer.append([turn_row(payload=row.payload)]) for row in rows))
    assert await count(db) == 10


async def test_a_batch_of_20_000(db: Database) -> None:
    conversation = uuid4()
    turns = await db.turns.append_many([et.NewTurn(conversation, "bot", "tool_call", {"n": n}) for n in range(20_000)])
    assert [turn.payload["n"] for turn in turns] == list(range(20_000))
    assert [turn.seq for turn in turns] == sorted(turn.seq for turn in turns)


# Cancelling, ending, closing


async def test_a_cancelled_caller_leaves_the_row_and_the_writer(db: Database) -> None:
    """field case 40: what was being saved is saved."""
    await db.writer.append([turn_row()])
    for _ in range(50):
        task = asyncio.create_task(db.turns.append(uuid4(), "bot", "user", {"text": "x"}))
        await asyncio.sleep(random.random() * 0.002)
        task.cancel()
        await asyncio.wait({task})
    await db.turns.append(uuid4(), "bot", "user", {"text": "last"})
    assert await count(db) == 52


async def test_cancelling_while_waiting_for_a_connection_leaks_none(db: Database) -> None:
    """field case 44: neither of the pool nor of the writer."""

    async def impatient(use: Any) -> None:
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(use, 0.01)

    await asyncio.gather(
        *(impatient(db.fetch("SELECT pg_sleep(0.05)")) for _ in range(200)),
        *(impatient(db.turns.append(uuid4(), "bot", "user", {})) for _ in range(200)),
        *(impatient(db.turns.load(uuid4())) for _ in range(200)),
    )
    async with asyncio.timeout(1):
        assert await db.fetch("SELECT 1 AS one") == [{"one": 1}]
        assert await asyncio.gather(*(db.fetch("SELECT 1 AS one") for _ in range(30)))
        await db.turns.append(uuid4(), "bot", "user", {})
    assert await count(db) == 201


async def test_a_cancelled_append_whose_row_is_refused_makes_no_noise(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    task = asyncio.create_task(db.writer.append([turn_row(payload="{")]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await db.writer.append([turn_row()])
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_closing_writes_what_is_queued(everyturn_url: str) -> None:
    db = await et.connect(everyturn_url, embedder=False)
    futures = [db.writer.submit([turn_row()]) for _ in range(3000)]
    own = db.writer
    await db.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(DatabaseUnavailable, match="was closed"):
        own.submit([turn_row()])
    with psycopg.connect(everyturn_url) as conn:
        assert conn.execute("SELECT count(*) FROM agent_turns").fetchone() == (3000,)


def test_a_loop_that_ends_with_a_queue(everyturn_db: Database) -> None:
    """Whoever waited is told or has his row; the next loop writes again."""
    outcomes: list[Any] = []

    async def waits() -> None:
        try:
            outcomes.append(await everyturn_db.turns.append(uuid4(), "bot", "user", {}))
        except BaseException as error:
            outcomes.append(error)
            raise

    async def leaves() -> None:
        for _ in range(50):
            asyncio.ensure_future(waits())  # noqa: RUF006
        await asyncio.sleep(random.random() * 0.003)

    for _ in range(5):
        asyncio.run(leaves())
    acknowledged = [outcome.id for outcome in outcomes if isinstance(outcome, et.Turn)]

    async def stored() -> set[UUID]:
        await everyturn_db.turns.append(uuid4(), "bot", "user", {})
        return {row["id"] for row in await everyturn_db.fetch("SELECT id FROM agent_turns")}

    assert set(acknowledged) <= asyncio.run(stored())
    assert len(outcomes) == 250


EXITING = """
import asyncio, sys, uuid
import everyturn as et

async def main():
    db = await et.connect(sys.argv[1], embedder=False)
    tasks = [asyncio.create_task(db.turns.append(uuid.uuid4(), "bot", "user", {"n": n})) for n in range(400)]
    for task in asyncio.as_completed(tasks):
        print((await task).id, flush=True)
        if len([t for t in tasks if t.done()]) > 50:
            return

asyncio.run(main())
"""


def test_an_interpreter_that_ends_without_closing(everyturn_url: str) -> None:
    """field case 40: everything that was said to be stored is."""
    done = subprocess.run([sys.executable, "-c", EXITING, everyturn_url], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    said = {UUID(line) for line in done.stdout.split()}
    assert said
    with psycopg.connect(everyturn_url) as conn:
        assert said <= {row[0] for row in conn.execute("SELECT id FROM agent_turns").fetchall()}


async def test_a_guard_that_objects_stops_its_rows_only(db: Database) -> None:
    def objects() -> None:
        raise ConversationConflict("Another run has it.")

    outcomes = await asyncio.gather(
        db.writer.append([turn_row()]),
        db.writer.append([turn_row()], guard=objects),
        db.writer.append([turn_row()], guard=lambda: None),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [list, ConversationConflict, list]
    with pytest.raises(ConversationConflict):
        await db.writer.append([turn_row()], guard=objects)
    assert await count(db) == 2


# Lost connections


class Killer:
    """Ends the server processes of a database again and again."""

    def __init__(self, url: str, pause: float) -> None:
        self._url = url
        self._pause = pause
        self._stop = threading.Event()
        self.killed = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        chance = random.Random(4)
        with psycopg.connect(self._url, autocommit=True) as conn:
            while not self._stop.wait(chance.random() * self._pause):
                self.killed += len(
                    conn.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND application_name = 'everyturn'"
                    ).fetchall()
                )


@pytest.mark.parametrize("what", ["turns", "events", "both"])
async def test_killed_at_any_instant_each_append_is_stored_exactly_once(db: Database, what: str) -> None:
    """field case 46: neither lost nor twice, and still in order."""
    await db.writer.append([turn_row()], [event_row("first")])
    sent: dict[int, list[int]] = defaultdict(list)
    conversations = [uuid4() for _ in range(20)]
    ends = time.monotonic() + 1.5

    async def agent(index: int) -> None:
        n = 0
        while time.monotonic() < ends:
            payload = json.dumps({"n": n})
            await db.writer.append(
                [turn_row(conversations[index], payload)] * (what != "events"),
                [event_row(str(index), payload)] * (what != "turns"),
            )
            sent[index].append(n)
            n += 1

    with Killer(db.url, 0.05) as killer:
        await asyncio.gather(*(agent(index) for index in range(20)))
    assert killer.killed > 5
    for index, conversation in enumerate(conversations):
        if what != "events":
            assert [turn.payload["n"] for turn in await db.turns.load(conversation)] == sent[index]
        if what != "turns":
            assert [record.event["n"] for record in await db.events.load(str(index))] == sent[index]


async def test_an_idle_connection_that_was_ended(db: Database) -> None:
    """field case 46: the next append, the next read and the next lock work once, no row is twice."""
    for n in range(5):
        await db.turns.append(uuid4(), "bot", "user", {"n": n})
        await db.events.append(et.EventRecord("run", "bot", {"n": n}))
        await count(db)
        with psycopg.connect(db.url, autocommit=True) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
    assert await count(db) == 5
    assert [record.event["n"] for record in await db.events.load("run")] == [0, 1, 2, 3, 4]


class LosesAnswer:
    """The next statement of a writer loses its connection, after the server did it or before."""

    def __init__(self, db: Database, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
        self.session = db.writer.session
        self.patch = monkeypatch
        self.way = way

    def next(self, *, committed: bool, then: Callable[[], Awaitable[Any]] | None = None) -> None:
        session, patch = self.session, self.patch
        execute, send = session.execute, Wire.send
        lost = psycopg.OperationalError("the connection is lost")

        async def loses(conn: Any, statement: Any, values: Any) -> Any:
            patch.setattr(session, "execute", execute)
            if committed:
                await execute(conn, statement, values)
            conn.pgconn.finish()
            if then is not None:
                await then()
            raise lost

        def sends(wire: Wire, name: str, statement: bytes, values: Any, done: Any, *, prepare: bool) -> None:
            patch.setattr(Wire, "send", send)

            async def breaks() -> None:
                wire.conn.pgconn.finish()
                if then is not None:
                    wire.conn.lock.release()
                    await then()
                    assert wire.try_lock()
                wire._answer(lost)

            def answered(answer: Any) -> None:
                assert wire.try_lock()
                wire._done = done
                self.task = asyncio.ensure_future(breaks())

            if committed:
                send(wire, name, statement, values, answered, prepare=prepare)
            else:
                wire._done = done
                self.task = asyncio.ensure_future(breaks())

        if self.way == "careful":
            patch.setattr(session, "ready", lambda: None)
            patch.setattr(session, "execute", loses)
        else:
            patch.setattr(Wire, "send", sends)


@pytest.fixture(params=["wire", "careful"])
async def loses(request: pytest.FixtureRequest, db: Database, monkeypatch: pytest.MonkeyPatch) -> LosesAnswer:
    return LosesAnswer(db, monkeypatch, request.param)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("what", ["turns", "events", "both", "one turn", "one event"])
async def test_a_statement_whose_answer_was_lost(
    db: Database, monkeypatch: pytest.MonkeyPatch, loses: LosesAnswer, what: str, committed: bool
) -> None:
    """The answer is lost after, or before, the server did the work; then the connection breaks a second time."""
    # The same event as others of the run, so that only the ids tell them apart.
    await db.writer.append([turn_row()], [event_row("run", '{"n": 0}')])
    session = db.writer.session
    introduce, breaks = session._introduce, []

    async def breaks_again(conn: Any) -> None:
        await introduce(conn)
        if not breaks:
            breaks.append(True)
            conn.pgconn.finish()

    monkeypatch.setattr(session, "_introduce", breaks_again)
    loses.next(committed=committed)
    rows = [turn_row() for _ in range({"turns": 3, "both": 2, "one turn": 1}.get(what, 0))]
    events = [event_row("run", '{"n": 0}') for _ in range({"events": 3, "both": 2, "one event": 1}.get(what, 0))]
    conversation = rows[0].conversation if len(rows) > 1 else None
    lock = None if conversation is None else lock_key(conversation)
    appended = await db.writer.append(rows, events, lock=lock)
    assert breaks
    stored = await db.fetch("SELECT seq FROM agent_turns WHERE id = ANY(%s) ORDER BY seq", ([r.id for r in rows],))
    assert [new.seq for new in appended] == [row["seq"] for row in stored]
    assert await count(db) == 1 + len(rows)
    assert await count(db, "agent_events") == 1 + len(events)
    assert session.held == ({lock} if lock is not None else set())
    held = await db.fetch("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted")
    assert len(held) == (lock is not None)


async def test_another_writer_of_the_run_is_not_taken_for_the_lost_statement(db: Database, loses: LosesAnswer) -> None:
    await db.events.append(et.EventRecord("run", "bot", {"n": 0}))

    async def others() -> None:
        async with et.connect(db.url, embedder=False) as other:
            for n in (1, 2, 3):
                await other.events.append(et.EventRecord("run", "other", {"n": n}))

    loses.next(committed=False, then=others)
    await db.writer.append([], [event_row("run", '{"n": 1}'), event_row("run", '{"n": 2}')])
    assert [record.event["n"] for record in await db.events.load("run")] == [0, 1, 2, 3, 1, 2]


async def test_somebody_else_reconnecting_the_session_does_not_hide_the_loss(db: Database, loses: LosesAnswer) -> None:
    """The session is shared with the locks of conversations: who asks first after a loss is chance."""
    await db.writer.append([turn_row()], [event_row("other")])
    loses.next(committed=True, then=db.writer.session.connection)
    await db.writer.append([], [event_row("run"), event_row("run")])
    assert await count(db, "agent_events") == 3


async def test_what_a_broken_connection_left_in_the_loop_harms_no_other(db: Database) -> None:
    """A socket's number is given out again: the next connection gets it."""
    for _ in range(10):
        appends = [asyncio.ensure_future(db.turns.append(uuid4(), "bot", "user", {})) for _ in range(5)]
        await asyncio.sleep(0)
        conn = db.writer.session._conn
        if conn is not None and not conn.closed:
            with psycopg.connect(db.url, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (conn.info.backend_pid,))
        await asyncio.gather(*appends)
        await asyncio.gather(*(count(db) for _ in range(10)))
    assert await count(db) == 50


async def test_the_connection_is_shared_with_others_that_wait_for_it(db: Database) -> None:
    """Its lock may be free and promised: an append then waits its turn."""
    session = db.writer.session
    await db.writer.append([turn_row()])

    async def asks() -> None:
        for _ in range(20):
            await session.fetch("SELECT 1")

    async def appends() -> None:
        for n in range(40):
            await db.writer.append([turn_row()], [event_row("r")] * (n % 2))

    await asyncio.gather(*(asks() for _ in range(5)), *(appends() for _ in range(5)))
    assert await count(db) == 201


# Servers that die


@pytest.fixture
def directory(tmp_path: Path, made: Path) -> Path:
    shutil.copytree(made, tmp_path / "data")
    return tmp_path / "data"


async def test_a_killed_embedded_server_is_started_again_under_running_appends(directory: Path) -> None:
    """The postmaster is killed; appends, reads and locks go on, and what was acknowledged is there."""

    def postmaster() -> int:
        return int((directory / "postmaster.pid").read_text().splitlines()[0])

    acknowledged: list[tuple[UUID, int]] = []
    conversation = uuid4()
    async with et.connect(directory, embedder=False) as db:
        await count(db)
        ends = time.monotonic() + 3

        async def agent(index: int) -> None:
            while time.monotonic() < ends:
                turn = await db.turns.append(conversation, "bot", "user", {"agent": index})
                acknowledged.append((turn.id, turn.seq))

        async def reader() -> None:
            while time.monotonic() < ends:
                await db.turns.load(uuid4())
                await asyncio.sleep(0.01)

        async def killer() -> None:
            await asyncio.sleep(0.5)
            os.kill(postmaster(), signal.SIGKILL)

        await asyncio.gather(*(agent(index) for index in range(8)), reader(), killer())
        stored = [(turn.id, turn.seq) for turn in await db.turns.load(conversation)]
    assert sorted(acknowledged, key=lambda pair: pair[1]) == stored
    assert len(stored) > 50


async def test_a_server_that_stays_away_is_a_sentence_for_all_that_wait(
    everyturn_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = Database(everyturn_url)
    await db.turns.append(uuid4(), "bot", "user", {})
    session = db.writer.session
    monkeypatch.setattr(session, "_patience", 0.3)
    monkeypatch.setattr(session._opener, "url", "postgresql://127.0.0.1:1/nope")
    assert session._conn is not None
    session._conn.pgconn.finish()
    outcomes = await asyncio.gather(
        *(db.turns.append(uuid4(), "bot", "user", {}) for _ in range(10)), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {DatabaseUnavailable}
    monkeypatch.undo()
    await db.turns.append(uuid4(), "bot", "user", {})
    await db.close()
