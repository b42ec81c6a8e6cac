"""Which database: a URL, a directory, the environment, or the embedded default. Never a silent choice."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import psycopg

from .errors import InvalidValue

VARIABLE = "EVERYTURN_DATABASE"
SESSION_VARIABLE = "EVERYTURN_SESSION_DATABASE"
_KNOWN = frozenset((VARIABLE, SESSION_VARIABLE, "EVERYTURN_DEBUG", "EVERYTURN_EMBEDDER", "EVERYTURN_HOME"))
# What is meant as a URL and lacks its slashes must not become a directory with a database of its own.
_SCHEME = re.compile(r"(postgres|pg|psql|jdbc|file|sqlite|https?)\w*(\+\w+)?:", re.IGNORECASE)
_WORDS = ("DATABASE", "DB", "URL", "URI", "DSN", "POSTGRES", "PG")


def resolve(target: str | os.PathLike[str] | None, environ: Mapping[str, str] = os.environ) -> str | Path | None:
    """The connection string, the directory of an embedded server, or None for the embedded default.

    Raises InvalidValue for an empty target, an unreadable connection string, and a misspelt variable.
    """
    if target is None:
        refuse_near_misses(environ)
        target = environ.get(VARIABLE)
        if target is None:
            return None
        if not target.strip():
            raise InvalidValue(
                f"{VARIABLE} is set but empty. Unset it for the embedded database, or set it to a Postgres URL "
                "or a directory."
            )
    if not isinstance(target, str | os.PathLike):
        raise InvalidValue(f"The database target is a Postgres URL or a directory; got {target!r:.80}.")
    text = os.fsdecode(target)
    if not text.strip():
        raise InvalidValue("The database target is empty. Give a Postgres URL or a directory, or leave it out.")
    if isinstance(target, os.PathLike):
        return Path(text)
    scheme, found, _ = text.strip().partition("://")
    if found and scheme.lower() in ("postgresql", "postgres"):
        return check_conninfo(text)
    if found:
        hint = "Write postgresql:// without a driver's name." if scheme.lower().startswith("postgres") else ""
        raise InvalidValue(
            f"The database target starts with {scheme[:30] + '://'!r}, which libpq does not know. "
            + (hint or "Give postgresql://… or a directory.")
        )
    if _is_conninfo(text):
        return check_conninfo(text)
    if _SCHEME.match(text.strip()):
        raise InvalidValue(
            f"The database target {text.strip().partition(':')[0] + ':'!r}… is neither a URL nor a plain directory. "
            "Write postgresql://user@host/database with its two slashes, or ./ before a directory of such a name."
        )
    return Path(text)


def session_url(environ: Mapping[str, str] = os.environ) -> str | None:
    """A second URL, for the one connection that must keep its session when the first goes through a pooler."""
    url = environ.get(SESSION_VARIABLE)
    return check_conninfo(url) if url and url.strip() else None


def _is_conninfo(text: str) -> bool:
    """Whether it is libpq's other form, `host=… dbname=…`."""
    key, equals, _ = text.partition("=")
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    return bool(equals) and key.strip() in known


def check_conninfo(text: str) -> str:
    """The connection string as libpq reads it, or InvalidValue; never with what is in it, which may be a password."""
    if not isinstance(text, str):
        raise InvalidValue(f"The connection string is text; got a {type(text).__name__}.")
    text = text.strip()
    scheme, found, rest = text.partition("://")
    if found:
        text = f"{scheme.lower()}://{rest}"
        # A password with a bare @ or / would end up in the host's name, and so in messages.
        authority, _, path = rest.partition("?")[0].partition("/")
        if authority.count("@") > 1 or "@" in path:
            raise _unreadable()
    try:
        parts = psycopg.conninfo.conninfo_to_dict(text)
    except (psycopg.ProgrammingError, UnicodeError):
        raise _unreadable() from None
    if not all(port.isdigit() or not port for port in str(parts.get("port") or "").split(",")):
        raise _unreadable()
    return text


def _unreadable() -> InvalidValue:
    return InvalidValue(
        "The connection string cannot be read by libpq. Write postgresql://user:password@host:port/database, "
        "with special characters in its parts percent-encoded."
    )


def refuse_near_misses(environ: Mapping[str, str]) -> None:
    """Raise InvalidValue when a variable looks like a misspelling of EVERYTURN_DATABASE."""
    for name in environ:
        upper = name.upper()
        if name in _KNOWN:
            continue
        ours = upper.startswith(("EVERYTURN", "EVERY_TURN"))
        rest = upper.replace("EVERY_TURN", "EVERYTURN").removeprefix("EVERYTURN").strip("_").split("_")
        if (ours and any(word in rest for word in _WORDS)) or _alike(upper):
            raise InvalidValue(
                f"The environment has {name}, which everyturn does not read. Did you mean {VARIABLE}? "
                "Rename or unset it, so that no other database is used by mistake."
            )


def _alike(name: str) -> bool:
    matcher = difflib.SequenceMatcher(None, name, VARIABLE)
    return matcher.real_quick_ratio() >= 0.85 and matcher.quick_ratio() >= 0.85 and matcher.ratio() >= 0.85
