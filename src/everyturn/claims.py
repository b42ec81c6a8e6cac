"""Who works on what: claims of several workers, on several machines, as advisory locks of their database.

A claim is freed by the server when its process dies. Behind a transaction pooler nothing can be held: every claim is
then granted, work may be done twice, and what is written must be such that this does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from .database import Database

logger = logging.getLogger("everyturn")

_MASK = 0x6A75_6467_6D65_6E74

# One row at a time, in the order given; a lock taken says nothing about what its last holder wrote: look again.
_TAKE = "SELECT k FROM unnest(%s::bigint[]) AS k WHERE pg_try_advisory_lock(k)"


def claim_key(id: UUID) -> int:
    """The advisory lock for a piece of work with this id, as a signed 64-bit number."""
    unsigned = (id.int & 0xFFFF_FFFF_FFFF_FFFF) ^ _MASK
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


class Claims:
    """The claims of one worker."""

    def __init__(self, database: Database) -> None:
        self._session = database.lock_session
        self._said = False

    async def take(self, ids: Sequence[UUID]) -> set[UUID]:
        """Claim what nobody else works on; returns what was granted."""
        session = self._session
        await session.connection()
        # The server grants a lock again to the session that has it: to another worker of this process.
        taken = session.held | session.asked_for
        keys = {key: id for id in ids if (key := claim_key(id)) not in taken}
        if not keys:
            return set()
        if session.pooled:
            self._say_unguarded()
            granted = list(keys)
        else:
            session.asked_for.update(keys)
            try:
                granted = [key for (key,) in await session.fetch(_TAKE, (list(keys),))]
            except asyncio.CancelledError:
                # The answer under way may have granted them.
                for key in keys:
                    session.release_later(key)
                raise
            finally:
                session.asked_for.difference_update(keys)
        session.held.update(granted)
        return {keys[key] for key in granted}

    def _say_unguarded(self) -> None:
        if not self._said:
            self._said = True
            logger.warning(
                "This connection goes through a transaction pooler, where no claim can be held: several workers may "
                "judge one turn, and the first verdict stays. Set EVERYTURN_SESSION_DATABASE to a direct URL."
            )

    async def free(self, ids: Iterable[UUID]) -> None:
        """Give claims back."""
        session = self._session
        keys = [key for id in ids if (key := claim_key(id)) in session.held]
        if session.pooled:
            session.held.difference_update(keys)
            return
        for key in keys:
            session.release_later(key)
        await session.free_released()
