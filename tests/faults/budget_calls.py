"""An agent with a limited tool, to be run in many processes."""

from __future__ import annotations

import asyncio
from multiprocessing.synchronize import Barrier, Semaphore

import everyturn as et


def call_once(url: str, barrier: Barrier, ran: Semaphore) -> None:
    """Run the agent once all processes are ready; each time its handler runs, `ran` counts up."""

    @et.tool(rate_budget=et.RateBudget(window_seconds=60, max_calls=5))
    async def limited() -> str:
        """Called at most five times a minute."""
        ran.release()
        return "ok"

    def model(request: et.ModelRequest) -> et.ModelTurn:
        if len(request.messages) > 1:
            return et.ModelTurn("done")
        return et.ModelTurn(tool_calls=[et.ToolCall("1", "limited", {})])

    async def run() -> None:
        async with et.connect(url, embedder=False) as db:
            agent = et.Agent(db, "bot", tools=[limited], model=model)
            await asyncio.to_thread(barrier.wait, 60)
            await agent.run("go")

    asyncio.run(run())
