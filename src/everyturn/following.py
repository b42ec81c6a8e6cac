"""Following the log: from where on turns may still be unseen, though numbers are given out before their commit."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .database import Database

# A number may have been given to a transaction that has no id yet: for microseconds, or while its server process is
# stopped.
_GRACE = 10.0


class Follower:
    """Keeps the `seq` up to which every turn is either visible or will never be.

    A turn that commits late has a smaller `seq` than others that are visible already. The position seen at one moment
    is known to be complete once every transaction of that moment has ended.
    """

    def __init__(self, database: Database, *, grace: float = _GRACE) -> None:
        self._database = database
        self._grace = grace
        self._marks: deque[tuple[int, int, float]] = deque()
        self.known = 0
        """Turns with a greater `seq` are to be looked at (again)."""

    async def look(self) -> None:
        """Take note of where the log stands. Call it before reading what lies above `known`."""
        [row] = await self._database.query("log_position", above=self.known)
        now = time.monotonic()
        last = row["last_seq"]
        if last is not None and (not self._marks or self._marks[-1][0] < last):
            self._marks.append((last, row["next"], now))
        while self._marks and self._marks[0][1] <= row["oldest"] and now - self._marks[0][2] >= self._grace:
            self.known = self._marks.popleft()[0]
