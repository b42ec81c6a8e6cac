"""The tables of the contract, as SQL written by hand meets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from everyturn.ids import uuid7
from everyturn.locks import lock_key
from everyturn.testing import database_url, server

Connection = psycopg.Connection[tuple]  # type: ignore[type-arg]

# name, type, NOT NULL, whether it has a default
COLUMNS = {
    "agent_turns": [
        ("id", "uuid", True, True),
        ("conversation", "uuid", True, False),
        ("agent", "text", True, False),
        ("kind", "text", True, False),
        ("payload", "jsonb", True, False),
        ("embedding", "vector(1024)", False, False),
        ("created_at", "timestamp with time zone", True, True),
        ("seq", "bigint", True, False),
        ("embedded_by", "text", False, False),
    ],
    "agent_tools": [
        ("name", "text", True, False),
        ("agent", "text", True, False),
        ("schema", "jsonb", True, False),
        ("impl_hash", "text", True, False),
        ("rate_budget", "jsonb", True, True),
        ("updated_at", "timestamp with time zone", True, True),
        ("description", "text", False, False),
    ],
    "agent_evals": [
        ("id", "uuid", True, True),
        ("turn_id", "uuid", True, False),
        ("evaluator", "text", True, False),
        ("verdict", "text", True, False),
        ("rationale", "text", False, False),
        ("payload", "jsonb", False, False),
        ("created_at", "timestamp with time zone", True, True),
        ("conversation", "uuid", False, False),
    ],
    "agent_events": [
        ("id", "bigint", True, True),
        ("run_id", "text", True, False),
        ("agent_id", "text", True, False),
        ("agent_name", "text", False, False),
        ("turn", "integer", False, False),
        ("tool_name", "text", False, False),
        ("tool_call_id", "text", False, False),
        ("internal_call_id", "text", False, False),
        ("event", "jsonb", True, False),
        ("created_at", "timestamp with time zone", True, True),
    ],
    "eval_case": [
        ("id", "uuid", True, True),
        ("source", "text", True, False),
        ("prompt", "text", True, False),
        ("context", "jsonb", True, True),
        ("reference", "text", False, False),
        ("tags", "text[]", True, True),
        ("captured_at", "timestamp with time zone", True, True),
        ("captured_by", "text", True, False),
        ("embedding", "vector(1024)", False, False),
        ("turn_id", "uuid", False, False),
        ("content_hash", "text", True, True),
        ("embedded_by", "text", False, False),
    ],
    "eval_dataset": [
        ("id", "uuid", True, True),
        ("name", "text", True, False),
        ("version", "integer", True, False),
        ("case_ids", "uuid[]", True, False),
        ("notes", "text", False, False),
        ("published_at", "timestamp with time zone", True, True),
    ],
    "eval_replay": [
        ("id", "uuid", True, True),
        ("dataset_id", "uuid", True, False),
        ("model", "text", True, False),
        ("prompt_rev", "text", True, False),
        ("prompt", "text", False, False),
        ("settings", "jsonb", True, True),
        ("scorers", "text[]", True, True),
        ("case_ids", "uuid[]", True, False),
        ("trials", "integer", True, True),
        ("seed", "bigint", False, False),
        ("status", "text", True, True),
        ("started_at", "timestamp with time zone", True, True),
        ("ended_at", "timestamp with time zone", False, False),
    ],
    "eval_run": [
        ("id", "uuid", True, True),
        ("dataset_id", "uuid", True, False),
        ("case_id", "uuid", True, False),
        ("model", "text", True, False),
        ("prompt_rev", "text", True, False),
        ("output", "text", True, False),
        ("pass", "boolean", False, False),
        ("judge_score", "numeric(3,2)", False, False),
        ("judge_reason", "text", False, False),
        ("latency_ms", "integer", True, False),
        ("input_tokens", "integer", True, False),
        ("output_tokens", "integer", True, False),
        ("cost_usd", "numeric(10,6)", False, False),
        ("ran_at", "timestamp with time zone", True, True),
        ("replay_id", "uuid", False, False),
        ("trial", "integer", True, True),
        ("error", "text", False, False),
        ("scores", "jsonb", False, False),
        ("run_id", "text", False, False),
    ],
}

INDEXES = {
    "agent_turns_conv_time": "USING btree (conversation, created_at)",
    "agent_turns_conv_seq": "USING btree (conversation, seq)",
    "agent_turns_embedding": "USING hnsw (embedding vector_cosine_ops)",
    "agent_turns_tool_time": "USING btree (agent, ((payload ->> 'toolName'::text)), created_at) WHERE",
    "agent_turns_repo_time": "USING btree (agent, ((payload ->> 'repo'::text)), created_at) WHERE",
    "agent_turns_text": "USING gin (everyturn_tsvector((payload ->> 'text'::text)))",
    "agent_tools_pkey": "USING btree (agent, name)",
    "agent_evals_turn": "USING btree (turn_id)",
    "agent_events_run_idx": "USING btree (run_id, created_at)",
    "agent_events_agent_idx": "USING btree (agent_id, created_at)",
    "agent_events_tool_idx": "USING btree (tool_name, created_at)",
    "eval_case_tags_idx": "USING gin (tags)",
    "eval_case_embed_idx": "USING hnsw (embedding vector_cosine_ops)",
    "eval_dataset_name_version_key": "USING btree (name, version)",
    "eval_run_dataset_idx": "USING btree (dataset_id, model, prompt_rev",
}


@pytest.fixture(scope="module")
def shared() -> Iterator[str]:
    server(durable=False)
    with database_url() as url:
        yield url


class Savepoints(psycopg.Connection[tuple]):  # type: ignore[type-arg]
    """A refused statement does not end the transaction that the test is in."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        with self.transaction():
            return super().execute(query, params, **options)


