"""Claude Code's settings.json: our hooks put in beside what is there, and taken out again.

Keys that are not ours keep their values and their order. The file as it was is kept beside it until our hooks are
taken out, when it is put back byte for byte where nothing else has changed since. A file that is not plain JSON is left
alone.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everyturn.errors import InvalidValue

EVENTS: dict[str, str | None] = {"PostToolUse": "*", "Stop": None, "SessionEnd": None}
"""The events that are hooked, with their matcher."""
TIMEOUT = 10
_OURS = re.compile(r"\beveryturn(?:\.exe)?['\"]?\s+claude-code\s+hook\b")
_BACKUP = ".before-everyturn"


@dataclass(frozen=True, slots=True)
class Change:
    """What was done to the settings."""

    path: Path
    changed: bool


def add_hooks(path: Path, command: str) -> Change:
    """Put our hooks in. A second time changes nothing; another command of ours is replaced. Raises InvalidValue."""
    text = _read(path)
    settings = _parsed(path, text)
    first = not _has_ours(settings)
    hooks = settings.setdefault("hooks", {})
    for event, matcher in EVENTS.items():
        entry = {"type": "command", "command": command, "timeout": TIMEOUT}
        groups = hooks.setdefault(event, [])
        ours = [(group, n) for group in groups for n, hook in enumerate(group.get("hooks", ())) if _is_ours(hook)]
        if ours:
            group, number = ours[0]
            group["hooks"][number] = {**group["hooks"][number], "command": command}
        else:
            groups.append({**({"matcher": matcher} if matcher else {}), "hooks": [entry]})
    if text is not None and settings == _parsed(path, text):
        return Change(path, False)
    if first:  # a copy that is there already is of another time
        _backup(path).unlink(missing_ok=True)
        if text is not None:
            _replace(_backup(path), text, like=path)
    _replace(path, _dumped(settings, text), like=path, expected=text)
    return Change(path, True)


def remove_hooks(path: Path) -> Change:
    """Take our hooks out, and the file itself where it held nothing else before. Raises InvalidValue."""
    text = _read(path)
    if text is None:
        return Change(path, False)
    settings = _parsed(path, text)
    if not _without_ours(settings):
        return Change(path, False)
    backup = _backup(path)
    before = _read(backup)
    if before is not None and _same(before, settings):
        _replace(path, before, like=path, expected=text)
    elif before is None and not settings:
        path.unlink()
    else:
        _replace(path, _dumped(settings, text), like=path, expected=text)
    backup.unlink(missing_ok=True)
    return Change(path, True)


def _has_ours(settings: dict[str, Any]) -> bool:
    groups = [group for event in settings.get("hooks", {}).values() for group in event]
    return any(_is_ours(hook) for group in groups for hook in group.get("hooks", ()))


def _without_ours(settings: dict[str, Any]) -> bool:
    """Take our hooks out of the settings, and the lists they leave empty; whether there were any."""
    hooks = settings.get("hooks", {})
    found = False
    for event in list(hooks):
        groups = []
        here = False
        for group in hooks[event]:
            kept = [hook for hook in group.get("hooks", ()) if not _is_ours(hook)]
            if len(kept) == len(group.get("hooks", ())):
                groups.append(group)
                continue
            here = True
            if kept:
                groups.append({**group, "hooks": kept})
        if here:
            found = True
            hooks[event] = groups
            if not groups:
                del hooks[event]
    if found and not hooks:
        del settings["hooks"]
    return found


def _is_ours(hook: Any) -> bool:
    return isinstance(hook, dict) and isinstance(hook.get("command"), str) and bool(_OURS.search(hook["command"]))


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise InvalidValue(f"{path} is not UTF-8, so it is left as it is. Correct it, then try again.") from None


def _parsed(path: Path, text: str | None) -> dict[str, Any]:
    """The settings, checked as far as we change them."""
    if text is None or not text.strip("\ufeff \t\r\n"):
        return {}
    try:
        settings = json.loads(
            text.lstrip("\ufeff"), object_pairs_hook=_object, parse_constant=_refused, parse_float=_float
        )
    except (ValueError, RecursionError) as error:
        raise InvalidValue(
            f"{path} cannot be changed without losing what is in it ({error}), so it is left as it is. Make it plain "
            "JSON (no comments, no trailing commas), then try again."
        ) from None
    hooks = settings.get("hooks", {}) if isinstance(settings, dict) else None
    if not isinstance(hooks, dict) or not all(
        isinstance(groups, list)
        and all(isinstance(group, dict) and isinstance(group.get("hooks", []), list) for group in groups)
        for groups in hooks.values()
    ):
        raise InvalidValue(
            f"{path} is not what Claude Code reads: an object whose `hooks` map events to lists of "
            '{"hooks": […]}. It is left as it is; correct it, then try again.'
        )
    return dict(settings)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _float(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is too large a number")
    return value


def _same(text: str, settings: dict[str, Any]) -> bool:
    try:
        before = json.loads(text.lstrip("\ufeff")) if text.strip("\ufeff \t\r\n") else {}
    except ValueError:
        return False
    # An event that had an empty list of hooks is left without its list.
    return bool(before == settings) or (isinstance(before, dict) and _pruned(before) == _pruned(settings))


def _pruned(settings: dict[str, Any]) -> dict[str, Any]:
    hooks = settings.get("hooks")
    if not isinstance(hooks, dict):
        return settings
    kept = {event: groups for event, groups in hooks.items() if groups}
    return {key: kept if key == "hooks" else value for key, value in settings.items() if key != "hooks" or kept}


def _dumped(settings: dict[str, Any], text: str | None) -> str:
    """The settings in the style of the file they came from."""
    given = text or "\n"
    indent = re.search(r"^([ \t]+)\S", given, re.M)
    out = json.dumps(settings, ensure_ascii=False, indent=indent[1] if indent else 2)
    try:
        out.encode()
    except UnicodeEncodeError:
        out = json.dumps(settings, indent=indent[1] if indent else 2)
    out += "\n" if given.endswith("\n") else ""
    if "\r\n" in given:
        out = out.replace("\n", "\r\n")
    return "\ufeff" + out if given.startswith("\ufeff") else out


def _backup(path: Path) -> Path:
    return path.with_name(path.name + _BACKUP)


_ANY = object()


def _replace(path: Path, text: str, *, like: Path, expected: Any = _ANY) -> None:
    """Write a file in one step, with the mode of another; what a link points to, not the link."""
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(like))
        if expected is not _ANY and _read(target) != expected:
            raise InvalidValue(f"{path} was changed by another program just now; it is left as it is. Try again.")
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
