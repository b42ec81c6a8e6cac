"""Python objects named in text: `python:module:name` and `python:file.py:name`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from everyturn.errors import EveryturnError, InvalidValue

FORMS = "python:module:name or python:path/to/file.py:name"


class ObjectImportError(EveryturnError, ImportError):
    """The module that holds a named object raised while it was imported."""


def is_reference(text: str) -> bool:
    """Whether a text names a Python object (and not, say, a model of a provider)."""
    return text.startswith("python:")


def load_object(reference: str) -> Any:
    """The object a `python:module:name` or `python:file.py:name` reference names.

    Modules are looked up as `python -m` would, the current directory first; a file may import its neighbours.
    The name may be dotted.
    """
    place, name = _split(reference)
    module = _load_file(place, reference) if place.endswith(".py") else _load_module(place, reference)
    found: Any = module
    walked: list[str] = []
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            owner = ".".join([place, *walked])
            raise InvalidValue(
                f"{reference!r}: {owner} has no {part!r}.{_suggestion(found, part)} Write {FORMS}."
            ) from None
        walked.append(part)
    return found


def _split(reference: str) -> tuple[str, str]:
    rest = reference.removeprefix("python:")
    place, separator, name = rest.rpartition(":")
    if not is_reference(reference) or not separator or not place or not name:
        raise InvalidValue(f"{reference!r} does not name a Python object. Write {FORMS}.")
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidValue(f"{reference!r}: {name!r} is not a Python name. Write {FORMS}.")
    return place, name


def _load_module(name: str, reference: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidValue(f"{reference!r}: {name!r} is neither a module nor a .py file. Write {FORMS}.")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidValue(
                f"{reference!r}: there is no module {error.name!r}, neither in {here} nor in the Python that "
                f"runs this command ({sys.executable})."
            ) from None
        raise _failed(reference, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(reference, error) from error


def _load_file(path: str, reference: str) -> ModuleType:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise InvalidValue(f"{reference!r}: there is no file {file}.")
    loaded = sys.modules.get(file.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    # A file that shares its name with a module already loaded must not take that module's place.
    name = file.stem if loaded is None else f"_everyturn_file_{file.stem}_{abs(hash(file))}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InvalidValue(f"{reference!r}: {file} cannot be imported.")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise _failed(reference, error) from error
    return module


def _failed(reference: str, error: BaseException) -> ObjectImportError:
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "unknown place"
    return ObjectImportError(
        f"Importing {reference!r} failed: {type(error).__name__}: {error} ({place}). EVERYTURN_DEBUG=1 shows the stack."
    )


def _suggestion(owner: object, name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, [word for word in dir(owner) if not word.startswith("_")], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
