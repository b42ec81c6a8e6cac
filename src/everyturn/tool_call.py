"""Running a handler: async ones on the loop, sync ones in a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from .threads import without_exit


async def invoke(handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the handler. A sync one keeps the caller's context variables and does not hold up the loop.

    What a sync handler gives back is awaited when it can be: a plain function may wrap an async one.
    """
    with without_exit("The handler"):
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            return await handler(*args, **kwargs)
        result = await _in_thread(handler, args, kwargs)
        return await result if inspect.isawaitable(result) else result


async def _in_thread(handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One daemon thread per call: no queue behind slow calls, no waiting at exit for one that hangs."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():  # cancelled meanwhile
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result: Any = None
        failed: BaseException | None = None
        try:
            result = context.run(handler, *args, **kwargs)
        except StopIteration as error:
            # A future cannot carry it: a coroutine would take it for its own return.
            failed = RuntimeError("The handler raised StopIteration.")
            failed.__cause__ = error
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=work, name="everyturn tool", daemon=True).start()
    return await future
