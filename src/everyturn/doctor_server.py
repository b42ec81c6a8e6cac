"""What kind of server it is: its version, its encoding, whether it keeps what it acknowledges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection

from .doctor_findings import Finding, miss, ok, row, warn

_TESTED = 15
_NEEDED = 13
_OTHERS = re.compile("cockroach|yugabyte|-YB-|redshift|greenplum", re.IGNORECASE)


async def _version(conn: AsyncConnection[Any]) -> tuple[str, int]:
    """How the server calls itself, and the major version of Postgres it claims to be."""
    (text,) = await row(conn, "SELECT version()")
    return str(text), conn.info.server_version // 10000


async def version(conn: AsyncConnection[Any]) -> Sequence[Finding]:
    text, major = await _version(conn)
    name = " ".join(re.split(r"\s+on\s+|,", text)[0].split()[:4])
    if not text.startswith("PostgreSQL ") or _OTHERS.search(text):
        return [
            warn(
                "server",
                f"{name}: speaks the protocol of Postgres {major} and is another product",
                "Go by the findings below, and run your own tests before you rely on it.",
            )
        ]
    upgrade = f"Move to PostgreSQL {_TESTED} or newer: `everyturn db dump`, then `everyturn db restore` there."
    if major < _NEEDED:
        return [miss("server", f"{name} is older than PostgreSQL {_NEEDED}", upgrade)]
    if major < _TESTED:
        return [warn("server", f"{name} is older than everyturn is tested with", upgrade)]
    return [ok("server", name)]


async def encoding(conn: AsyncConnection[Any]) -> Sequence[Finding]:
    (found,) = await row(conn, "SELECT current_setting('server_encoding')")
    if found in ("UTF8", "UTF-8"):
        return [ok("encoding", "UTF8")]
    way_out = "CREATE DATABASE everyturn ENCODING 'UTF8' TEMPLATE template0; and use that one."
    return [miss("encoding", f"the database is {found}, so most text cannot be stored", way_out)]


async def durability(conn: AsyncConnection[Any]) -> Sequence[Finding]:
    """Whether a commit that returned is on disk, and whether there can be one at all."""
    found: list[Finding] = []
    recovery, read_only, fsync, commit = await row(
        conn,
        "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on', "
        "current_setting('fsync') = 'on', current_setting('synchronous_commit')",
    )
    if recovery or read_only:
        why = "a standby" if recovery else "set read-only (default_transaction_read_only)"
        way_out = "Connect to the primary, or allow writes for the role."
        found.append(miss("writes", f"the server is {why}", way_out))
    if not fsync:
        found.append(warn("durability", "fsync is off: a power cut may lose everything", "Set fsync = on."))
    if commit == "off":
        way_out = "ALTER ROLE current_user SET synchronous_commit = 'on';"
        found.append(warn("durability", "synchronous_commit is off: a crash loses the last turns", way_out))
    return found or [ok("durability", f"fsync on, synchronous_commit {commit}")]


async def pgvector_way_out(conn: AsyncConnection[Any]) -> str:
    _, major = await _version(conn)
    return (
        "Install pgvector 0.8 or newer on the server (Debian and Ubuntu: apt-get install "
        f"postgresql-{major}-pgvector; "
        f"Docker: pgvector/pgvector:pg{major}), then, as a role that may: CREATE EXTENSION vector;"
    )
