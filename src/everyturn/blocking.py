"""The blocking face of asynchronous objects: the same names, waited for in the calling thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from .errors import EveryturnError


class Portal:
    """Runs coroutines on an event loop from outside it: on a thread of its own, or on a loop that runs already."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._thread: threading.Thread | None = None
        if loop is None:
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=loop.run_forever, name="everyturn loop", daemon=True)
            self._thread.start()
        self._loop = loop
        self._local = threading.local()

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Wait in this thread for `awaitable`, which runs on the portal's loop.

        All calls of one thread share one context, so that a transaction entered by one holds for the next.
        """
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            _discard(awaitable)
            raise EveryturnError(
                "A blocking method was called on the event loop that would have to do the work. "
                "Await the asynchronous method, or make the calling function synchronous."
            )
        context = getattr(self._local, "context", None)
        if context is None:
            context = self._local.context = contextvars.copy_context()
        ready = threading.Event()
        task: asyncio.Task[Any] | None = None

        async def wait() -> Any:
            return await awaitable

        def start() -> None:
            nonlocal task
            task = self._loop.create_task(wait(), context=context)
            task.add_done_callback(lambda _: ready.set())

        if self._loop.is_closed():
            _discard(awaitable)
            raise EveryturnError("The database of this blocking object was closed.")
        self._loop.call_soon_threadsafe(start)
        try:
            ready.wait()
        except BaseException:  # Ctrl-C in the waiting thread ends the work too
            self._loop.call_soon_threadsafe(lambda: task.cancel() if task is not None else None)
            ready.wait()
            raise
        assert task is not None
        return task.result()

    def face(self, value: Any) -> Any:
        """The blocking face of one of everyturn's asynchronous objects; any other value as it is."""
        return Blocking(value, self) if _is_ours(value) else value

    def close(self) -> None:
        if self._thread is None or self._loop.is_closed():
            return
        self.run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


async def _end_tasks() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _discard(awaitable: Awaitable[Any]) -> None:
    if inspect.iscoroutine(awaitable):
        awaitable.close()


def _is_ours(value: Any) -> bool:
    return bool(getattr(type(value), "__blocking_face__", False))


class Blocking:
    """A stand-in for an asynchronous object whose methods block."""

    def __init__(self, target: Any, portal: Portal) -> None:
        self._target = target
        self._portal = portal

    def __repr__(self) -> str:
        return f"<blocking {self._target!r}>"

    def __dir__(self) -> list[str]:
        return dir(self._target)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if callable(value) and not isinstance(value, type) and not _is_ours(value):
            return self._calling(value)
        return self._portal.face(value)

    def _calling(self, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._wait(function(*args, **kwargs))

        call.__name__ = getattr(function, "__name__", "call")
        call.__doc__ = getattr(function, "__doc__", None)
        return call

    def _wait(self, result: Any) -> Any:
        if inspect.isawaitable(result):
            return self._portal.face(self._portal.run(result))
        if hasattr(result, "__aenter__"):
            return _BlockingContext(result, self._portal)
        if hasattr(result, "__anext__"):
            return _iterate(result, self._portal)
        return self._portal.face(result)


class _BlockingContext(AbstractContextManager[Any]):
    def __init__(self, target: Any, portal: Portal) -> None:
        self._target = target
        self._portal = portal

    def __enter__(self) -> Any:
        return self._portal.face(self._portal.run(self._target.__aenter__()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        suppress: bool | None = self._portal.run(self._target.__aexit__(kind, error, trace))
        return suppress


def _iterate(source: AsyncIterator[Any], portal: Portal) -> Iterator[Any]:
    try:
        while True:
            try:
                yield portal.run(source.__anext__())
            except StopAsyncIteration:
                return
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            portal.run(close())
