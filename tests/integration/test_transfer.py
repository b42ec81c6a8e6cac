"""Moving a database between servers and back."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from everyturn import embedded, embedded_place
from everyturn.embedded_process import run
from everyturn.errors import DatabaseUnavailable, TransferError
from everyturn.migrate import DATABASE_SETTINGS, migrate
from everyturn.transfer import dump, restore

CONVERSATION = UUID("018f0000-0000-7000-8000-000000000001")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.Server]:
    with embedded.start(tmp_path_factory.mktemp("transfer") / "data") as server:
        yield server


def new_database(server: embedded.Server) -> str:
    name = f"d{uuid4().hex[:10]}"
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.url.replace("/everyturn?", f"/{name}?")


async def migrated(server: embedded.Server) -> str:
    url = new_database(server)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await migrate(connection)
    return url


@pytest.fixture(scope="module")
def filled(server: embedded.Server) -> str:
    """The URL of a database with rows of each sort."""
    url = asyncio.run(migrated(server))
    vector = "[" + ",".join(["0.5"] * 1024) + "]"
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(3):
            connection.execute(
                "INSERT INTO agent_turns (conversation, agent, kind, payload, embedding, embedded_by) "
                "VALUES (%s, 'a', 'user', %s, %s, 'test')",
                [CONVERSATION, Jsonb({"text": f"日本語 50% \\ \t '{number}'", "runId": "r"}), vector],
            )
        connection.execute(
            "INSERT INTO agent_evals (turn_id, evaluator, verdict) "
            "SELECT id, 'e', 'good' FROM agent_turns WHERE seq = 1"
        )
        connection.execute("INSERT INTO eval_case (source, prompt, captured_by) VALUES ('manual', 'p', 'me')")
        connection.execute(
            "INSERT INTO eval_dataset (name, version, case_ids, published_at) "
            "SELECT 'd', 1, array_agg(id), now() FROM eval_case"
        )
        connection.execute("INSERT INTO agent_semantic (agent, text) VALUES ('a', 'a fact to be found')")
    return url


def rows(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Everything in the tables of the contract."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^(agent|eval|everyturn)_' ORDER BY 1"
        ).fetchall()
        return {name: sorted(connection.execute(f"TABLE {name}").fetchall(), key=repr) for (name,) in tables}


async def test_everything_arrives_and_goes_on(server: embedded.Server, filled: str, tmp_path: Path) -> None:
    await dump(filled, tmp_path / "turns.dump")
    target = new_database(server)
    await restore(target, tmp_path / "turns.dump")
    assert rows(target) == rows(filled)
    assert (tmp_path / "turns.dump").stat().st_mode & 0o777 == 0o600
    with psycopg.connect(target, autocommit=True) as connection:
        # The order goes on where it was, the log is guarded as before, and searches are set up as before.
        insert = "INSERT INTO agent_turns (conversation, agent, kind, payload) VALUES (%s, 'a', 'user', '{}')"
        row = connection.execute(f"{insert} RETURNING seq", [CONVERSATION]).fetchone()
        assert row == (4,)
        with pytest.raises(psycopg.Error):
            connection.execute("UPDATE agent_turns SET kind = 'model'")
        connection.execute("SELECT '[1]'::vector")
        for name, value in DATABASE_SETTINGS.items():
            assert connection.execute("SELECT current_setting(%s)", [name]).fetchone() == (value,)
        found = connection.execute("SELECT count(*) FROM agent_semantic WHERE tsv @@ everyturn_tsquery('fact')")
        assert found.fetchone() == (1,)


async def test_into_a_migrated_empty_database(server: embedded.Server, filled: str, tmp_path: Path) -> None:
    await dump(filled, tmp_path / "turns.dump")
    target = await migrated(server)
    await restore(target, tmp_path / "turns.dump")
    assert rows(target) == rows(filled)


async def test_rows_are_replaced_only_when_told(server: embedded.Server, filled: str, tmp_path: Path) -> None:
    target = await migrated(server)
    await dump(target, tmp_path / "empty.dump")
    await dump(filled, tmp_path / "turns.dump")
    await restore(target, tmp_path / "turns.dump")
    with pytest.raises(TransferError, match=r"not empty.*agent_turns"):
        await restore(target, tmp_path / "empty.dump")
    assert rows(target) == rows(filled)
    await restore(target, tmp_path / "empty.dump", replace=True)
    assert rows(target)["agent_turns"] == []


async def test_a_failed_restore_changes_nothing(server: embedded.Server, filled: str, tmp_path: Path) -> None:
    target = await migrated(server)
    await dump(filled, tmp_path / "turns.dump")
    await restore(target, tmp_path / "turns.dump")
    whole = (tmp_path / "turns.dump").read_bytes()
    middle = len(whole) - 1500
    for damaged in (whole[:100], whole[:middle], whole[:middle] + b"?" * 400 + whole[middle + 400 :]):
        (tmp_path / "damaged.dump").write_bytes(damaged)
        with pytest.raises(TransferError, match="nothing was changed"):
            await restore(target, tmp_path / "damaged.dump", replace=True)
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute("CREATE VIEW mine AS SELECT id FROM agent_turns")
    with pytest.raises(TransferError, match="Something of yours depends"):
        await restore(target, tmp_path / "turns.dump", replace=True)
    assert rows(target) == rows(filled)


@pytest.fixture
def older_server(tmp_path: Path) -> Iterator[str]:
    """A Postgres 16 with pgvector, from the same wheel."""
    programs = embedded.binary("postgres").parents[2] / "pginstall" / "bin"
    if not (programs / "initdb").exists():
        pytest.skip("needs the older Postgres that the wheel of the embedded server holds beside the current one")
    place = embedded_place.locate(tmp_path / "older")
    data = place.state / "data"
    made = run(place, [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-E", "UTF8", "-N"])
    assert made.returncode == 0, made.stdout
    pg_ctl = [str(programs / "pg_ctl"), "-D", str(data), "-w"]
    options = ["-o", f"-k {place.state} -c listen_addresses=", "-l", str(place.log)]
    assert run(place, [*pg_ctl, *options, "start"]).returncode == 0
    yield embedded_place.url(str(place.state), "postgres")
    run(place, [*pg_ctl, "-m", "immediate", "stop"])


async def test_to_an_older_server_and_back(
    server: embedded.Server, filled: str, older_server: str, tmp_path: Path
) -> None:
    """field case 131: this is the way out for a data directory of another major version."""
    await dump(filled, tmp_path / "new.dump")
    await restore(older_server, tmp_path / "new.dump")
    assert rows(older_server) == rows(filled)
    await dump(older_server, tmp_path / "old.dump")
    target = new_database(server)
    await restore(target, tmp_path / "old.dump")
    assert rows(target) == rows(filled)


async def test_another_schema(server: embedded.Server, tmp_path: Path) -> None:
    url = new_database(server)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        connection.execute('CREATE SCHEMA "of Agents"')
        connection.execute("CREATE TABLE public.not_ours (n int)")
    url += "&options=-csearch_path%3D%22of%5C%20Agents%22%2Cpublic"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await migrate(connection)
    await dump(url, tmp_path / "turns.dump")
    target = new_database(server)
    await restore(target, tmp_path / "turns.dump")
    with psycopg.connect(target) as connection:
        assert connection.execute("SELECT to_regclass('public.not_ours')").fetchone() == (None,)
        connection.execute('SELECT seq FROM "of Agents".agent_turns')


@pytest.mark.parametrize("content", [b"", b"PGDMP but not really", b"SELECT 1;"])
async def test_a_file_that_is_no_dump(server: embedded.Server, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(TransferError):
        await restore(server.url, tmp_path / "file")


async def test_a_dump_of_something_else(server: embedded.Server, tmp_path: Path) -> None:
    command = [embedded.binary("pg_dump"), "-Fc", "-f", tmp_path / "other.dump", server.admin_url]
    subprocess.run(command, check=True)  # noqa: ASYNC221
    with pytest.raises(TransferError, match="no table agent_turns"):
        await restore(server.url, tmp_path / "other.dump")
    with pytest.raises(TransferError, match="nothing to dump"):
        await dump(server.admin_url, tmp_path / "nothing.dump")
    assert not (tmp_path / "nothing.dump").exists()


async def test_files_are_not_overwritten_and_bad_paths_are_named(filled: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    with pytest.raises(TransferError, match="exists already"):
        await dump(filled, tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"
    await dump(filled, tmp_path / "there", overwrite=True)
    for path in (tmp_path, tmp_path / "no" / "directory"):
        with pytest.raises(TransferError, match=str(path)):
            await dump(filled, path)
    with pytest.raises(TransferError, match="cannot be read"):
        await restore(filled, tmp_path / "missing")


async def test_passwords_stay_out_of_commands_and_messages(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = asyncio.create_subprocess_exec

    async def spy(*command: str, **options: object) -> asyncio.subprocess.Process:
        seen.extend(command)
        return await real(*command, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spy)
    await dump(filled.replace("postgres@", "postgres:hunter2@"), tmp_path / "turns.dump")
    assert seen
    assert "hunter2" not in " ".join(seen)
    with pytest.raises(DatabaseUnavailable) as caught:
        await dump("postgresql://postgres:hunter2@127.0.0.1:1/x", tmp_path / "other.dump")
    assert "hunter2" not in str(caught.value)