@pytest.fixture
def conn(shared: str) -> Iterator[Connection]:
    """A connection whose work is rolled back after the test."""
    with Savepoints.connect(shared) as opened, opened.transaction(force_rollback=True):
        yield opened


def add_turn(conn: Connection, kind: str = "user", payload: str = '{"text": "hello"}', **columns: object) -> UUID:
    names = ["conversation", "agent", "kind", "payload", *columns]
    values = [columns.pop("conversation", uuid4()), "bot", kind, payload, *columns.values()]
    names = list(dict.fromkeys(names))
    [id] = conn.execute(
        f"INSERT INTO agent_turns ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))}) RETURNING id",  # noqa: S608
        values,
    ).fetchone()
    return id


def add_case(conn: Connection, prompt: str = "p", context: str = "{}", reference: str | None = None) -> UUID:
    [id] = conn.execute(
        "INSERT INTO eval_case (source, prompt, context, reference, captured_by)"
        " VALUES ('handcrafted', %s, %s, %s, 'me') RETURNING id",
        (prompt, context, reference),
    ).fetchone()
    return id


def add_dataset(conn: Connection, cases: list[UUID], name: str = "core", version: int = 1) -> UUID:
    [id] = conn.execute(
        "INSERT INTO eval_dataset (name, version, case_ids) VALUES (%s, %s, %s) RETURNING id", (name, version, cases)
    ).fetchone()
    return id


@pytest.mark.parametrize("table", COLUMNS)
def test_every_column_of_the_contract(conn: Connection, table: str) -> None:
    found = conn.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, atthasdef FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (table,),
    ).fetchall()
    assert found[: len(COLUMNS[table])] == COLUMNS[table]


def test_every_index_of_the_contract(conn: Connection) -> None:
    found = dict(conn.execute("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'").fetchall())
    for name, wanted in INDEXES.items():
        assert wanted in found.get(name, ""), name


def test_a_hand_written_turn_needs_no_id_and_gets_a_time_ordered_one(conn: Connection) -> None:
    before = uuid7()
    made = [add_turn(conn) for _ in range(20)]
    assert [id.version for id in made] == [7] * 20
    assert before < made[0]
    assert made == sorted(made)


def test_the_lock_key_is_the_same_in_sql_and_in_python(conn: Connection) -> None:
    for id in [uuid4() for _ in range(50)] + [UUID(int=0), UUID(int=2**128 - 1)]:
        [key] = conn.execute("SELECT everyturn_lock_key(%s)", (id,)).fetchone()
        assert key == lock_key(id)


def test_the_settings_of_filtered_vector_search_hold_for_every_client(everyturn_url: str) -> None:
    with psycopg.connect(everyturn_url) as conn:
        names = ["hnsw.iterative_scan", "hnsw.max_scan_tuples", "hnsw.scan_mem_multiplier"]
        values = [conn.execute("SELECT current_setting(%s)", (name,)).fetchone()[0] for name in names]  # type: ignore[index]
    assert values[0] in ("strict_order", "relaxed_order")
    assert int(values[1]) > 20_000
    assert int(values[2]) > 1


