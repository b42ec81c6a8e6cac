"""Lists that may be long, read in constant memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from everyturn.cli.output import Row

if TYPE_CHECKING:
    from everyturn.database import Database

PAGE = 500
DEFAULT_LIMIT = 50


async def pages(db: Database, name: str, *, rows: int | None, **params: Any) -> AsyncGenerator[Sequence[Row]]:
    """The rows of a named query that takes `limit`, in pages: the first `rows` of them, or all.

    One row more than asked for is read, so that a list knows whether it was cut.
    Close it (`aclosing`) when leaving early.
    """
    wanted = None if rows is None else rows + 1
    if wanted is not None and wanted <= PAGE:
        yield await db.query(name, limit=wanted, **params)
        return
    from everyturn import sqlfiles

    # A cursor, not page after page: the rows are found and sorted once, and all pages show one moment.
    values = dict.fromkeys(sqlfiles.parameters(name)) | params | {"limit": wanted}
    async with db.transaction() as conn, conn.cursor(name="everyturn_list") as cursor:
        await cursor.execute(sqlfiles.query(name), values)
        while page := await cursor.fetchmany(PAGE):
            yield page
