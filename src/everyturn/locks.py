"""One run at a time per conversation: a session advisory lock, held by one connection of the process.

Freed by the server within milliseconds when the process dies. A lock is given back with the next statement of the
writer, or after a few milliseconds on its own, so that it costs no round trip of its own in a busy process.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from uuid import UUID

from .errors import conversation_conflict

if TYPE_CHECKING:
    from .database import Database

logger = logging.getLogger("everyturn")

_MASK = 0x6576_6572_7974_7572
_LINGER = 0.025
# A lock that is being given back is free again within _LINGER; a run that goes on is not.
_RETRIES = (0.01, 0.03, 0.06, 0.1)
_background: set[asyncio.Task[None]] = set()
_said_unguarded = False


def lock_key(conversation: UUID) -> int:
    """The advisory lock of a conversation, as a signed 64-bit number; the same as SQL's `everyturn_lock_key`."""
    unsigned = (conversation.int & 0xFFFF_FFFF_FFFF_FFFF) ^ _MASK
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


class ConversationLock:
    """Held for the length of a run: `acquire`, or `ride` with a new conversation's first append; then `release`."""

    def __init__(self, database: Database, conversation: UUID) -> None:
        self._session = database.lock_session
        self._separate = database.lock_session is not database.writer.session
        self._conversation = conversation
        self.key = lock_key(conversation)

    async def acquire(self) -> None:
        """Take the lock. Raises ConversationConflict when another run has it."""
        session = self._session
        if self.key in session.held or self.key in session.asked_for:
            raise conversation_conflict(self._conversation)
        session.asked_for.add(self.key)
        try:
            await session.connection()
            if session.reclaim(self.key) or self._unguarded() or await self._ask():
                session.held.add(self.key)
                return
        finally:
            session.asked_for.discard(self.key)
        raise conversation_conflict(self._conversation)

    async def _ask(self) -> bool:
        try:
            for pause in (*_RETRIES, None):
                [(locked,)] = await self._session.fetch("SELECT pg_try_advisory_lock(%s)", (self.key,))
                if locked:
                    return True
                if pause is not None:
                    await asyncio.sleep(pause)
        except asyncio.CancelledError:
            # The answer under way may have been yes.
            self._give_back()
            raise
        return False

    async def ride(self) -> int | None:
        """The key, to be locked by the append that begins a new conversation; None when it is locked already."""
        await self._session.connection()
        if self._separate or self._session.pooled:
            await self.acquire()
            return None
        return self.key

    def check(self) -> None:
        """Raise ConversationConflict when the lock went with a connection and another run has taken it since."""
        if self.key not in self._session.held:
            raise conversation_conflict(self._conversation)

    def release(self) -> None:
        """Give it back."""
        if self.key not in self._session.held:
            return
        if self._session.pooled:
            self._session.held.discard(self.key)
            return
        self._give_back()

    def _give_back(self) -> None:
        self._session.release_later(self.key)
        task = asyncio.create_task(self._free())
        _background.add(task)
        task.add_done_callback(_background.discard)

    async def _free(self) -> None:
        if not self._separate:
            await asyncio.sleep(_LINGER)
        await self._session.free_released()

    def _unguarded(self) -> bool:
        global _said_unguarded
        if self._session.pooled and not _said_unguarded:
            _said_unguarded = True
            logger.warning(
                "This connection goes through a transaction pooler, where no session lock can be held: two processes "
                "may run one conversation at once. Set EVERYTURN_SESSION_DATABASE to a direct URL to guard against it."
            )
        return self._session.pooled
