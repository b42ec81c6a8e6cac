"""What of the contract a Postgres-wire server can hold, feature by feature, with a way out for each miss.

Features are tried, not looked up by version, because servers that speak the protocol differ. Each trial runs
in a transaction that is rolled back, so nothing stays behind. Those in SQL are the files of probes/: a
title, what is lost without it, the way out, then statements of which the last answers true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import AsyncConnection

from .doctor_database import extension, migrations_state, privileges, search_settings
from .doctor_findings import Finding, miss, ok, said
from .doctor_server import durability, encoding, pgvector_way_out, version
from .doctor_sessions import advisory_locks, notifications, pooling

__all__ = ["Finding", "diagnose"]

Check = Callable[[AsyncConnection[Any]], Awaitable[Sequence[Finding]]]

_PATIENCE = 20.0

_BEFORE: tuple[Check, ...] = (version, encoding, durability, privileges, extension)
_AFTER: tuple[Check, ...] = (search_settings, migrations_state, advisory_locks, notifications)


async def diagnose(url: str) -> list[Finding]:
    """Look at the server behind a libpq URL: never raises for what it lacks, leaves nothing behind."""
    findings: list[Finding] = []
    try:
        async with await _connect(url) as conn:
            way_out = await pgvector_way_out(conn)
    except psycopg.Error as error:
        return [
            miss(
                "connection",
                f"no connection: {said(error)}",
                "Check that the server runs and that host, port, user, password and database of the URL are right.",
            )
        ]
    for check in _BEFORE:
        findings += await _run(url, check)
    for title, lost, way, statements in probes():
        findings += await _run(url, _probe(title, lost, way.replace("{pgvector}", way_out), statements))
    for check in _AFTER:
        findings += await _run(url, check)
    findings += await _with_two(url)
    return findings


async def _connect(url: str) -> AsyncConnection[Any]:
    # Prepared statements are off: they are one of the things that a pooler may not hold.
    return await AsyncConnection.connect(
        url, autocommit=True, prepare_threshold=None, connect_timeout=10, client_encoding="UTF8"
    )


async def _run(url: str, check: Check) -> Sequence[Finding]:
    """One check on a connection of its own: what it sets or breaks there reaches no other."""
    name = check.__name__.replace("_", " ")
    try:
        async with asyncio.timeout(_PATIENCE), await _connect(url) as conn:
            return await check(conn)
    except psycopg.Error as error:
        return [miss(name, f"could not be found out: {said(error)}", "Use PostgreSQL 14 or newer.")]
    except TimeoutError:
        way_out = "Look for locks and load on the server, then ask again."
        return [miss(name, f"no answer within {_PATIENCE:.0f} s", way_out)]


async def _with_two(url: str) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(_PATIENCE), await _connect(url) as first, await _connect(url) as second:
            return await pooling(first, second)
    except psycopg.Error as error:
        return [miss("pooling", f"two connections at once: {said(error)}", "Allow at least two connections.")]
    except TimeoutError:
        return [miss("pooling", "two connections at once: no answer", "Allow at least two connections.")]


def probes() -> list[tuple[str, str, str, str]]:
    """Title, what is lost, way out and statements of each file in probes/, in order."""
    folder = files("everyturn") / "probes"
    read = []
    for name in sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql")):
        text = (folder / name).read_text(encoding="utf-8")
        title, lost, way_out = (line.removeprefix("-- ") for line in text.split("\n", 3)[:3])
        read.append((title, lost.removeprefix("lost: "), way_out.removeprefix("way out: "), text))
    return read


def _probe(title: str, lost: str, way_out: str, statements: str) -> Check:
    async def check(conn: AsyncConnection[Any]) -> Sequence[Finding]:
        try:
            async with conn.transaction(force_rollback=True):
                await conn.execute("SET LOCAL statement_timeout = '10s'")
                cursor = await conn.execute(statements, prepare=False)
                while cursor.nextset():
                    pass
                answer = await cursor.fetchone()
        except psycopg.Error as error:
            return [miss(title, f"{said(error)}; without it {lost}", way_out)]
        if answer is None or answer[0] is not True:
            return [miss(title, f"gives a wrong answer; without it {lost}", way_out)]
        return [ok(title, "tried")]

    return check
