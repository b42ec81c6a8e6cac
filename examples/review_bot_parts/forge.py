"""A forge on disk: pull requests and review comments in one JSON file, beside a real repository.

It stands in for GitHub: each commit is a pull request with a number of its own, comments hang on lines of the
diff, and the same comment posted twice is one comment. Writers take a lock and replace the file, so any
number of bots may share it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from .diff import Hunk, hunks, mark
from .repository import Commit, Repository

MAX_DIFF_LINES = 20_000


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


class Forge(Protocol):
    """What the bot's tools need of the place where reviews are posted."""

    def diff(self, repo: str, pr: int) -> str:
        """The unified diff of a pull request, each hunk's header naming its hash."""

    def post_review_comment(self, repo: str, pr: int, path: str, line: int, body: str, hunk_hash: str) -> Comment:
        """Hang a comment on a line of the diff; the same words on the same hunk are one comment."""


class LocalForge:
    """The pull requests and comments of one repository, kept in `store`."""

    def __init__(self, repository: Repository, store: Path, *, repo: str | None = None) -> None:
        self.repository = repository
        self.repo = repo or repository.name()
        self.store = store
        self._hunks = lru_cache(maxsize=32)(self._read_hunks)
        self._reading = threading.Lock()

    def open_pull_requests(self, commits: list[Commit]) -> list[PullRequest]:
        """A pull request for each commit; one that was seen before keeps its number."""
        with self._locked() as state:
            numbers: dict[str, int] = {sha: int(number) for number, sha in state["pulls"].items()}
            for commit in commits:
                if commit.sha not in numbers:
                    numbers[commit.sha] = len(numbers) + 1
                    state["pulls"][str(numbers[commit.sha])] = commit.sha
        return [PullRequest(numbers[commit.sha], commit.sha, commit.subject) for commit in commits]

    def comments(self) -> list[Comment]:
        """Every comment, in the order they were posted."""
        return [Comment(**comment) for comment in self._read()["comments"]]

    def post_review_comment(self, repo: str, pr: int, path: str, line: int, body: str, hunk_hash: str) -> Comment:
        """Hang a comment on a line of the diff; the same words on the same hunk are one comment."""
        hunk = self._hunks_of(repo, pr).get(hunk_hash)
        if hunk is None or hunk.path != path:
            raise ForgeError(f"{repo}#{pr} has no hunk {hunk_hash!r} in {path!r}; copy both from its diff.")
        if line not in {number for number, _, _ in hunk.lines}:
            raise ForgeError(f"Line {line} is not in hunk {hunk_hash}, which shows {_span(hunk)} of {path}.")
        with self._locked() as state:
            for known in state["comments"]:
                if (known["hunk_hash"], known["path"], known["body"]) == (hunk_hash, path, body):
                    return Comment(**known)
            number = len(state["comments"]) + 1
            url = f"local://{self.repo}/pull/{pr}#comment-{number}"
            comment = Comment(number, self.repo, pr, path, line, body, hunk_hash, url)
            state["comments"].append(asdict(comment))
        return comment

    def diff(self, repo: str, pr: int) -> str:
        """The unified diff, its hunks marked, without the files that would make it too long."""
        sha = self._read()["pulls"].get(str(pr)) if repo == self.repo else None
        if sha is None:
            raise ForgeError(f"There is no pull request {repo}#{pr} here.")
        kept, left_out = _within(mark(self.repository.diff(sha)), MAX_DIFF_LINES)
        return "".join(f"Left out, too long: {name}\n" for name in left_out) + kept

    def _hunks_of(self, repo: str, pr: int) -> dict[str, Hunk]:
        # Comments come many at a time, and the first of them reads the diff for all.
        with self._reading:
            return self._hunks(repo, pr)

    def _read_hunks(self, repo: str, pr: int) -> dict[str, Hunk]:
        return {hunk.hash: hunk for hunk in hunks(self.diff(repo, pr))}

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        self.store.parent.mkdir(parents=True, exist_ok=True)
        with self.store.with_name(f"{self.store.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self._read()
            before = json.dumps(state)
            yield state
            if json.dumps(state) != before:
                self._replace(json.dumps(state, indent=1))

    def _read(self) -> dict[str, Any]:
        try:
            text = self.store.read_text("utf-8")
        except FileNotFoundError:
            return {"pulls": {}, "comments": []}
        try:
            state: dict[str, Any] = json.loads(text)
            state["pulls"], state["comments"]
        except (ValueError, TypeError, KeyError) as error:
            raise ForgeError(
                f"{self.store} is not a forge's file; move it away or name another with --forge."
            ) from error
        return state

    def _replace(self, text: str) -> None:
        descriptor, name = tempfile.mkstemp(dir=self.store.parent, prefix=f"{self.store.name}.", suffix=".new")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.store)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _within(diff: str, limit: int) -> tuple[str, list[str]]:
    """The files of a diff that fit in `limit` lines together, and `path (n lines)` of those that do not."""
    kept: list[str] = []
    left_out: list[str] = []
    used = 0
    # Lines inside a hunk begin with a space, + or -, so only a file's header starts with these words.
    for part in filter(None, re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE)):
        size = part.count("\n")
        if used + size <= limit:
            kept.append(part)
            used += size
        else:
            path = part.split("\n", 1)[0].rpartition(" b/")[2]
            left_out.append(f"{path} ({size:,} lines)")
    return "".join(kept), left_out


def _span(hunk: Hunk) -> str:
    numbers = [number for number, _, _ in hunk.lines]
    return f"lines {numbers[0]} to {numbers[-1]}"
