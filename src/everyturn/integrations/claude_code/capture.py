"""The tail of a session as an eval case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everyturn.errors import ConversationNotFound
from everyturn.values import Turn

from .files import with_subagents
from .importing import import_files

if TYPE_CHECKING:
    from everyturn.database import Database
    from everyturn.datasets.values import Captured

COMMANDS = ("/eval-capture", "/eval-bad")
EVALUATOR = "claude-code:user"


@dataclass(frozen=True, slots=True)
class Tail:
    """The last exchange of a session, as it was captured."""

    case: Captured
    turn: Turn
    """The answer; the prompt where there is none yet."""


async def capture_tail(
    db: Database,
    path: Path,
    *,
    tags: Iterable[str] = (),
    verdict: str | None = None,
    rationale: str | None = None,
    source: str | None = None,
    captured_by: str | None = None,
) -> Tail:
    """Import a transcript as far as it is written, and capture its last prompt with what came of it.

    With a verdict, that is recorded on the answer first, and the case is one of production; else it is handcrafted.
    Raises ConversationNotFound where nothing was asked yet.
    """
    reports = await import_files(db, with_subagents(path))
    own = reports[0]
    if own.error is not None:
        raise ConversationNotFound(f"The transcript {path} cannot be read: {own.error}.")
    turns = await db.turns.load(own.conversation) if own.conversation is not None else []
    turn = last_exchange(turns)
    if turn is None:
        raise ConversationNotFound(f"The transcript {path} holds no prompt yet: there is nothing to capture.")
    if verdict is not None:
        await db.evals.record(turn.id, EVALUATOR, verdict, rationale)
    context = {"verdicts": [{"evaluator": EVALUATOR, "verdict": verdict, "rationale": rationale}]} if verdict else None
    case = await db.cases.capture(
        turn=turn.id,
        tags=tags,
        context=context,
        source=source or ("production" if verdict else "handcrafted"),
        captured_by=captured_by,
        on_duplicate="skip",
    )
    return Tail(case, turn)


def last_exchange(turns: Sequence[Turn]) -> Turn | None:
    """The last answer to a prompt, or the last prompt: neither our own commands nor commands that nothing answered."""
    answer: Turn | None = None
    for turn in reversed(turns):
        if turn.kind == "model" and answer is None:
            answer = turn
        elif turn.kind == "user":
            attributes = turn.payload.get("attributes")
            command = attributes.get("command") if isinstance(attributes, dict) else None
            if command not in COMMANDS and (answer is not None or command is None):
                return answer or turn
            answer = None
    return None
