"""A local HTTP server that behaves as GitHub does for what the review bot asks of it.

Pull requests are made of a diff; lines that may be commented on are read from it. Pages are short, so that whoever
does not follow `Link` and cursors misses something. `fail` queues answers that come in place of the real ones.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from unidiff.patch import PatchSet

TOKEN = "ghs_for_tests"
BOT = {"login": "review-bot[bot]", "type": "Bot"}
MAX_LINES = 20_000


def person(login: str) -> dict[str, str]:
    return {"login": login, "type": "User"}


@dataclass
class Pull:
    number: int
    title: str
    sha: str
    diff: str
    files: list[dict[str, Any]]


@dataclass
class Fault:
    method: str
    path: str
    status: int
    headers: dict[str, str]
    body: Any
    after: bool
    """Whether what was asked for happens all the same, and only its answer is lost."""


@dataclass
class GitHubServer:
    """The state of one repository, and what was asked of it."""

    repo: str = "o/r"
    page: int = 2
    url: str = ""
    pulls: dict[int, Pull] = field(default_factory=dict)
    comments: list[dict[str, Any]] = field(default_factory=list)
    reactions: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    reviews: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    resolved: dict[int, str | None] = field(default_factory=dict)
    minimised: dict[int, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    # Ids of GitHub no longer fit in 32 bits.
    next_id: int = 5_000_000_000

    # --- what people do -------------------------------------------------------------------------

    def open(
        self, number: int, diff: str, *, files: list[dict[str, Any]] | None = None, sha: str | None = None
    ) -> Pull:
        pull = Pull(number, f"Change {number}", sha or f"{number:040x}", diff, files or files_of(diff))
        self.pulls[number] = pull
        return pull

    def reply(self, comment: int, login: str, text: str, association: str = "MEMBER", *, bot: bool = False) -> None:
        root = self.find(comment)
        user = {"login": login, "type": "Bot"} if bot else person(login)
        self._add(root["_pr"], root["path"], root["line"], text, user, association, reply_to=comment)

    def react(self, comment: int, login: str, content: str, *, bot: bool = False) -> None:
        user = {"login": login, "type": "Bot"} if bot else person(login)
        self.reactions.setdefault(comment, []).append({"id": self._id(), "user": user, "content": content})

    def dismiss(self, comment: int, login: str, message: str) -> None:
        root = self.find(comment)
        review = self.reviews[root["pull_request_review_id"]]
        review["state"] = "DISMISSED"
        about = {"state": "changes_requested", "review_id": review["id"], "dismissal_message": message}
        event = {"id": self._id(), "event": "review_dismissed", "actor": person(login), "dismissed_review": about}
        self.events += [{"id": self._id(), "event": "labeled", "actor": person(login), "_pr": root["_pr"]}] * 3
        self.events.append(event | {"_pr": root["_pr"]})

    def delete(self, comment: int) -> None:
        self.comments.remove(self.find(comment))

    def find(self, comment: int) -> dict[str, Any]:
        return next(each for each in self.comments if each["id"] == comment)

    def by_bot(self, pr: int | None = None) -> list[dict[str, Any]]:
        return [each for each in self.comments if each["user"] == BOT and pr in {None, each["_pr"]}]

    def fail(
        self,
        method: str,
        path: str,
        status: int,
        body: Any = None,
        *,
        after: bool = False,
        **headers: str,
    ) -> None:
        """Answer the next request of this method and path with an error."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.faults.append(Fault(method, path, status, named, body or {"message": "Server Error"}, after))

    def asked(self, method: str, path: str) -> int:
        return sum(method == each and re.fullmatch(path, where) is not None for each, where in self.requests)

    # --- what the API does ----------------------------------------------------------------------

    def _id(self) -> int:
        with self.lock:
            self.next_id += 1
            return self.next_id

    def _add(
        self,
        pr: int,
        path: str,
        line: int,
        body: str,
        user: dict[str, str],
        association: str,
        reply_to: int | None = None,
    ) -> dict[str, Any]:
        review = {"id": self._id(), "state": "COMMENTED", "user": user, "_pr": pr}
        self.reviews[review["id"]] = review
        number = self._id()
        comment: dict[str, Any] = {
            "id": number,
            "node_id": f"PRRC_{number}",
            "pull_request_review_id": review["id"],
            "path": path,
            "line": line,
            "original_line": line,
            "side": "RIGHT",
            # GitHub keeps the line ends of a browser's form.
            "body": body.replace("\n", "\r\n"),
            "user": user,
            "author_association": association,
            "html_url": f"https://github.com/{self.repo}/pull/{pr}#discussion_r{number}",
            "_pr": pr,
        }
        if reply_to is not None:
            comment["in_reply_to_id"] = reply_to
        self.comments.append(comment)
        return comment

    def post_comment(self, pull: Pull, sent: dict[str, Any]) -> tuple[int, Any]:
        missing = [key for key in ("body", "commit_id", "path", "line", "side") if key not in sent]
        if missing:
            return 422, invalid([{"code": "missing_field", "field": missing[0], "message": f"{missing[0]} is missing"}])
        if sent["commit_id"] != pull.sha:
            return 422, invalid(
                [{"code": "custom", "field": "commit_id", "message": "commit_id is not part of the PR"}]
            )
        if sent["side"] != "RIGHT" or sent["line"] not in lines_of(pull.diff, sent["path"]):
            field = "pull_request_review_thread.line"
            return 422, invalid([{"code": "custom", "field": field, "message": f"{field} must be part of the diff"}])
        return 201, self._add(pull.number, sent["path"], sent["line"], sent["body"], BOT, "NONE")

    def threads(self, variables: dict[str, Any]) -> Any:
        assert f"{variables['owner']}/{variables['name']}" == self.repo
        if variables["pr"] not in self.pulls:
            error = {"type": "NOT_FOUND", "message": "Could not resolve to a PullRequest", "path": ["repository"]}
            return {"data": {"repository": {"pullRequest": None}}, "errors": [error]}
        roots = [each for each in self.comments if each["_pr"] == variables["pr"] and "in_reply_to_id" not in each]
        start = int(variables.get("cursor") or 0)
        nodes = [
            {
                "isResolved": root["id"] in self.resolved,
                "resolvedBy": {"login": by} if (by := self.resolved.get(root["id"])) else None,
                "comments": {
                    "nodes": [
                        {
                            "fullDatabaseId": str(root["id"]),
                            "isMinimized": root["id"] in self.minimised,
                            "minimizedReason": self.minimised.get(root["id"]),
                            "viewerDidAuthor": root["user"] == BOT,
                        }
                    ]
                },
            }
            for root in roots[start : start + self.page]
        ]
        end = start + self.page
        page = {"hasNextPage": end < len(roots), "endCursor": str(end) if nodes else None}
        threads = {"pageInfo": page, "nodes": nodes}
        return {"data": {"repository": {"pullRequest": {"reviewThreads": threads}}}}

    def answer(self, method: str, path: str, accept: str, sent: Any) -> tuple[int, Any]:
        """The status and the body; a list is cut into pages by the caller."""
        prefix = f"/repos/{self.repo}"
        routes: list[tuple[str, str, Callable[[int], tuple[int, Any]]]] = [
            ("GET", r"/pulls/(\d+)", lambda pr: self._pull(self.pulls[pr], accept)),
            ("GET", r"/pulls/(\d+)/files", lambda pr: (200, self.pulls[pr].files)),
            ("GET", r"/pulls/(\d+)/comments", lambda pr: (200, [self._shown(e) for e in self._of(self.comments, pr)])),
            ("POST", r"/pulls/(\d+)/comments", lambda pr: self.post_comment(self.pulls[pr], sent)),
            ("GET", r"/pulls/(\d+)/reviews", lambda pr: (200, self._of(list(self.reviews.values()), pr))),
            ("GET", r"/pulls/comments/(\d+)/reactions", lambda comment: (200, self.reactions.get(comment, []))),
            ("GET", r"/issues/(\d+)/events", lambda pr: (200, self._of(self.events, pr))),
        ]
        if (method, path) == ("POST", "/graphql"):
            assert "reviewThreads" in sent["query"]
            return 200, self.threads(sent["variables"])
        for verb, pattern, handle in routes:
            match = re.fullmatch(re.escape(prefix) + pattern, path)
            if match and verb == method:
                try:
                    return handle(int(match[1]))
                except KeyError:
                    break
        return 404, {"message": "Not Found", "documentation_url": "https://docs.github.com/rest"}

    def _of(self, items: list[dict[str, Any]], pr: int) -> list[dict[str, Any]]:
        if pr not in self.pulls:
            raise KeyError(pr)
        return [each for each in items if each["_pr"] == pr]

    def _shown(self, comment: dict[str, Any]) -> dict[str, Any]:
        given = [each["content"] for each in self.reactions.get(comment["id"], [])]
        return comment | {"reactions": {"total_count": len(given), "+1": given.count("+1"), "-1": given.count("-1")}}

    def _pull(self, pull: Pull, accept: str) -> tuple[int, Any]:
        if "diff" not in accept:
            return 200, {
                "number": pull.number,
                "title": pull.title,
                "head": {"sha": pull.sha},
                "changed_files": len(pull.files),
            }
        if pull.diff.count("\n") > MAX_LINES:
            said = f"Sorry, the diff exceeded the maximum number of lines ({MAX_LINES})"
            too_large = {"resource": "PullRequest", "field": "diff", "code": "too_large"}
            return 406, {"message": said, "errors": [too_large]}
        return 200, pull.diff


