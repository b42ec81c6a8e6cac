"""What a database is divided into: `db.turns`, `db.tools`, `db.memory` and so on."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from .database import Database
    from .datasets.cases import Cases
    from .datasets.publish import Datasets
    from .evals import Evals
    from .events import Events
    from .memory import Memory
    from .tool_registry import ToolRegistry
    from .turns import Turns


class Managers:
    """The part of `Database` that hands out its managers, each made when first asked for."""

    @cached_property
    def turns(self) -> Turns:
        """The conversation log."""
        from .turns import Turns

        return Turns(cast("Database", self))

    @cached_property
    def tools(self) -> ToolRegistry:
        """The tool registry."""
        from .tool_registry import ToolRegistry

        return ToolRegistry(cast("Database", self))

    @cached_property
    def memory(self) -> Memory:
        """What agents remember."""
        from .memory import Memory

        return Memory(cast("Database", self))

    @cached_property
    def evals(self) -> Evals:
        """The verdicts."""
        from .evals import Evals

        return Evals(cast("Database", self))

    @cached_property
    def cases(self) -> Cases:
        """The eval cases."""
        from .datasets.cases import Cases

        return Cases(cast("Database", self))

    @cached_property
    def datasets(self) -> Datasets:
        """The eval datasets, and what replays of them found."""
        from .datasets.publish import Datasets

        return Datasets(cast("Database", self))

    @cached_property
    def events(self) -> Events:
        """The stream events."""
        from .events import Events

        return Events(cast("Database", self))
