"""A transcript file as it is read: which conversation each record belongs to, and what is counted on the way."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from .chains import Chain, subagent
from .records import Entry, read
from .transcript import BLANK, Line

AGENT = "claude-code"
NAMESPACE = uuid5(NAMESPACE_URL, "everyturn:claude-code")
_MAX_CHAINS = 64
_MAX_SIDE = 512
_MAX_PROBLEMS = 100
_AGENT_TYPE = re.compile(r"[^\w.:-]+")


@dataclass(slots=True)
class Problem:
    """A line that could not be read, or not as a whole."""

    line: int
    reason: str


@dataclass(slots=True)
class Counts:
    """What a reading found, beside turns."""

    lines: int = 0
    blank: int = 0
    repeated: int = 0
    """Records that are stored already: read before, or repeated by a resumed session."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Records that are no turn, by their type."""
    bad: int = 0
    problems: list[Problem] = field(default_factory=list)
    """The first hundred of the bad lines."""

    def problem(self, number: int, reason: str) -> None:
        self.bad += 1
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(Problem(number, reason))

    def add(self, other: Counts) -> None:
        self.lines += other.lines
        self.blank += other.blank
        self.repeated += other.repeated
        self.skipped += other.skipped
        self.bad += other.bad


@dataclass(slots=True)
class Read:
    """A record that becomes turns, with the keys by which it is known again."""

    entry: Entry
    chain: Chain
    own: UUID
    """Its key in its conversation."""
    anywhere: UUID
    """Its key wherever it is repeated."""
    position: tuple[int, int]


def conversation_of(session: str) -> UUID:
    """The conversation of a session: its id, where that is a UUID."""
    try:
        return UUID(session)
    except ValueError:
        return uuid5(NAMESPACE, f"session:{session.encode('utf-8', 'replace').decode()}")


class Reading:
    """One transcript file, from its records to the chains they belong to."""

    def __init__(
        self,
        file_id: UUID,
        name: str,
        about_agent: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.counts = Counts()
        self._file_id = file_id
        self._stem = name.removesuffix(".jsonl")
        self._agent_id = self._stem.removeprefix("agent-") if self._stem.startswith("agent-") else None
        self._about_agent = about_agent or {}
        state = state or {}
        self._chains: OrderedDict[str, Chain] = OrderedDict()
        for key, (conversation, agent, session, chain) in state.get("chains", {}).items():
            self._chains[key] = Chain(UUID(conversation), agent, UUID(session), chain)
        self._sides: OrderedDict[str, str] = OrderedDict(state.get("sides", {}))
        self._main: UUID | None = UUID(state["main"]) if state.get("main") else None

    def state(self) -> dict[str, Any]:
        """What the next reading of the file needs to know."""
        return {
            "main": str(self._main) if self._main else None,
            "chains": {
                key: [str(chain.conversation), chain.agent, str(chain.session), chain.state()]
                for key, chain in self._chains.items()
            },
            "sides": dict(self._sides),
        }

    @property
    def main(self) -> UUID | None:
        """The conversation of the session whose records came last."""
        return self._main

    @property
    def chains(self) -> list[Chain]:
        return list(self._chains.values())

    def records(self, line: Line) -> Iterator[Read]:
        """The records of a line that become turns; everything else is counted."""
        self.counts.lines += 1
        if line.problem == BLANK:
            self.counts.blank += 1
        elif line.problem is not None:
            self.counts.problem(line.number, line.problem)
        for index, record in enumerate(line.records):
            entry = read(record)
            if not entry.is_turn:
                self.counts.skipped[entry.label] += 1
                continue
            entry.uuid = entry.uuid[:256] or f"@{self._file_id}:{line.start}:{index}"
            entry.session = entry.session[:256] or self._stem
            try:
                identity = json.dumps(entry.identity, sort_keys=True)
            except (RecursionError, ValueError):
                self.counts.problem(line.number, "nested too deeply")
                continue
            chain = self._chain(entry)
            digest = hashlib.blake2b(identity.encode("ascii"), digest_size=16, key=entry.uuid.encode()[:64]).hexdigest()
            yield Read(
                entry,
                chain,
                uuid5(chain.conversation, f"line:{entry.uuid}"),
                uuid5(NAMESPACE, f"line:{digest}"),
                (line.start, line.number),
            )

    def _chain(self, entry: Entry) -> Chain:
        session = conversation_of(entry.session)
        agent_id = self._agent_of(entry)
        key = f"{entry.session}/{agent_id or ''}"
        chain = self._chains.get(key)
        if chain is None:
            if agent_id is None:
                chain = Chain(session, AGENT)
                if self._main is not None and self._main != session:
                    chain.about = {"continues": str(self._main)}
            else:
                chain = Chain(subagent(session, agent_id), f"{AGENT}/{self._agent_type}", session)
                chain.about = {"parentConversation": str(session), "agentId": agent_id}
                call = self._about_agent.get("toolUseId")
                if isinstance(call, str):
                    chain.about["parentToolCallId"] = call[:256]
            self._chains[key] = chain
        self._chains.move_to_end(key)
        if agent_id is None:
            self._main = session
        return chain

    def retire(self) -> None:
        """Forget the chains that were quiet for longest; none that is in the middle of a message."""
        for key in list(self._chains)[: max(len(self._chains) - _MAX_CHAINS, 0)]:
            if self._chains[key].pending is None:
                del self._chains[key]
        while len(self._sides) > _MAX_SIDE:
            self._sides.popitem(last=False)

    def _agent_of(self, entry: Entry) -> str | None:
        """The subagent a record is of: by its file, its id, or, before they had one, by the record it goes back to."""
        if self._agent_id is not None:
            return self._agent_id[:256]
        if not entry.sidechain:
            return None
        if entry.agent_id is not None:
            return entry.agent_id[:256]
        root = self._sides.get(entry.parent or "", None)
        if root is None:
            root = f"sidechain-{entry.uuid}"
        self._sides[entry.uuid] = root
        return root

    @property
    def _agent_type(self) -> str:
        kind = self._about_agent.get("agentType")
        return (_AGENT_TYPE.sub("-", kind)[:64] if isinstance(kind, str) else "") or "subagent"
