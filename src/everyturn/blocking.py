"""The blocking face of asynchronous objects: the same names, waited for in the calling thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, cast

from .errors import EveryturnError

_ENDED = "This blocking object was closed, or the event loop that did its work has ended."


class Portal:
    """Runs coroutines on an event loop from outside it: on a thread of its own, or on a loop that runs already."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._thread: threading.Thread | None = None
        self._closing = False
        if loop is None:
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(loop,), name="everyturn loop", daemon=True)
            self._thread.start()
        self._loop = loop
        self._local = threading.local()

    @property
    def alive(self) -> bool:
        """Whether its loop still runs, in this process."""
        if self._thread is not None:
            return self._thread.is_alive() and not self._closing
        return self._loop.is_running()

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
        if not self.alive:
            _discard(awaitable)
            raise EveryturnError(_ENDED)
        return self._wait(awaitable)

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        context = self._context()
        ready = threading.Event()
        task: asyncio.Task[Any] | None = None

        async def wait() -> Any:
            return await awaitable

        def start() -> None:
            nonlocal task
            task = self._loop.create_task(wait(), context=context)
            task.add_done_callback(lambda _: ready.set())

        def cancel() -> None:
            if task is not None:
                task.cancel()

        try:
            self._loop.call_soon_threadsafe(start)
        except RuntimeError:
            _discard(awaitable)
            raise EveryturnError(_ENDED) from None
        try:
            self._until(ready)
        except EveryturnError:
            raise
        except BaseException:  # Ctrl-C in the waiting thread ends the work too
            self._loop.call_soon_threadsafe(cancel)
            self._until(ready)
            raise
        assert task is not None
        if task.cancelled():
            raise EveryturnError(_ENDED)
        return task.result()

    def _until(self, ready: threading.Event) -> None:
        while not ready.wait(1.0):
            if self._loop.is_closed() or not self._loop.is_running():
                raise EveryturnError(_ENDED)

    def _context(self) -> contextvars.Context:
        """The context of this thread's calls, brought up to date with what the thread itself has set since."""
        local = self._local
        now = contextvars.copy_context()
        if getattr(local, "context", None) is None:
            local.context, local.seen = now.run(contextvars.copy_context), now
            return cast("contextvars.Context", local.context)
        for variable, value in now.items():
            if local.seen.get(variable, local) is not value:
                local.context.run(variable.set, value)
        local.seen = now
        return cast("contextvars.Context", local.context)

    def finish(self, awaitable: Awaitable[Any]) -> None:
        """Wait for it, or have it done when the caller happens to be the loop itself."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.run(awaitable)
        else:
            asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop)

    def face(self, value: Any) -> Any:
        """The blocking face of one of everyturn's asynchronous objects; any other value as it is."""
        return Blocking(value, self) if _is_ours(value) else value

    def close(self) -> None:
        if self._thread is None or self._loop.is_closed():
            return
        self._closing = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """The life of a loop, in a thread of its own: the thread that closes the portal may be running another."""
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_end_tasks())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _end_tasks() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _awaited(awaitable: Awaitable[Any]) -> None:
    await awaitable


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

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_target", "_portal"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._target, name, value)

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
        # What the garbage collector finds later needs no closing once the loop has ended.
        if close is not None and portal.alive:
            portal.finish(close())
