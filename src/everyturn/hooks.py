"""Eval hooks: where an eval author's code is called while a run goes on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .threads import in_thread, without_exit
from .values import Conversation, Turn


@dataclass(frozen=True, slots=True)
class EvalHooks:
    """Called with what has just become durable; a function may be synchronous, and then runs in a thread."""

    on_turn_complete: Callable[[Turn], Awaitable[None] | None] | None = None
    """Called for every turn of a run in log order; for a tool call once its outcome is stored."""
    on_conversation_complete: Callable[[Conversation], Awaitable[None] | None] | None = None
    """Called when a run has finished, with the whole conversation."""


calling_agent: ContextVar[Any] = ContextVar("everyturn_calling_agent", default=None)
"""The agent whose hook is being called: a hook that writes needs its database."""

_abandoned: set[asyncio.Task[Any]] = set()


async def call_hook(hook: Callable[[Any], Any], value: Any, timeout: float) -> BaseException | None:
    """Call a hook and wait for it, at most `timeout` seconds; return what went wrong, if anything did.

    A hook that does not end when it is cancelled is left behind.
    """
    task = asyncio.ensure_future(_call(hook, value))
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        _abandoned.add(task)
        task.add_done_callback(_forget)
        return TimeoutError(f"The hook {_name(hook)} did not end within {timeout:g} s.")
    if task.cancelled():
        return asyncio.CancelledError(f"The hook {_name(hook)} was cancelled.")
    return task.exception()


async def _call(hook: Callable[[Any], Any], value: Any) -> None:
    with without_exit(f"The hook {_name(hook)}"):
        await _called(hook, value)


async def _called(hook: Callable[[Any], Any], value: Any) -> None:
    if inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None)):  # noqa: B004
        await hook(value)
        return
    result = await in_thread(hook, value)
    if inspect.isawaitable(result):
        await result


def _name(hook: Callable[[Any], Any]) -> str:
    return getattr(hook, "__qualname__", None) or type(hook).__name__


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()
