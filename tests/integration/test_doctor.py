"""What the doctor says of servers that hold the contract and of servers that lack a part of it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from everyturn import embedded, embedded_place
from everyturn.doctor import Finding, diagnose, probes
from everyturn.embedded_process import run
from everyturn.migrate import migrate


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.Server]:
    with embedded.start(tmp_path_factory.mktemp("doctor") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def migrated(server: embedded.Server) -> str:
    """The URL of a database that has the contract."""
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE migrated")
    return server.url.replace("/everyturn?", "/migrated?")


def named(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


def objects(url: str) -> list[tuple[object, ...]]:
    """Everything in the database that a careless doctor could leave behind."""
    with psycopg.connect(url) as connection:
        return connection.execute(
            """
            SELECT 'class', relname FROM pg_class WHERE relnamespace::regnamespace::text !~ '^pg_toast'
            UNION ALL SELECT 'function', proname FROM pg_proc
            UNION ALL SELECT 'extension', extname FROM pg_extension
            UNION ALL SELECT 'setting', array_to_string(setconfig, ',') FROM pg_db_role_setting
            ORDER BY 1, 2
            """
        ).fetchall()


async def test_an_empty_embedded_database(server: embedded.Server) -> None:
    before = objects(server.url)
    findings = await diagnose(server.url)
    not_ok = {finding.name for finding in findings if finding.status != "ok"}
    assert not_ok == {"search settings", "schema"}
    assert objects(server.url) == before
    assert all(finding.way_out for finding in findings if finding.status != "ok")


async def test_a_migrated_database_is_well(migrated: str) -> None:
    async with await psycopg.AsyncConnection.connect(migrated, autocommit=True) as connection:
        await migrate(connection)
    before = objects(migrated)
    findings = await diagnose(migrated)
    assert [finding for finding in findings if finding.status != "ok"] == []
    assert objects(migrated) == before


async def test_a_role_that_may_do_nothing(server: embedded.Server) -> None:
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE guest LOGIN")
    findings = await diagnose(server.url.replace("postgres@", "guest@"))
    assert named(findings, "privileges").way_out == "As its owner: GRANT CREATE ON SCHEMA public TO guest;"
    assert named(findings, "pgvector").status == "miss"
    assert "CREATE EXTENSION vector" in (named(findings, "pgvector").way_out or "")


async def test_a_role_that_may_not_set_the_search_settings(server: embedded.Server) -> None:
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute('CREATE DATABASE "odd ""name"')
    url = server.url.replace("/everyturn?", "/odd%20%22name?")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
    found = named(await diagnose(url.replace("postgres@", "reader@")), "search settings")
    assert found.status == "warn"
    commands = (found.way_out or "").split(": ", 1)[1]
    assert """ALTER DATABASE "odd ""name" SET hnsw.iterative_scan""" in commands
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT '[1]'::vector")
        for command in commands.rstrip(";").split("; "):
            connection.execute(command)
    assert named(await diagnose(url.replace("postgres@", "reader@")), "search settings").status == "ok"


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_of_another_encoding(server: embedded.Server, encoding: str) -> None:
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE in_{encoding} ENCODING '{encoding}' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0"
        )
    findings = await diagnose(server.url.replace("/everyturn?", f"/in_{encoding.lower()}?"))
    assert named(findings, "encoding").status == "miss"


async def test_no_server_at_all() -> None:
    (finding,) = await diagnose("postgresql://user:hunter2@127.0.0.1:1/none")
    assert (finding.name, finding.status) == ("connection", "miss")
    assert "hunter2" not in finding.detail
    assert finding.way_out


async def test_a_read_only_database(server: embedded.Server) -> None:
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE sealed")
        connection.execute("ALTER DATABASE sealed SET default_transaction_read_only = on")
    assert named(await diagnose(server.url.replace("/everyturn?", "/sealed?")), "writes").status == "miss"


async def test_a_table_of_the_same_name_by_somebody_else(server: embedded.Server) -> None:
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE taken")
    url = server.url.replace("/everyturn?", "/taken?")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE agent_turns (n int)")
    assert "did not make" in named(await diagnose(url), "schema").detail


def test_every_probe_says_what_is_lost_and_the_way_out() -> None:
    assert len(probes()) >= 9
    for title, lost, way_out, statements in probes():
        assert title
        assert lost
        assert way_out
        assert "COMMIT;" not in statements


def plain_programs() -> Path | None:
    """The programs of a Postgres of this system that has no pgvector."""
    for programs in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        shared = Path("/usr/share/postgresql", programs.parent.name, "extension")
        if (programs / "initdb").exists() and not (shared / "vector.control").exists():
            return programs
    return None


@pytest.fixture
def plain_server(tmp_path: Path) -> Iterator[str]:
    programs = plain_programs()
    if programs is None:
        pytest.skip("needs a Postgres without pgvector: apt-get install postgresql")
    place = embedded_place.locate(tmp_path / "plain")
    data = place.state / "data"
    made = run(place, [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-E", "UTF8", "-N"])
    assert made.returncode == 0, made.stdout
    pg_ctl = [str(programs / "pg_ctl"), "-D", str(data), "-w"]
    options = ["-o", f"-k {place.state} -c listen_addresses=", "-l", str(place.log)]
    assert run(place, [*pg_ctl, *options, "start"]).returncode == 0
    yield embedded_place.url(str(place.state), "postgres")
    run(place, [*pg_ctl, "-m", "immediate", "stop"])


async def test_a_server_without_pgvector(plain_server: str) -> None:
    findings = await diagnose(plain_server)
    missing = {finding.name for finding in findings if finding.status == "miss"}
    assert missing == {"pgvector", "pgvector type", "HNSW index", "iterative scan"}
    for name in missing:
        assert "pgvector" in (named(findings, name).way_out or "")
    assert named(findings, "triggers and plpgsql").status == "ok"


@pytest.fixture
def pooled(server: embedded.Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The server behind PgBouncer, in the pool mode that the test names."""
    bouncer = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if bouncer is None:
        pytest.skip("needs PgBouncer: apt-get install pgbouncer")
    with psycopg.connect(server.url) as connection:
        row = connection.execute("SHOW unix_socket_directories").fetchone()
    assert row is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "pgbouncer.ini"
    config.write_text(
        f"[databases]\neveryturn = host={row[0]} port=5432 user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = any\npool_mode = {request.param}\nunix_socket_dir =\n"
    )
    command = [bouncer, str(config)]
    as_other = {}
    if os.geteuid() == 0:
        tmp_path.chmod(0o711)
        nobody = pwd.getpwnam("nobody").pw_uid
        place = embedded_place.Place(server.directory, server.directory.stat().st_uid, nobody)
        config.chmod(0o644)
        as_other = {"user": place.uid, "extra_groups": []}
        # It may not pass through the closed directory of the test, so it reads the configuration from a pipe.
        command = [bouncer, "/dev/stdin"]
    with open(config) as text:
        process = subprocess.Popen(command, stdin=text, stderr=subprocess.DEVNULL, **as_other)  # type: ignore[call-overload]
    for _ in range(200):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        time.sleep(0.01)
    yield f"postgresql://postgres@127.0.0.1:{port}/everyturn"
    process.kill()
    process.wait()


@pytest.mark.parametrize("pooled", ["transaction"], indirect=True)
async def test_a_pooler_in_transaction_mode(pooled: str) -> None:
    findings = await diagnose(pooled)
    assert named(findings, "pooling").status == "warn"
    assert "EVERYTURN_SESSION_DATABASE" in (named(findings, "pooling").way_out or "")
    assert named(findings, "HNSW index").status == "ok"


@pytest.mark.parametrize("pooled", ["session"], indirect=True)
async def test_a_pooler_in_session_mode(pooled: str) -> None:
    found = named(await diagnose(pooled), "pooling")
    assert (found.status, found.way_out) == ("ok", None)
    assert "session mode" in found.detail
