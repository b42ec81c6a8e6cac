"""Agents replayed with recorded tool results: deterministic, and no tool is ever called.

A call is answered by the first record of its tool with the same arguments that is not used yet, else by the next one
of that tool, which is reported as drift. A call without any record ends the run: it is an error row, never a live
call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextvars import ContextVar
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn import jsonable
from everyturn.agent import Agent
from everyturn.errors import ModelError
from everyturn.ids import uuid7
from everyturn.messages import Delta, ModelRequest, ModelTurn
from everyturn.models import Leaf
from everyturn.tools import Tool
from everyturn.values import Turn, Usage

from .asking import Answer, described, milliseconds, timed_out
from .capture import new_turns
from .values import Case

if TYPE_CHECKING:
    from everyturn.database import Database


class RecordedError(Exception):
    """The recorded outcome of a call is an error, told to the model as it was then."""


class RecordMissing(ModelError):
    """A call has no record."""


class Recording:
    """The recorded calls of one case, as they are used up."""

    def __init__(self, records: Any) -> None:
        self._records = (
            [record for record in records if isinstance(record, Mapping)] if isinstance(records, list) else []
        )
        self._used: set[int] = set()
        self._changed: list[dict[str, Any]] = []
        self.missing: str | None = None
        """What to say of the first call that had no record."""

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The recorded result of a call. Raises RecordedError where it was an error, and RecordMissing."""
        left = [n for n, record in enumerate(self._records) if record.get("name") == name and n not in self._used]
        asked = jsonable.canonical(jsonable.clean_lenient(dict(arguments)))
        same = [n for n in left if jsonable.canonical(_arguments(self._records[n])) == asked]
        chosen = next(iter(same or left), None)
        if chosen is not None and not {"result", "error"} & self._records[chosen].keys():
            self._used.add(chosen)
            return self._miss(name, arguments, "its record was left open by a crash")
        if chosen is None:
            known = any(record.get("name") == name for record in self._records)
            return self._miss(name, arguments, "all records of this tool are used" if known else "none was recorded")
        self._used.add(chosen)
        record = self._records[chosen]
        if not same:
            self._changed.append({"tool": name, "recorded": record.get("args"), "asked": dict(arguments)})
        if "error" in record:
            raise RecordedError(str(record["error"]))
        return record["result"]

    def _miss(self, name: str, arguments: Mapping[str, Any], why: str) -> Any:
        shown = jsonable.dumps_lenient(dict(arguments))
        shown = shown if len(shown) <= 300 else shown[:299] + "…"
        said = f"The call {name}({shown}) has no recorded result: {why}."
        self.missing = self.missing or said
        raise RecordMissing(said)

    def drift(self) -> dict[str, Any] | None:
        """How the calls differed from the recorded ones; None where they did not."""
        unused = [record.get("name") for n, record in enumerate(self._records) if n not in self._used]
        found = {"changed": self._changed, "unused": unused}
        return {key: value for key, value in found.items() if value} or None


def _arguments(record: Mapping[str, Any]) -> Any:
    """The arguments of a record as an object: a provider may have sent them as text."""
    arguments = record.get("args")
    if isinstance(arguments, str):
        try:
            return jsonable.loads(arguments) if arguments.strip() else {}
        except ValueError:
            return arguments
    return arguments if arguments is not None else {}


_recording: ContextVar[Recording] = ContextVar("everyturn_recording")


class StubTool(Tool):
    """A tool that answers from the record, with the name, schema and hash of the real one."""

    def __init__(self, real: Tool) -> None:
        async def answer(all_arguments: dict[str, Any]) -> Any:
            return _recording.get().answer(real.name, all_arguments)

        super().__init__(real.name, real.schema, answer, description=real.description)
        self._real = real

    @property
    def impl_hash(self) -> str:
        return self._real.impl_hash


class _Watched:
    """The agent's model, which is not asked any more once a call had no record."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf

    @property
    def name(self) -> str:
        return self._leaf.name

    async def stream(self, request: ModelRequest, *, streaming: bool = True) -> AsyncGenerator[Delta | ModelTurn]:
        missing = _recording.get().missing
        if missing is not None:
            raise RecordMissing(missing)
        async for part in self._leaf.stream(request, streaming=streaming):
            yield part

    def cost(self, usage: Usage, model: str | None = None) -> Decimal | None:
        return self._leaf.cost(usage, model)


class AgentAsker:
    """Runs cases through an agent whose tools are stubs.

    The runs are in the log under the name `NAME (replay)`: they use up no rate budget of the agent, and are told from
    what it did in earnest. Its hooks do not fire.
    """

    def __init__(
        self,
        db: Database,
        agent: Agent,
        *,
        replay_id: UUID,
        leaf: Leaf | None,
        model: str | None,
        instructions: str | None,
        settings: Mapping[str, Any],
        timeout: float | None,
    ) -> None:
        self._db = db
        self._replay_id = replay_id
        self._timeout = timeout
        self._agent = Agent(
            db,
            f"{agent.name} (replay)",
            tools=[StubTool(tool) for tool in agent.tools.values()],
            model=_Watched(leaf or agent.leaf),
            instructions=instructions if instructions is not None else agent.instructions,
            max_turns=agent.max_turns,
            settings={**agent.settings, **settings},
            history=agent.history,
            include=agent.include,
        )
        self.model = model or (leaf or agent.leaf).name
        self.prompt_rev = self._agent.prompt_rev

    async def ask(self, case: Case, trial: int) -> Answer:
        context = case.context if isinstance(case.context, Mapping) else {}
        recording = Recording(context.get("toolCalls"))
        conversation = uuid7()
        started = time.perf_counter()
        token = _recording.set(recording)
        error: str | None = None
        output = ""
        try:
            async with asyncio.timeout(self._timeout):
                before = new_turns(context.get("history"), conversation, self._agent.name, str(uuid7()))
                if before:
                    await self._db.turns.append_many(before)
                attributes = {"replay": str(self._replay_id), "case": str(case.id), "trial": trial}
                output = (await self._agent.run(case.prompt, conversation, attributes=attributes)).output
        except TimeoutError as caught:
            error = timed_out(caught, started, self._timeout)
        except Exception as caught:
            error = described(caught)
        finally:
            _recording.reset(token)
        latency = milliseconds(started)
        if recording.missing is not None:
            output, error = "", recording.missing
        usage, cost, run_id = _spent(await self._db.turns.load(conversation))
        return Answer(output, latency, usage, cost, error, run_id, recording.drift() if error is None else None)


def _spent(turns: Sequence[Turn]) -> tuple[Usage, Decimal | None, str | None]:
    """What the model calls of a run used and cost, also of one that failed; and its id."""
    last = next((turn for turn in reversed(turns) if turn.kind == "user"), None)
    own = [turn for turn in turns if last is not None and turn.seq >= last.seq]
    answers = [turn.payload for turn in own if turn.kind == "model"]
    usage = sum((Usage.from_payload(answer.get("usage")) for answer in answers), Usage())
    costs = [answer.get("costUsd") for answer in answers]
    known = [Decimal(str(cost)) for cost in costs if cost is not None]
    cost = sum(known, Decimal(0)) if known and len(known) == len(costs) else None
    return usage, cost, str(last.payload.get("runId")) if last is not None else None
