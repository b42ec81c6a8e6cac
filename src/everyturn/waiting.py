"""Waiting for what must not be left half done, through cancellations."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any


async def settled(futures: Collection[asyncio.Future[Any]], patience: float) -> bool:
    """Wait until these are done, at most `patience` seconds, however often the waiting task is cancelled meanwhile.

    Returns whether they are. A caller that was cancelled raises CancelledError itself, afterwards.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while pending := [future for future in futures if not future.done()]:
        left = deadline - loop.time()
        if left <= 0:
            return False
        try:
            await asyncio.wait(pending, timeout=left)
        except asyncio.CancelledError:
            continue
    return True
