"""What reviewers did on GitHub: replies, thumbs, hidden comments, dismissed reviews and resolved threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from githubkit import GitHub

from .github_client import VERSION
from .opinions import Reply, Signs

THREADS = Path(__file__).with_name("review_threads.graphql").read_text("utf-8")
# Anyone may reply to a comment in a public repository; these are the people whose word counts.
_REVIEWERS = {"OWNER", "MEMBER", "COLLABORATOR", None}


async def signs(github: GitHub[Any], owner: str, name: str, pr: int, comments: Sequence[int]) -> dict[int, Signs]:
    """What people did about these comments of a pull request, by their ids."""
    found = await review_comments(github, owner, name, pr)
    by_id = {each["id"]: each for each in found}
    signs = {comment: Signs(deleted=comment not in by_id) for comment in comments}
    for each in found:
        answered = signs.get(each.get("in_reply_to_id") or 0)
        if answered and _is_person(each.get("user")) and each.get("author_association") in _REVIEWERS:
            answered.replies.append(Reply(_login(each.get("user")), each.get("body") or ""))
    for comment, sign in signs.items():
        thumbs = (by_id.get(comment) or {}).get("reactions") or {}
        if thumbs.get("+1") or thumbs.get("-1"):
            await _add_thumbs(github, owner, name, comment, sign)
    await _add_dismissals(github, owner, name, pr, {each: by_id[each] for each in comments if each in by_id}, signs)
    await _add_threads(github, owner, name, pr, signs)
    return signs


async def review_comments(github: GitHub[Any], owner: str, name: str, pr: int) -> list[dict[str, Any]]:
    """Every review comment of a pull request, replies too, oldest first."""
    pages = _pages(github, github.rest.pulls.async_list_review_comments, owner, name, pull_number=pr)
    return sorted([each async for each in pages], key=lambda each: each["id"])


async def _add_thumbs(github: GitHub[Any], owner: str, name: str, comment: int, sign: Signs) -> None:
    call = github.rest.reactions.async_list_for_pull_request_review_comment
    async for reaction in _pages(github, call, owner, name, comment_id=comment):
        if _is_person(reaction.get("user")) and reaction["content"] in {"+1", "-1"}:
            (sign.up if reaction["content"] == "+1" else sign.down).append(_login(reaction["user"]))


async def _add_dismissals(
    github: GitHub[Any],
    owner: str,
    name: str,
    pr: int,
    comments: Mapping[int, Mapping[str, Any]],
    signs: Mapping[int, Signs],
) -> None:
    reviews = _pages(github, github.rest.pulls.async_list_reviews, owner, name, pull_number=pr)
    dismissed = {review["id"] async for review in reviews if review["state"] == "DISMISSED"}
    affected = {id: each for id, each in comments.items() if each.get("pull_request_review_id") in dismissed}
    if not affected:
        return
    said: dict[int, Reply] = {}
    # Who dismissed a review, and with which words, only the events tell.
    async for event in _pages(github, github.rest.issues.async_list_events, owner, name, issue_number=pr):
        if event["event"] == "review_dismissed":
            review = event.get("dismissed_review") or {}
            said[review.get("review_id", 0)] = Reply(_login(event.get("actor")), review.get("dismissal_message") or "")
    for id, each in affected.items():
        signs[id].dismissed = said.get(each["pull_request_review_id"], Reply("a reviewer", ""))


async def _add_threads(github: GitHub[Any], owner: str, name: str, pr: int, signs: Mapping[int, Signs]) -> None:
    async for comment, first, thread in _threads(github, owner, name, pr):
        sign = signs.get(comment)
        if sign is None:
            continue
        if first["isMinimized"]:
            sign.minimised = first["minimizedReason"] or ""
        # resolvedBy is a person; an app leaves it empty.
        if thread["isResolved"] and thread["resolvedBy"]:
            sign.resolved_by = _login(thread["resolvedBy"])


async def own_comments(github: GitHub[Any], owner: str, name: str, pr: int) -> set[int]:
    """The ids of the comments that began a thread and are this token's."""
    threads = _threads(github, owner, name, pr)
    return {comment async for comment, first, _ in threads if first["viewerDidAuthor"]}


async def _threads(
    github: GitHub[Any], owner: str, name: str, pr: int
) -> AsyncIterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """The id of each thread's first comment, the comment, and the thread."""
    async for page in github.graphql.paginate(THREADS, {"owner": owner, "name": name, "pr": pr}):
        for thread in page["repository"]["pullRequest"]["reviewThreads"]["nodes"]:
            for first in thread["comments"]["nodes"]:
                yield int(first["fullDatabaseId"] or 0), first, thread


async def _pages(
    github: GitHub[Any], call: Callable[..., Any], owner: str, name: str, **where: Any
) -> AsyncIterator[dict[str, Any]]:
    """All items of a list, a hundred at a time. Taken as JSON: older servers leave fields out."""
    items = github.rest.paginate(
        call, map_func=lambda page: page.json(), owner=owner, repo=name, per_page=100, headers=VERSION, **where
    )
    async for item in items:
        yield item


def _is_person(user: Mapping[str, Any] | None) -> bool:
    return user is None or user.get("type") != "Bot"


def _login(user: Mapping[str, Any] | None) -> str:
    """Who it was; GitHub calls those who left `ghost`."""
    return (user or {}).get("login") or "ghost"
