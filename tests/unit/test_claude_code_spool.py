"""The spool, and the lines of transcripts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from everyturn.cli import main
from everyturn.integrations.claude_code import files, spool, transcript
from everyturn.integrations.claude_code.records import read

EVENT = {
    "hook_event_name": "PostToolUse",
    "session_id": "3f1c",
    "transcript_path": "/home/ada/.claude/projects/-home-ada/3f1c.jsonl",
    "cwd": "/home/ada",
    "tool_name": "Bash",
    "tool_input": {"command": "export TOKEN=hunter2"},
    "tool_response": {"stdout": "hunter2"},
}


def test_a_note_holds_nothing_of_what_a_tool_was_given() -> None:
    note = spool.note_of(EVENT)
    assert note is not None
    assert "hunter2" not in json.dumps(note)
    assert note["transcript_path"] == EVENT["transcript_path"]


@pytest.mark.parametrize("event", [None, [], "x", {}, {"transcript_path": 5}, {"transcript_path": "/" + "x" * 9999}])
def test_what_is_no_event_is_no_note(event: Any) -> None:
    assert spool.note_of(event) is None


def test_notes_are_kept_until_they_are_taken_in(tmp_path: Path) -> None:
    where = str(tmp_path / "a" / "b")
    for number in range(3):
        spool.append({"transcript_path": f"/{number}.jsonl"}, where)
    seen = []
    with contextlib.suppress(RuntimeError), spool.taken(where) as notes:
        seen = notes
        raise RuntimeError("the database is away")
    assert len(seen) == 3
    spool.append({"transcript_path": "/later.jsonl"}, where)
    with spool.taken(where) as notes:
        assert [note["transcript_path"] for note in notes] == ["/0.jsonl", "/1.jsonl", "/2.jsonl", "/later.jsonl"]
    with spool.taken(where) as notes:
        assert notes == []
    assert os.listdir(where) == []


def test_only_the_user_may_read_it_and_it_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MAX_BYTES", 2000)
    where = str(tmp_path / "spool")
    for number in range(200):
        spool.append({"transcript_path": f"/{number}.jsonl"}, where)
    assert stat.S_IMODE(os.stat(where).st_mode) == 0o700
    sizes = {entry.name: entry.stat() for entry in Path(where).iterdir()}
    assert {stat.S_IMODE(found.st_mode) for found in sizes.values()} == {0o600}
    assert sum(found.st_size for found in sizes.values()) < 5000
    with spool.taken(where) as notes:
        assert notes[-1]["transcript_path"] == "/199.jsonl"


def test_many_hooks_at_once_lose_and_mix_nothing(tmp_path: Path) -> None:
    where = str(tmp_path)
    found: list[str] = []
    with ThreadPoolExecutor(8) as threads:
        appended = [threads.submit(spool.append, {"transcript_path": f"/{n}.jsonl"}, where) for n in range(300)]
        for _ in range(5):
            with spool.taken(where) as notes:
                found += [note["transcript_path"] for note in notes]
        for one in appended:
            one.result()
    with spool.taken(where) as notes:
        found += [note["transcript_path"] for note in notes]
    assert sorted(found) == sorted(f"/{n}.jsonl" for n in range(300))


def test_a_damaged_spool_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "spool.jsonl").write_bytes(
        b'{"transcript_path": "/a.jsonl"}\n{"tran\n\xff\n[]\n{"transcript_path": 3}\n'
    )
    with spool.taken(str(tmp_path)) as notes:
        assert notes == [{"transcript_path": "/a.jsonl"}, {}]
        assert files.noted(notes) == []


def test_a_note_without_a_path_leads_to_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions leave it out of some events."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
    path = tmp_path / "projects" / "-p" / "3f1c.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert spool.note_of({"hook_event_name": "SessionEnd", "session_id": "3f1c"}) is not None
    wrong = [{"session_id": "../3f1c"}, {"transcript_path": "/etc/passwd"}, {"transcript_path": str(tmp_path)}]
    assert files.noted([{"session_id": "3f1c"}, {"transcript_path": str(path)}, *wrong]) == [path]


def test_an_event_that_comes_from_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERYTURN_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(EVENT)))
    assert main(["claude-code", "hook"]) == 0
    with spool.taken() as notes:
        assert [note["session_id"] for note in notes] == ["3f1c"]
    monkeypatch.setattr("sys.stdin", None)
    assert main(["claude-code", "hook"]) == 0


def test_a_spool_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        spool.append({"transcript_path": "/a.jsonl"}, str(tmp_path))
    assert not (tmp_path / "elsewhere").exists()


def test_a_hole_of_zeros_takes_no_memory(tmp_path: Path) -> None:
    """field case 110; field case 118"""
    path = tmp_path / "s.jsonl"
    with path.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
        file.seek(0, os.SEEK_END)
        file.write(b'{"type":"user"}\n' + b"x" * (40 * 1024 * 1024) + b"\n{}\n")
    tracemalloc.start()
    try:
        with transcript.open_regular(path) as opened:
            found = [(line.number, line.problem, line.records) for line in transcript.lines(opened)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [(1, "zero bytes", [{"type": "user"}]), (2, "longer than 32 MB", []), (3, None, [{}])]
    assert peak < 40 * 1024 * 1024


def lines_of(data: bytes, **more: Any) -> list[tuple[int, list[Any], str | None]]:
    return [(line.number, line.records, line.problem) for line in transcript.lines(io.BytesIO(data), **more)]


def test_a_line_taken_before_its_end_is_not_taken_twice() -> None:
    whole = b'{"a":1}\n{"b":2}'
    assert lines_of(whole) == [(1, [{"a": 1}], None), (2, [{"b": 2}], None)]
    assert lines_of(whole + b"\n{}\n", offset=len(whole), number=2, begun=True) == [(3, [{}], None)]
    assert lines_of(whole + b"{}\n", offset=len(whole), number=2, begun=True) == [(2, [{}], None)]
    assert lines_of(whole[:-3]) == [(1, [{"a": 1}], None)]


def test_a_part_of_a_cut_record_is_no_record() -> None:
    cut = b'"content":[{"type":"text","text":"x","timestamp":"t"}]}}'
    assert lines_of(cut + b"\n") == [(1, [], "cut, or not JSON")]
    good = b'{"type":"user","uuid":"u"}'
    assert lines_of(cut + good + b"\n") == [(1, [{"type": "user", "uuid": "u"}], "cut, or not JSON")]
    assert lines_of(good * 3 + b"\n")[0][1] == [{"type": "user", "uuid": "u"}] * 3


@pytest.mark.parametrize("stamp", ["2026-11-02T09:00:00.5Z", "2026-11-02T09:00:00.500", 1793610000.5, 1793610000500])
def test_times_of_all_versions(stamp: Any) -> None:
    entry = read({"type": "user", "message": {"content": "x"}, "timestamp": stamp})
    assert entry.at is not None
    assert entry.at.isoformat() == "2026-11-02T09:00:00.500000+00:00"


def test_names_of_sessions_and_projects_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 148"""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
    assert files.project_folder(Path("/home/ada/my.shop/../x")).parent == tmp_path / "projects"
    for name in ("../../x", "a/b", "", "x" * 200, "a\0b", "*"):
        with pytest.raises(ValueError, match="not the id of a session"):
            files.of_session(name)
    folder = tmp_path / "projects" / "-p"
    folder.mkdir(parents=True)
    (folder / "abc.jsonl").write_text("")
    (folder / "agent-x.jsonl").write_text("")
    assert files.of_session("abc") == folder / "abc.jsonl"
    assert files.newest(folder) == folder / "abc.jsonl"
    assert files.of_session("abd") is None
