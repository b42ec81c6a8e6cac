"""A forge on disk: pull requests, review comments and opinions in one JSON file, beside a real repository.

It stands in for GitHub: each commit is a pull request with a number of its own, comments hang on lines of the
diff, and the same comment posted twice is one comment. Writers take a lock and replace the file, so any
number of bots may share it.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import platformdirs

from .diff import Hunk, hunks, mark, shortened
from .forge import Comment, ForgeError, Opinion, PullRequest, check_place
from .repository import Commit, Repository


class LocalForge:
    """The pull requests and comments of one repository, kept in `store`."""

    def __init__(self, repository: Repository, store: Path | None = None, *, repo: str | None = None) -> None:
        self.repository = repository
        self.repo = repo or repository.name()
        self.store = store or _default_store(self.repo)
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

    def judged(self) -> dict[int, Opinion]:
        """What reviewers said, by the comment's id."""
        return {int(comment): Opinion(**opinion) for comment, opinion in self._read()["opinions"].items()}

    def judge(self, comment: int, opinion: Opinion) -> None:
        """Say what a reviewer makes of a comment."""
        with self._locked() as state:
            if comment not in {known["id"] for known in state["comments"]}:
                raise ForgeError(f"{self.repo} has no comment {comment}; it has {len(state['comments'])}.")
            state["opinions"][str(comment)] = asdict(opinion)

    async def head(self, repo: str, pr: int) -> str:
        return self._sha(repo, pr)

    async def diff(self, repo: str, pr: int) -> str:
        return await asyncio.to_thread(self._diff, repo, pr)

    async def post_review_comment(self, repo: str, pr: int, path: str, line: int, body: str, hunk_hash: str) -> Comment:
        return await asyncio.to_thread(self._post, repo, pr, path, line, body, hunk_hash)

    async def opinions(self, pr: int, comments: list[int]) -> dict[int, Opinion]:
        return {comment: opinion for comment, opinion in self.judged().items() if comment in comments}

    def _post(self, repo: str, pr: int, path: str, line: int, body: str, hunk_hash: str) -> Comment:
        check_place(self._hunks_of(repo, pr), repo, pr, path, line, hunk_hash)
        with self._locked() as state:
            for known in state["comments"]:
                if (known["hunk_hash"], known["path"], known["body"]) == (hunk_hash, path, body):
                    return Comment(**known)
            number = len(state["comments"]) + 1
            url = f"local://{self.repo}/pull/{pr}#comment-{number}"
            comment = Comment(number, self.repo, pr, path, line, body, hunk_hash, url)
            state["comments"].append(asdict(comment))
        return comment

    def _sha(self, repo: str, pr: int) -> str:
        sha: str | None = self._read()["pulls"].get(str(pr)) if repo == self.repo else None
        if sha is None:
            raise ForgeError(f"There is no pull request {repo}#{pr} here.")
        return sha

    def _diff(self, repo: str, pr: int) -> str:
        return shortened(mark(self.repository.diff(self._sha(repo, pr))))

    def _hunks_of(self, repo: str, pr: int) -> dict[str, Hunk]:
        # Comments come many at a time, and the first of them reads the diff for all.
        with self._reading:
            return self._hunks(repo, pr)

    def _read_hunks(self, repo: str, pr: int) -> dict[str, Hunk]:
        return {hunk.hash: hunk for hunk in hunks(self._diff(repo, pr))}

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
            return {"pulls": {}, "comments": [], "opinions": {}}
        try:
            state: dict[str, Any] = json.loads(text)
            state["pulls"], state["comments"]
        except (ValueError, TypeError, KeyError) as error:
            raise ForgeError(
                f"{self.store} is not a forge's file; move it away or name another with --forge."
            ) from error
        return {"opinions": {}} | state

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


def _default_store(repo: str) -> Path:
    return platformdirs.user_data_path("everyturn") / "review-bot" / f"{repo.replace('/', '_')}.json"
