"""The model leaf of a provider, over pydantic-ai, which is imported when it is first asked."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, Hashable
from contextlib import contextmanager
from decimal import Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import WeakKeyDictionary

from everyturn.errors import ModelError, StreamBroken
from everyturn.messages import (
    Delta,
    ModelRequest,
    ModelTurn,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent
    from pydantic_ai.models import Model, StreamedResponse
    from pydantic_ai.settings import ModelSettings

    from everyturn.values import Usage

_EXTRAS = ("anthropic", "openai")
# These make their own streams and have no finish reason to give.
_WITHOUT_FINISH_REASON = ("test", "function")


class ProviderLeaf:
    """A model named `provider:model`, or a pydantic-ai model object."""

    def __init__(self, model: str | Model) -> None:
        self._given = model
        if isinstance(model, str):
            self._provider, _, self.name = model.partition(":")
            package = self._provider.partition("-")[0]
            if package in _EXTRAS and find_spec(package) is None:
                raise ModelError(_install(model, package))
        else:
            self._provider, self.name = model.system, model.model_name

    def __repr__(self) -> str:
        return f"ProviderLeaf({self._provider}:{self.name})"

    async def stream(self, request: ModelRequest, *, streaming: bool = True) -> AsyncGenerator[Delta | ModelTurn]:
        """Ask the provider: as it streams, or for the whole answer at once."""
        from pydantic_ai.direct import model_request, model_request_stream

        from everyturn.provider_history import to_messages, to_parameters, to_turn

        model = await self._model()
        messages = to_messages(request, model.system)
        settings = cast("ModelSettings", dict(request.settings))
        parameters = to_parameters(request)
        if not streaming:
            with self._explaining():
                response = await model_request(
                    model, messages, model_settings=settings, model_request_parameters=parameters
                )
            turn = to_turn(response, self.name)
            if response.finish_reason is None and model.system == "anthropic":
                # Long answers come as a stream all the same, and this one broke off.
                if turn.text:
                    yield TextDelta(turn.text)
                raise self._broken(turn.usage)
            yield turn
            return
        progress = _Progress()
        with self._explaining(progress):
            async with model_request_stream(
                model, messages, model_settings=settings, model_request_parameters=parameters
            ) as stream:
                progress.stream = stream
                async for event in stream:
                    delta = progress.delta(event)
                    if delta is not None:
                        yield delta
                response = stream.get()
        if _broke_off(response, model.system):
            raise self._broken(progress.usage())
        yield to_turn(response, self.name)

    def _broken(self, usage: Usage | None) -> StreamBroken:
        return StreamBroken(
            f"The stream of {self._provider}:{self.name} ended without saying why: its answer is incomplete.",
            usage,
        )

    def cost(self, usage: Usage, model: str | None = None) -> Decimal | None:
        """What this usage costs at this provider's prices."""
        from everyturn.prices import cost

        provider = "openai" if self._provider.startswith("openai-") else self._provider
        return cost(usage, model or self.name, provider)

    async def _model(self) -> Model:
        """The model for the running event loop, with a client that is closed when the loop shuts down."""
        models = _open_models.setdefault(asyncio.get_running_loop(), {})
        key = self._key()
        if key in models:
            return models[key][0]
        with self._explaining():
            model = self._made()
        keeper = _keep_open(models, key, model)
        # Set first: another task may come along while the client opens.
        models[key] = (model, keeper)
        await anext(keeper)
        return model

    def _key(self) -> Hashable:
        if not isinstance(self._given, str):
            return id(self._given)
        prefix = self._provider.partition("-")[0].upper()
        return (self._given, *(os.environ.get(f"{prefix}_{name}") for name in ("API_KEY", "BASE_URL")))

    def _made(self) -> Model:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model

        if not isinstance(self._given, str):
            return self._given
        try:
            return infer_model(self._given)
        except ImportError as error:
            raise ModelError(_install(self._given, self._provider)) from error
        except UserError as error:
            said = str(error)
            keys = re.findall(r"`([A-Z][A-Z0-9_]{3,})`", said)
            if keys:
                said = f"set the environment variable {' or '.join(dict.fromkeys(keys))}."
                raise ModelError(f"The model {self._given!r} needs a key: {said}") from error
            raise ModelError(f"The model {self._given!r} cannot be used: {said}") from error

    @contextmanager
    def _explaining(self, progress: _Progress | None = None) -> Iterator[None]:
        """Turns the errors of pydantic-ai, of the provider's package and of the connection into sentences."""
        try:
            yield
        except ModelError:
            raise
        except Exception as error:
            said = _sentence(f"{self._provider}:{self.name}", error)
            if progress is not None and progress.begun:
                raise StreamBroken(f"{said} What had come by then is incomplete.", progress.usage()) from error
            raise ModelError(said) from error


