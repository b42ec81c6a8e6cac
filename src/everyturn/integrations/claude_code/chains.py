"""One conversation of a transcript as it is read: from records to turns.

A message of the model spans several records, with results of its first calls between them, and each record repeats or
raises the message's usage. The records are gathered until another message or a prompt begins, and written as one model
turn, its calls, and their outcomes. Where the file ends in the middle of a message, what there is is written; what
comes later becomes a second model turn with the blocks and the usage that were still missing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid5

from everyturn import payloads, prices
from everyturn.messages import ToolCall
from everyturn.turns import NewTurn
from everyturn.values import Usage

from .records import Answer, Call, Entry, Result

UNKNOWN_HASH = "v1:unknown"
NO_OUTCOME = "The transcript holds no outcome of this call: it was interrupted, or the record is lost."
# What is gathered of one message before it is written: it is held in memory until then.
_MAX_RECORDS = 2000
_MAX_SIZE = 64 * 1024 * 1024
_REMEMBERED = 32


@dataclass(slots=True)
class Open:
    """A call whose outcome is still to come."""

    name: str
    hoisted: dict[str, Any]
    at: str | None
    silent: bool = False
    """Its `tool_call` turn is not in this conversation: it needs no outcome here."""


@dataclass(slots=True)
class Pending:
    """A message of the model whose records are being gathered."""

    answer: Answer
    uuid: str
    at: datetime | None
    began: datetime | None
    position: tuple[int, int]
    """Offset and number of its first line: reading goes on from there if nothing more is written."""
    keys: list[UUID] = field(default_factory=list)
    results: list[tuple[Entry, int, Result]] = field(default_factory=list)
    continued: bool = False


class Chain:
    """One conversation: a session, or one of its subagents."""

    def __init__(
        self, conversation: UUID, agent: str, session: UUID | None = None, state: dict[str, Any] | None = None
    ) -> None:
        self.conversation = conversation
        self.agent = agent
        self.session = session or conversation
        """The conversation of the session that it belongs to."""
        self.about: dict[str, Any] = {}
        """What its next prompt tells of the conversation as a whole."""
        self.pending: Pending | None = None
        state = state or {}
        self.run: str | None = state.get("run")
        self.last: datetime | None = datetime.fromisoformat(state["last"]) if state.get("last") else None
        self._open: dict[str, Open] = {key: Open(*value) for key, value in state.get("open", {}).items()}
        self._done: OrderedDict[str, None] = OrderedDict.fromkeys(state.get("done", ()))
        self._counted: OrderedDict[str, Usage] = OrderedDict(
            (key, Usage(*value)) for key, value in state.get("counted", ())
        )

    def state(self) -> dict[str, Any]:
        """What the next reading needs to know; `pending` is none of it."""
        return {
            "run": self.run,
            "last": self.last.isoformat() if self.last else None,
            "open": {key: [call.name, call.hoisted, call.at, call.silent] for key, call in self._open.items()},
            "done": list(self._done),
            "counted": [[key, list(astuple(usage))] for key, usage in self._counted.items()],
        }

    def seen(self, entry: Entry) -> None:
        """A record that is stored already, here or in another conversation."""
        for result in entry.results:
            self._close(result.call_id)
        if entry.prompt is not None:
            self.run = str(self._id(entry.uuid))
            self._open = {key: call for key, call in self._open.items() if not call.silent}
        if entry.answer is not None:
            usage = entry.answer.usage
            if usage is not None:
                self._count(entry.answer.message_id, _most(self._counted.get(entry.answer.message_id), usage))
            for call in entry.answer.calls:
                if call.id not in self._done:
                    self._open.setdefault(call.id, _opened(call, entry.at, silent=True))
        self.last = entry.at or self.last

    def feed(self, entry: Entry, keys: list[UUID], position: tuple[int, int]) -> Iterator[NewTurn | UUID]:
        """The turns a new record completes, and the keys of the records that are in them."""
        pending = self.pending
        if entry.answer is not None:
            full = pending is not None and (
                len(pending.keys) > _MAX_RECORDS or position[0] - pending.position[0] > _MAX_SIZE
            )
            if pending is None or full or pending.answer.message_id != entry.answer.message_id:
                yield from self.flush()
                if entry.answer.message_id not in self._counted:
                    yield from self._interrupted(entry)
                pending = self.pending = Pending(
                    Answer(entry.answer.message_id, entry.answer.model),
                    entry.uuid,
                    entry.at,
                    self.last,
                    position,
                    continued=entry.answer.message_id in self._counted,
                )
            _gather(pending, entry)
            pending.keys += keys
            pending.results += [(entry, number, result) for number, result in enumerate(entry.results)]
        elif pending is not None and entry.results and entry.prompt is None and entry.failure is None:
            pending.keys += keys
            pending.results += [(entry, number, result) for number, result in enumerate(entry.results)]
        else:
            yield from self.flush()
            for number, result in enumerate(entry.results):
                yield from self._outcome(entry, number, result)
            if entry.prompt is not None:
                yield self._asked(entry)
            elif entry.failure is not None:
                if entry.failure[2] == "cancelled":
                    yield from self._interrupted(entry)
                yield self._failed(entry, entry.failure)
            yield from keys
        self.last = entry.at or self.last

    def flush(self) -> Iterator[NewTurn | UUID]:
        """Write the message that is being gathered, as far as it is known."""
        pending, self.pending = self.pending, None
        if pending is None:
            return
        yield self._answered(pending)
        for call in pending.answer.calls:
            if pending.continued and (call.id in self._done or call.id in self._open):
                continue
            self._done.pop(call.id, None)  # ids come again in later messages
            self._open[call.id] = _opened(call, pending.at)
            payload = payloads.tool_call(_tool_call(call), UNKNOWN_HASH, self._run)
            yield self._turn("tool_call", payload, pending.at, f"{pending.uuid}/{call.id}")
        for entry, number, result in pending.results:
            yield from self._outcome(entry, number, result)
        yield from pending.keys

    @property
    def _run(self) -> str:
        if self.run is None:  # the prompt is not in the file
            self.run = str(uuid5(self.conversation, "run"))
        return self.run

    def _asked(self, entry: Entry) -> NewTurn:
        self.run = str(self._id(entry.uuid))
        payload = payloads.user(entry.prompt or "", self.run, entry.attributes or None)
        payload |= {**entry.about, **self.about, "sessionId": entry.session}
        self.about = {}
        return self._turn("user", payload, entry.at, entry.uuid)

    def _failed(self, entry: Entry, failure: tuple[str, str, str]) -> NewTurn:
        kind, message, stage = failure
        payload = payloads.error(None, stage, self._run, message=message, type=kind)
        return self._turn("error", payload, entry.at, entry.uuid)

    def _answered(self, pending: Pending) -> NewTurn:
        answer = pending.answer
        usage = _rest(answer.usage or Usage(), self._counted.get(answer.message_id))
        self._count(answer.message_id, _most(self._counted.get(answer.message_id), answer.usage or Usage()))
        cost = prices.cost(usage, answer.model) if answer.cost is None else None
        payload: dict[str, Any] = {"text": "\n\n".join(text for text in answer.texts if text)}
        if any(answer.reasoning):
            payload["reasoning"] = "\n\n".join(text for text in answer.reasoning if text)
        payload |= {
            "toolCalls": [{"id": call.id, "name": call.name, "args": call.args} for call in answer.calls],
            "model": answer.model,
            "usage": usage.as_payload(),
            "latencyMs": _milliseconds(pending.began, pending.at),
            "finishReason": answer.finish or ("tool_calls" if answer.calls else "stop"),
            "runId": self._run,
            "messageId": answer.message_id,
        }
        if cost is not None or answer.cost is not None:
            payload["costUsd"] = float(cost) if cost is not None else answer.cost
        if answer.request_id:
            payload["requestId"] = answer.request_id
        if pending.continued:
            payload["continued"] = True
        return self._turn("model", payload, pending.at, pending.uuid)

    def _outcome(self, entry: Entry, number: int, result: Result) -> Iterator[NewTurn]:
        late = result.call_id in self._done
        call = self._close(result.call_id) or Open("unknown", {}, None)
        named = ToolCall(result.call_id, call.name, call.hoisted)
        if result.is_error:
            message = result.content if isinstance(result.content, str) else str(result.content)
            payload = payloads.error(None, "tool", self._run, message=message[:20_000], type="ToolError", call=named)
        else:
            began = datetime.fromisoformat(call.at) if call.at else None
            latency = _milliseconds(began, entry.at)
            payload = payloads.tool_result(named, result.content, UNKNOWN_HASH, latency, self._run)
        if late:  # a call has one outcome; a second one is kept beside it, where no model is told of it
            payload["lateFor"] = payload.pop("toolCallId")
        if result.agent_id:
            payload |= {"agentId": result.agent_id, "subagent": str(subagent(self.session, result.agent_id))}
        kind = "error" if result.is_error else "tool_result"
        yield self._turn(kind, payload, entry.at, f"{entry.uuid}/{number}/{result.call_id}")

    def _interrupted(self, entry: Entry) -> Iterator[NewTurn]:
        """Every call ends in an outcome: what is still open when the model goes on has none in the file."""
        for call_id, call in list(self._open.items()):
            self._close(call_id)
            if call.silent:
                continue
            payload = payloads.error(
                None,
                "interrupted",
                self._run,
                message=NO_OUTCOME,
                type="Interrupted",
                call=ToolCall(call_id, call.name, {}),
            )
            yield self._turn("error", payload, entry.at, f"{entry.uuid}/interrupted/{call_id}")

    def _close(self, call_id: str) -> Open | None:
        self._done[call_id] = None
        while len(self._done) > 2 * _REMEMBERED:
            self._done.popitem(last=False)
        return self._open.pop(call_id, None)

    def _count(self, message_id: str, usage: Usage) -> None:
        self._counted[message_id] = usage
        self._counted.move_to_end(message_id)
        while len(self._counted) > _REMEMBERED:
            self._counted.popitem(last=False)

    def _turn(self, kind: str, payload: dict[str, Any], at: datetime | None, name: str) -> NewTurn:
        return NewTurn(self.conversation, self.agent, kind, payload, at, self._id(name))

    def _id(self, name: str) -> UUID:
        return uuid5(self.conversation, name.encode("utf-8", "replace").decode())


def subagent(conversation: UUID, agent_id: str) -> UUID:
    """The conversation of a subagent of a session."""
    return uuid5(conversation, f"agent:{agent_id.encode('utf-8', 'replace').decode()}")


def _gather(pending: Pending, entry: Entry) -> None:
    answer, more = pending.answer, entry.answer
    assert more is not None
    # A record may repeat the blocks of the one before it.
    answer.texts += [text for text in more.texts if text not in answer.texts]
    answer.reasoning += [text for text in more.reasoning if text not in answer.reasoning]
    known = {call.id for call in answer.calls}
    answer.calls += [call for call in more.calls if call.id not in known]
    answer.model = more.model if more.model != "unknown" else answer.model
    answer.usage = more.usage or answer.usage
    answer.finish = more.finish or answer.finish
    answer.cost = more.cost if more.cost is not None else answer.cost
    answer.request_id = more.request_id or answer.request_id
    pending.at = entry.at or pending.at


def _opened(call: Call, at: datetime | None, *, silent: bool = False) -> Open:
    return Open(call.name, payloads.hoisted(call.args), at.isoformat() if at else None, silent)


def _tool_call(call: Call) -> ToolCall:
    return ToolCall(call.id, call.name, call.args if isinstance(call.args, dict | str) else {"input": call.args})


def _rest(usage: Usage, counted: Usage | None) -> Usage:
    if counted is None:
        return usage
    return Usage(*(max(now - then, 0) for now, then in zip(astuple(usage), astuple(counted), strict=True)))


def _most(one: Usage | None, other: Usage) -> Usage:
    if one is None:
        return other
    return Usage(*(max(pair) for pair in zip(astuple(one), astuple(other), strict=True)))


def _milliseconds(since: datetime | None, until: datetime | None) -> int:
    if since is None or until is None:
        return 0
    return min(max(int((until - since).total_seconds() * 1000), 0), 2**31 - 1)
