"""Lists that may be long, read in constant memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from everyturn.cli.output import Row

if TYPE_CHECKING:
    from everyturn.database import Database

PAGE = 500
DEFAULT_LIMIT = 50


async def pages(
    db: Database, name: str, *, limit: int | None, **params: Any
) -> AsyncGenerator[Sequence[Row]]:
    """The rows of a named query that takes `page`, in pages.

    With a limit one row more than it is read, so that a list knows whether it was cut.
    Close it (`aclosing`) when leaving early.
    """
    wanted = None if limit is None else limit + 1
    if wanted is not None and wanted <= PAGE:
        yield await db.query(name, page=wanted, **params)
        return
    from everyturn import sqlfiles

    # A cursor, not page after page: the rows are found and sorted once, and all pages show one moment.
    values = dict.fromkeys(sqlfiles.parameters(name)) | params | {"page": wanted}
    async with db.transaction() as conn, conn.cursor(name="everyturn_list") as cursor:
        await cursor.execute(sqlfiles.query(name), values)
        while rows := await cursor.fetchmany(PAGE):
            yield rows
