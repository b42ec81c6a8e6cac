"""Threads for blocking user code: one pool per process, context variables carried over.

`asyncio.to_thread` shares its few threads (six on two cores) with everything else in the loop, and the loop
waits for them at its end; thirty blocking model calls at once would queue there.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MAX_THREADS = 128

_pool: ThreadPoolExecutor | None = None


def submit(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """Start `function` in a thread of the pool, in a copy of the caller's context."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="everyturn")
    return _pool.submit(contextvars.copy_context().run, _call, function, args, kwargs)


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function in a thread.

    Cancelling returns at once; the thread is free again when the function ends.
    """
    return await asyncio.wrap_future(submit(function, *args, **kwargs))


@contextmanager
def without_exit(what: str) -> Iterator[None]:
    """Make `sys.exit()` in user code an error of that code: a task that raised it would end the event loop."""
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"{what} called sys.exit({error.code!r}).") from error


def _call(function: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> R:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        # A future cannot carry StopIteration: the awaiting coroutine would take it for its own return.
        raise RuntimeError("The function raised StopIteration.") from error


def _forget_pool() -> None:
    global _pool
    _pool = None


# A fork copies the pool without its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
