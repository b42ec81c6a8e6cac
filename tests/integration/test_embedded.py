"""The embedded server as a user meets it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from everyturn import embedded
from everyturn.errors import DatabaseUnavailable


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.Server]:
    with embedded.start(tmp_path_factory.mktemp("embedded") / "data") as server:
        yield server


def setting(server: embedded.Server, name: str) -> str:
    with psycopg.connect(server.url) as connection:
        row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def test_it_is_postgres_18_with_pgvector(server: embedded.Server) -> None:
    with psycopg.connect(server.url) as connection:
        assert connection.info.server_version // 10000 == 18
        assert connection.info.dbname == "everyturn"
        row = connection.execute("SELECT default_version FROM pg_available_extensions WHERE name = 'vector'").fetchone()
    assert row is not None
    assert tuple(map(int, row[0].split("."))) >= (0, 8)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "on"),
        ("listen_addresses", ""),
        ("server_encoding", "UTF8"),
        ("timezone", "UTC"),
        ("log_min_error_statement", "panic"),
    ],
)
def test_settings(server: embedded.Server, name: str, value: str) -> None:
    assert setting(server, name) == value


def test_psql_takes_the_url(server: embedded.Server) -> None:
    command = [embedded.binary("psql"), server.url, "-Atc", "SELECT current_database()"]
    assert subprocess.check_output(command, text=True) == "everyturn\n"


def test_admin_url_names_another_database(server: embedded.Server) -> None:
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE made_beside")
        connection.execute("DROP DATABASE made_beside")


def test_only_the_owner_reaches_the_socket(server: embedded.Server) -> None:
    socket = Path(setting(server, "unix_socket_directories"))
    assert socket.stat().st_mode & 0o777 == 0o700
    assert server.directory.stat().st_mode & 0o777 == 0o700


def test_errors_do_not_carry_data_into_the_log(server: embedded.Server) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TEMP TABLE secret (word text UNIQUE)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("INSERT INTO secret VALUES ('hunter2'), ('hunter2')")
        connection.rollback()
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            connection.execute("SELECT 'hunter2'::int")
    assert "hunter2" not in server.log.read_text()


def test_one_process_may_use_a_directory_twice_and_others_beside_it(tmp_path: Path) -> None:
    first = embedded.start(tmp_path / "one")
    second = embedded.start(f"{tmp_path}/one/../one")
    other = embedded.start(tmp_path / "two")
    assert first.url == second.url != other.url
    first.close()
    first.close()
    with psycopg.connect(second.url):
        pass
    second.close()
    assert not (tmp_path / "one" / "postmaster.pid").exists()
    with psycopg.connect(other.url):
        pass
    other.close()
    with pytest.raises(DatabaseUnavailable, match="closed"):
        other.ensure_running()


def test_the_url_stays_over_a_restart(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "data") as server:
        url = server.url
    with embedded.start(tmp_path / "data") as server:
        assert server.url == url


def test_the_data_directory_holds_and_moves(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "data") as server, psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    (tmp_path / "data").rename(tmp_path / "moved")
    with embedded.start(tmp_path / "moved") as server, psycopg.connect(server.url) as connection:
        connection.execute("SELECT n FROM kept")


def test_the_server_inherits_neither_files_nor_the_session(tmp_path: Path) -> None:
    with open(tmp_path / "open", "w") as file:
        os.set_inheritable(file.fileno(), True)
        with embedded.start(tmp_path / "data"):
            pid = int((tmp_path / "data" / "postmaster.pid").read_text().split("\n")[0])
            if not Path("/proc/self/fd").exists():
                pytest.skip("open files of other processes are read from /proc")
            files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            assert os.fspath(tmp_path / "open") not in files
            assert os.getsid(pid) != os.getsid(0)


def test_starting_does_not_import_more_than_it_needs() -> None:
    code = "import sys, everyturn.embedded; print('psycopg' in sys.modules, 'platformdirs' in sys.modules)"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True)
    assert re.search(r"pixeltable", done.stderr) is None


def test_the_default_directory_is_under_the_users_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = embedded.default_directory()
    assert path.is_absolute()
    assert "everyturn" in path.parts


def test_an_unknown_program_is_named() -> None:
    with pytest.raises(DatabaseUnavailable, match="no_such_program"):
        embedded.binary("no_such_program")
