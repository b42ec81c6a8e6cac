"""One thing that `everyturn db doctor` has looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import AsyncConnection

Status = Literal["ok", "warn", "miss"]


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    status: Status
    """`ok`; `warn`: works with a limit; `miss`: a part of the contract that this server does not hold."""
    detail: str
    way_out: str | None = None
    """A command or a sentence; None when there is nothing to do."""


def ok(name: str, detail: str) -> Finding:
    return Finding(name, "ok", detail)


def warn(name: str, detail: str, way_out: str) -> Finding:
    return Finding(name, "warn", detail, way_out)


def miss(name: str, detail: str, way_out: str) -> Finding:
    return Finding(name, "miss", detail, way_out)


def said(error: psycopg.Error) -> str:
    """The server's own words, in one line."""
    text = error.diag.message_primary or str(error) or type(error).__name__
    return " ".join(text.split())


async def row(conn: AsyncConnection[Any], sql: str, *parameters: object) -> tuple[Any, ...]:
    """The first row of a question; of NULLs when there is none."""
    cursor = conn.cursor(row_factory=psycopg.rows.tuple_row)
    await cursor.execute(sql, parameters or None)
    found = await cursor.fetchone()
    return found if found is not None else (None,) * len(cursor.description or ())
