"""Finding the server of a data directory, or starting it. Every function here runs under the start lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

from .embedded_init import ensure_data
from .embedded_place import ADMIN_DATABASE, DATABASE, PORT, Place, binary, socket_directory, url
from .embedded_process import closing, is_locked, is_server_of, launch, lock, wait_for
from .errors import DatabaseUnavailable

LONGEST_START = 300.0
"""Seconds: a server that was killed under load first replays its write-ahead log."""

_PATIENCE_WITHOUT_SOCKET = 1.0
_PATIENCE_WHEN_REFUSED = 30.0
_LOG_LIMIT = 4 * 1024 * 1024


class Unreachable(DatabaseUnavailable):
    """The server lives, and its socket has been removed."""


def attach_or_start(place: Place, starting: int) -> str:
    """The socket directory of the directory's server, which answers and has our database."""
    began = time.monotonic()
    while True:
        server_lock = lock(place.server, fcntl.LOCK_EX, seconds=0, place=place)
        if server_lock is None:
            found = _answering(place, lambda: is_locked(place.server))
        else:
            with closing(server_lock):
                found = _foreign(place)
                if found is None:
                    ensure_data(place, starting)
                    _launch(place, server_lock)
                    continue
        if found is not None:
            refused = _ensure_database(found)
            if refused is None:
                return found
            # It may be going down, coming up after a crash, or out of connections for the moment.
            if time.monotonic() - began > _PATIENCE_WHEN_REFUSED:
                raise DatabaseUnavailable(f"The server of {place.directory} refuses connections: {refused}")
            time.sleep(0.01)


def _foreign(place: Place) -> str | None:
    """A server that was started on our directory by other means, with pg_ctl for instance."""
    lines = _lines(place.pid_file)
    number = lines[0].strip() if lines else ""
    pid = int(number.removeprefix("-")) if number.removeprefix("-").isdecimal() else 0
    if not 0 < pid < 1 << 31 or not is_server_of(pid, place.directory):
        return None
    if number.startswith("-"):
        raise DatabaseUnavailable(
            f"A Postgres in single-user mode (pid {pid}) works on {place.directory}. Start again when it has ended."
        )
    return _answering(place, lambda: is_server_of(pid, place.directory))


def _answering(place: Place, alive: Callable[[], bool]) -> str | None:
    """The socket directory of a living server once it answers, or None when it ended instead."""
    began = time.monotonic()
    while alive():
        lines = _lines(place.pid_file) or _restored(place)
        if len(lines) >= 8 and lines[7].strip() == "ready":
            if _accepts(lines[4]):
                if not place.facts.exists():
                    with contextlib.suppress(OSError):
                        _copy(place.pid_file, place.facts, place)
                return lines[4]
            if time.monotonic() - began > _PATIENCE_WITHOUT_SOCKET:
                raise Unreachable(
                    f"The server of {place.directory} runs, and its socket in {lines[4]} cannot be reached: it was "
                    "removed, or the server runs in another container. End the programs that use this database; the "
                    "next start makes a new socket."
                )
        if time.monotonic() - began > LONGEST_START:
            raise DatabaseUnavailable(
                f"The server of {place.directory} runs and is not ready after {LONGEST_START:.0f} s. "
                f"Its log is {place.log}."
            )
        time.sleep(0.005)
    return None


def _restored(place: Place) -> list[str]:
    """Put back a pid file that was deleted: without it the server shuts itself down within a minute."""
    lines = _lines(place.facts)
    if not lines or not is_server_of(int(lines[0]), place.directory):
        return []
    _copy(place.facts, place.pid_file, place)
    return lines


def _launch(place: Place, server_lock: int) -> None:
    """Start the server, which takes the lock over, and wait until it is ready."""
    sockets = socket_directory(place)
    # The lock says that no server of ours lives, so what these files say is stale.
    for stale in (place.pid_file, place.facts, *sockets.glob(".s.PGSQL.*")):
        stale.unlink(missing_ok=True)
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with closing(log):
        place.own(place.log)
        if os.fstat(log).st_size > _LOG_LIMIT:
            os.ftruncate(log, 0)
        before = os.fstat(log).st_size
        argv = [str(binary("postgres")), "-D", str(place.directory), "-k", str(sockets), "-p", str(PORT)]
        argv += ["-c", "listen_addresses=", "-c", f"dynamic_shared_memory_type={_shared_memory()}"]
        launch(place, argv, sockets, server_lock, log)
    # An open file carries one lock however many hold it: ours must go for the server's end to be seen.
    with closing(server_lock):
        pass
    wait_for(lambda: _is_ready(place) or not is_locked(place.server), LONGEST_START)
    if not _is_ready(place):
        raise DatabaseUnavailable(_why_not(place, before))


def _is_ready(place: Place) -> bool:
    lines = _lines(place.pid_file)
    return len(lines) >= 8 and lines[7].strip() == "ready"


def _why_not(place: Place, before: int) -> str:
    with open(place.log, encoding="utf-8", errors="replace") as file:
        file.seek(before)
        lines = [line for line in file.read().splitlines() if "FATAL:" in line or "PANIC:" in line]
    reason = lines[-1].split(":  ", 1)[-1] if lines else "it said nothing"
    if disk_is_full(place):
        reason = "its disk is full. Free some space and try again; what was acknowledged is safe"
    return f"The server of {place.directory} did not start: {reason}. Its log is {place.log}."


def disk_is_full(place: Place) -> bool:
    """Whether too little is left for the server to start: one segment of its write-ahead log and a little."""
    space = os.statvfs(place.directory)
    return space.f_bavail * space.f_frsize < 20 * 1024 * 1024


def _shared_memory() -> str:
    """Containers often give /dev/shm 64 MB, too little for building an index in parallel."""
    with contextlib.suppress(OSError):
        space = os.statvfs("/dev/shm")
        if space.f_bavail * space.f_frsize >= 512 * 1024 * 1024:
            return "posix"
    return "mmap"


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return []


def _copy(source: Path, target: Path, place: Place) -> None:
    shutil.copyfile(source, target)
    target.chmod(0o600)
    place.own(target)


def _accepts(directory: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        try:
            client.connect(os.path.join(directory, f".s.PGSQL.{PORT}"))
        except OSError:
            return False
    return True


def _ensure_database(sockets: str) -> str | None:
    """Make our database when it is missing; returns why the server would not have us, if it would not."""
    import psycopg
    from psycopg import sql

    try:
        with psycopg.connect(url(sockets, ADMIN_DATABASE), autocommit=True, connect_timeout=30) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if found is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    except psycopg.Error as error:
        return str(error).strip() or type(error).__name__
    return None
