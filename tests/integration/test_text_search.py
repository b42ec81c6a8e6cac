"""The SQL functions of text search: what they find, and that no text makes them fail or hang."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from everyturn.testing import database_url

TEXTS = [
    "parse_diff drops the last hunk",
    "HttpClient.get follows redirects",
    "the review of gh:o/r#7 is done",
    "Café Zürich opens at nine",
    "今天东京下雨",
    "東京タワーに行った",
    "서울에서 만나요",
    "CVE-2024-3094 is fixed in 5.6.0",
    "commit 9f3c2ab touched src/net/http.py:34",
    "foo::bar returns, ask j.d@x.io, 50% off",
    "an AbstractHTTPServerFactory makes servers",
    "the ﬁnal form of Ｆｕｌｌ width, in the Straße",
]


Find = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database_url() as made:
        yield made


@pytest.fixture
def conn(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as opened:
        yield opened
        opened.execute("DELETE FROM agent_semantic; DELETE FROM agent_turns")


@pytest.fixture
def best(conn: psycopg.Connection) -> Find:
    """A function that gives the texts a query matches, those that share most lexemes first."""

    def find(query: str) -> list[str]:
        rows = conn.execute(
            "SELECT t.text FROM unnest(%(texts)s::text[]) AS t (text),"
            "       LATERAL (SELECT count(*) AS n FROM everyturn_terms(%(query)s) AS s"
            "                 WHERE everyturn_tsvector(t.text) @@ s.term) AS shared"
            " WHERE everyturn_tsvector(t.text) @@ everyturn_tsquery(%(query)s) ORDER BY shared.n DESC, t.text",
            {"texts": TEXTS, "query": query},
        )
        return [row[0] for row in rows]

    return find


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("parse_diff", 0),
        ("parse diff", 0),
        ("diff", 0),
        ("HttpClient.get", 1),
        ("httpclient", 1),
        ("client", 1),
        ("gh:o/r#7", 2),
        ("o/r#7", 2),
        ("the review", 2),
        ("cafe", 3),
        ("CAFÉ", 3),
        ("Zurich", 3),
        ("东京", 4),
        ("下雨", 4),
        ("雨", 4),
        ("京", 4),
        ("タワー", 5),
        ("서울", 6),
        ("CVE-2024-3094", 7),
        ("5.6.0", 7),
        ("9f3c2ab", 8),
        ("src/net/http.py", 8),
        ("http.py", 8),
        ("foo::bar", 9),
        ("j.d@x.io", 9),
        ("50% off", 9),
        ("AbstractHTTPServerFactory", 10),
        ("server factory", 10),
        ("final", 11),
        ("full width", 11),
        ("strasse", 11),
    ],
)
def test_code_accents_and_cjk_are_found(best: Find, query: str, place: int) -> None:
    """field case 64: identifiers, accented and unspaced text match."""
    assert best(query)[0] == TEXTS[place]


@pytest.mark.parametrize("query", ["the", "what is it", "", " ", "???", "\\", "' OR 1=1 --", "%", "\n\t"])
def test_a_query_without_words_matches_no_row(conn: psycopg.Connection, query: str) -> None:
    """field case 63: stop words only are an empty query, not one that matches everything."""
    notices: list[str] = []
    conn.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    row = conn.execute("SELECT everyturn_tsvector('what is the thing') @@ everyturn_tsquery(%s)", (query,)).fetchone()
    assert row == (False,)
    assert notices == []


@pytest.mark.parametrize(
    "query",
    [
        *("What's up?", '"a" OR', "a & | b", "foo:bar", "J D <j@x.io>", "\\", "'", "''", "a:*", "!b", "(((", "<->"),
        *("-" * 100_000, "!" * 5_000, "(" * 10_000, "a " * 300_000, " ".join(f"word{n}" for n in range(3_000))),
        *("$1 $2", "{}", "%s %(x)s", "a\u00a0b", "😀", "\ufdfa" * 3000, "e" + "\u0301" * 5000),
    ],
    ids=lambda query: repr(query[:12]),
)
def test_no_query_raises(conn: psycopg.Connection, query: str) -> None:
    """field case 60: operators, quotes and addresses are text. field case 62: a long query is cut, not refused."""
    start = time.perf_counter()
    row = conn.execute("SELECT everyturn_tsquery(%s), everyturn_identifiers(%s)", (query, query)).fetchone()
    assert row is not None
    assert time.perf_counter() - start < 1


_RANDOM = random.Random(1)


def _drawn(alphabet: object, length: int) -> str:
    return "".join(_RANDOM.choices(list(alphabet), k=length))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("_a" * 1_000_000, id="underscores"),
        pytest.param(" ".join(f"w{n:x}q" for n in range(250_000)), id="distinct words"),
        pytest.param("-" * 2_000_000, id="hyphens"),
        pytest.param("a-" * 1_000_000, id="hyphenated"),
        pytest.param("x" * 2_000_000, id="one word"),
        pytest.param(" " * 2_000_000, id="blank"),
        pytest.param(" ".join(f"a{n:x}_b.c/e_f:g{n:x}@x_{n:x}#y" for n in range(60_000)), id="identifiers"),
        pytest.param(_drawn(string.printable, 2_000_000), id="ascii"),
        pytest.param(_drawn("._:/#@+-_", 2_000_000), id="separators"),
        pytest.param(_drawn(map(chr, range(0x4E00, 0x9FFF)), 660_000), id="chinese"),
        pytest.param(_drawn(map(chr, range(0x20000, 0x2A6D0)), 500_000), id="rare ideographs"),
        pytest.param(_drawn(map(chr, range(0x10330, 0x1034A)), 500_000), id="gothic"),
        pytest.param("\ufdfa " * 300_000, id="expanding"),
        pytest.param("e" + "\u0301" * 900_000, id="accents"),
        pytest.param(_drawn([chr(n) for n in range(1, 0x110000) if not 0xD800 <= n < 0xE000], 600_000), id="any"),
    ],
)
def test_two_megabytes_of_anything_are_stored(conn: psycopg.Connection, text: str) -> None:
    """field case 66: too many words, or words too long, cut the index part and never the row."""
    notices: list[str] = []
    conn.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    start = time.perf_counter()
    conn.execute(
        "INSERT INTO agent_turns (conversation, agent, kind, payload)"
        " VALUES (gen_random_uuid(), 'a', 'user', jsonb_build_object('text', %s::text))",
        (text,),
    )
    conn.execute("INSERT INTO agent_semantic (text) VALUES (%s)", (text,))
    assert time.perf_counter() - start < 4, "two rows, on a machine that may be busy"
    assert conn.execute("SELECT text = %s FROM agent_semantic", (text,)).fetchone() == (True,)
    assert notices == []


def test_words_after_the_cut_are_not_indexed(conn: psycopg.Connection) -> None:
    """The documented limit: the first 100,000 characters."""
    text = "alpha " + "x " * 60_000 + "omega"
    found = conn.execute(
        "SELECT v @@ everyturn_tsquery('alpha'), v @@ everyturn_tsquery('omega') FROM everyturn_tsvector(%s) AS v",
        (text,),
    ).fetchone()
    assert found == (True, False)


def test_maintenance_works_with_a_safe_search_path(conn: psycopg.Connection) -> None:
    conn.execute("INSERT INTO agent_semantic (text) VALUES ('parse_diff')")
    conn.execute("REINDEX TABLE agent_turns")
    conn.execute("ANALYZE agent_turns")
    row = conn.execute("SELECT provolatile, proparallel FROM pg_proc WHERE proname = 'everyturn_tsvector'").fetchone()
    assert row == ("i", "s")


def test_uuid7_is_a_version_7_id_in_order(conn: psycopg.Connection) -> None:
    rows = [conn.execute("SELECT everyturn_uuid7()").fetchone() for _ in range(3)]
    ids = [row[0] for row in rows if row]
    assert [id.version for id in ids] == [7, 7, 7]
    assert ids == sorted(ids)


def test_identifiers_weigh_more_than_what_is_written_in_passing(conn: psycopg.Connection) -> None:
    def share(question: str) -> dict[str, float]:
        rows = conn.execute("SELECT lexeme, identifier FROM everyturn_terms(%s)", (question,)).fetchall()
        return {lexeme: float(weight) for lexeme, weight in rows}

    assert share("parse_diff")["parse_diff"] == 1
    assert share("is it user-friendly?")["user-friendly"] == 0
    assert share("the 3 little pigs")["3"] == pytest.approx(0.2)
    assert share("does GitHub work")["github"] == pytest.approx(0.2)
    assert sum(share("HttpClient.get in src/a.py").values()) == pytest.approx(1)
    assert share("plain words only").keys() == {"plain", "word"}
