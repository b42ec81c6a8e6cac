"""Other servers: without pgvector, and with a disk that fills up."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

import everyturn as et
from everyturn.errors import DatabaseUnavailable, MigrationError


def _plain_server() -> Path | None:
    for binaries in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if not list(Path("/usr/share/postgresql", binaries.parent.name, "extension").glob("vector.control")):
            return binaries
    return None


@pytest.fixture
def plain_url(tmp_path: Path) -> Iterator[str]:
    """A server of the system's packages, without pgvector."""
    binaries = _plain_server()
    if binaries is None:
        pytest.skip("no Postgres without pgvector is installed under /usr/lib/postgresql")
    user: dict[str, int] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        shutil.chown(tmp_path, nobody.pw_uid, nobody.pw_gid)
        for parent in tmp_path.parents[:-2]:
            parent.chmod(parent.stat().st_mode | 0o011)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid}
    data = tmp_path / "data"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path} | user
    subprocess.run([binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N"], check=True, **quiet)
    control = [binaries / "pg_ctl", "-D", data, "-w", "-l", tmp_path / "log"]
    options = f"-k {tmp_path} -c listen_addresses='' -c fsync=off"
    subprocess.run([*control, "-o", options, "start"], check=True, **quiet)
    yield f"host={tmp_path} user=postgres dbname=postgres"
    subprocess.run([*control, "-m", "immediate", "stop"], check=True, **quiet)


async def test_a_server_without_pgvector_is_a_sentence(plain_url: str) -> None:
    with pytest.raises(MigrationError, match=r"no pgvector extension\. Install the package.*everyturn db doctor"):
        await et.connect(plain_url, embedder=False)
    with psycopg.connect(plain_url) as conn:
        assert conn.execute("SELECT to_regclass('everyturn_migrations')").fetchone() == (None,)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk of 170 MB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("only root may mount a small disk")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=170m", "tmpfs", mounted], capture_output=True)
    if made.returncode:
        pytest.skip("no small disk can be mounted here")
    yield mounted
    subprocess.run(["umount", "-l", mounted], check=True)


async def test_a_full_disk(small_disk: Path) -> None:
    """field case 132: a clear error, no half turn, and it works again once there is space."""
    conversation = uuid4()
    kept: list[int] = []
    async with et.connect(small_disk / "data", embedder=False) as db:
        ballast = small_disk / "ballast"
        with ballast.open("wb") as file:
            file.write(bytes(60 * 1024 * 1024))

        async def fill(index: int) -> None:
            for n in range(400):
                payload = {"n": n, "noise": [os.urandom(3000).hex() for _ in range(20)]}
                turns = [et.NewTurn(conversation, "bot", "tool_result", payload) for _ in range(2)]
                kept.extend(turn.seq for turn in await db.turns.append_many(turns))

        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*(fill(index) for index in range(4)), return_exceptions=True)
        assert all(isinstance(outcome, DatabaseUnavailable) for outcome in outcomes), outcomes
        assert any("disk is full" in str(outcome) for outcome in outcomes), outcomes
        ballast.unlink()
        async with asyncio.timeout(60):
            last = await db.turns.append(conversation, "bot", "user", {"text": "again"})
        seqs = [row["seq"] for row in await db.fetch("SELECT seq FROM agent_turns ORDER BY seq")]
        assert seqs == sorted([*kept, last.seq])


async def test_a_statement_that_takes_too_long_is_a_sentence(everyturn_url: str) -> None:
    with psycopg.connect(everyturn_url, autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET statement_timeout = '200ms'")
    async with et.connect(everyturn_url, embedder=False) as db:
        await db.turns.append(uuid4(), "bot", "user", {})
        with psycopg.connect(everyturn_url) as other:
            other.execute("LOCK TABLE agent_turns")
            with pytest.raises(DatabaseUnavailable, match="statement timeout"):
                await db.turns.append(uuid4(), "bot", "user", {})
        await db.turns.append(uuid4(), "bot", "user", {})
        assert await db.fetch("SELECT count(*) AS n FROM agent_turns") == [{"n": 2}]


async def test_a_read_only_database_is_a_sentence(everyturn_url: str) -> None:
    with psycopg.connect(everyturn_url, autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET default_transaction_read_only = on")
    async with et.connect(everyturn_url, embedder=False) as db:
        with pytest.raises(DatabaseUnavailable, match=r"takes no writes.*Connect to the primary"):
            await db.turns.append(uuid4(), "bot", "user", {})
        with pytest.raises(DatabaseUnavailable, match="takes no writes"):
            await db.events.append(et.EventRecord("run", "bot", {}))
        assert await db.turns.load(uuid4()) == []


@pytest.mark.parametrize("lacking", ["agent_events", "agent_evals CASCADE"])
async def test_a_table_that_is_gone_is_a_sentence(everyturn_url: str, lacking: str) -> None:
    async with et.connect(everyturn_url, embedder=False) as db:
        turn = await db.turns.append(uuid4(), "bot", "user", {})
        await db.execute(f"DROP TABLE {lacking}")
        with pytest.raises(MigrationError, match="lacks a part of the contract"):  # noqa: PT012
            await db.events.append(et.EventRecord("run", "bot", {}))
            await db.evals.record(turn.id, "human", "good")
