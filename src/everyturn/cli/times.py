"""Points in time as they are written on the command line."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta

from everyturn.errors import InvalidValue

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_time(text: str, *, now: datetime | None = None) -> datetime:
    """A point in time: `90s`, `30m`, `24h`, `7d`, `2w` ago; a date; an ISO 8601 time; `today`, `yesterday`.

    A time without an offset, and a date, are read as UTC, wherever the command runs.
    """
    now = now or datetime.now(UTC)
    word = text.strip().lower()
    midnight = datetime.combine(now.astimezone(UTC).date(), time(), UTC)
    named = {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}
    if word in named:
        return named[word]
    try:
        if ago := _AGO.fullmatch(word):
            return now - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", word):
            return datetime.combine(date.fromisoformat(word), time(), UTC)
        if re.match(r"\d{4}-\d{2}-\d{2}[t ]", word):
            moment = datetime.fromisoformat(text.strip())
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidValue(
        f"{text!r} is not a time. Write an age (30m, 24h, 7d, 2w), a date (2026-11-01), "
        "or an ISO 8601 time (2026-11-01T09:30:00+09:00; without an offset it is UTC)."
    )
