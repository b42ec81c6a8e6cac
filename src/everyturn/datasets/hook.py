"""Automatic capture: hooks that make a case of a run that went wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

from everyturn.errors import EveryturnError, InvalidValue
from everyturn.evaluators import VERDICTS
from everyturn.hooks import EvalHooks, call_hook, calling_agent
from everyturn.payloads import prompt_rev
from everyturn.values import Conversation, Turn

from .capture import from_turn
from .values import Captured, checked_tags

_NOT_THE_AGENTS = frozenset(("hook", "cancelled", "interrupted"))
_A_DAY = 86_400.0


def capture_on(
    *,
    verdict: str | Collection[str] | None = None,
    error: bool = False,
    judge_below: float | None = None,
    timeout: bool = False,
    tags: Iterable[str] = (),
    source: str = "production",
    hooks: EvalHooks | None = None,
) -> EvalHooks:
    """Hooks for an agent that capture a run when it ends with what is named here, each run once.

    `verdict`: a turn of the run got this verdict, or one of these; `judge_below`: a verdict's `payload.score` is lower;
    `error`: an error turn, of the model, a tool or a limit; `timeout`: one whose type is a timeout. `hooks` are
    called first, so that verdicts which they record count. The case is tagged with what it was captured for, and
    holds the instructions. A verdict that comes later is captured by `db.cases.capture_evals`.
    """
    wanted = {verdict} if isinstance(verdict, str) else set(verdict or ())
    if unknown := wanted - set(VERDICTS):
        raise InvalidValue(f"The verdict {min(unknown)!r} is not one of {', '.join(VERDICTS)}.")
    number = isinstance(judge_below, int | float) and not isinstance(judge_below, bool)
    if judge_below is not None and not (number and 0 < judge_below <= 1):
        raise InvalidValue(f"judge_below={judge_below!r:.80} is no limit for a score, which is from 0 to 1.")
    if not (wanted or error or judge_below is not None or timeout):
        raise InvalidValue("capture_on needs to be told when: verdict, error, judge_below or timeout.")
    capture = _Capture(wanted, error, judge_below, timeout, checked_tags(tags), source, hooks)
    return EvalHooks(capture.on_turn_complete, capture.on_conversation_complete)


class _Capture:
    def __init__(
        self,
        verdicts: set[str],
        error: bool,
        judge_below: float | None,
        timeout: bool,
        tags: list[str],
        source: str,
        hooks: EvalHooks | None,
    ) -> None:
        self._verdicts = verdicts
        self._error = error
        self._judge_below = judge_below
        self._timeout = timeout
        self._tags = tags
        self._source = source
        self._hooks = hooks
        self._due: dict[UUID, tuple[UUID, list[str]]] = {}
        """What went wrong so far in the runs under way, by conversation."""

    async def on_turn_complete(self, turn: Turn) -> None:
        failed = await self._also(self._hooks.on_turn_complete if self._hooks else None, turn)
        if turn.kind == "user":
            self._due.pop(turn.conversation, None)
        elif turn.kind == "error" and turn.payload.get("stage") not in _NOT_THE_AGENTS:
            reasons = [
                *(["error"] if self._error else []),
                *(["timeout"] if self._timeout and "timeout" in str(turn.payload.get("type", "")).lower() else []),
            ]
            if reasons:
                first, before = self._due.get(turn.conversation, (turn.id, []))
                self._due[turn.conversation] = (first, list(dict.fromkeys([*before, *reasons])))
            if "toolCallId" not in turn.payload:  # the run ends here
                await self._capture(turn.conversation, turn.id)
        if failed is not None:
            raise failed

    async def on_conversation_complete(self, conversation: Conversation) -> None:
        failed = await self._also(self._hooks.on_conversation_complete if self._hooks else None, conversation)
        if conversation.turns:
            await self._capture(conversation.id, conversation.turns[-1].id)
        if failed is not None:
            raise failed

    async def _also(self, hook: Any, value: Any) -> BaseException | None:
        # The agent's own limit holds: this call is within it.
        return None if hook is None else await call_hook(hook, value, _A_DAY)

    async def _capture(self, conversation: UUID, last: UUID) -> Captured | None:
        turn_id, reasons = self._due.pop(conversation, (last, []))
        agent = calling_agent.get()
        if agent is None:
            raise EveryturnError("The hooks of capture_on are called by an agent's run, and by nothing else.")
        verdicts = await self._judged(agent.db, conversation)
        reasons += [reason for reason, _ in verdicts]
        if not reasons:
            return None
        if verdicts:
            turn_id = verdicts[0][1]["turn_id"]
        draft = await from_turn(agent.db, turn_id)
        context: dict[str, Any] = {}
        if agent.instructions is not None and draft.context.get("promptRev") in (None, prompt_rev(agent.instructions)):
            context["instructions"] = agent.instructions
        if verdicts:
            context["verdicts"] = [
                {key: value for key, value in verdict.items() if key != "turn_id" and value is not None}
                for _, verdict in verdicts
            ]
        captured: Captured = await agent.db.cases.store(
            draft,
            context=context,
            tags=list(dict.fromkeys([*self._tags, *reasons])),
            source=self._source,
            captured_by=agent.name,
            on_duplicate="skip",
        )
        return captured

    async def _judged(self, db: Any, conversation: UUID) -> list[tuple[str, dict[str, Any]]]:
        """The verdicts on the conversation's last run that ask for a capture, the first recorded first."""
        if not self._verdicts and self._judge_below is None:
            return []
        turns = await db.turns.load(conversation)
        start = max((turn.seq for turn in turns if turn.kind == "user"), default=0)
        own = {turn.id for turn in turns if turn.seq >= start}
        found = []
        for verdict in reversed(await db.evals.list(conversation=conversation)):
            if verdict.turn_id not in own:
                continue
            score = verdict.payload.get("score") if isinstance(verdict.payload, dict) else None
            below = self._judge_below
            low = below is not None and isinstance(score, int | float) and score < below
            if verdict.verdict in self._verdicts or low:
                reason = verdict.verdict if verdict.verdict in self._verdicts else "judge-below"
                known = {"evaluator": verdict.evaluator, "verdict": verdict.verdict, "rationale": verdict.rationale}
                found.append((reason, {"turn_id": verdict.turn_id, **known}))
        return found