def invalid(errors: list[dict[str, str]]) -> dict[str, Any]:
    listed = [{"resource": "PullRequestReviewComment"} | each for each in errors]
    return {"message": "Validation Failed", "errors": listed, "documentation_url": "https://docs.github.com/rest"}


def lines_of(diff: str, path: str) -> set[int]:
    """The lines on the right side of a file's diff."""
    return {
        line.target_line_no
        for file in PatchSet(diff)
        if (file.target_file or "").removeprefix("b/") == path
        for hunk in file
        for line in hunk.target_lines()
        if line.target_line_no is not None
    }


def files_of(diff: str) -> list[dict[str, Any]]:
    """The list of files that GitHub would give for a diff."""
    files = []
    for file in PatchSet(diff):
        status = "added" if file.is_added_file else "removed" if file.is_removed_file else "modified"
        entry = {"filename": file.path, "status": status, "changes": file.added + file.removed}
        if len(file):
            entry["patch"] = "".join(map(str, file)).rstrip("\n")
        files.append(entry)
    return files


class _Handler(BaseHTTPRequestHandler):
    server_version = "GitHub.com"
    protocol_version = "HTTP/1.1"
    github: GitHubServer

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        sent = json.loads(self.rfile.read(length)) if length else None
        where = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(where.query).items()}
        with self.github.lock:
            self.github.requests.append((method, where.path))
            self._answer(method, where.path, query, sent)

    def _answer(self, method: str, path: str, query: dict[str, str], sent: Any) -> None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() not in {"bearer", "token"} or token != TOKEN:
            return self._send(401, {"message": "Bad credentials"}, {})
        if not self.headers.get("User-Agent"):
            return self._send(403, {"message": "Request forbidden by administrative rules."}, {})
        if path != "/graphql" and self.headers.get("X-GitHub-Api-Version") != "2022-11-28":
            return self._send(400, {"message": "Bad API version"}, {})
        fault = next((f for f in self.github.faults if f.method == method and re.fullmatch(f.path, path)), None)
        if fault is not None:
            self.github.faults.remove(fault)
            if fault.after:
                self.github.answer(method, path, self.headers.get("Accept", ""), sent)
            return self._send(fault.status, fault.body, fault.headers)
        status, body = self.github.answer(method, path, self.headers.get("Accept", ""), sent)
        headers = {}
        if isinstance(body, list):
            number, size = int(query.get("page", 1)), min(int(query.get("per_page", 30)), 100, self.github.page)
            pages = [body[start : start + size] for start in range(0, len(body), size)] or [[]]
            body = pages[number - 1]
            if number < len(pages):
                base = f"{self.github.url}{path}?per_page={query.get('per_page', 30)}"
                headers["Link"] = f'<{base}&page={number + 1}>; rel="next", <{base}&page={len(pages)}>; rel="last"'
        return self._send(status, body, headers)

    def _send(self, status: int, body: Any, headers: dict[str, str]) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        kind = "application/vnd.github.diff" if isinstance(body, str) else "application/json"
        data = text.encode("utf-8")
        self.send_response(status)
        for name, value in {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def github_server() -> Iterator[GitHubServer]:
    github = GitHubServer()
    handler = type("Handler", (_Handler,), {"github": github})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    github.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield github
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
