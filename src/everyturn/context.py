"""What a tool handler is handed beside its arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Context:
    """The run a tool call belongs to.

    A handler asks for it with a parameter annotated `et.Context`; the parameter is injected and hidden from the model.
    In an async handler `db` and `memory` are awaited; in a sync handler the same names block.
    """

    db: Any
    """The database of the agent, an `et.Database` (or its blocking face in a sync handler)."""
    deps: Any
    """What the caller passed as `deps=` to `run`."""
    memory: Any
    """The memory, bound to this agent, scope and conversation."""
    agent: str
    conversation: UUID
    run_id: str
    tool_call_id: str
    _face: Callable[[Any], Any] | None = None

    def blocking(self) -> Context:
        """The same context for a handler that runs in a thread: `db` and `memory` block instead of being awaited."""
        if self._face is None:
            return self
        return replace(self, db=self._face(self.db), memory=self._face(self.memory), _face=None)
