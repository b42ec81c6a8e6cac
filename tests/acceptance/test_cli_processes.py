"""The command line as a process among others: pipes, terminals, signals, psql."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from everyturn.testing import database_url

HERE = Path(__file__).parent
AGENTS = f"python:{HERE}/cli_agents.py"
CLI = [sys.executable, "-m", "everyturn.cli"]
TURNS = 10_000


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database_url() as url:
        with psycopg.connect(url) as conn:
            conn.execute(
                """
                INSERT INTO agent_turns (conversation, agent, kind, payload)
                SELECT '0197f3a0-5c1e-7c3a-9d52-6f0e8b1a2c3d', 'many', 'user',
                       jsonb_build_object('text', '🐙 naïve ' || n) FROM generate_series(1, %s) AS n
                """,
                (TURNS,),
            )
        yield url


def run(
    url: str, *words: str, env: dict[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*CLI, "-d", url, *words],
        env={**os.environ, **(env or {})},
        capture_output=True,
        input=stdin,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("flags", ["", "--json"])
def test_a_pipe_into_head_is_quiet(url: str, flags: str) -> None:
    """field case 119"""
    command = shlex.join([*CLI, "-q", "-d", url, "turn", "list", "--all", *flags.split()])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -1"], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0
    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 1


@pytest.mark.parametrize(
    ("redirect", "code", "said"), [(">&-", 0, b""), (">/dev/full", 4, b"Error: No space left on device\n")]
)
def test_a_stdout_that_takes_nothing(url: str, redirect: str, code: int, said: bytes) -> None:
    """field case 119"""
    command = shlex.join([*CLI, "-q", "-d", url, "tool", "list", "--json"]) + " " + redirect
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (code, said)


def test_every_row_comes_through_a_pipe(url: str) -> None:
    done = run(url, "turn", "list", "--all")
    assert done.stdout.count(b"\n") == TURNS + 1
    assert b"Showing" not in done.stderr


@pytest.mark.parametrize("env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_a_terminal_without_utf8_gets_replaced_characters(url: str, env: dict[str, str]) -> None:
    """field case 120"""
    done = run(url, "turn", "list", "--limit", "3", env=env)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert done.stdout.count(b"\n") == 4
    if "PYTHONIOENCODING" in env:
        assert b"? na?ve" in done.stdout
        documents = json.loads(run(url, "turn", "list", "--limit", "1", "--json", env=env).stdout.decode("ascii"))
        assert documents[0]["payload"]["text"].startswith("🐙 naïve")


def test_invalid_utf8_on_stdin_is_read_as_replaced(url: str) -> None:
    """field case 4"""
    done = run(url, "turn", "search", "-", "--mode", "lexical", "--json", stdin=b"na\xc3\xafve \xff\xfe 77")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["payload"]["text"].endswith(" 77")


def test_psql_gets_its_options_its_input_and_its_exit_code(url: str) -> None:
    done = run(url, "db", "shell", "-At", "-c", "select kind, count(*) from agent_turns group by 1")
    assert done.stdout == b"user|10000\n", done.stderr
    bound = b"select $1::int + 1 \\bind 41 \\g\n"
    assert run(url, "db", "shell", "-qAt", "-v", "ON_ERROR_STOP=1", stdin=bound).stdout == b"42\n"
    assert run(url, "db", "shell", "-v", "ON_ERROR_STOP=1", "-f", "-", stdin=b"selec\n;").returncode == 3
    assert run(url, "db", "shell", "-c", "selec").returncode == 1


def test_psql_is_not_given_the_password_as_an_argument(url: str) -> None:
    meanwhile = b"\\! tr '\\\\0' ' ' < /proc/$PPID/cmdline; echo; echo $PGPASSWORD\n"
    done = run(f"{url} password=hunter2", "db", "shell", "-qAt", stdin=meanwhile)
    arguments, environment, _ = done.stdout.decode().split("\n")
    assert "psql" in arguments
    assert "hunter2" not in arguments
    assert environment == "hunter2"


def test_ctrl_c_is_130_and_says_nothing(url: str) -> None:
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE agent_turns IN ACCESS EXCLUSIVE MODE")
        child = subprocess.Popen([*CLI, "-q", "-d", url, "turn", "list"], stdout=-1, stderr=-1)
        with psycopg.connect(url, autocommit=True) as watcher:
            wait_until(watcher, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert err == b""


def wait_until(conn: psycopg.Connection, question: str) -> None:
    for _ in range(500):
        row = conn.execute(question).fetchone()
        if row is not None and row[0]:
            return
        time.sleep(0.02)
    raise AssertionError(question)


def test_a_terminal_gets_a_table(url: str) -> None:
    primary, secondary = pty.openpty()
    env = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    words = [*CLI, "-q", "-d", url, "turn", "list", "-n", "2"]
    child = subprocess.Popen(words, stdin=secondary, stdout=secondary, stderr=secondary, env=env)
    os.close(secondary)
    shown = b""
    while select.select([primary], [], [], 20)[0]:
        try:
            part = os.read(primary, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(primary)
    assert child.wait(timeout=20) == 0
    text = shown.decode()
    assert "created_at" in text
    assert "\t" not in text
    assert f"naïve {TURNS}" in text
    assert "Showing 2 of more" in text


def test_a_killed_run_is_listed_as_crashed_and_resumed(url: str) -> None:
    """field case 36"""
    program = (
        "import asyncio, sys\nimport everyturn as et\nfrom everyturn.cli.objects import load_object\n"
        "async def main():\n"
        "    async with et.connect(sys.argv[1], embedder=False) as db:\n"
        "        await load_object(sys.argv[2])(db).run('cry hello')\n"
        "asyncio.run(main())\n"
    )
    for _ in range(2):
        killed = subprocess.run(
            [sys.executable, "-c", program, url, f"{AGENTS}:agent"],
            env={**os.environ, "CLI_AGENTS_DIE": "1"},
            check=False,
            timeout=60,
        )
        assert killed.returncode == -signal.SIGKILL
    words = ["conversation", "list", "--status", "crashed", "--agent", "crier", "--json"]
    crashed = [row["id"] for row in json.loads(run(url, *words).stdout)]
    assert len(crashed) == 2

    resume = ["conversation", "resume", "--embedder", "none"]
    one = run(url, *resume, crashed[0], "--agent", f"{AGENTS}:later", "--json")
    assert one.returncode == 0, one.stderr
    assert json.loads(one.stdout)["output"].startswith("heard: ")
    rest = run(url, *resume, "--all", "--agent", f"{AGENTS}:agent", "--json")
    assert [row["conversation"] for row in json.loads(rest.stdout)] == crashed[1:]
    assert json.loads(run(url, *words).stdout) == []
    shown = json.loads(run(url, "conversation", "show", crashed[0], "--json").stdout)
    assert shown["status"] == "finished"
    assert "interrupted" in [turn["payload"].get("stage") for turn in shown["turns"]]

    for name, code in (("NOT_AN_AGENT", 2), ("missing", 2)):
        refused = run(url, *resume, "--all", "--agent", f"{AGENTS}:{name}")
        assert refused.returncode == code
        assert b"Traceback" not in refused.stderr
