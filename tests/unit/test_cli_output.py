"""What reaches stdout and stderr."""

from __future__ import annotations

import io
import json
import math
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from everyturn import jsonable
from everyturn.cli.output import Column, Output, Row
from everyturn.cli.text import as_cell, as_json, clip, printable

HOSTILE = "\x1b]0;owned\x07\x1b[2J a\tb\nc\r\x9b31m \u202egpj.exe \ud83d [bold]x[/bold] \u2028"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def paged(rows: Sequence[Row], size: int = 2) -> AsyncGenerator[Sequence[Row]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def streams(*, terminal: bool = False) -> tuple[Output, io.StringIO, io.StringIO]:
    out, err = Terminal() if terminal else io.StringIO(), io.StringIO()
    return Output(stdout=out, stderr=err), out, err


def has_controls(text: str) -> bool:
    return any((ord(c) < 32 and c not in "\t\n") or 0x7F <= ord(c) < 0xA0 or c == "\u202e" for c in text)


def test_control_characters_are_escaped_everywhere() -> None:
    assert "\\x1b]0;owned\\x07\\x1b[2J" in printable(HOSTILE)
    assert "\\u202egpj" in printable(HOSTILE)
    for text in (printable(HOSTILE), as_cell(HOSTILE), as_json(HOSTILE)):
        assert not has_controls(text)
        text.encode("utf-8")


def test_cells_can_be_read_back() -> None:
    assert as_cell("a\tb\nc\\d\r") == "a\\tb\\nc\\\\d\\r"
    assert as_cell(None) == ""
    assert as_cell(datetime(2026, 11, 1, tzinfo=UTC)) == "2026-11-01T00:00:00+00:00"
    assert as_cell({"é": [1, None]}) == '{"é": [1, null]}'


def test_json_reads_back_to_the_same_value() -> None:
    value = {"text": HOSTILE.replace("\ud83d", ""), "é": [1, 2.5, True, None]}
    assert json.loads(as_json(value)) == value
    assert as_json({"a": "é", "b": "\ud83d"}, ascii_only=True) == '{"a": "\\u00e9", "b": "\\ud83d"}'
    moment = datetime(2026, 11, 1, 9, tzinfo=UTC)
    odd = {"at": moment, "id": UUID(int=1), "cost": Decimal("0.000125"), "n": Decimal("1E+2")}
    assert json.loads(as_json(odd)) == {
        "at": "2026-11-01T09:00:00+00:00",
        "id": "00000000-0000-0000-0000-000000000001",
        "cost": 0.000125,
        "n": 100,
    }


def test_what_json_has_no_form_for_is_written_as_it_is_stored() -> None:
    """field case 6: also 10 and 13: a strict reader takes it, and nothing is lost."""
    value = {"p": math.nan, "in": [-math.inf, b"\xff", {(1, 2): "a", 1: "x", "1": "y"}], "own": {"$float": "NaN"}}

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for text in (as_json(value), as_cell(value), as_json(value, indent=2)):
        read = json.loads(text, parse_constant=refuse)
        assert jsonable.loads(read)["in"] == value["in"]
        assert (read["p"], read["own"]) != (read["own"], read["p"])
    assert as_json(b"\xff") == '{"$bytes": "/w=="}'
    long = 10**5000
    assert as_cell(long) == as_json(long)
    assert jsonable.loads(as_json([long])) == [long]


def test_clip() -> None:
    assert clip("abc", 3) == "abc"
    assert clip("abcd", 3) == "ab…"


COLUMNS = [Column("name"), Column("size", right=True), Column("text", lambda row: row["text"], flexible=True)]
ROWS = [{"name": f"n{i}", "size": i, "text": HOSTILE} for i in range(5)]


async def test_a_pipe_gets_a_header_and_one_line_a_row() -> None:
    output, out, err = streams()
    assert await output.listing(COLUMNS, paged(ROWS), limit=None, json=False) == 5
    lines = out.getvalue().split("\n")
    assert lines[0] == "name\tsize\ttext"
    assert len(lines) == 7
    assert all(line.count("\t") == 2 for line in lines[:6])
    assert err.getvalue() == ""


@pytest.mark.parametrize("as_documents", [True, False])
async def test_a_list_that_was_cut_says_so(as_documents: bool) -> None:
    """field case 122"""
    output, out, err = streams()
    assert await output.listing(COLUMNS, paged(ROWS), limit=4, json=as_documents) == 4
    assert err.getvalue() == "Showing 4 of more; --limit N shows more, --all shows everything.\n"
    if as_documents:
        assert len(json.loads(out.getvalue())) == 4
    output, _, err = streams()
    assert await output.listing(COLUMNS, paged(ROWS), limit=5, json=as_documents) == 5
    assert err.getvalue() == ""


async def test_quiet_does_not_hide_that_a_list_was_cut() -> None:
    output, _, err = streams()
    output.quiet = True
    output.note("which database")
    await output.listing(COLUMNS, paged(ROWS), limit=1, json=False)
    assert "which database" not in err.getvalue()
    assert "Showing 1 of more" in err.getvalue()


async def test_an_empty_list_is_still_a_document() -> None:
    output, out, _ = streams()
    await output.listing(COLUMNS, paged([]), limit=5, json=True)
    assert json.loads(out.getvalue()) == []
    output, out, _ = streams()
    await output.listing(COLUMNS, paged([]), limit=5, json=False)
    assert out.getvalue() == "name\tsize\ttext\n"


async def test_a_terminal_gets_a_table_without_controls_or_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("NO_COLOR", "1")
    output, out, _ = streams(terminal=True)
    rows = [*ROWS, {"name": "[red]n[/red]", "size": 6, "text": ":smile: [/]"}]
    await output.listing(COLUMNS, paged(rows, 10), limit=None, json=False)
    text = out.getvalue()
    assert "\\x1b]0;owned" in text
    assert "[red]n[/red]" in text
    assert ":smile: [/]" in text
    assert not has_controls(text.replace("\x1b[1m", "").replace("\x1b[0m", ""))  # the bold of the heading


async def test_ids_are_never_cut_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    output, out, _ = streams(terminal=True)
    rows = [{"id": UUID(int=i), "agent": "a" * 40, "text": "word " * 50} for i in range(3)]
    columns = [Column("id", whole=True), Column("agent"), Column("text", flexible=True)]
    await output.listing(columns, paged(rows), limit=None, json=False)
    assert all(str(row["id"]) in out.getvalue() for row in rows)


async def test_an_object_with_a_long_member_is_one_document() -> None:
    output, out, _ = streams()
    await output.document_with({"id": 1}, "turns", paged(ROWS), document=lambda row: row["name"])
    assert json.loads(out.getvalue()) == {"id": 1, "turns": [row["name"] for row in ROWS]}
    output, out, _ = streams()
    await output.document_with({"id": 1}, "turns", paged([]))
    assert json.loads(out.getvalue()) == {"id": 1, "turns": []}


def test_characters_a_terminal_lacks_are_replaced() -> None:
    """field case 120"""
    raw = io.BytesIO()
    stdout = io.TextIOWrapper(raw, encoding="ascii", errors="replace")
    output = Output(stdout=stdout, stderr=io.StringIO())
    output.line("naïve 🐙")
    output.json({"text": "naïve 🐙"})
    output.flush()
    first, _, rest = raw.getvalue().decode("ascii").partition("\n")
    assert first == "na?ve ?"
    assert json.loads(rest) == {"text": "naïve 🐙"}


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError

    def fileno(self) -> int:
        raise io.UnsupportedOperation


async def test_a_reader_that_left_ends_a_list_quietly() -> None:
    """field case 119"""
    reads = 0

    async def endless() -> AsyncGenerator[Sequence[dict[str, Any]]]:
        nonlocal reads
        while True:
            reads += 1
            yield ROWS

    err = io.StringIO()
    output = Output(stdout=Gone(), stderr=err)
    await output.listing(COLUMNS, endless(), limit=None, json=False)
    assert output.closed
    assert reads == 1
    output.line("dropped")
    output.flush()
    assert err.getvalue() == ""


def test_fields_for_people_and_for_pipes() -> None:
    output, out, _ = streams()
    output.fields({"id": 1, "text": "a\nb"})
    assert out.getvalue() == "id\t1\ntext\ta\\nb\n"
    output, out, _ = streams(terminal=True)
    output.fields({"id": 1, "text": "a\nb\x1b"})
    assert out.getvalue() == "id    1\ntext  a\n      b\\x1b\n"


def test_stdout_of_the_process_is_used_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    Output().line("here")
    assert capsys.readouterr().out == "here\n"
