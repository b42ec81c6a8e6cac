"""everyturn: agents whose tools, memory, conversation log, events, evals and datasets live in one Postgres.

Every turn an agent takes is a row you can query. The public names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent import Agent as Agent
    from .comparing import Comparison as Comparison
    from .comparing import Side as Side
    from .context import Context as Context
    from .database import Database as Database
    from .database import connect as connect
    from .datasets.hook import capture_on as capture_on
    from .datasets.scorers import Score as Score
    from .datasets.values import Captured as Captured
    from .datasets.values import Case as Case
    from .datasets.values import Dataset as Dataset
    from .embed import Embedder as Embedder
    from .errors import CaseNotFound as CaseNotFound
    from .errors import ConversationConflict as ConversationConflict
    from .errors import ConversationNotFound as ConversationNotFound
    from .errors import DatabaseUnavailable as DatabaseUnavailable
    from .errors import DatasetNotFound as DatasetNotFound
    from .errors import EmbedderError as EmbedderError
    from .errors import EveryturnError as EveryturnError
    from .errors import ImplementationChanged as ImplementationChanged
    from .errors import InvalidValue as InvalidValue
    from .errors import MaxTurnsExceeded as MaxTurnsExceeded
    from .errors import MemoryNotFound as MemoryNotFound
    from .errors import MigrationError as MigrationError
    from .errors import ModelError as ModelError
    from .errors import NotEnoughData as NotEnoughData
    from .errors import QueryNotFound as QueryNotFound
    from .errors import RateBudgetExceeded as RateBudgetExceeded
    from .errors import ReplayConflict as ReplayConflict
    from .errors import ReplayNotFound as ReplayNotFound
    from .errors import RunNotFound as RunNotFound
    from .errors import StreamBroken as StreamBroken
    from .errors import ToolArgumentsError as ToolArgumentsError
    from .errors import ToolDefinitionError as ToolDefinitionError
    from .errors import TurnNotFound as TurnNotFound
    from .evals import Eval as Eval
    from .evaluators import Evaluated as Evaluated
    from .evaluators import Evaluator as Evaluator
    from .evaluators import Verdict as Verdict
    from .evaluators import evaluator as evaluator
    from .event_calls import EventCall as EventCall
    from .event_memory import MemoryEventStore as MemoryEventStore
    from .event_records import EventRecord as EventRecord
    from .event_records import EventStore as EventStore
    from .event_records import RunSummary as RunSummary
    from .history import last_turns as last_turns
    from .history import token_budget as token_budget
    from .hooks import EvalHooks as EvalHooks
    from .llm_judge import LLMJudge as LLMJudge
    from .memory import ALL as ALL
    from .memory import Forgotten as Forgotten
    from .memory import Hit as Hit
    from .memory import Memory as Memory
    from .memory import Remembered as Remembered
    from .messages import AssistantMessage as AssistantMessage
    from .messages import ModelRequest as ModelRequest
    from .messages import ModelTurn as ModelTurn
    from .messages import ReasoningDelta as ReasoningDelta
    from .messages import TextDelta as TextDelta
    from .messages import ToolCall as ToolCall
    from .messages import ToolCallDelta as ToolCallDelta
    from .messages import ToolMessage as ToolMessage
    from .messages import UserMessage as UserMessage
    from .redacting import Redacted as Redacted
    from .redaction import Redaction as Redaction
    from .retention import Expired as Expired
    from .retention import Pruned as Pruned
    from .sse import sse as sse
    from .stream import StreamEvent as StreamEvent
    from .tools import RateBudget as RateBudget
    from .tools import Tool as Tool
    from .tools import tool as tool
    from .turns import NewTurn as NewTurn
    from .turns import TurnHit as TurnHit
    from .values import Conversation as Conversation
    from .values import RunResult as RunResult
    from .values import Turn as Turn
    from .values import Usage as Usage

__version__ = "0.1.0"

_MODULES = {
    "agent": "Agent",
    "comparing": "Comparison Side",
    "context": "Context",
    "database": "Database connect",
    "datasets.hook": "capture_on",
    "datasets.scorers": "Score",
    "datasets.values": "Captured Case Dataset",
    "embed": "Embedder",
    "errors": "CaseNotFound ConversationConflict ConversationNotFound DatabaseUnavailable DatasetNotFound "
    "EmbedderError EveryturnError ImplementationChanged InvalidValue MaxTurnsExceeded MemoryNotFound MigrationError "
    "ModelError NotEnoughData QueryNotFound RateBudgetExceeded ReplayConflict ReplayNotFound RunNotFound "
    "StreamBroken ToolArgumentsError ToolDefinitionError TurnNotFound",
    "evals": "Eval",
    "evaluators": "Evaluated Evaluator Verdict evaluator",
    "event_calls": "EventCall",
    "event_memory": "MemoryEventStore",
    "event_records": "EventRecord EventStore RunSummary",
    "history": "last_turns token_budget",
    "hooks": "EvalHooks",
    "llm_judge": "LLMJudge",
    "memory": "ALL Forgotten Hit Memory Remembered",
    "messages": "AssistantMessage ModelRequest ModelTurn ReasoningDelta TextDelta ToolCall ToolCallDelta "
    "ToolMessage UserMessage",
    "redacting": "Redacted",
    "redaction": "Redaction",
    "retention": "Expired Pruned",
    "sse": "sse",
    "stream": "StreamEvent",
    "tools": "RateBudget Tool tool",
    "turns": "NewTurn TurnHit",
    "values": "Conversation RunResult Turn Usage",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'everyturn' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
