"""Hooks beside a transcript that grows, and imports that are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import psycopg

from everyturn.testing import database_url

CLI = [sys.executable, "-m", "everyturn.cli"]


def lines(session: str, start: int, count: int) -> str:
    """Prompts, each with an answer in two records that calls a tool, its result, and a last answer."""
    found = []
    for n in range(start, start + count):
        usage = {"input_tokens": 1, "output_tokens": 5}
        call = {"type": "tool_use", "id": f"t{n}", "name": "Read", "input": {"n": n}}
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"result {n}"}
        answers = [("m", {"type": "text", "text": f"looking {n}"}), ("m", call), ("", result), ("last", "done")]
        found.append({"type": "user", "message": {"role": "user", "content": f"prompt {n}"}})
        for id, block in answers:
            message = {"role": "user", "content": [block]}
            if id:
                message = {"role": "assistant", "id": f"{id}{n}", "model": "x", "content": [block], "usage": usage}
                message["content"] = [block] if isinstance(block, dict) else block
            found.append({"type": message["role"], "message": message})
    return "".join(json.dumps({"sessionId": session, "uuid": str(uuid4()), **line}) + "\n" for line in found)


def test_fifty_hooks_beside_a_transcript_of_300_mb(tmp_path: Path) -> None:
    """field case 118: a hook's work does not depend on the transcript, which it never opens."""
    session = str(uuid4())
    path = tmp_path / f"{session}.jsonl"
    path.write_text(lines(session, 0, 1))
    with path.open("ab") as file:
        file.truncate(300 * 1024 * 1024)  # a hole: it takes no space
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    path.chmod(0)  # and it could not be read by anybody else
    event = json.dumps({"hook_event_name": "PostToolUse", "session_id": session, "transcript_path": str(path)})
    environ = os.environ | {"EVERYTURN_HOME": str(tmp_path / "home")}
    took = []
    for _ in range(50):
        began = time.perf_counter()
        done = subprocess.run([*CLI, "claude-code", "hook"], input=event.encode(), capture_output=True, env=environ)
        took.append(time.perf_counter() - began)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert sorted(took)[25] < 0.5  # about 0.03 on a machine that does nothing else
    assert (tmp_path / "home" / "claude-code" / "spool.jsonl").read_text().count("\n") == 50


def test_an_import_that_is_killed_again_and_again(tmp_path: Path) -> None:
    prompts = 800
    session = str(uuid4())
    path = tmp_path / f"{session}.jsonl"
    path.write_text(lines(session, 0, prompts))
    with database_url() as url:
        command = [*CLI, "-q", "-d", url, "claude-code", "import", "--embedder", "none", str(path)]
        for _ in range(3):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            time.sleep(random.uniform(0.4, 0.8))
            process.send_signal(signal.SIGKILL)
            process.wait()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=60)
        with psycopg.connect(url) as conn:
            kinds = dict(conn.execute("SELECT kind, count(*) FROM agent_turns GROUP BY kind").fetchall())
            [[tokens]] = conn.execute(
                "SELECT sum((payload #>> '{usage,outputTokens}')::int) FROM agent_turns WHERE kind = 'model'"
            )
            order = conn.execute(
                "SELECT array_agg(kind ORDER BY seq) FROM agent_turns GROUP BY payload ->> 'runId'"
            ).fetchall()
    assert kinds == {"user": prompts, "model": 2 * prompts, "tool_call": prompts, "tool_result": prompts}
    assert tokens == 10 * prompts
    assert {tuple(row[0]) for row in order} == {("user", "model", "tool_call", "tool_result", "model")}
