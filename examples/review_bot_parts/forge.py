"""The place where reviews are posted, as the bot sees it: pull requests, comments, and what reviewers make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .diff import Hunk


class ForgeError(Exception):
    """The forge refused, in a sentence the model can act on."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    number: int
    sha: str
    title: str


@dataclass(frozen=True, slots=True)
class Comment:
    id: int
    repo: str
    pr: int
    path: str
    line: int
    body: str
    hunk_hash: str
    url: str


@dataclass(frozen=True, slots=True)
class Opinion:
    """What reviewers make of a comment."""

    verdict: str
    """`good`, `bad`, or `partial` where they disagree."""
    reason: str
    sign: str
    """How it was said: `reply`, `thumb`, `minimised`, `dismissed`, `resolved` or `deleted`."""
    by: str | None = None


class Forge(Protocol):
    """What the bot needs of the place where reviews are posted."""

    repo: str

    async def head(self, repo: str, pr: int) -> str:
        """The commit that a pull request would merge: its diff is the same while this is."""

    async def diff(self, repo: str, pr: int) -> str:
        """The unified diff of a pull request, each hunk's header naming its hash, after what was left out."""

    async def post_review_comment(self, repo: str, pr: int, path: str, line: int, body: str, hunk_hash: str) -> Comment:
        """Hang a comment on a line of the diff; the same words on the same hunk are one comment."""

    async def opinions(self, pr: int, comments: list[int]) -> Mapping[int, Opinion]:
        """What reviewers make of these comments of a pull request, by id; those without a sign are left out."""


def check_place(hunks: Mapping[str, Hunk], repo: str, pr: int, path: str, line: int, hunk_hash: str) -> None:
    """Refuse a comment that would hang beside the new side of the diff."""
    hunk = hunks.get(hunk_hash)
    if hunk is None or hunk.path != path:
        raise ForgeError(f"{repo}#{pr} has no hunk {hunk_hash!r} in {path!r}; copy both from its diff.")
    numbers = [number for number, _, _ in hunk.lines]
    if line not in numbers:
        raise ForgeError(
            f"Line {line} is not in hunk {hunk_hash}, which shows lines {numbers[0]} to {numbers[-1]} of {path}."
        )
