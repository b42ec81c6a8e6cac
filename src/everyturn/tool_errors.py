"""What a model is told about arguments that were refused: each argument, its value, and what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everyturn.errors import ToolArgumentsError
from everyturn.jsonable import dumps_lenient

_SHOWN = 10
_VALUE = 100
_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class Problem:
    where: Sequence[str | int]
    expected: str
    value: Any = _ABSENT

    def __str__(self) -> str:
        path = ""
        for step in self.where:
            path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
        if self.value is _ABSENT or not path:
            return f"{path} {self.expected}".strip()
        return f"{path} = {brief(self.value)}: {self.expected}"


def brief(value: Any) -> str:
    text = dumps_lenient(value)
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}…"


def refuse(tool: str, problems: Sequence[Problem], takes: Sequence[str]) -> ToolArgumentsError:
    """The error for a model that can correct itself."""
    lines = list(dict.fromkeys(str(problem) for problem in problems))
    if len(lines) > _SHOWN:
        lines = [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more"]
    known = f"It takes: {', '.join(takes)}." if takes else "It takes no arguments."
    return ToolArgumentsError(f"The arguments of {tool} were refused. {'; '.join(lines)}. {known}")
