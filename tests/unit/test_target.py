"""Which database is meant, and that no password is ever shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

import everyturn as et
from everyturn.connection import Opener, unreachable, without_password
from everyturn.errors import InvalidValue
from everyturn.target import SESSION_VARIABLE, VARIABLE, check_conninfo, resolve, session_url

SECRET = "s3cr3t"


def test_nothing_given_is_the_embedded_default() -> None:
    assert resolve(None, {}) is None
    assert resolve(None, {"PATH": "/bin", "DATABASE_URL": "postgresql://other"}) is None


def test_the_variable_names_a_url_or_a_directory() -> None:
    assert resolve(None, {VARIABLE: "postgresql://h/db"}) == "postgresql://h/db"
    assert resolve(None, {VARIABLE: "data/here"}) == Path("data/here")


def test_the_argument_wins_over_the_environment() -> None:
    assert resolve("postgresql://h/a", {VARIABLE: "postgresql://h/b", "EVERYTURN_DB": "x"}) == "postgresql://h/a"


@pytest.mark.parametrize("value", ["", " ", "\n"])
def test_an_empty_variable_is_an_error(value: str) -> None:
    with pytest.raises(InvalidValue, match="set but empty"):
        resolve(None, {VARIABLE: value})
    with pytest.raises(InvalidValue, match="target is empty"):
        resolve(value, {})


@pytest.mark.parametrize(
    "name",
    [
        "EVERYTURN_DB",
        "EVERYTURN_DATABASE_URL",
        "EVERYTURN_URL",
        "EVERYTURN_DSN",
        "EVERYTURN_POSTGRES_URI",
        "EVERYTURN_PG",
        "EVERY_TURN_DATABASE",
        "EVERYTURN_DATABSE",
        "EVERTURN_DATABASE",
        "EVERYTURN_DATABASES",
        "everyturn_database",
        "EVERYTURNDATABASE",
    ],
)
def test_a_near_miss_is_an_error_also_beside_the_right_name(name: str) -> None:
    with pytest.raises(InvalidValue, match=f"The environment has {name}.*{VARIABLE}"):
        resolve(None, {name: "postgresql://h/x"})
    with pytest.raises(InvalidValue, match=name):
        resolve(None, {VARIABLE: "postgresql://h/db", name: "postgresql://h/x"})


@pytest.mark.parametrize("name", ["DATABASE_URL", "PGDATABASE", "EVERYTURN_EMBEDDER", SESSION_VARIABLE, "EVERYDAY_DB"])
def test_other_variables_are_left_alone(name: str) -> None:
    assert resolve(None, {name: "postgresql://h/x"}) is None


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("postgresql://u:p@h:5432/db", "postgresql://u:p@h:5432/db"),
        ("  postgres://h/db\n", "postgres://h/db"),
        ("POSTGRESQL://h/db", "postgresql://h/db"),
        ("postgresql:///db?host=/tmp/a@b", "postgresql:///db?host=/tmp/a@b"),
        ("postgresql://u:p%40%2F@h1:1,h2:2/db", "postgresql://u:p%40%2F@h1:1,h2:2/db"),
        ("host=h dbname=db password=p", "host=h dbname=db password=p"),
        ("sslmode=require host=h password=p", "sslmode=require host=h password=p"),
        ("application_name = x host=h", "application_name = x host=h"),
    ],
)
def test_both_forms_of_libpq_are_read(given: str, read: str) -> None:
    assert resolve(given, {}) == read


@pytest.mark.parametrize("target", ["data", "/a/b c/d", "./user=me", "a=b", "with?mark", Path("host=h")])
def test_anything_else_is_a_directory(target: str | Path) -> None:
    assert resolve(target, {}) == Path(target)


@pytest.mark.parametrize("target", [5, True, b"x", ["a"], object()])
def test_what_is_neither_text_nor_path_is_refused(target: Any) -> None:
    with pytest.raises(InvalidValue, match="is a Postgres URL or a directory"):
        resolve(target, {})


@pytest.mark.parametrize(
    "target", ["postgres:/db", "postgresql:u@h/db", "PG:h", "jdbc:postgresql", "file:/data", "psql:"]
)
def test_a_url_without_its_slashes_makes_no_directory(target: str) -> None:
    with pytest.raises(InvalidValue, match="neither a URL nor a plain directory"):
        resolve(target, {})
    assert resolve(f"./{target}", {}) == Path(target)


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://u:{SECRET}@h/db",
        f"postgresql+psycopg://u:{SECRET}@h/db",
        f"postgresql://u:{SECRET}@x@h/db",
        f"postgresql://u:{SECRET}/x@h/db",
        f"postgresql://u:12/{SECRET}@h/db",
        f"postgresql://u:{SECRET}%zz@h/db",
        f"postgresql://u:{SECRET}@h:port/db",
        f"postgresql://u:{SECRET}@h/db?nonsense=1",
        f"host=h password={SECRET} nonsense",
        f"host=h password='{SECRET}",
    ],
)
def test_a_bad_url_is_refused_and_its_password_never_repeated(url: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        resolve(url, {})
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__cause__)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    with pytest.raises(InvalidValue) as caught:
        session_url({SESSION_VARIABLE: url if "://" not in url or url.startswith("postgresql:") else "mysql:"})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@h:5/db",
        f"postgresql://h/db?user=u&password={SECRET}",
        f"host=h password={SECRET} dbname=db",
        f"postgresql:///{SECRET}%zz",
        f"postgresql://u:{SECRET}?x@h/db",
    ],
)
def test_what_is_shown_of_a_url_has_no_password(url: str) -> None:
    assert SECRET not in without_password(url)


def test_what_libpq_says_is_shown_without_the_password() -> None:
    error = psycopg.OperationalError(f"cannot use a b@{SECRET}: as in a%20b%40{SECRET}")
    said = str(unreachable(f"postgresql://u:a%20b%40{SECRET}@h/db", error))
    assert SECRET not in said
    assert "u@h/db" in said


def test_a_second_url_is_a_string_that_libpq_reads() -> None:
    for url in (5, b"host=h", Path("x")):
        with pytest.raises(InvalidValue, match="connection string is text"):
            check_conninfo(url)  # type: ignore[arg-type]


def test_what_is_not_opened_says_so() -> None:
    connecting: Any = et.connect("postgresql://h/db")
    with pytest.raises(AttributeError, match=r"not open yet.*async with"):
        connecting.fetch("SELECT 1")
    assert not hasattr(connecting, "__len__")


def test_a_dead_host_is_noticed_unless_the_url_says_how_long_to_wait() -> None:
    assert Opener("postgresql://h/db").options["connect_timeout"] == 15
    assert "connect_timeout" not in Opener("postgresql://h/db?connect_timeout=3").options
