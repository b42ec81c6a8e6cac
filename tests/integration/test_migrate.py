"""Migrations: any number of processes, killed half way, without rights, and of another version."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

import everyturn as et
from everyturn import migrate
from everyturn.database import Database
from everyturn.errors import DatabaseUnavailable, MigrationError
from everyturn.testing import drop_database, server

OPEN_AND_APPEND = """
import asyncio, sys, uuid
import everyturn as et

async def main():
    async with et.connect(sys.argv[1], embedder=False) as db:
        await db.turns.append(uuid.UUID(sys.argv[2]), "bot", "user", {"text": "hello"})

sys.stdin.readline()
asyncio.run(main())
"""


@pytest.fixture
def empty_url() -> Iterator[str]:
    """A database without anything in it."""
    running = server(durable=False)
    name = f"empty_{uuid4().hex[:12]}"
    with psycopg.connect(running.admin_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    url = psycopg.conninfo.make_conninfo(running.admin_url, dbname=name)
    yield url
    drop_database(url)


@pytest.fixture
def role(empty_url: str) -> Iterator[str]:
    """The same database through a role that owns nothing in it."""
    name = f"app_{uuid4().hex[:8]}"
    with psycopg.connect(empty_url, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    with psycopg.connect(empty_url, autocommit=True) as conn:
        conn.execute(f"DROP OWNED BY {name}")
        conn.execute(f"DROP ROLE {name}")


def as_role(url: str, role: str) -> str:
    return psycopg.conninfo.make_conninfo(url, user=role)


def recorded(url: str) -> list[str]:
    with psycopg.connect(url) as conn:
        return [row[0] for row in conn.execute("SELECT name FROM everyturn_migrations ORDER BY applied_at, name")]


def names() -> list[str]:
    return [name for name, _ in migrate.migrations()]


def test_eight_processes_open_one_empty_database_at_once(empty_url: str) -> None:
    """field case 32: IF NOT EXISTS alone is not enough. field case 25: the first writes of one conversation meet."""
    conversation = uuid4()
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", OPEN_AND_APPEND, empty_url, str(conversation)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for process in processes:  # all have imported what they need by the time the last one starts
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, said
    assert recorded(empty_url) == names()
    with psycopg.connect(empty_url) as conn:
        assert conn.execute("SELECT count(*) FROM agent_turns").fetchone() == (8,)


async def test_many_connections_migrate_one_empty_database_at_once(empty_url: str) -> None:
    """field case 32: also those that looked before the first one was done."""
    dbs = [Database(empty_url) for _ in range(12)]
    done = await asyncio.gather(*(db.migrate() for db in dbs))
    assert sorted(name for applied in done for name in applied) == names()


async def test_killed_between_and_within_two_steps(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 31: whatever was done is kept, and the next start does the rest."""
    everything = migrate.migrations()
    for end in range(1, len(everything)):
        with monkeypatch.context() as patched:
            broken = [*everything[:end], (everything[end][0], "CREATE TABLE half (a int); SELECT pg_sleep(60)")]
            patched.setattr(migrate, "migrations", lambda broken=broken: broken)
            db = Database(empty_url)
            starting = asyncio.ensure_future(db.migrate())
            with psycopg.connect(empty_url, autocommit=True) as conn:
                killed: list[tuple[bool]] = []
                for _ in range(2000):
                    killed = conn.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND wait_event = 'PgSleep'"
                    ).fetchall()
                    if killed:
                        break
                    await asyncio.sleep(0.005)
            assert killed == [(True,)]
            with pytest.raises(DatabaseUnavailable):
                await starting
        assert recorded(empty_url) == names()[:end]
    async with et.connect(empty_url, embedder=False) as db:
        await db.turns.append(uuid4(), "bot", "user", {"text": "works"})
        assert await db.fetch("SELECT to_regclass('half') AS half") == [{"half": None}]
        [row] = await db.fetch(
            "SELECT setconfig FROM pg_db_role_setting"
            " WHERE setrole = 0"
            "   AND setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        assert any(setting.startswith("hnsw.iterative_scan=") for setting in row["setconfig"])
    assert recorded(empty_url) == names()


async def test_inside_an_open_transaction(empty_url: str) -> None:
    """field case 31: set-up is then a part of that transaction."""
    async with await psycopg.AsyncConnection.connect(empty_url) as conn:
        await conn.execute("CREATE TABLE theirs (a int)")
        assert await migrate.migrate(conn) == names()
        await conn.rollback()
        assert await migrate.applied(conn) == {}
        assert await migrate.migrate(conn) == names()
    assert recorded(empty_url) == names()


async def test_connecting_while_another_transaction_uses_the_tables(everyturn_url: str) -> None:
    """field case 31"""
    with psycopg.connect(everyturn_url) as other:
        other.execute("LOCK TABLE agent_turns IN ACCESS EXCLUSIVE MODE")
        async with asyncio.timeout(5), et.connect(everyturn_url, embedder=False) as db:
            assert await db.migrate() == []


async def test_an_edited_migration_is_noticed(everyturn_url: str) -> None:
    with psycopg.connect(everyturn_url, autocommit=True) as conn:
        conn.execute("UPDATE everyturn_migrations SET checksum = 'x' WHERE name LIKE '0002%'")
    with pytest.raises(MigrationError, match=r"0002_contract\.sql of this version differs"):
        await et.connect(everyturn_url, embedder=False)


async def test_a_database_of_a_newer_version_is_left_alone(everyturn_url: str) -> None:
    with psycopg.connect(everyturn_url, autocommit=True) as conn:
        conn.execute("INSERT INTO everyturn_migrations (name, checksum) VALUES ('9999_later.sql', 'x')")
    with pytest.raises(MigrationError, match=r"newer everyturn \(it has 9999_later\.sql\)\. Upgrade"):
        await et.connect(everyturn_url, embedder=False)


async def test_a_role_without_rights_on_an_up_to_date_database_connects(empty_url: str, role: str) -> None:
    async with et.connect(empty_url, embedder=False):
        pass
    with psycopg.connect(empty_url, autocommit=True) as conn:
        conn.execute(f"GRANT SELECT, INSERT, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
        conn.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}")
    async with et.connect(as_role(empty_url, role), embedder=False) as db:
        conversation = uuid4()
        await db.turns.append(conversation, "bot", "user", {"text": "hello"})
        await asyncio.gather(*(db.turns.append(conversation, "bot", "user", {"text": "hello"}) for _ in range(20)))
        for n in range(2):
            await db.events.append(et.EventRecord("run", "bot", {"type": "x", "n": n}))
        assert len(await db.turns.load(conversation)) == 21


async def test_a_role_without_rights_on_an_empty_database_gets_a_sentence(empty_url: str, role: str) -> None:
    with pytest.raises(MigrationError, match=r"may not apply migration 0001.*a role that owns the database"):
        await et.connect(as_role(empty_url, role), embedder=False)
    assert_nothing_made(empty_url)


async def test_a_role_without_rights_to_read_gets_a_sentence(everyturn_url: str) -> None:
    with psycopg.connect(everyturn_url, autocommit=True) as conn:
        name = f"app_{uuid4().hex[:8]}"
        conn.execute(f"CREATE ROLE {name} LOGIN")
        try:
            with pytest.raises(et.EveryturnError, match="role may not do this: permission denied"):
                await et.connect(as_role(everyturn_url, name), embedder=False)
        finally:
            conn.execute(f"DROP ROLE {name}")


async def test_settings_a_role_may_not_make_are_said_and_not_fatal(
    empty_url: str, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(empty_url, autocommit=True) as conn:
        conn.execute("CREATE EXTENSION vector")
        conn.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
    with caplog.at_level(logging.WARNING, "everyturn"):
        async with et.connect(as_role(empty_url, role), embedder=False) as db:
            await db.turns.append(uuid4(), "bot", "user", {"text": "hello"})
    assert [record.getMessage() for record in caplog.records if "db doctor" in record.getMessage()]


async def test_a_migration_that_fails_says_which_and_leaves_nothing(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "migrations", lambda: [("0001_x.sql", "CREATE TABLE a (b int); SELECT 1 / 0")])
    with pytest.raises(MigrationError, match=r"0001_x\.sql failed and was rolled back: division by zero"):
        await et.connect(empty_url, embedder=False)
    assert_nothing_made(empty_url)


def assert_nothing_made(url: str) -> None:
    with psycopg.connect(url) as conn:
        assert conn.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace").fetchall() == []
