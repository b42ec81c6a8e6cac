"""What the tests of the embedded server share: other processes that use it, and a look at processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg

USER_PROGRAM = """
import sys, psycopg
from everyturn import embedded
server = embedded.start(sys.argv[1])
with psycopg.connect(server.url, autocommit=True) as connection:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(1)")
        connection.execute("CREATE TABLE IF NOT EXISTS note (word text)")
    for word in sys.argv[2:]:
        connection.execute("INSERT INTO note VALUES (%s)", [word])
    print("ready", connection.execute("SELECT count(*) FROM note").fetchone()[0], flush=True)
if sys.stdin.readline() == "close\\n":
    server.close()
    print("closed", flush=True)
"""


class User:
    """Another process that uses the directory until it is told to end, or killed."""

    def __init__(self, directory: Path, *words: str, **options: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER_PROGRAM, os.fspath(directory), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,  # type: ignore[call-overload]
        )

    def wait_ready(self) -> int:
        """How many words are in the database."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        if line[:1] != ["ready"]:
            raise AssertionError(self.process.communicate()[1])
        return int(line[1])

    def end(self) -> int:
        """Let it exit without closing its server."""
        _, error = self.process.communicate("")
        assert error == "", error
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def postmaster(directory: Path) -> int:
    return int((directory / "postmaster.pid").read_text().splitlines()[0])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def servers_of(directory: Path) -> list[int]:
    """The pids of the postgres processes that work in the directory."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (proc / "comm").read_text().strip() == "postgres" and os.path.samefile(proc / "cwd", directory):
                found.append(int(proc.name))
    return found


def soon(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def words(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT word FROM note ORDER BY word")]
