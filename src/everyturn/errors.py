"""Every error everyturn raises, in one tree under `EveryturnError`.

A message is one or two sentences: what was wrong, with which value, and what to do about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from everyturn.values import Usage


class EveryturnError(Exception):
    """The root of the tree: `except et.EveryturnError` catches all that everyturn raises on its own."""


class InvalidValue(EveryturnError, ValueError):
    """A value was refused before anything was written."""


class ConversationConflict(EveryturnError):
    """Another run holds this conversation."""


class ConversationNotFound(EveryturnError, LookupError):
    """No turn of this conversation is in the log."""


class TurnNotFound(EveryturnError, LookupError):
    """No turn has this id."""


class DatasetNotFound(EveryturnError, LookupError):
    """No dataset has this name and version."""


class MaxTurnsExceeded(EveryturnError):
    """A run asked the model more often than `max_turns` allows."""


class ModelError(EveryturnError):
    """The model leaf failed, or answered with something that is not a model turn."""


class ToolDefinitionError(EveryturnError, TypeError):
    """A tool cannot be registered as it is written."""


class ToolArgumentsError(InvalidValue):
    """The arguments of one tool call do not fit the tool's schema. The message is written for the model."""


class RateBudgetExceeded(EveryturnError):
    """A tool call was refused by its rate budget; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EmbedderError(EveryturnError):
    """An embedder failed, or returned vectors that cannot be stored."""


class ImplementationChanged(EveryturnError):
    """Two sets of turns were made by different implementations of one tool."""


class DatabaseUnavailable(EveryturnError, ConnectionError):
    """The database cannot be reached, or went away and did not come back."""


class MigrationError(EveryturnError):
    """The database's schema cannot be brought to, or is not, what this version needs."""


class QueryNotFound(EveryturnError, LookupError):
    """No named query has this name."""


def conversation_conflict(conversation: UUID) -> ConversationConflict:
    return ConversationConflict(
        f"Conversation {conversation} is being run by another process or task. "
        "Wait for that run to end, or start a new conversation."
    )


class StreamBroken(ModelError):
    """A model's stream ended before its answer was complete: what came is worth keeping, marked incomplete.

    `usage` is what the provider had counted by then, or None.
    """

    def __init__(self, message: str, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage


class RunNotFound(EveryturnError, LookupError):
    """No stream event of this run is stored."""


class MemoryNotFound(EveryturnError, LookupError):
    """No memory has this id, in the scope that was asked."""


class TransferError(EveryturnError):
    """A dump could not be written, or not be restored; the message says which and what is unchanged."""


class CaseNotFound(EveryturnError, LookupError):
    """No eval case has this id."""


class ReplayNotFound(EveryturnError, LookupError):
    """No replay has this id."""


class ReplayConflict(EveryturnError):
    """Another process is working on this replay."""


class NotEnoughData(EveryturnError):
    """There is too little to answer from."""
