"""`everyturn tool`: the registry."""

from __future__ import annotations

from everyturn.cli.command import Session, command, noun
from everyturn.cli.filters import AgentOption, AllOption, JsonOption, LimitOption, rows_wanted
from everyturn.cli.output import Column, Row
from everyturn.cli.paging import DEFAULT_LIMIT, pages

app = noun("Tools that agents have registered.")


def _budget(row: Row) -> str:
    budget = row["rate_budget"] or {}
    if not budget:
        return "unlimited"
    return f"{budget.get('max_calls')} per {budget.get('window_seconds')} s"


COLUMNS = [
    Column("agent"),
    Column("name"),
    Column("budget", _budget),
    Column("updated_at"),
    Column("last_used_at"),
    Column("impl_hash", only_piped=True),
    Column("description", flexible=True),
]


@command(app, "list")
async def list_tools(
    session: Session,
    agent: AgentOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    json: JsonOption = False,
) -> None:
    """List the registered tools, by agent and name."""
    rows = rows_wanted(limit, everything)
    async with session.as_it_is() as db:
        await session.out.listing(
            COLUMNS,
            pages(db, "tools_registered", rows=rows, agent=agent),
            limit=rows,
            json=json,
            empty="No tools are registered; `agent.register()` does it.",
        )
