"""What reviewers did about a comment, and the verdict that comes of it.

Words weigh more than gestures: a reply that takes a side decides, the last of them; then thumbs, hiding, a
dismissed review; a resolved thread counts as acceptance only when nothing speaks against it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .forge import Opinion

MAX_REASON = 1000

_AGAINST = re.compile(
    r"\bfalse (?:positive|alarm)s?\b|\bfalse-positives?\b|\bnot an? (?:real )?(?:bug|problem|issue|error)\b"
    r"|\b(?:by|as) design(?:ed)?\b|\bas intended\b|\bintentional(?:ly)?\b|\bon purpose\b"
    r"|\bwon'?t ?(?:fix|be fixed|change)\b|\bwill not (?:fix|be fixed|change)\b"
    r"|\b(?:not|isn'?t|doesn'?t|does not) (?:applicable|apply|relevant|correct|true)\b"
    r"|\bincorrect\b|\bthat'?s wrong\b|\bthis is wrong\b|\bdisagree\b",
    re.IGNORECASE,
)
# "this is not a false positive", "no false alarm"
_DENIED = re.compile(
    r"\b(?:not|no|isn'?t|never)(?: an?| by| on| really)? (?=false|intentional|purpose|design|incorrect)", re.IGNORECASE
)
_FOR = re.compile(
    r"^(?:good|nice|great) (?:catch|find|point|spot)|^(?:fixed|done|addressed|agreed|thanks|thank you|thx)\b"
    r"|\byou(?:'?re| are) right\b|\bwill fix\b",
    re.IGNORECASE | re.MULTILINE,
)
_QUOTE_OR_CODE = re.compile(r"```.*?(?:```|\Z)|^[ \t]*>[^\n]*|`[^`\n]*`", re.DOTALL | re.MULTILINE)
# Hidden because it is done with, not because it is wrong.
_SETTLED = {"resolved": "good", "outdated": None}


@dataclass(frozen=True, slots=True)
class Reply:
    by: str
    text: str


@dataclass(slots=True)
class Signs:
    """What people, not bots, did about one comment."""

    replies: list[Reply] = field(default_factory=list)
    """In the order they were written."""
    up: list[str] = field(default_factory=list)
    down: list[str] = field(default_factory=list)
    minimised: str | None = None
    """Why it was hidden, in GitHub's word."""
    dismissed: Reply | None = None
    """Who dismissed the review it belongs to, and the message."""
    resolved_by: str | None = None
    deleted: bool = False


def opinion(signs: Signs) -> Opinion | None:
    """The verdict, with its reason; None where nobody took a side."""
    taking_sides = [(reply, side) for reply in signs.replies if (side := stance(reply.text))]
    if taking_sides:
        reply, side = taking_sides[-1]
        return Opinion(side, _short(reply.text), "reply", reply.by)
    hidden = (signs.minimised or "").lower().replace("_", "-")
    if signs.up and signs.down:
        return _opinion(signs, "partial", f"thumbs up by {signs.up[0]}, down by {signs.down[0]}", "thumb", None)
    if signs.down:
        return _opinion(signs, "bad", f"thumbs down by {signs.down[0]}", "thumb", signs.down[0])
    if signs.minimised is not None and hidden not in _SETTLED:
        return _opinion(signs, "bad", f"hidden as {hidden or 'unwanted'}", "minimised", None)
    if signs.dismissed is not None:
        said = _short(signs.dismissed.text) or f"review dismissed by {signs.dismissed.by}"
        return Opinion("bad", said, "dismissed", signs.dismissed.by)
    if signs.deleted:
        return Opinion("bad", "the comment was deleted", "deleted")
    if signs.up:
        return _opinion(signs, "good", f"thumbs up by {signs.up[0]}", "thumb", signs.up[0])
    if signs.resolved_by is not None:
        return _opinion(signs, "good", f"resolved by {signs.resolved_by}", "resolved", signs.resolved_by)
    if hidden == "resolved":
        return _opinion(signs, "good", "hidden as resolved", "minimised", None)
    return None


def stance(text: str) -> str | None:
    """Whether a reply accepts (`good`) or rejects (`bad`) the comment it answers; quotes and code are not its words."""
    words = _QUOTE_OR_CODE.sub(" ", text.replace("’", "'")).strip()
    if _DENIED.search(words):
        return "good"
    if _AGAINST.search(words):
        return "bad"
    return "good" if _FOR.search(words) else None


def _opinion(signs: Signs, verdict: str, gesture: str, sign: str, by: str | None) -> Opinion:
    # Words without a side still say more than the gesture does.
    said = _short(signs.replies[-1].text) if signs.replies else ""
    return Opinion(verdict, f"{gesture}: {said}" if said else gesture, sign, by)


def _short(text: str) -> str:
    """One line, without quotes of what it answers, clipped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(">")]
    said = " ".join(" ".join(lines).replace("\0", " ").encode("utf-8", "replace").decode().split())
    return said if len(said) <= MAX_REASON else said[: MAX_REASON - 1] + "…"