# The log


@pytest.mark.parametrize("kind", ["", "User", "system", "memory"])
def test_other_kinds_are_refused(conn: Connection, kind: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        add_turn(conn, kind)


@pytest.mark.parametrize(
    "change",
    [
        "payload = '{}'",
        "kind = 'error'",
        "agent = 'other'",
        "conversation = gen_random_uuid()",
        "id = gen_random_uuid()",
        "created_at = now()",
        "payload = payload, embedding = NULL",
    ],
)
def test_a_turn_is_never_changed(conn: Connection, change: str) -> None:
    id = add_turn(conn)
    for setting in ("everyturn.redact", "everyturn.redacting", "session.everyturn_redact"):
        conn.execute("SELECT set_config(%s, 'on', false)", (setting,))
    with pytest.raises(psycopg.errors.RestrictViolation, match="append-only") as caught:
        conn.execute(f"UPDATE agent_turns SET {change} WHERE id = %s", (id,))  # noqa: S608
    assert "everyturn_redact" in (caught.value.diag.message_hint or "")
    [payload] = conn.execute("SELECT payload FROM agent_turns WHERE id = %s", (id,)).fetchone()
    assert payload == {"text": "hello"}


def test_seq_is_the_databases_own(conn: Connection) -> None:
    id = add_turn(conn)
    with pytest.raises(psycopg.errors.GeneratedAlways):
        conn.execute("UPDATE agent_turns SET seq = 7 WHERE id = %s", (id,))
    with pytest.raises(psycopg.errors.GeneratedAlways):
        add_turn(conn, seq=7)


def test_upserts_and_merges_are_changes_too(conn: Connection) -> None:
    id = add_turn(conn)
    with pytest.raises(psycopg.errors.RestrictViolation):
        conn.execute(
            "INSERT INTO agent_turns (id, conversation, agent, kind, payload) VALUES (%s, %s, 'a', 'user', '{}')"
            " ON CONFLICT (id) DO UPDATE SET payload = excluded.payload",
            (id, uuid4()),
        )
    with pytest.raises(psycopg.errors.RestrictViolation):
        conn.execute(
            "MERGE INTO agent_turns t USING (SELECT %s::uuid AS id) s ON t.id = s.id"
            " WHEN MATCHED THEN UPDATE SET payload = '{}'",
            (id,),
        )


def test_the_vector_of_a_turn_may_change(conn: Connection) -> None:
    id = add_turn(conn)
    conn.execute(
        "UPDATE agent_turns SET embedding = array_fill(1, ARRAY[1024])::real[]::vector, embedded_by = 'e'"
        " WHERE id = %s",
        (id,),
    )


def test_truncate_is_refused_and_delete_is_retention(conn: Connection) -> None:
    """field case 151: the verdicts go with their turns, cases and datasets stay."""
    turn, kept = add_turn(conn), add_turn(conn)
    for id in (turn, kept):
        conn.execute("INSERT INTO agent_evals (turn_id, evaluator, verdict) VALUES (%s, 'human', 'bad')", (id,))
    case = add_case(conn)
    conn.execute(
        "INSERT INTO eval_case (source, prompt, captured_by, turn_id) VALUES ('production', 'p', 'me', %s)", (turn,)
    )
    dataset = add_dataset(conn, [case])
    for table in ("agent_turns", "eval_case", "eval_dataset"):
        with pytest.raises(psycopg.errors.RestrictViolation):
            conn.execute(f"TRUNCATE {table} CASCADE")
    assert conn.execute("DELETE FROM agent_turns WHERE id = %s", (turn,)).rowcount == 1
    assert conn.execute("SELECT turn_id FROM agent_evals").fetchall() == [(kept,)]
    assert conn.execute("SELECT count(*) FROM eval_case").fetchone() == (2,)
    assert conn.execute("SELECT id FROM eval_dataset").fetchall() == [(dataset,)]


def test_clearing_a_run_clears_that_run(conn: Connection) -> None:
    """field case 153: the id filter is not ignored."""
    for run in ("a", "b", "b"):
        conn.execute("INSERT INTO agent_events (run_id, agent_id, event) VALUES (%s, 'x', '{}')", (run,))
    conn.execute("DELETE FROM agent_events WHERE run_id = 'a'")
    assert conn.execute("SELECT run_id FROM agent_events").fetchall() == [("b",), ("b",)]


# Redaction


def test_redaction_masks_strings_everywhere_and_drops_the_vector(conn: Connection) -> None:
    id = add_turn(
        conn,
        payload='{"text": "key sk-123", "n": 5, "deep": [{"k": "sk-9 and sk-8"}, null, true]}',
        embedding="[" + ",".join(["1"] * 1024) + "]",
        embedded_by="e",
    )
    other = add_turn(conn, payload='{"text": "nothing"}', embedding="[" + ",".join(["1"] * 1024) + "]", embedded_by="e")
    assert conn.execute("SELECT everyturn_redact(%s, 'sk-\\d+')", ([id, other],)).fetchone() == (1,)
    [row] = conn.execute("SELECT payload, embedding, embedded_by FROM agent_turns WHERE id = %s", (id,)).fetchall()
    assert row == (
        {"text": "key [redacted]", "n": 5, "deep": [{"k": "[redacted] and [redacted]"}, None, True]},
        None,
        None,
    )
    assert conn.execute("SELECT embedding IS NULL FROM agent_turns WHERE id = %s", (other,)).fetchone() == (False,)


BODIES = {
    "an update of its own": "UPDATE agent_turns SET payload = '{}';",
    "the name in a comment": "UPDATE agent_turns SET payload = '{}' /* everyturn_redact(uuid[],text,text) */;",
    "a frame in a comment": """UPDATE agent_turns SET payload = '{}' /* "
PL/pgSQL function everyturn_redact(uuid[],text,text) line 5 at SQL statement */;""",
    "a real statement behind another": """UPDATE agent_turns SET payload = '{}' WHERE true OR '"
PL/pgSQL function everyturn_redact(uuid[],text,text) line 5 at SQL statement' = '';""",
    "dynamic SQL": "EXECUTE 'UPDATE agent_turns SET payload = ''{}''';",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize(
    "name", ["my_everyturn_redact", "everyturn_redact", "elsewhere.everyturn_redact", '" everyturn_redact"']
)
def test_no_other_function_gets_past_the_triggers(conn: Connection, name: str, body: str) -> None:
    id = add_turn(conn)
    conn.execute("CREATE SCHEMA elsewhere")
    arguments = "x uuid[], y text, z text" if "." in name else "x int"
    conn.execute(f"CREATE FUNCTION {name} ({arguments}) RETURNS void LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    conn.execute("SET search_path = elsewhere, public")
    call = f"SELECT {name}(ARRAY[]::uuid[], '', '')" if "." in name else f"SELECT {name}(1)"
    with pytest.raises(psycopg.errors.RestrictViolation):
        conn.execute(call)
    assert conn.execute("SELECT payload FROM agent_turns WHERE id = %s", (id,)).fetchone() == ({"text": "hello"},)


def test_redaction_works_in_a_transaction_in_a_function_and_in_any_language(conn: Connection) -> None:
    id = add_turn(conn, payload='{"text": "a secret"}')
    conn.execute(
        "CREATE FUNCTION tidy() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN"
        " RETURN everyturn_redact(ARRAY(SELECT id FROM agent_turns), 'secret', '***'); END $$"
    )
    with conn.transaction():
        assert conn.execute("SELECT tidy()").fetchone() == (1,)
    assert conn.execute("SELECT payload FROM agent_turns WHERE id = %s", (id,)).fetchone() == ({"text": "a ***"},)


# Verdicts


def test_a_verdict_has_its_turns_conversation_whatever_was_said(conn: Connection) -> None:
    conversation = uuid4()
    turn, other = add_turn(conn, conversation=conversation), add_turn(conn)
    for said in (None, uuid4()):
        conn.execute(
            "INSERT INTO agent_evals (turn_id, evaluator, verdict, conversation) VALUES (%s, 'h', 'good', %s)",
            (turn, said),
        )
    conn.execute(
        "INSERT INTO agent_evals (id, turn_id, evaluator, verdict) VALUES (%s, %s, 'h', 'bad')", (uuid4(), turn)
    )
    assert conn.execute("SELECT DISTINCT conversation FROM agent_evals").fetchall() == [(conversation,)]
    conn.execute("UPDATE agent_evals SET conversation = gen_random_uuid()")
    assert conn.execute("SELECT DISTINCT conversation FROM agent_evals").fetchall() == [(conversation,)]
    conn.execute("UPDATE agent_evals SET turn_id = %s", (other,))
    assert conn.execute("SELECT count(*) FROM agent_evals WHERE conversation = %s", (conversation,)).fetchone() == (0,)


@pytest.mark.parametrize("verdict", ["", "Good", "ok", "fail"])
def test_other_verdicts_are_refused(conn: Connection, verdict: str) -> None:
    turn = add_turn(conn)
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute("INSERT INTO agent_evals (turn_id, evaluator, verdict) VALUES (%s, 'h', %s)", (turn, verdict))


def test_a_verdict_needs_its_turn(conn: Connection) -> None:
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        conn.execute("INSERT INTO agent_evals (turn_id, evaluator, verdict) VALUES (%s, 'h', 'good')", (uuid4(),))


# Cases


@pytest.mark.parametrize(
    "change",
    ["prompt = 'q'", "context = '{}'", "reference = NULL", "source = 's'", "captured_by = 'x'", "captured_at = now()",
     "content_hash = ''", "turn_id = NULL", "id = gen_random_uuid()"],
)  # fmt: skip
def test_a_case_is_never_changed(conn: Connection, change: str) -> None:
    add_case(conn)
    with pytest.raises(psycopg.errors.RestrictViolation, match="never changes"):
        conn.execute(f"UPDATE eval_case SET {change}")  # noqa: S608


def test_tags_and_the_vector_of_a_case_may_change(conn: Connection) -> None:
    case = add_case(conn)
    add_dataset(conn, [case])
    conn.execute("UPDATE eval_case SET tags = tags || '{superseded}', embedding = NULL, embedded_by = NULL")
    assert conn.execute("SELECT tags FROM eval_case").fetchone() == (["superseded"],)


def test_a_case_in_a_dataset_is_not_deleted(conn: Connection) -> None:
    held, free = add_case(conn), add_case(conn)
    add_dataset(conn, [held], "nightly", 3)
    with pytest.raises(psycopg.errors.RestrictViolation, match="nightly@3"):
        conn.execute("DELETE FROM eval_case")
    assert conn.execute("DELETE FROM eval_case WHERE id = %s", (free,)).rowcount == 1


def test_the_content_hash_goes_by_value(conn: Connection) -> None:
    """field case 17: key order and the way a number is written do not matter."""
    same = [
        '{"b": 2, "a": 1.0, "n": [1e2, -0.0, 0.10]}',
        '{"a": 1, "n": [100, 0, 0.1], "b": 2.00}',
        '{"b":2,"n":[100.0,-0,0.1000],"a":1e0}',
    ]
    other = ['{"a": "1", "b": 2, "n": [100, 0, 0.1]}', '{"a": 1, "b": 2, "n": [0, 100, 0.1]}', "{}", '{"a": null}']
    hashes = {}
    for context in [*same, *other]:
        case = add_case(conn, context=context)
        hashes[context] = conn.execute("SELECT content_hash FROM eval_case WHERE id = %s", (case,)).fetchone()[0]  # type: ignore[index]
    assert len({hashes[context] for context in same}) == 1
    assert len(set(hashes.values())) == 1 + len(other)
    assert all(len(hash) == 64 for hash in hashes.values())


def test_the_content_hash_is_the_triggers(conn: Connection) -> None:
    conn.execute(
        "INSERT INTO eval_case (source, prompt, captured_by, content_hash, reference)"
        " VALUES ('s', 'p', 'me', 'mine', NULL), ('s', 'p', 'me', 'yours', ''), ('s', 'q', 'me', '', NULL)"
    )
    found = conn.execute("SELECT content_hash FROM eval_case").fetchall()
    assert len(set(found)) == 3
    assert not {("mine",), ("yours",)} & set(found)


def test_long_inputs_are_stored_and_told_apart_by_their_hash(conn: Connection) -> None:
    """field case 69: uniqueness and lookup go by a hash, not by the text."""
    import random

    noise = random.Random(1)
    one, two = ("".join(chr(noise.randrange(33, 1000)) for _ in range(10_000)) for _ in range(2))
    for prompt in (one, two, one):
        add_case(conn, prompt)
    assert conn.execute("SELECT count(*), count(DISTINCT content_hash) FROM eval_case").fetchone() == (3, 2)


# Datasets


def test_a_published_dataset_is_frozen(conn: Connection) -> None:
    """field case 106: what a run was made on stays what it was."""
    add_dataset(conn, [add_case(conn)])
    for statement in (
        "UPDATE eval_dataset SET case_ids = '{}'",
        "UPDATE eval_dataset SET notes = 'x'",
        "UPDATE eval_dataset SET name = 'y'",
        "DELETE FROM eval_dataset",
    ):
        with pytest.raises(psycopg.errors.RestrictViolation, match="frozen"):
            conn.execute(statement)


def test_a_dataset_names_existing_cases_each_once(conn: Connection) -> None:
    case = add_case(conn)
    for cases in ([case, case], [case, uuid4()], [uuid4()]):
        with pytest.raises(psycopg.errors.ForeignKeyViolation, match="a case may be named once"):
            add_dataset(conn, cases)
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        conn.execute("INSERT INTO eval_dataset (name, version, case_ids) VALUES ('n', 1, ARRAY[NULL]::uuid[])")
    add_dataset(conn, [case])
    with pytest.raises(psycopg.errors.UniqueViolation):
        add_dataset(conn, [case])
    with pytest.raises(psycopg.errors.CheckViolation):
        add_dataset(conn, [case], "zero", 0)


def test_a_case_cannot_be_deleted_while_a_dataset_is_being_published(everyturn_url: str) -> None:
    with psycopg.connect(everyturn_url, autocommit=True) as other:
        case = add_case(other)
        with psycopg.connect(everyturn_url) as publisher:
            publisher.execute("INSERT INTO eval_dataset (name, version, case_ids) VALUES ('n', 1, %s)", ([case],))
            other.execute("SET lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute("DELETE FROM eval_case")
        with pytest.raises(psycopg.errors.RestrictViolation):
            other.execute("DELETE FROM eval_case")


# Results


def run_row(conn: Connection, dataset: UUID, case: UUID, **columns: object) -> None:
    row = {
        "dataset_id": dataset, "case_id": case, "model": "m", "prompt_rev": "r", "output": "",
        "latency_ms": 1, "input_tokens": 1, "output_tokens": 1,
    } | columns  # fmt: skip
    names = ", ".join(row)
    conn.execute(
        f"INSERT INTO eval_run ({names}) VALUES ({', '.join(['%s'] * len(row))})",  # noqa: S608
        list(row.values()),
    )


@pytest.mark.parametrize("score", ["-0.01", "1.01", "NaN", "-1", "9.99"])
def test_scores_beyond_0_and_1_are_refused(conn: Connection, score: str) -> None:
    """field case 99: numeric(3,2) alone takes -1 and NaN."""
    case = add_case(conn)
    with pytest.raises(psycopg.errors.CheckViolation):
        run_row(conn, add_dataset(conn, [case]), case, judge_score=score)


@pytest.mark.parametrize("score", ["10", "85", "9.995", "Infinity"])
def test_scores_that_do_not_fit_are_refused(conn: Connection, score: str) -> None:
    """field case 99"""
    case = add_case(conn)
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        run_row(conn, add_dataset(conn, [case]), case, judge_score=score)


def test_a_replay_has_one_run_per_case_and_trial(conn: Connection) -> None:
    """field case 105: no case counts twice."""
    case = add_case(conn)
    dataset = add_dataset(conn, [case])
    [replay] = conn.execute(
        "INSERT INTO eval_replay (dataset_id, model, prompt_rev, case_ids) VALUES (%s, 'm', 'r', %s) RETURNING id",
        (dataset, [case]),
    ).fetchone()
    for trial in (1, 2):
        run_row(conn, dataset, case, replay_id=replay, trial=trial, judge_score="1")
    with pytest.raises(psycopg.errors.UniqueViolation):
        run_row(conn, dataset, case, replay_id=replay)
    for _ in range(2):  # those written by hand belong to none
        run_row(conn, dataset, case)
    [status] = conn.execute("SELECT status FROM eval_replay").fetchone()
    assert status == "running"
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute("UPDATE eval_replay SET status = 'done'")


# Text and names


def test_text_of_any_size_is_stored_whole(conn: Connection) -> None:
    """field case 66: too many distinct words for a tsvector cut the index, not the row."""
    text = " ".join(f"w{n}" for n in range(300_000))
    conn.execute("SET statement_timeout = '10s'")
    id = add_turn(conn, payload=psycopg.types.json.Json({"text": text}))
    assert conn.execute("SELECT length(payload ->> 'text') FROM agent_turns WHERE id = %s", (id,)).fetchone() == (
        len(text),
    )
    found = conn.execute(
        "SELECT id FROM agent_turns"
        " WHERE kind = 'user' AND everyturn_tsvector(payload ->> 'text') @@ everyturn_tsquery('w3')"
    ).fetchall()
    assert found == [(id,)]
