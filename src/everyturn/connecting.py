"""What `connect` returns: opened by `async with`, by `with`, or by `await`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from .blocking import Portal


class Closing(Protocol):
    """What is closed when its block ends."""

    async def close(self) -> None: ...


T = TypeVar("T", bound=Closing)


class Connecting(Generic[T]):
    """Something to be opened: `async with` it, `with` it, or `await` it."""

    def __init__(self, opening: Callable[[], Awaitable[T]]) -> None:
        self._opening = opening
        self._opened: T | None = None
        self._portal: Portal | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"This is not open yet, so it has no {name!r}: async with et.connect() as db, or with, or await."
        )

    def __await__(self) -> Generator[Any, Any, T]:
        return self._opening().__await__()

    async def __aenter__(self) -> T:
        self._opened = opened = await self._opening()
        return opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def __enter__(self) -> Any:
        self._portal = portal = Portal()
        try:
            self._opened = portal.run(self._opening())
        except BaseException:
            portal.close()
            raise
        return portal.face(self._opened)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        assert self._portal is not None
        try:
            if opened is not None:
                self._portal.run(opened.close())
        finally:
            self._portal.close()
