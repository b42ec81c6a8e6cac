"""Time-ordered ids: UUID version 7 (RFC 9562, section 5.7), made by the client."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last = 0
# Random bytes are fetched for many ids at once: a system call is a third of the cost of an id.
_random = b""
_used = 0


def _after_fork() -> None:
    """Another thread of the parent may have held the lock, and no one is left here to free it."""
    global _lock, _random
    _lock = threading.Lock()
    _random = b""  # the parent's bytes are the parent's


os.register_at_fork(after_in_child=_after_fork)


def uuid7() -> UUID:
    """A UUIDv7 that is greater than every other made by this process.

    The 12 bits after the millisecond hold its fraction, as in Postgres 18's `uuidv7()`.
    """
    global _last, _random, _used
    nanoseconds = time.time_ns()
    stamp = (nanoseconds // 1_000_000 << 12) | (nanoseconds % 1_000_000 << 12) // 1_000_000
    with _lock:
        # Within one tick of the clock, or when it steps back, count on.
        if stamp <= _last:
            stamp = _last + 1
        _last = stamp
        if _used >= len(_random):
            _random, _used = os.urandom(2048), 0
        random = int.from_bytes(_random[_used : _used + 8]) & 0x3FFF_FFFF_FFFF_FFFF
        _used += 8
    return UUID(int=(stamp >> 12 << 80) | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random)
