"""GitHub as a forge: one repository, its pull requests, and review comments on the right side of their diffs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from githubkit import GitHub
from githubkit.exception import GitHubException, RateLimitExceeded, RequestFailed

from . import github_client, github_reviewers
from .diff import Hunk, UnreadableDiff, hunks, mark, shortened
from .forge import Comment, ForgeError, Opinion, PullRequest, check_place
from .github_client import VERSION, sentences
from .opinions import opinion
from .patches import diff_of

MAX_BODY = 60_000
"""Characters of a comment; GitHub takes 65,536 with what it adds."""
_REPO = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_MARK = re.compile(r"\n*<!-- hunk:([0-9a-f]{12}) -->\s*\Z")


@asynccontextmanager
async def connect(repo: str, pr: int | None = None) -> AsyncIterator[GitHubForge]:
    """The forge of one repository; with `pr`, of one pull request, whatever the model asks for."""
    if not _REPO.fullmatch(repo):
        raise ForgeError(f"{repo!r} is not the name of a GitHub repository; write it as owner/name.")
    async with github_client.connect() as github:
        yield GitHubForge(github, repo, pr)


@dataclass(slots=True)
class _Pull:
    """A pull request as it was when it was first asked about."""

    request: PullRequest
    changed_files: int
    diff: str | None = None
    hunks: dict[str, Hunk] = field(default_factory=dict)
    comments: dict[tuple[str, str], Comment] | None = None
    """The comments of this bot by hunk and words."""


class GitHubForge:
    """The pull requests and review comments of one repository."""

    def __init__(self, github: GitHub[Any], repo: str, pr: int | None = None) -> None:
        self.repo = repo
        self._owner, self._name = repo.split("/")
        self._github = github
        self._only = pr
        self._pulls: dict[int, _Pull] = {}
        # One request at a time, as GitHub asks of its clients.
        self._turn = asyncio.Lock()

    async def pull_request(self, pr: int) -> PullRequest:
        async with self._turn:
            return (await self._pull(self.repo, pr)).request

    async def head(self, repo: str, pr: int) -> str:
        async with self._turn:
            return (await self._pull(repo, pr)).request.sha

    async def diff(self, repo: str, pr: int) -> str:
        async with self._turn:
            return await self._diff(await self._pull(repo, pr))

    async def post_review_comment(self, repo: str, pr: int, path: str, line: int, body: str, hunk_hash: str) -> Comment:
        if len(body) > MAX_BODY:
            raise ForgeError(f"The comment is {len(body):,} characters long; GitHub takes {MAX_BODY:,}.")
        async with self._turn:
            pull = await self._pull(repo, pr)
            await self._diff(pull)
            check_place(pull.hunks, repo, pr, path, line, hunk_hash)
            key = (hunk_hash, _normal(body))
            known = (await self._comments(pull)).get(key)
            if known is None:
                wanted = Comment(0, repo, pr, path, line, body, hunk_hash, "")
                known = await self._post(pull, wanted)
                (await self._comments(pull))[key] = known
            return known

    async def opinions(self, pr: int, comments: list[int]) -> dict[int, Opinion]:
        async with self._turn:
            with sentences(f"the reviews of {self.repo}#{pr}"):
                signs = await github_reviewers.signs(self._github, self._owner, self._name, pr, comments)
        return {comment: said for comment, each in signs.items() if (said := opinion(each))}

    async def _pull(self, repo: str, pr: int) -> _Pull:
        if repo != self.repo or self._only not in {None, pr}:
            raise ForgeError(f"This review is of {self.repo}#{self._only or ''}; {repo}#{pr} is left alone.")
        if pr not in self._pulls:
            with sentences(f"pull request {repo}#{pr}"):
                answer = await self._github.rest.pulls.async_get(self._owner, self._name, pr, headers=VERSION)
            found = answer.json()
            request = PullRequest(pr, found["head"]["sha"], found["title"])
            self._pulls[pr] = _Pull(request, found.get("changed_files", 0))
        return self._pulls[pr]

    async def _diff(self, pull: _Pull) -> str:
        if pull.diff is None:
            with sentences(f"the diff of {self.repo}#{pull.request.number}"):
                text, left_out = await self._read_diff(pull)
            try:
                pull.diff = shortened(mark(text), left_out)
                pull.hunks = {hunk.hash: hunk for hunk in hunks(pull.diff)}
            except UnreadableDiff as error:
                raise ForgeError(f"The diff of {self.repo}#{pull.request.number} cannot be read: {error}") from error
        return pull.diff

    async def _read_diff(self, pull: _Pull) -> tuple[str, list[str]]:
        number = pull.request.number
        accept = VERSION | {"Accept": "application/vnd.github.diff"}
        try:
            answer = await self._github.rest.pulls.async_get(self._owner, self._name, number, headers=accept)
            return answer.text, []
        except RequestFailed as error:
            # 406: more than 20,000 lines or 300 files; 422: the diff takes too long to make.
            if error.response.status_code not in {406, 422}:
                raise
        files = self._github.rest.paginate(
            self._github.rest.pulls.async_list_files,
            map_func=lambda page: page.json(),
            owner=self._owner,
            repo=self._name,
            pull_number=number,
            per_page=100,
            headers=VERSION,
        )
        found = [file async for file in files]
        text, left_out = diff_of(found)
        if (more := pull.changed_files - len(found)) > 0:
            left_out.append(f"{more:,} more files, which GitHub does not list")
        return text, left_out

    async def _comments(self, pull: _Pull) -> dict[tuple[str, str], Comment]:
        if pull.comments is None:
            number = pull.request.number
            with sentences(f"the comments of {self.repo}#{number}"):
                found = await github_reviewers.review_comments(self._github, self._owner, self._name, number)
                marked = [read for each in found if (read := self._comment(number, each)).hunk_hash]
                # Anyone may write a comment that looks like one of the bot's, to keep it from posting its own.
                own: set[int] = set()
                if marked:
                    own = await github_reviewers.own_comments(self._github, self._owner, self._name, number)
            pull.comments = {(each.hunk_hash, _normal(each.body)): each for each in marked if each.id in own}
        return pull.comments

    async def _post(self, pull: _Pull, wanted: Comment) -> Comment:
        what = f"a comment on {self.repo}#{wanted.pr}"
        try:
            return await self._post_once(pull, wanted)
        except GitHubException as error:
            if isinstance(error, RequestFailed) and error.response.status_code == 422:
                raise ForgeError(
                    f"GitHub takes no comment on {wanted.path}:{wanted.line} ({github_client.said(error)}); "
                    "the pull request may have changed since its diff was read."
                ) from error
            if isinstance(error, RateLimitExceeded) or not github_client.may_have_failed_halfway(error):
                with sentences(what):
                    raise
        # The comment may be there although the answer was lost: look before saying it again.
        await asyncio.sleep(0.25)
        pull.comments = None
        known = (await self._comments(pull)).get((wanted.hunk_hash, _normal(wanted.body)))
        if known is not None:
            return known
        with sentences(what):
            return await self._post_once(pull, wanted)

    async def _post_once(self, pull: _Pull, wanted: Comment) -> Comment:
        answer = await self._github.rest.pulls.async_create_review_comment(
            self._owner,
            self._name,
            wanted.pr,
            headers=VERSION,
            body=f"{wanted.body}\n\n<!-- hunk:{wanted.hunk_hash} -->",
            commit_id=pull.request.sha,
            path=wanted.path,
            line=wanted.line,
            side="RIGHT",
        )
        posted = answer.json()
        return Comment(
            posted["id"],
            wanted.repo,
            wanted.pr,
            wanted.path,
            wanted.line,
            wanted.body,
            wanted.hunk_hash,
            posted["html_url"],
        )

    def _comment(self, pr: int, found: Mapping[str, Any]) -> Comment:
        body = found.get("body") or ""
        marked = _MARK.search(body)
        line = found.get("line") or found.get("original_line") or 0
        words = body[: marked.start()] if marked else body
        return Comment(
            found["id"], self.repo, pr, found["path"], line, words, marked[1] if marked else "", found["html_url"]
        )


def _normal(body: str) -> str:
    """Words as GitHub may give them back: other line ends, no space around."""
    return body.replace("\r\n", "\n").strip()
