"""The tool registry: which tools an agent has, as rows of `agent_tools`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import psycopg

from .database_errors import translate
from .names import check_name
from .tools import unique

if TYPE_CHECKING:
    from .database import Database
    from .tools import Tool


class ToolRegistry:
    """`db.tools`."""

    __blocking_face__ = True

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register(self, agent: str, tools: Iterable[Tool]) -> list[str]:
        """Upsert the agent's tools; a row is touched only when something about it changed.

        Returns the names of the tools that were added or changed.
        """
        check_name(agent, "agent")
        rows = [
            {
                "name": tool.name,
                "schema": tool.schema,
                "impl_hash": tool.impl_hash,
                "rate_budget": tool.rate_budget.as_json() if tool.rate_budget is not None else {},
                "description": tool.description,
            }
            for tool in unique(tools).values()
        ]
        if not rows:
            return []
        try:
            changed = await self._database.query("register_tools", agent=agent, tools=self._database.encode(rows))
        except psycopg.Error as error:
            raise translate(error) from error
        return [row["name"] for row in changed]

    async def list(self, agent: str | None = None) -> list[dict[str, Any]]:
        """The registered tools, by agent and name."""
        return await self._database.query("tools_registered", agent=agent)
