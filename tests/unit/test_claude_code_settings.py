"""Claude Code's settings and commands: ours put in and taken out, everything else as it was."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from everyturn.errors import InvalidValue
from everyturn.integrations.claude_code.commands import add_commands, remove_commands
from everyturn.integrations.claude_code.settings import EVENTS, add_hooks, remove_hooks

OURS = "/venv/bin/everyturn claude-code hook"
OTHERS: dict[str, Any] = {
    "$schema": "https://json.schemastore.org/claude-code-settings.json",
    "zebra": [1, 2.5, None, {"ümlaut": "naïve 🐙"}],
    "permissions": {"allow": ["Bash(git:*)"], "deny": []},
    "hooks": {
        "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "check.sh"}]}],
        "PostToolUse": [
            {"matcher": "Edit|Write", "hooks": [{"type": "command", "command": "fmt.sh", "timeout": 5}]},
            {"matcher": "*", "hooks": [{"type": "command", "command": "log everyturn"}]},
        ],
        "Stop": [{"hooks": [{"type": "prompt", "prompt": "done?"}]}],
        "FutureEvent": [{"if": "x", "hooks": [{"type": "http", "url": "http://localhost"}]}],
    },
    "model": "opus",
}


def commands_in(path: Path) -> list[tuple[str, str]]:
    settings = json.loads(path.read_text())
    return [
        (event, hook.get("command", ""))
        for event, groups in settings.get("hooks", {}).items()
        for group in groups
        for hook in group["hooks"]
    ]


@pytest.mark.parametrize("indent", [2, 4, "\t", None])
def test_other_hooks_and_keys_stay(tmp_path: Path, indent: Any) -> None:
    path = tmp_path / "settings.json"
    before = json.dumps(OTHERS, indent=indent, ensure_ascii=False)
    path.write_text(before)
    path.chmod(0o640)
    assert add_hooks(path, OURS).changed
    inside = json.loads(path.read_text())
    for event in EVENTS:
        assert (event, OURS) in commands_in(path)
    assert list(inside) == list(OTHERS)
    assert inside["zebra"] == OTHERS["zebra"]
    for event, groups in OTHERS["hooks"].items():
        assert inside["hooks"][event][: len(groups)] == groups
    if indent is not None:
        assert path.read_text().splitlines()[1].startswith("\t" if indent == "\t" else " " * int(indent))
    once = path.read_bytes()
    assert not add_hooks(path, OURS).changed
    assert path.read_bytes() == once
    assert stat.S_IMODE(path.stat().st_mode) == 0o640

    assert remove_hooks(path).changed
    assert path.read_text() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["settings.json"]
    assert not remove_hooks(path).changed


def test_what_others_changed_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(OTHERS, indent=2))
    add_hooks(path, OURS)
    inside = json.loads(path.read_text())
    inside["model"] = "sonnet"
    inside["hooks"]["Stop"][-1]["hooks"].append({"type": "command", "command": "mine.sh"})
    path.write_text(json.dumps(inside, indent=2))
    remove_hooks(path)
    after = json.loads(path.read_text())
    assert after["model"] == "sonnet"
    assert ("Stop", "mine.sh") in commands_in(path)
    assert not [command for _, command in commands_in(path) if "claude-code hook" in command]
    assert after["hooks"]["PostToolUse"] == OTHERS["hooks"]["PostToolUse"]


def test_a_program_that_moved_is_replaced_not_added(tmp_path: Path) -> None:
    path = tmp_path / ".claude" / "settings.json"
    add_hooks(path, OURS)
    add_hooks(path, "'/new place/everyturn' claude-code hook")
    assert [command for _, command in commands_in(path)] == ["'/new place/everyturn' claude-code hook"] * len(EVENTS)
    remove_hooks(path)
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, // why\n "b": 2}',
        '{"a": 1,}',
        "[]",
        "{",
        '{"hooks": []}',
        '{"hooks": {"Stop": {}}}',
        '{"hooks": {"Stop": ["x"]}}',
        '{"hooks": {"Stop": [{"hooks": 3}]}}',
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": 1e400}',
        "[" * 100_000,
        b"\xff\xfe{}",
    ],
)
def test_what_cannot_be_kept_is_refused_and_left(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "settings.json"
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(data)
    for act in (lambda: add_hooks(path, OURS), lambda: remove_hooks(path)):
        with pytest.raises(InvalidValue, match="left as it is"):
            act()
    assert path.read_bytes() == data
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("text", ["", "{}", "{}\n", "\ufeff{}", '{"hooks": {}}', '{\r\n  "a": "\\ud83d"\r\n}\r\n'])
def test_odd_but_valid_files_come_back_as_they_were(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(text.encode())
    add_hooks(path, OURS)
    assert len(commands_in_bytes(path)) == len(EVENTS)
    remove_hooks(path)
    assert path.read_bytes() == text.encode()


def commands_in_bytes(path: Path) -> dict[str, Any]:
    hooks: dict[str, Any] = json.loads(path.read_bytes().decode("utf-8-sig"))["hooks"]
    return hooks


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text("{}")
    link = tmp_path / "settings.json"
    link.symlink_to(real)
    add_hooks(link, OURS)
    assert link.is_symlink()
    assert "claude-code hook" in real.read_text()


def test_a_file_that_cannot_be_written_is_left_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"model": "opus"}')

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        add_hooks(path, OURS)
    assert path.read_text() == '{"model": "opus"}'
    assert len(list(tmp_path.iterdir())) == 1


def test_commands_are_written_renewed_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "commands"
    assert [written.outcome for written in add_commands(folder, "everyturn")] == ["written", "written"]
    assert [written.outcome for written in add_commands(folder, "everyturn")] == ["unchanged", "unchanged"]
    assert [written.outcome for written in add_commands(folder, "/new/everyturn")] == ["written", "written"]
    text = (folder / "eval-capture.md").read_text()
    assert "$ARGUMENTS" in text
    assert "${CLAUDE_SESSION_ID}" in text
    assert text.startswith("---\n")
    assert [written.outcome for written in remove_commands(folder)] == ["removed", "removed"]
    assert not folder.exists()
    assert [written.outcome for written in remove_commands(folder)] == ["absent", "absent"]


def test_commands_of_others_and_edited_ones_stay(tmp_path: Path) -> None:
    folder = tmp_path / "commands"
    folder.mkdir()
    (folder / "eval-bad.md").write_bytes(b"mine \xff")
    add_commands(folder, "everyturn")
    edited = folder / "eval-capture.md"
    edited.write_text(edited.read_text() + "\nAlso say hello.\n")
    assert [written.outcome for written in add_commands(folder, "other")] == ["kept", "kept"]
    assert [written.outcome for written in remove_commands(folder)] == ["kept", "kept"]
    assert (folder / "eval-bad.md").read_bytes() == b"mine \xff"
