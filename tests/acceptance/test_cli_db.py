"""`everyturn db` on an embedded directory of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from everyturn import embedded
from everyturn.cli import main
from everyturn.testing import server

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("embedded") / "with space"
    with embedded.start(place):  # one server for all tests of this module
        yield str(place)


@pytest.fixture
def empty_url() -> Iterator[str]:
    admin = server().admin_url
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute("CREATE DATABASE cli_empty")
        yield psycopg.conninfo.make_conninfo(admin, dbname="cli_empty")
        conn.execute("DROP DATABASE cli_empty WITH (FORCE)")


def test_init_is_repeatable_and_status_and_url_tell(directory: str, capsys: Capture) -> None:
    assert main(["-d", directory, "db", "init", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["applied"]
    assert captured.err == f"Database: embedded in {directory}\n"
    assert main(["-d", directory, "db", "init"]) == 0
    assert capsys.readouterr().out == "Already set up.\n"
    assert main(["-d", directory, "db", "migrate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"applied": []}

    assert main(["-q", "-d", directory, "db", "status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["embedded"] is True
    assert status["pending"] == []
    assert status["postgres"].startswith("18")
    assert {"agent_turns", "agent_evals", "eval_case"} <= {table["name"] for table in status["tables"]}
    assert main(["-q", "-d", directory, "db", "status"]) == 0
    assert "rows of agent_turns\t0 (" in capsys.readouterr().out

    assert main(["-q", "-d", directory, "db", "url"]) == 0
    with psycopg.connect(capsys.readouterr().out.strip()) as conn:
        assert conn.execute("SELECT count(*) FROM agent_turns").fetchone() == (0,)


def test_a_new_directory_is_set_up_by_whatever_comes_first(tmp_path: Path, capsys: Capture) -> None:
    assert main(["-q", "-d", str(tmp_path / "new"), "turn", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_server_is_not_migrated_by_reading_from_it(empty_url: str, capsys: Capture) -> None:
    assert main(["-q", "-d", empty_url, "turn", "list"]) == 4
    assert "everyturn db migrate" in capsys.readouterr().err
    assert main(["-q", "-d", empty_url, "db", "status"]) == 1
    assert main(["-q", "-d", empty_url, "db", "migrate", "--check"]) == 1
    capsys.readouterr()
    with psycopg.connect(empty_url) as conn:
        assert conn.execute("SELECT to_regclass('agent_turns')").fetchone() == (None,)
    assert main(["-q", "-d", empty_url, "db", "migrate"]) == 0
    assert "applied\t0001_text_search.sql\n" in capsys.readouterr().out
    assert main(["-q", "-d", empty_url, "db", "migrate", "--check"]) == 0
    assert main(["-q", "-d", empty_url, "turn", "list"]) == 0


def test_doctor_finds_nothing_missing_here_and_says_when_there_is(directory: str, capsys: Capture) -> None:
    assert main(["-d", directory, "db", "init"]) == 0
    capsys.readouterr()
    assert main(["-q", "-d", directory, "db", "doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"server", "HNSW index", "full text search"} <= {finding["name"] for finding in findings}
    assert {finding["status"] for finding in findings} <= {"ok", "warn"}
    assert main(["-q", "db", "doctor", "postgresql://nobody@127.0.0.1:1/x"]) == 1
    header, row = capsys.readouterr().out.rstrip("\n").split("\n")
    assert header.split("\t") == ["status", "name", "detail", "way_out"]
    assert row.startswith("miss\tconnection\t")


def test_a_dump_moves_everything_to_another_database(
    directory: str, empty_url: str, tmp_path: Path, capsys: Capture
) -> None:
    file = str(tmp_path / "all of it.dump")
    assert main(["-q", "-d", directory, "db", "init"]) == 0
    assert main(["-q", "-d", directory, "db", "url"]) == 0
    with psycopg.connect(capsys.readouterr().out.splitlines()[-1]) as conn:
        conn.execute(
            "INSERT INTO agent_turns (conversation, agent, kind, payload)"
            " VALUES (gen_random_uuid(), 'mover', 'user', '{\"text\": \"moved\"}')"
        )
    assert main(["-d", directory, "db", "dump", file]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"Wrote {file} (" in captured.err
    assert main(["-q", "-d", directory, "db", "dump", file]) == 4
    assert main(["-q", "-d", directory, "db", "dump", file, "--overwrite"]) == 0
    assert main(["-q", "-d", empty_url, "db", "restore", file]) == 0
    capsys.readouterr()
    assert main(["-q", "-d", empty_url, "turn", "list", "--agent", "mover", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["payload"] == {"text": "moved"}
    assert main(["-q", "-d", empty_url, "db", "restore", file]) == 4
    assert "not empty" in capsys.readouterr().err
    assert main(["-q", "-d", empty_url, "db", "restore", file, "--replace"]) == 0
    assert main(["-q", "-d", empty_url, "db", "restore", str(tmp_path / "missing")]) == 4
