"""What a model leaf is asked and what it answers: plain frozen values, the same for every provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from everyturn.errors import ModelError
from everyturn.values import Usage

if TYPE_CHECKING:
    from everyturn.tools import Tool

FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "error"]

_FINISH_REASONS = get_args(FinishReason)


class _NotGiven(str):
    """An empty text nobody gave: it tells `ModelTurn()` from `ModelTurn(text="")`."""

    __slots__ = ()


_NOT_GIVEN = _NotGiven()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model asks for."""

    id: str
    name: str
    args: dict[str, Any] | str = field(default_factory=dict)
    """The arguments, or the raw text when the model's arguments were not a JSON object."""

    def __post_init__(self) -> None:
        for what, value in (("id", self.id), ("name", self.name)):
            if not isinstance(value, str):
                raise ModelError(f"A ToolCall's {what} must be a string, not {_show(value)}.")
        if self.args is None:
            object.__setattr__(self, "args", {})
        elif not isinstance(self.args, (dict, str)):
            if not isinstance(self.args, Mapping):
                raise ModelError(
                    f"The args of ToolCall {self.name!r} must be a dict, or the raw string when it was not "
                    f"JSON; got {_show(self.args)}."
                )
            object.__setattr__(self, "args", dict(self.args))


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user said."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What the model answered before."""

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    reasoning: str | None = None
    provider: Any = None
    """The opaque data of the `ModelTurn` this message was, as its leaf left it."""


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The outcome of one call."""

    tool_call_id: str
    tool_name: str
    content: str
    is_error: bool = False


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question to a model."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    instructions: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One answer of a model. Every field is optional, but one of `text` and `tool_calls` must be given.

    `ModelTurn(text="")` is an answer without words; `ModelTurn()` is refused.
    """

    text: str = _NOT_GIVEN
    tool_calls: Sequence[ToolCall] = ()
    usage: Usage | None = None
    model: str | None = None
    """The name of the model that answered; the leaf's own name when not given."""
    finish_reason: FinishReason | None = None
    """When not given: `tool_calls` if there are any, else `stop`."""
    reasoning: str | None = None
    provider: Any = None
    """JSON data this leaf needs back with the history, such as reasoning signatures; stored, never read."""
    cost_usd: Decimal | None = None

    def __post_init__(self) -> None:
        calls = _tool_calls(self.tool_calls)
        if not calls and (self.text is None or isinstance(self.text, _NotGiven)):
            raise ModelError(
                "A ModelTurn needs text or tool_calls, and neither was given. "
                'For an answer without words return ModelTurn(text="").'
            )
        if self.text is not None and not isinstance(self.text, str):
            raise ModelError(f"The text of a ModelTurn must be a string, not {_show(self.text)}.")
        reason = self.finish_reason or ("tool_calls" if calls else "stop")
        if reason not in _FINISH_REASONS:
            raise ModelError(
                f"The finish_reason of a ModelTurn must be one of {', '.join(_FINISH_REASONS)}; got {reason!r}."
            )
        for what, value in (("reasoning", self.reasoning), ("model", self.model)):
            if value is not None and not isinstance(value, str):
                raise ModelError(f"The {what} of a ModelTurn must be a string or None, not {_show(value)}.")
        object.__setattr__(self, "usage", counted(self.usage))
        object.__setattr__(self, "text", "" if self.text is None else str(self.text))
        object.__setattr__(self, "tool_calls", calls)
        object.__setattr__(self, "finish_reason", reason)
        object.__setattr__(self, "cost_usd", _cost(self.cost_usd))


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call: its name once, its arguments as they come."""

    id: str
    name: str | None = None
    args_delta: str = ""


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta


def _tool_calls(calls: Any) -> tuple[ToolCall, ...]:
    if calls is None:
        return ()
    if isinstance(calls, (ToolCall, str, Mapping)):
        raise ModelError(f"The tool_calls of a ModelTurn must be a list of ToolCall, not {_show(calls)}.")
    try:
        given = tuple(calls)
    except TypeError:
        raise ModelError(f"The tool_calls of a ModelTurn must be a list of ToolCall, not {_show(calls)}.") from None
    for call in given:
        if not isinstance(call, ToolCall):
            raise ModelError(f"Every entry of tool_calls must be a ToolCall; got {_show(call)}.")
    return given


def counted(usage: Any) -> Usage | None:
    """The usage in whole numbers; a count that a provider left out is 0. Raises ModelError."""
    if usage is None:
        return None
    if not isinstance(usage, Usage):
        raise ModelError(f"The usage of a ModelTurn must be an everyturn.Usage, not {_show(usage)}.")
    counts = {}
    for name, count in zip(usage.__slots__, astuple(usage), strict=True):
        if isinstance(count, float) and count.is_integer():
            count = int(count)
        if count is None:
            count = 0
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 1 << 63:
            raise ModelError(f"The {name} of a Usage must be a number of tokens from 0 up, not {_show(count)}.")
        counts[name] = count
    return Usage(**counts)


def _cost(cost: Any) -> Decimal | None:
    if cost is None or isinstance(cost, Decimal):
        amount: Decimal | None = cost
    else:
        try:
            amount = Decimal(str(cost))
        except InvalidOperation:
            raise ModelError(f"The cost_usd of a ModelTurn must be a number, not {_show(cost)}.") from None
    if amount is not None and not (amount.is_finite() and amount >= 0):
        raise ModelError(f"The cost_usd of a ModelTurn must be a finite number from 0 up, or None; got {amount}.")
    return amount


def _show(value: Any) -> str:
    """The value as a sentence can name it: its type, and its start when it is a plain one."""
    if value is None:
        return "None"
    kind = type(value).__name__
    if not isinstance(value, (str, int, float, bool)):
        return kind
    text = repr(value)
    return f"{kind} {text if len(text) <= 60 else text[:57] + '…'}"
