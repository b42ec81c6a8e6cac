"""What a reviewer's words and gestures say about a comment of the review bot, and what the offline reviewer learns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import httpx
import pytest
from githubkit.exception import GitHubException, RequestError, RequestFailed, SecondaryRateLimitExceeded
from githubkit.response import Response

from review_bot_parts import github_client
from review_bot_parts.lessons import learned
from review_bot_parts.opinions import MAX_REASON, Reply, Signs, opinion, stance
from review_bot_parts.rules import Finding


@pytest.mark.parametrize(
    "text",
    [
        "False positive",
        "this is a false-positive, see above",
        "**false positives** everywhere",
        "Not a bug.",
        "That isn't an issue? It is not an issue.",
        "Works as intended",
        "by design",
        "We do this on purpose.",
        "won’t fix",
        "WONTFIX",
        "Thanks, but this does not apply here",
        "> [rule] you should fix this\n\nI disagree.",
        "The check is incorrect",
    ],
)
def test_words_against(text: str) -> None:
    assert stance(text) == "bad"


@pytest.mark.parametrize(
    "text",
    ["Good catch!", "nice find", "Fixed in abc123", "done", "Thanks!", "You're right", "Not a false positive at all."],
)
def test_words_for(text: str) -> None:
    assert stance(text) == "good"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Why?",
        "> false positive\n\nwhat does that mean?",
        "`false positive` is a name here",
        "```\nfalse positive\n```\nsee the log",
        "I have not fixed it yet",
        "@ann please look",
    ],
)
def test_words_that_take_no_side(text: str) -> None:
    assert stance(text) is None


def verdict(**signs: Any) -> tuple[str, str] | None:
    found = opinion(Signs(**signs))
    return (found.verdict, found.reason) if found else None


def test_the_last_reply_that_takes_a_side_decides() -> None:
    replies = [Reply("ann", "False positive"), Reply("bot-owner", "Hm, why?"), Reply("ann", "Oh, you are right.")]
    assert verdict(replies=replies) == ("good", "Oh, you are right.")
    assert verdict(replies=replies[:2], up=["ben"], resolved_by="ann") == ("bad", "False positive")


def test_a_gesture_takes_its_reason_from_words_without_a_side() -> None:
    said = [Reply("ann", "We set this\nin the base class.")]
    assert verdict(replies=said, down=["ann"]) == ("bad", "thumbs down by ann: We set this in the base class.")
    assert verdict(resolved_by="ann") == ("good", "resolved by ann")


def test_gestures_in_their_order() -> None:
    assert verdict() is None
    assert verdict(minimised="OUTDATED") is None
    assert verdict(minimised="outdated", resolved_by="ann") == ("good", "resolved by ann")
    assert verdict(minimised="resolved") == ("good", "hidden as resolved")
    assert verdict(minimised="OFF_TOPIC", resolved_by="ann") == ("bad", "hidden as off-topic")
    assert verdict(minimised="") == ("bad", "hidden as unwanted")
    assert verdict(dismissed=Reply("ben", ""), resolved_by="ann") == ("bad", "review dismissed by ben")
    assert verdict(up=["a"], down=["b"]) == ("partial", "thumbs up by a, down by b")
    assert verdict(deleted=True) == ("bad", "the comment was deleted")


def test_a_reason_is_one_line_that_any_database_holds() -> None:
    found = opinion(Signs(replies=[Reply("ann", "> quoted\nfalse\0 positive\ud800 " + "x" * 5000)], down=["ann"]))
    assert found is not None
    assert "quoted" not in found.reason
    assert "\0" not in found.reason
    assert len(found.reason.encode()) <= MAX_REASON + 50
    assert "\n" not in found.reason


def failed(status: int, body: str = "{}", method: str = "GET", path: str = "/x") -> RequestFailed:
    request = httpx.Request(method, f"https://api.github.com{path}")
    return RequestFailed(Response(httpx.Response(status, text=body, request=request), Any))


def limited(seconds: float) -> SecondaryRateLimitExceeded:
    return SecondaryRateLimitExceeded(failed(403).response, timedelta(seconds=seconds))


def lost(method: str) -> GitHubException:
    return RequestError(httpx.ReadError("gone", request=httpx.Request(method, "https://api.github.com/x")))


@pytest.mark.parametrize(
    ("error", "retried", "waits"),
    [
        (limited(7), 0, 7),
        (limited(0), 0, 0.05),
        (limited(120), 2, 120),
        (limited(121), 0, None),
        (limited(7), 3, None),
        (failed(403, '{"message": "You have exceeded a secondary rate limit"}', "POST"), 0, 60),
        (failed(403, '{"message": "You have exceeded a secondary rate limit"}', "POST"), 1, None),
        (failed(403, '{"message": "Resource not accessible by integration"}'), 0, None),
        (failed(403, "<html>"), 0, None),
        (failed(502), 0, 0.25),
        (failed(502), 2, 4),
        (failed(502, method="POST", path="/graphql"), 0, 0.25),
        (failed(502, method="POST"), 0, None),
        (failed(404), 0, None),
        (lost("GET"), 1, 1),
        (lost("POST"), 0, None),
        (RequestError(OSError("no")), 0, None),
    ],
)
def test_when_a_request_is_sent_again(error: GitHubException, retried: int, waits: float | None) -> None:
    again = github_client._retry(error, retried)
    assert again.do_retry == (waits is not None)
    if waits is not None:
        assert again.retry_after == timedelta(seconds=waits)


FINDING = Finding("a.py", 1, "bare-except", "name the exceptions.", "except:")


def lesson(survived: Sequence[tuple[str, str | None]] = (), dismissed: Sequence[tuple[str, int]] = ()) -> list[Any]:
    return [
        {
            "survived": [{"body": body, "verdict": verdict} for body, verdict in survived],
            "dismissed": [{"body": body, "times": times} for body, times in dismissed],
        }
    ]


def test_dismissed_words_are_not_said_about_other_code() -> None:
    assert learned(FINDING, lesson(dismissed=[("[bare-except] `except:`: whatever", 1)])) is None
    assert learned(FINDING, lesson(dismissed=[("[bare-except] `except :`: whatever", 2)])) == FINDING
    assert learned(FINDING, lesson(dismissed=[("[bare-except] `a`: b", 1), ("[bare-except] `c`: d", 2)])) is None
    assert learned(FINDING, lesson(dismissed=[("[other] `except:`: whatever", 9)])) == FINDING
    assert learned(FINDING, []) == FINDING


def test_an_accepted_comment_keeps_its_rule_alive_and_gives_its_words() -> None:
    survived = [("[bare-except] `except:`: unseen", None), ("[bare-except] `except:`: Say which.", "good")]
    worded = learned(FINDING, lesson(survived, [("[bare-except] `c`: d", 5)]))
    assert worded is not None
    assert worded.body == "[bare-except] `except:`: Say which."
    # Words about other code may not fit this.
    assert learned(FINDING, lesson([("[bare-except] `x`: y", "good")], [("[bare-except] `c`: d", 5)])) == FINDING
    assert learned(FINDING, lesson([("[bare-except] `except:`: ", "good")])) == FINDING


def test_a_secret_is_never_kept_quiet() -> None:
    secret = Finding("a.py", 1, "hard-coded-secret", "This looks like a key.", "")
    assert learned(secret, lesson(dismissed=[(secret.body, 50)])) == secret
