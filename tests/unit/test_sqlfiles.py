"""The query files: psql's variables become the driver's placeholders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everyturn import sqlfiles
from everyturn.errors import QueryNotFound


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "queries").mkdir()
    monkeypatch.setattr(sqlfiles, "files", lambda package: tmp_path)
    for cached in (sqlfiles.source, sqlfiles.query, sqlfiles.parameters, sqlfiles.writes):
        cached.cache_clear()
        monkeypatch.setattr(sqlfiles, cached.__name__, cached.__wrapped__)
    return tmp_path / "queries"


def test_psql_variables_become_placeholders_and_percent_signs_are_literal(written: Path) -> None:
    """field case 50: a literal percent sign in SQL is not a placeholder."""
    (written / "q.sql").write_text("SELECT :'a'::text, '100%', x LIKE 'memory.%', b::text, :'a_2'::int")
    assert sqlfiles.query("q") == "SELECT %(a)s::text, '100%%', x LIKE 'memory.%%', b::text, %(a_2)s::int"
    assert sqlfiles.parameters("q") == {"a", "a_2"}


def test_a_query_that_changes_rows_is_known(written: Path) -> None:
    (written / "reads.sql").write_text("-- What was deleted from and updated?\nSELECT updated_at FROM t")
    (written / "writes.sql").write_text("WITH x AS (INSERT INTO t VALUES (1) RETURNING 1) SELECT * FROM x")
    assert not sqlfiles.writes("reads")
    assert sqlfiles.writes("writes")


@pytest.mark.parametrize("name", ["nosuch", "../migrations/0002_contract", "", "A", "append_turn.sql", "a b", "x\x00"])
def test_an_unknown_name_says_which_there_are(name: str) -> None:
    with pytest.raises(QueryNotFound, match="append_turn"):
        sqlfiles.query(name)


def test_every_query_says_in_a_comment_what_it_asks() -> None:
    assert "slowest_tools" in sqlfiles.names()
    for name in sqlfiles.names():
        assert sqlfiles.source(name).startswith("-- "), name
        left = re.sub(r"%%|%\([a-z_0-9]+\)s", "", sqlfiles.query(name))
        assert "%" not in left, name
