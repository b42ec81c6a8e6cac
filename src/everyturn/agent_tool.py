"""An agent as another agent's tool."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .context import Context
from .ids import uuid7
from .run_log import current_call
from .tools import Tool

if TYPE_CHECKING:
    from .agent import Agent

_SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "What the agent is asked."}},
    "required": ["input"],
    "additionalProperties": False,
}


class AgentTool(Tool):
    """A tool whose implementation is an agent."""

    def __init__(self, agent: Agent, name: str | None, description: str | None) -> None:
        async def ask(input: str, ctx: Context) -> str:
            parent = current_call.get()
            attributes: dict[str, Any] | None = None
            if parent is not None:
                attributes = {
                    "parent": {
                        "agent": parent.run.agent.name,
                        "conversation": str(parent.run.conversation),
                        "runId": parent.run.run_id,
                        "toolCallId": parent.call.id,
                    }
                }
            return (await agent.run_within(parent, input, uuid7(), ctx.deps, attributes)).output

        super().__init__(
            name or re.sub(r"[^a-zA-Z0-9_-]", "_", agent.name)[:64],
            _SCHEMA,
            ask,
            description=description or f"Ask the agent {agent.name}.",
        )
        self.agent = agent

    @property
    def impl_hash(self) -> str:
        """That of the agent: its model, its instructions and its tools."""
        return self.agent.impl_hash
