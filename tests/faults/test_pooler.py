"""Behind a pooler that gives each transaction any server connection, and without the statements it prepared."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

import everyturn as et
from everyturn.database import Database
from everyturn.locks import ConversationLock
from everyturn.testing import ScriptedModel

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


@pytest.fixture
def pooled_url(everyturn_url: str, tmp_path: Path) -> Iterator[str]:
    """The same database through PgBouncer in transaction mode, with two server connections for all."""
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed")
    target = psycopg.conninfo.conninfo_to_dict(everyturn_url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = " ".join(f"{key}={target[key]}" for key in ("host", "port", "dbname"))
    (tmp_path / "users.txt").write_text(f'"{target["user"]}" ""\n')
    (tmp_path / "pgbouncer.ini").write_text(
        f"[databases]\npooled = {server} user={target['user']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
        f"auth_file = {tmp_path}/users.txt\nlogfile = {tmp_path}/log\npidfile = {tmp_path}/pid\n"
        "pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\n"
    )
    user = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        shutil.chown(tmp_path, nobody.pw_uid, nobody.pw_gid)
        for parent in tmp_path.parents[:-2]:
            parent.chmod(parent.stat().st_mode | 0o011)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid}
    process = subprocess.Popen([PGBOUNCER, "-q", f"{tmp_path}/pgbouncer.ini"], stderr=subprocess.DEVNULL, **user)
    try:
        url = f"postgresql://{target['user']}@127.0.0.1:{port}/pooled"
        for _ in range(200):
            try:
                psycopg.connect(url).close()
                break
            except psycopg.OperationalError:
                assert process.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.02)
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def db(pooled_url: str) -> AsyncIterator[Database]:
    async with et.connect(pooled_url, embedder=False) as opened:
        yield opened


async def test_the_same_call_many_times_through_a_transaction_pooler(db: Database) -> None:
    """field case 45: prepared statements are not used there, and nothing else is lost."""
    conversation = uuid4()

    async def uses(index: int) -> None:
        for n in range(7):
            await db.turns.append(conversation, "bot", "user", {"n": n})
            await db.events.append(et.EventRecord(str(index), "bot", {"n": n}))
            await db.turns.load(conversation, last=1)
            await db.query("turns_by_kind")
            assert await db.fetch("SELECT %s::int AS n", (n,)) == [{"n": n}]
            async with db.transaction():
                await db.turns.append(conversation, "bot", "user", {"n": n})
                await db.memory.remember("semantic", text=f"fact {index} {n}")

    await asyncio.gather(*(uses(index) for index in range(6)))
    assert len(await db.turns.load(conversation)) == 84
    assert [record.event["n"] for record in await db.events.load("3")] == list(range(7))
    assert not db.writer.session.prepares


async def test_agents_run_and_no_lock_is_left_behind(db: Database, everyturn_url: str) -> None:
    agent = et.Agent(db, "bot", model=lambda request: et.ModelTurn("hi"))
    results = await asyncio.gather(*(agent.run("hello") for _ in range(10)))
    for result in results[:3]:
        await agent.run("again", result.conversation)
    with psycopg.connect(everyturn_url) as conn:
        assert conn.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


async def test_server_connections_that_end_under_the_pooler(db: Database, everyturn_url: str) -> None:
    """field case 46: exactly once there too."""
    await db.turns.append(uuid4(), "bot", "user", {})
    conversation, sent = uuid4(), 0
    ends = time.monotonic() + 1

    async def appends(index: int) -> int:
        n = 0
        while time.monotonic() < ends:
            await db.writer.append(
                [db.turns.row(et.NewTurn(conversation, "bot", "user", {"n": n}))],
                [db.events.row(et.EventRecord(str(index), "bot", {"n": n}))],
            )
            n += 1
        return n

    async def kills() -> None:
        with psycopg.connect(everyturn_url, autocommit=True) as conn:
            while time.monotonic() < ends:
                await asyncio.sleep(0.06)
                conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )

    counts = await asyncio.gather(*(appends(index) for index in range(5)), kills())
    sent = sum(n for n in counts if n is not None)
    assert len(await db.turns.load(conversation)) == sent
    for index in range(5):
        assert [record.event["n"] for record in await db.events.load(str(index))] == list(range(counts[index] or 0))


async def test_a_direct_url_for_the_locks(pooled_url: str, everyturn_url: str) -> None:
    async with et.connect(pooled_url, embedder=False, session_url=everyturn_url) as db:
        conversation = (await et.Agent(db, "bot", model=ScriptedModel(["hi"])).run("hello")).conversation
        lock = ConversationLock(db, conversation)
        await lock.acquire()
        async with et.connect(everyturn_url, embedder=False) as other:
            with pytest.raises(et.ConversationConflict):
                await et.Agent(other, "bot", model=ScriptedModel(["hi"])).run("hello", conversation)


async def test_deallocate_all_on_every_connection(everyturn_url: str) -> None:
    """field case 45: what was prepared is gone, call after call."""
    async with et.connect(everyturn_url, embedder=False) as db:
        conversation = uuid4()
        for n in range(7):
            await db.turns.append(conversation, "bot", "user", {"n": n})
            await db.turns.append_many([et.NewTurn(conversation, "bot", "user", {"n": n})] * 2)
            await db.events.append(et.EventRecord("run", "bot", {"n": n}))
            assert len(await db.turns.load(conversation)) == 3 * n + 3
            await db.query("turns_by_kind")
            async with db.connection() as conn:
                conn.pgconn.exec_(b"DEALLOCATE ALL")
            session = await db.writer.session.connection()
            session.pgconn.exec_(b"DEALLOCATE ALL")
        assert [record.event["n"] for record in await db.events.load("run")] == list(range(7))


async def test_a_change_of_the_table_under_prepared_statements(everyturn_url: str) -> None:
    async with et.connect(everyturn_url, embedder=False) as db:
        conversation = uuid4()
        for n in range(4):
            await db.turns.append(conversation, "bot", "user", {"n": n})
            await db.turns.load(conversation)
            await db.execute(f"ALTER TABLE agent_turns ALTER COLUMN embedding TYPE vector({8 + n}) USING NULL")
            await db.execute(f"ALTER TABLE agent_tools ADD COLUMN extra_{n} int")
        assert len(await db.turns.load(conversation)) == 4
