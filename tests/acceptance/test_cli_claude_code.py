"""`everyturn claude-code` as it is used: from a session's hook to a case."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from everyturn.cli import main
from everyturn.testing import database_url

Capture = pytest.CaptureFixture[str]
HOOK = [sys.executable, "-m", "everyturn.cli", "claude-code", "hook"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database_url() as url:
        yield url


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a project, and nothing else."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EVERYTURN_HOME", str(tmp_path / "everyturn"))
    for name in ("CLAUDE_CONFIG_DIR", "CLAUDE_SESSION_ID", "CLAUDE_CODE_SESSION_ID", "EVERYTURN_DATABASE"):
        monkeypatch.delenv(name, raising=False)
    project = tmp_path / "my.shop"
    project.mkdir()
    monkeypatch.chdir(project)
    return tmp_path


def records(session: str, *said: str) -> str:
    lines = []
    for number, text in enumerate(said):
        kind = "assistant" if number % 2 else "user"
        message: dict[str, Any] = {"role": kind, "content": [{"type": "text", "text": text}]}
        if number % 2:
            usage = {"input_tokens": 5, "output_tokens": 7}
            message |= {"id": f"msg_{uuid4()}", "model": "claude-opus-4-5-20251101", "usage": usage}
        stamp = f"2026-11-02T09:00:{number:02}.000Z"
        lines.append({"type": kind, "uuid": str(uuid4()), "sessionId": session, "timestamp": stamp, "message": message})
    return "".join(json.dumps(line) + "\n" for line in lines)


def transcript(home: Path, *said: str, project: str | None = None) -> tuple[str, Path]:
    """A session of the project."""
    session = str(uuid4())
    encoded = str(home / "my.shop").replace("/", "-").replace(".", "-").replace("_", "-")
    path = home / ".claude" / "projects" / (project or encoded) / f"{session}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(records(session, *said))
    return session, path


def run_hook(event: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
    data = event if isinstance(event, bytes) else json.dumps(event).encode()
    return subprocess.run(HOOK, input=data, capture_output=True, timeout=20, check=False, **options)


def turns(url: str, session: str) -> list[tuple[str, str]]:
    with psycopg.connect(url) as conn:
        return conn.execute(
            "SELECT kind, payload ->> 'text' FROM agent_turns WHERE conversation = %s ORDER BY seq", (session,)
        ).fetchall()


def test_install_and_uninstall_leave_other_hooks_intact(home: Path, capsys: Capture) -> None:
    """The settings of the user and of the project, with hooks of others in them."""
    for flag, folder in (("--user", home / ".claude"), ("--project", home / "my.shop" / ".claude")):
        folder.mkdir(exist_ok=True)
        settings = folder / "settings.json"
        before = (
            '{\n  "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]},\n  "model": "opus"\n}\n'
        )
        settings.write_text(before)
        assert main(["claude-code", "install", flag]) == 0
        out = capsys.readouterr().out
        assert f"{settings}: hooks added" in out
        hooks = json.loads(settings.read_text())["hooks"]
        assert {"PostToolUse", "Stop", "SessionEnd"} <= hooks.keys()
        assert hooks["Stop"][0]["hooks"][0]["command"] == "say done"
        assert hooks["Stop"][1]["hooks"][0]["command"].endswith("claude-code hook || true")
        assert (folder / "commands" / "eval-capture.md").exists()
        assert (folder / "commands" / "eval-bad.md").exists()
        assert main(["claude-code", "install", flag, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["changed"] is False
        assert main(["claude-code", "uninstall", flag]) == 0
        assert settings.read_text() == before
        assert [entry.name for entry in folder.iterdir()] == ["settings.json"]
    capsys.readouterr()
    settings.write_text("{ // mine\n}")
    assert main(["claude-code", "install", "--project"]) == 2
    assert "left as it is" in capsys.readouterr().err
    assert settings.read_text() == "{ // mine\n}"


def test_the_hook_that_is_installed_runs(home: Path, url: str) -> None:
    assert main(["claude-code", "install"]) == 0
    settings = json.loads((home / ".claude" / "settings.json").read_text())
    shell = settings["hooks"]["Stop"][0]["hooks"][0]["command"]
    session, path = transcript(home, "Hello?", "Hello.")
    event = {"hook_event_name": "Stop", "session_id": session, "transcript_path": str(path)}
    for broken in (False, True):
        environ = {"PATH": "/usr/bin:/bin"} if broken else os.environ
        line = shell.replace("everyturn claude-code", "gone claude-code") if broken else shell
        done = subprocess.run(
            line,
            shell=True,
            input=json.dumps(event).encode(),
            capture_output=True,
            check=False,
            env=environ,
            timeout=20,
        )
        assert (done.returncode, done.stdout) == (0, b"")
    assert (home / "everyturn" / "claude-code" / "spool.jsonl").read_text().count("\n") >= 1


def test_from_the_hook_to_the_log(home: Path, url: str, capsys: Capture) -> None:
    """The Stop hook fires before the last message is written; field case 111"""
    session, path = transcript(home, "What is 2 + 2?", "4")
    elsewhere = home / "elsewhere" / f"{uuid4()}.jsonl"
    elsewhere.parent.mkdir()
    elsewhere.write_text(records(elsewhere.stem, "Not below ~/.claude"))
    whole = path.read_text()
    path.write_text(whole[: whole.index("\n") + 1])
    for file in (path, elsewhere):
        done = run_hook({"hook_event_name": "Stop", "session_id": file.stem, "transcript_path": str(file)})
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert main(["-q", "-d", url, "claude-code", "import", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["turns"] == {"user": 2}
    path.write_text(whole)
    run_hook({"hook_event_name": "SessionEnd", "session_id": session, "transcript_path": str(path)})
    for expected in ({"model": 1}, {}):
        assert main(["-q", "-d", url, "claude-code", "import", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["turns"] == expected
    assert said["bad"] == said["unreadable"] == []
    assert turns(url, session) == [("user", "What is 2 + 2?"), ("model", "4")]
    assert turns(url, elsewhere.stem) == [("user", "Not below ~/.claude")]


def test_import_names_what_it_could_not_read(home: Path, url: str, capsys: Capture) -> None:
    """field case 110"""
    session, path = transcript(home, "one", "two", "three", project="-other")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:40], b"", b"\0" * 100, lines[2], b""]))
    assert main(["-q", "-d", url, "claude-code", "import", str(path)]) == 0
    captured = capsys.readouterr()
    assert "bad_lines\t2\n" in captured.out
    assert f"{path}, line 2: cut, or not JSON" in captured.err
    assert f"{path}, line 4: zero bytes" in captured.err
    assert [text for _, text in turns(url, session)] == ["one", "three"]
    assert main(["-q", "-d", url, "claude-code", "import", str(home / "nowhere.jsonl")]) == 2
    assert "There is no transcript" in capsys.readouterr().err


def test_import_of_one_project_and_with_secrets_masked(home: Path, url: str, capsys: Capture) -> None:
    session, _ = transcript(home, "my key is sk-ant-12345", "noted")
    other, _ = transcript(home, "elsewhere", project="-somewhere-else")
    command = ["-q", "-d", url, "claude-code", "import", "--project", ".", "--redact", r"sk-\S+", "--embedder", "none"]
    assert main(command) == 0
    assert turns(url, session)[0] == ("user", "my key is [redacted]")
    assert turns(url, other) == []
    assert main(["-q", "-d", url, "claude-code", "import", "--project", "/no/such"]) == 2
    assert main(["-q", "-d", url, "claude-code", "import", "--redact", "("]) == 2
    assert "not a regular expression" in capsys.readouterr().err


def test_capture_and_capture_bad(home: Path, url: str, capsys: Capture) -> None:
    session, path = transcript(home, "Which port?", "It is 8080.")
    options = ["-q", "-d", url, "claude-code", "capture", "--embedder", "none"]
    assert main([*options, "--session", session, "--", "ports,config web"]) == 0
    assert "Captured case" in capsys.readouterr().out
    assert (
        main([*options, "--json", "--bad", "--session", "", "--rationale", "It's 80"]) == 0
    )  # the newest of the project
    said = json.loads(capsys.readouterr().out)
    with psycopg.connect(url) as conn:
        rows = conn.execute(
            "SELECT prompt, tags, source FROM eval_case WHERE prompt = 'Which port?' ORDER BY captured_at"
        ).fetchall()
        [verdict] = conn.execute("SELECT verdict, rationale FROM agent_evals WHERE turn_id = %s", (said["turn"],))
    assert rows == [
        ("Which port?", ["ports", "config", "web"], "handcrafted"),
        ("Which port?", ["bad"], "production"),
    ]
    assert verdict == ("bad", "It's 80")
    for wrong in ("../../etc/passwd", str(uuid4())):
        assert main([*options, "--session", wrong]) == 2
    assert path.exists()


def test_the_hook_returns_whatever_the_state_of_the_database(home: Path) -> None:
    """field case 116: it never opens one, so this is about what it must not do."""
    _, path = transcript(home, "x")
    with socket.socket() as silent:  # accepts, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        environ = os.environ | {
            "EVERYTURN_DATABASE": f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/x",
            "EVERYTURN_DB": "a near miss that other commands refuse",
        }
        began = time.perf_counter()
        done = run_hook({"hook_event_name": "PostToolUse", "transcript_path": str(path)}, env=environ)
        assert time.perf_counter() - began < 1.5
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("event", [b"", b"{", b"[]", b"null", b"\xff\0", b"[" * 200_000, b'{"transcript_path": 5}'])
def test_the_hook_takes_any_input_calmly(event: bytes) -> None:
    done = run_hook(event)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_hook_does_not_wait_for_an_input_that_never_ends() -> None:
    read, write = os.pipe()
    began = time.perf_counter()
    done = subprocess.run(HOOK, stdin=read, capture_output=True, timeout=20, check=False)
    os.close(write)
    os.close(read)
    assert (done.returncode, done.stdout) == (0, b"")
    assert time.perf_counter() - began < 3


def test_a_spool_that_cannot_be_written_is_told_once_a_turn_as_claude_code_reads_it(home: Path) -> None:
    """field case 116"""
    (home / "everyturn").write_text("a file where the directory should be")
    for event, says in (("PostToolUse", False), ("Stop", True)):
        done = run_hook({"hook_event_name": event, "transcript_path": "/x.jsonl"})
        assert (done.returncode, done.stderr) == (0, b"")
        assert bool(done.stdout) is says
        if says:
            assert "claude-code import" in json.loads(done.stdout)["systemMessage"]


def test_the_hook_loads_next_to_nothing() -> None:
    code = (
        "import sys; from everyturn.cli import main; main(['claude-code', 'hook']); "
        "heavy = {'typer', 'rich', 'psycopg', 'pydantic', 'asyncio'} & set(sys.modules); print(sorted(heavy), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], input=b"{}", capture_output=True, timeout=20, check=False)
    assert (done.stdout, done.stderr) == (b"[]", b"")


def test_while_the_database_is_away_nothing_noted_is_lost(home: Path, url: str, capsys: Capture) -> None:
    """field case 116"""
    elsewhere = home / "outside" / f"{uuid4()}.jsonl"
    elsewhere.parent.mkdir()
    elsewhere.write_text(records(elsewhere.stem, "Are you there?"))
    run_hook({"hook_event_name": "Stop", "transcript_path": str(elsewhere)})
    away = "postgresql://nobody@127.0.0.1:9/x?connect_timeout=2"
    assert main(["-q", "-d", away, "claude-code", "import"]) == 4
    assert main(["-q", "-d", url, "claude-code", "import"]) == 0
    assert turns(url, elsewhere.stem) == [("user", "Are you there?")]
    assert "Error" in capsys.readouterr().err
