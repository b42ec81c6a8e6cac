"""Which database: a URL, a directory, the environment, or the embedded default. Never a silent choice."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

import psycopg

from .errors import InvalidValue

VARIABLE = "EVERYTURN_DATABASE"
SESSION_VARIABLE = "EVERYTURN_SESSION_DATABASE"
_KNOWN = frozenset((VARIABLE, SESSION_VARIABLE, "EVERYTURN_DEBUG", "EVERYTURN_EMBEDDER", "EVERYTURN_HOME"))
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
    text = os.fspath(target)
    if not text.strip():
        raise InvalidValue("The database target is empty. Give a Postgres URL or a directory, or leave it out.")
    if isinstance(target, os.PathLike):
        return Path(text)
    if text.startswith(("postgresql://", "postgres://")) or _is_conninfo(text):
        check_conninfo(text)
        return text
    if "://" in text:
        raise InvalidValue(
            f"The database target starts with {text.partition('://')[0] + '://'!r}, which is not Postgres. "
            "Give postgresql://… or a directory."
        )
    return Path(text)


def session_url(environ: Mapping[str, str] = os.environ) -> str | None:
    """A second URL, for the one connection that must keep its session when the first goes through a pooler."""
    url = environ.get(SESSION_VARIABLE)
    if url:
        check_conninfo(url)
    return url or None


def _is_conninfo(text: str) -> bool:
    first = text.split("=", 1)[0].strip()
    return "=" in text and first in {
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "service",
        "passfile",
    }


def check_conninfo(text: str) -> None:
    """Refuse a connection string that libpq cannot read, without repeating it: it may hold a password."""
    try:
        psycopg.conninfo.conninfo_to_dict(text)
    except psycopg.ProgrammingError:
        raise InvalidValue(
            "The connection string cannot be read by libpq. Write postgresql://user:password@host:port/database, "
            "with special characters in its parts percent-encoded."
        ) from None


def refuse_near_misses(environ: Mapping[str, str]) -> None:
    """Raise InvalidValue when a variable looks like a misspelling of EVERYTURN_DATABASE."""
    for name in environ:
        upper = name.upper()
        if name in _KNOWN:
            continue
        ours = upper.startswith(("EVERYTURN", "EVERY_TURN"))
        rest = upper.replace("EVERY_TURN", "EVERYTURN").removeprefix("EVERYTURN").strip("_").split("_")
        if (ours and any(word in rest for word in _WORDS)) or difflib.SequenceMatcher(
            None, upper, VARIABLE
        ).ratio() >= 0.85:
            raise InvalidValue(
                f"The environment has {name}, which everyturn does not read. Did you mean {VARIABLE}? "
                "Rename or unset it, so that no other database is used by mistake."
            )
