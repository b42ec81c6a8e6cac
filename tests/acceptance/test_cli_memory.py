"""`everyturn memory` and `everyturn db reembed`."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from everyturn.cli import main
from everyturn.cli.memory_text import parse_conditions, parse_lifetime, parse_pairs
from everyturn.errors import InvalidValue

Capture = pytest.CaptureFixture[str]


class Line:
    """The command line on one database."""

    def __init__(self, url: str, capsys: Capture) -> None:
        self.url = url
        self.capsys = capsys
        self.err = ""

    def run(self, *words: str, code: int = 0) -> str:
        self.capsys.readouterr()
        assert main(["-q", "-d", self.url, *words]) == code
        captured = self.capsys.readouterr()
        self.err = captured.err
        assert "Traceback" not in captured.err
        return captured.out

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code))


@pytest.fixture
def line(everyturn_url: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setenv("EVERYTURN_EMBEDDER", "none")
    return Line(everyturn_url, capsys)


def test_a_fact_from_remembering_to_forgetting(line: Line) -> None:
    made = line.json(
        *("memory", "remember", "semantic", "parse_diff drops the last hunk", "-s", "repo:o/r"),
        *("-a", "line=42", "-a", "path=a.py", "--agent", "bot"),
    )
    assert made["action"] == "added"
    near = line.json(
        "memory", "remember", "semantic", "parse_diff drops the last hunk", "-s", "repo:o/r", "--agent", "bot"
    )
    assert (near["nearest"], near["similarity"]) == (made["id"], 1.0)
    assert line.json("memory", "forget", "semantic", "--id", near["id"])["count"] == 1
    [hit] = line.json("memory", "recall", "semantic", "why is parse_diff broken", "-w", "line>40", "-w", "path=a.py")
    assert (hit["id"], hit["lexical_rank"], hit["vector_rank"]) == (made["id"], 1, None)
    assert "parse_diff" in hit["matched"]
    assert hit["score"] > 0.3
    assert "cache_key" not in hit
    shown = line.run("memory", "recall", "semantic", "parse_diff")
    assert shown.splitlines()[0].split("\t")[:5] == ["score", "words", "vector", "similarity", "matched"]
    new = line.json("memory", "supersede", made["id"], "parse_diff keeps every hunk")
    assert new["supersedes"] == made["id"]
    assert [row["text"] for row in line.json("memory", "list", "semantic")] == ["parse_diff keeps every hunk"]
    assert len(line.json("memory", "list", "--history")) == 2
    with psycopg.connect(line.url, autocommit=True) as conn:
        conn.execute("DELETE FROM agent_semantic")
    assert line.json("memory", "rebuild")[1] == {"kind": "semantic", "removed": 0, "written": 2}
    assert "semantic\t0 removed\t0 written" in line.run("memory", "rebuild")
    gone = line.json("memory", "forget", "semantic", "-s", "repo:o/r", "--from-log")
    assert (gone["count"], gone["redacted_turns"]) == (2, 3)
    assert line.json("memory", "recall", "semantic", "hunk") == []


def test_values_are_stored_under_keys(line: Line) -> None:
    line.run("memory", "remember", "procedural", '{"a": [1]}', "--key", "gh:o/r#7", "--expires-in", "1h")
    assert line.json("memory", "recall", "procedural", "gh:o/r#7")[0]["value"] == {"a": [1]}
    assert line.json("memory", "recall", "procedural", "-s", "gh:o/r#7")[0]["cache_key"] == "gh:o/r#7"
    assert line.json("memory", "remember", "procedural", "plain text", "--key", "gh:o/r#7")["action"] == "updated"
    assert "gh:o/r#7: plain text" in line.run("memory", "recall", "procedural", "gh:o/r#7")
    assert line.json("memory", "recall", "procedural", "gh") == []


def test_events_have_a_time(line: Line) -> None:
    line.run("memory", "remember", "episodic", "deployed", "--at", "2024-05-01", "--scope", "acme")
    assert line.json("memory", "recall", "episodic") == []
    [hit] = line.json("memory", "recall", "episodic", "deployed", "--scope", "acme", "--half-life", "30")
    assert hit["occurred_at"].startswith("2024-05-01")
    assert len(line.json("memory", "recall", "episodic", "deployed", "--all-scopes")) == 1
    assert line.json("memory", "recall", "episodic", "--all-scopes", "--since", "2024-06-01") == []


@pytest.mark.parametrize(
    "words",
    [
        ["forget", "semantic"],
        ["forget", "semantic", "--all-scopes"],
        ["forget", "semantic", "--scope", "a", "--all-scopes"],
        ["recall", "semantic", "x", "-w", "=3"],
        ["recall", "semantic", "x", "--half-life", "3"],
        ["recall", "facts", "x"],
        ["remember", "procedural", "x"],
        ["remember", "semantic", "x", "-a", "novalue"],
        ["remember", "semantic", "x", "--expires-in", "soon"],
        ["supersede", "not-an-id", "x"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_2(line: Line, words: list[str]) -> None:
    assert line.run("memory", *words, code=2) == ""
    assert line.err


def test_an_unknown_memory_is_operational(line: Line) -> None:
    line.run("memory", "supersede", "01a22ee6-48df-7955-a257-d618ba98c322", "x", code=4)
    assert "no semantic memory" in line.err


def test_nothing_but_data_is_piped(line: Line) -> None:
    assert line.run("memory", "list").count("\n") == 1, "the header"
    assert line.json("memory", "list") == []
    hostile = "\x1b]0;owned\x07 [bold]x[/bold]\tsecond\nline"
    line.run("memory", "remember", "semantic", hostile)
    out = line.run("memory", "list")
    assert "\x1b" not in out
    assert out.count("\n") == 2
    assert line.json("memory", "list")[0]["text"] == hostile
    with psycopg.connect(line.url, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO agent_procedural (cache_key, value) SELECT 'k' || n, '1' FROM generate_series(1, 60) n"
        )
    assert len(line.json("memory", "list", "procedural")) == 50
    assert len(line.json("memory", "list", "procedural", "--all")) == 60


def test_conditions_are_read() -> None:
    assert parse_conditions(["a=1", "b<=2.5", "b>0", "c", "!d", "e=x=y", 'f="1"']) == {
        "a": {"=": 1},
        "b": {"<=": 2.5, ">": 0},
        "c": {"exists": True},
        "d": {"exists": False},
        "e": {"=": "x=y"},
        "f": {"=": "1"},
    }
    assert parse_conditions(None) is None
    assert parse_pairs(["a=[1]", "b="]) == {"a": [1], "b": ""}
    assert parse_lifetime("90m").total_seconds() == 5400
    for wrong in (["a=1", "a=2"], ["<3"], ["!"], [""]):
        with pytest.raises(InvalidValue):
            parse_conditions(wrong)


EMBEDDER = """
def embed(texts, kind):
    return [[1.0, float(len(text)), 2.0] for text in texts]
"""


def test_reembedding_pays_what_is_owed(line: Line, tmp_path: Any) -> None:
    file = tmp_path / "made.py"
    file.write_text(EMBEDDER)
    line.run("memory", "remember", "semantic", "no vector yet")
    line.run("db", "reembed", code=2)
    assert "embedder" in line.err
    done = line.json("db", "reembed", "--embedder", f"python:{file}:embed")
    assert (done["dimensions"], done["vectors"]["agent_semantic"], done["vectors"]["agent_turns"]) == (3, 1, 1)
    [hit] = line.json("memory", "recall", "semantic", "vector", "--embedder", f"python:{file}:embed")
    assert hit["vector_rank"] == 1
