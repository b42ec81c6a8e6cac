"""Points in time on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from everyturn.cli.times import parse_time
from everyturn.errors import InvalidValue

NOW = datetime(2026, 12, 1, 10, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("30m", NOW - timedelta(minutes=30)),
        ("24h", NOW - timedelta(hours=24)),
        (" 7d ", NOW - timedelta(days=7)),
        ("2w", NOW - timedelta(weeks=2)),
        ("1.5h", NOW - timedelta(minutes=90)),
        ("now", NOW),
        ("today", datetime(2026, 12, 1, tzinfo=UTC)),
        ("yesterday", datetime(2026, 11, 30, tzinfo=UTC)),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T09:30:00Z", datetime(2026, 11, 1, 9, 30, tzinfo=UTC)),
        ("2026-11-01 09:30", datetime(2026, 11, 1, 9, 30, tzinfo=UTC)),
        ("2026-11-01T09:30:00.25+09:00", datetime(2026, 11, 1, 0, 30, 0, 250000, tzinfo=UTC)),
    ],
)
def test_forms(text: str, expected: datetime) -> None:
    assert parse_time(text, now=NOW) == expected


def test_naive_times_are_utc_whatever_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 89"""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    tokyo = NOW.astimezone(timezone(timedelta(hours=9)))
    assert parse_time("2026-11-01T00:00") == datetime(2026, 11, 1, tzinfo=UTC)
    assert parse_time("today", now=tokyo) == datetime(2026, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "soon", "7", "-3d", "2026-13-01", "2026-02-30T00:00", "99999999w", "20261101"])
def test_what_is_no_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidValue, match="is not a time") as refused:
        parse_time(text, now=NOW)
    assert repr(text) in str(refused.value)
