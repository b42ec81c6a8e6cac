"""Connections: how one is opened, shown without its password, and told from a lost one."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from . import jsonable
from .errors import DatabaseUnavailable

Row = dict[str, Any]
Connection = psycopg.AsyncConnection[Row]

_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "client_encoding": "utf8",
    "fallback_application_name": "everyturn",
    "row_factory": dict_row,
}

# What a connection string leaves open: a host that is gone is noticed within a minute instead of two hours.
_DEFAULTS = {
    "connect_timeout": 15,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}

# Starting a dead server again is worth no more than one attempt in this time.
_REVIVAL_PAUSE = 1.0


class Opener:
    """Opens connections to one database; an embedded server that has died is started again for it."""

    def __init__(self, url: str, revive: Callable[[], None] | None = None) -> None:
        self.url = url
        self._revive = revive
        self._reviving: asyncio.Lock | None = None
        self._revived = 0.0
        given = psycopg.conninfo.conninfo_to_dict(url)
        self.options = {key: value for key, value in _DEFAULTS.items() if key not in given} | _OPTIONS
        opener = self

        class Opened(psycopg.AsyncConnection[Row]):
            @classmethod
            async def connect(cls, conninfo: str = "", **kwargs: Any) -> Any:
                began = time.monotonic()
                try:
                    return await super().connect(conninfo, **kwargs)
                except psycopg.OperationalError as error:
                    if error.sqlstate is not None or not await opener._bring_back(began):
                        raise
                return await super().connect(conninfo, **kwargs)

        self.connection_class: type[Connection] = Opened

    async def open(self, **options: Any) -> Connection:
        """A connection in autocommit mode that reads JSON as everyturn wrote it. Raises psycopg.OperationalError."""
        conn: Connection = await self.connection_class.connect(self.url, **self.options | options)
        await configure(conn)
        return conn

    async def _bring_back(self, since: float) -> bool:
        """Start the embedded server unless that was done since then; returns whether connecting again is worth it."""
        if self._revive is None:
            return False
        if self._reviving is None:
            self._reviving = asyncio.Lock()
        async with self._reviving:
            if self._revived < since:
                if time.monotonic() - self._revived < _REVIVAL_PAUSE:
                    return False
                await asyncio.to_thread(self._revive)
                self._revived = time.monotonic()
        return True


async def configure(conn: psycopg.AsyncConnection[Any]) -> None:
    """Read JSON as everyturn wrote it."""
    set_json_loads(jsonable.loads, conn)


class Preparing:
    """Whether statements are prepared on the server; switched off for good once a pooler gets in the way."""

    def __init__(self) -> None:
        self.enabled = True


def quiet(conn: psycopg.AsyncConnection[Any]) -> bool:
    """Whether nothing has arrived on an idle connection; a server that closed it would have said so.

    Costs no round trip, unlike a `SELECT 1`.
    """
    if conn.closed:
        return False
    if conn.lock.locked():
        return True  # what arrives is the answer to a statement under way
    try:
        poller = select.poll()
        poller.register(conn.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        return not poller.poll(0)
    except (OSError, psycopg.Error):
        return False


def without_password(url: str) -> str:
    """A connection string fit to be shown."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return "(a connection string that cannot be read)"
    host = parts.get("host") or parts.get("hostaddr") or "local socket"
    port = f":{parts['port']}" if parts.get("port") else ""
    user = f"{parts['user']}@" if parts.get("user") else ""
    return f"{user}{host}{port}/{parts.get('dbname') or ''}"


def unreachable(url: str, error: psycopg.Error) -> DatabaseUnavailable:
    """The error for a server that could not be connected to."""
    said = " ".join(str(error).split()).rstrip(".")
    try:
        password = psycopg.conninfo.conninfo_to_dict(url).get("password")
    except psycopg.ProgrammingError:
        password = None
    for secret in {password, quote(str(password), safe="")} if password else ():
        said = said.replace(str(secret), "…")
    return DatabaseUnavailable(
        f"The database {without_password(url)} cannot be reached: {said}. "
        "Check that the server runs and that EVERYTURN_DATABASE or the target names it."
    )