class _Progress:
    """What has come of a stream."""

    def __init__(self) -> None:
        from everyturn.provider_history import Prose

        self.stream: StreamedResponse | None = None
        self.begun = False
        self._text = Prose(glued=True)
        self._reasoning = Prose()
        self._calls: dict[int, str] = {}

    def usage(self) -> Usage | None:
        from everyturn.provider_history import to_usage

        return to_usage(self.stream.usage) if self.stream is not None else None

    def delta(self, event: ModelResponseStreamEvent) -> Delta | None:
        """The delta of one event, or None where it brings nothing to show."""
        found = self._delta(event)
        self.begun = self.begun or found is not None
        return found

    def _delta(self, event: ModelResponseStreamEvent) -> Delta | None:
        from pydantic_ai import messages as pai

        if isinstance(event, pai.PartStartEvent):
            part = event.part
            if isinstance(part, pai.TextPart):
                return _unless_empty(TextDelta, self._text.add(event.index, part.content))
            if isinstance(part, pai.ThinkingPart):
                return _unless_empty(ReasoningDelta, self._reasoning.add(event.index, part.content))
            if isinstance(part, pai.ToolCallPart):
                self._calls[event.index] = part.tool_call_id
                return ToolCallDelta(part.tool_call_id, part.tool_name, _args_text(part.args))
        elif isinstance(event, pai.PartDeltaEvent):
            change = event.delta
            if isinstance(change, pai.TextPartDelta):
                return _unless_empty(TextDelta, self._text.add(event.index, change.content_delta))
            if isinstance(change, pai.ThinkingPartDelta):
                piece = self._reasoning.add(event.index, change.content_delta or "")
                return _unless_empty(ReasoningDelta, piece)
            if isinstance(change, pai.ToolCallPartDelta) and change.args_delta:
                call = self._calls.get(event.index) or change.tool_call_id or ""
                return ToolCallDelta(call, None, _args_text(change.args_delta))
        return None


_Models: TypeAlias = "dict[Hashable, tuple[Model, AsyncGenerator[None]]]"

# An HTTP client belongs to the event loop that opened it; leaves of one name share it there.
_open_models: WeakKeyDictionary[asyncio.AbstractEventLoop, _Models] = WeakKeyDictionary()


async def _keep_open(models: _Models, key: Hashable, model: Model) -> AsyncGenerator[None]:
    """Holds a model's client open until the event loop shuts its generators down, as `asyncio.run` does."""
    try:
        async with model:
            yield
    finally:
        models.pop(key, None)


def _broke_off(response: ModelResponse, system: str) -> bool:
    """Whether a stream ended before the provider said that, and why, its answer ends."""
    if system in _WITHOUT_FINISH_REASON:
        return False
    if response.finish_reason is None:
        return True
    # pydantic-ai lets a stream of Chat Completions end without a reason, for servers that never give one.
    details = response.provider_details or {}
    return system == "openai" and not {"finish_reason", "refusal"} & details.keys()


def _unless_empty(kind: type[TextDelta] | type[ReasoningDelta], piece: str) -> Delta | None:
    return kind(piece) if piece else None


def _args_text(args: Any) -> str:
    return args if isinstance(args, str) else json.dumps(args) if args else ""


def _install(model: str, package: str) -> str:
    extra = f"everyturn[{package}]" if package in _EXTRAS else f"pydantic-ai-slim[{package}]"
    return f"The model {model!r} needs its provider's package. Install it with: pip install '{extra}'"


def _sentence(model: str, error: Exception) -> str:
    from pydantic_ai.exceptions import AgentRunError, ModelHTTPError, UserError

    if isinstance(error, ModelHTTPError):
        hint = {
            401: "Check the key in the environment.",
            403: "Check what the key in the environment allows.",
            404: "Check the model's name.",
            429: "Its rate limit or quota is used up; try again later.",
        }.get(error.status_code, "Try again later." if error.status_code >= 500 else "")
        said = _without_keys(_detail(error.body))
        return " ".join(filter(None, (f"{model} answered {error.status_code}: {said}.", hint)))
    said = _without_keys(str(error)).rstrip(".")
    if not isinstance(error, AgentRunError | UserError):
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"The request to {model} failed: {said}."


def _detail(body: object) -> str:
    """What the provider says went wrong, without the JSON around it."""
    found = body
    while isinstance(found, dict):
        found = next((found[key] for key in ("error", "message", "detail") if found.get(key)), None)
    said = " ".join(str(found or body or "no reason given").split())
    return (said if len(said) <= 500 else said[:499] + "…").rstrip(".")


def _without_keys(text: str) -> str:
    for name, value in os.environ.items():
        if name.endswith(("_KEY", "_TOKEN", "_SECRET")) and len(value) >= 8:
            text = text.replace(value, f"[{name}]")
    return text
