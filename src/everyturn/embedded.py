"""The embedded Postgres: a real server on a directory, shared by every process that uses it.

Each user holds a shared lock on a file in the directory, and the server holds the exclusive lock of another
that it inherited. Whether a server lives and whether anybody uses it is therefore asked of the kernel and
never of a pid file: locks vanish with their processes, pids are given out again.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import threading
import time
from pathlib import Path
from types import TracebackType

from . import embedded_place
from .embedded_place import ADMIN_DATABASE, DATABASE, Place, binary, default_directory, locate
from .embedded_process import closing, is_locked, lock
from .embedded_server import LONGEST_START, Unreachable, attach_or_start, disk_is_full
from .errors import DatabaseUnavailable

__all__ = ["Server", "binary", "default_directory", "start"]

_LONGEST_STOP = 90.0
_WAKING_KEEPER = 0.03


class _Use:
    """This process's use of one directory, shared by its `Server` objects."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.count = 0
        self.lock: int | None = None
        self.socket = ""
        self.process = os.getpid()


_uses: dict[Path, _Use] = {}
_guard = threading.RLock()


def _after_fork() -> None:
    """A forked child shares the locks of its parent, and so counts as a user for as long as it lives."""
    global _guard
    _guard = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Server:
    """A running server, from `start`. It stops when the last process that uses it has closed it or ended."""

    def __init__(self, use: _Use) -> None:
        self._use = use
        self._open = True

    @property
    def directory(self) -> Path:
        return self._use.place.directory

    @property
    def url(self) -> str:
        """A libpq URL of the database `everyturn`: psql, psycopg and other drivers take it."""
        return embedded_place.url(self._use.socket, DATABASE)

    @property
    def admin_url(self) -> str:
        """The same for the database `postgres`, from which others can be made and dropped."""
        return embedded_place.url(self._use.socket, ADMIN_DATABASE)

    @property
    def log(self) -> Path:
        """The server's own log."""
        return self._use.place.log

    def ensure_running(self) -> None:
        """Start the server again if it has died. The URLs stay the same."""
        with _guard:
            if not self._open:
                raise DatabaseUnavailable(f"This program has closed the embedded server of {self.directory}.")
            _ensure_server(self._use)

    def close(self) -> None:
        """Give the server up. When nobody else uses it, it has stopped on return."""
        with _guard:
            if not self._open:
                return
            self._open = False
            self._use.count -= 1
            if self._use.count == 0:
                _uses.pop(self.directory, None)
                _leave(self._use)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<everyturn.embedded.Server {self.directory}>"


def start(directory: Path | str) -> Server:
    """Use the database in a directory: make it if it is new, start its server unless it runs already."""
    with _guard:
        place = locate(Path(directory))
        use = _uses.get(place.directory) or _Use(place)
        try:
            _ensure_server(use)
        except BaseException:
            if use.count == 0:
                _leave(use)
            raise
        use.count += 1
        _uses[place.directory] = use
        return Server(use)


def _ensure_server(use: _Use) -> None:
    try:
        try:
            _join(use)
        except Unreachable:
            # If we are its only user it stops when we leave, and starts with a new socket.
            _leave(use)
            _join(use)
    except OSError as error:
        if isinstance(error, DatabaseUnavailable):
            raise
        full = " Free some space on its disk and try again." if disk_is_full(use.place) else ""
        raise DatabaseUnavailable(
            f"The embedded server of {use.place.directory} could not be started: {error.strerror or error}.{full}"
        ) from error


def _join(use: _Use) -> None:
    place = use.place
    if use.lock is None:
        # Waits while a server that lost its last user is being stopped.
        use.lock = lock(place.users, fcntl.LOCK_SH, seconds=_LONGEST_STOP, place=place)
        if use.lock is None:
            raise DatabaseUnavailable(
                f"The server of {place.directory} has been stopping for {_LONGEST_STOP:.0f} s and does not "
                "end. "
                f"Its log is {place.log}."
            )
    starting = lock(place.starting, fcntl.LOCK_EX, seconds=LONGEST_START, place=place)
    if starting is None:
        raise DatabaseUnavailable(
            f"Another process has been starting the server of {place.directory} for {LONGEST_START:.0f} s. "
            f"Its log is {place.log}."
        )
    with closing(starting):
        use.socket = attach_or_start(place, starting)


def _leave(use: _Use) -> None:
    """Give up our use; if it was the last one, wait until the server has stopped."""
    if use.lock is None:
        return
    os.close(use.lock)
    use.lock = None
    place = use.place
    began = time.monotonic()
    while is_locked(place.server) and time.monotonic() - began < _LONGEST_STOP:
        # The users file is locked exclusively: that is the keeper, stopping the server.
        if not is_locked(place.users) and time.monotonic() - began > _WAKING_KEEPER:
            return
        time.sleep(0.002)


@atexit.register
def _leave_all() -> None:
    with _guard:
        for use in _uses.values():
            if use.process == os.getpid():
                _leave(use)
        _uses.clear()
