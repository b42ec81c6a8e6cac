"""The review bot's GitHub forge against a local server that answers as GitHub does, its failures included."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from github_server import TOKEN, GitHubServer, github_server

from review_bot_parts import github
from review_bot_parts.diff import Hunk, hunks, notes_of
from review_bot_parts.forge import Comment, ForgeError
from review_bot_parts.github import GitHubForge

DIFF = """\
diff --git a/a.py b/a.py
index 1111111..2222222 100644
--- a/a.py
+++ b/a.py
@@ -1,2 +1,3 @@
 import os
+x = y == None
 f()
@@ -20,2 +21,3 @@ def g():
 a = 1
+breakpoint()
 b = 2
diff --git a/logo.png b/logo.png
index 1111111..2222222 100644
Binary files a/logo.png and b/logo.png differ
diff --git a/old.py b/new.py
similarity index 90%
rename from old.py
rename to new.py
--- a/old.py
+++ b/new.py
@@ -1,2 +1,2 @@
 one = 1
-two = 2
+two = 2 == None
diff --git "a/f\\303\\274r \\"dich\\".py" "b/f\\303\\274r \\"dich\\".py"
new file mode 100644
index 0000000..2222222
--- /dev/null
+++ "b/f\\303\\274r \\"dich\\".py"
@@ -0,0 +1 @@
+z = q == None
"""
PULL = "/repos/o/r/pulls/7"
COMMENTS = f"{PULL}/comments"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHubServer]:
    with github_server() as server:
        monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
        monkeypatch.setenv("GITHUB_API_URL", server.url)
        server.open(7, DIFF)
        yield server


@pytest_asyncio.fixture
async def forge(server: GitHubServer) -> AsyncIterator[GitHubForge]:
    async with github.connect("o/r", 7) as forge:
        yield forge


async def first_hunk(forge: GitHubForge) -> Hunk:
    return hunks(await forge.diff("o/r", 7))[0]


async def post(forge: GitHubForge, body: str = "[rule] words", line: int = 2) -> Comment:
    hunk = await first_hunk(forge)
    return await forge.post_review_comment("o/r", 7, hunk.path, line, body, hunk.hash)


async def test_it_reads_renames_binaries_and_odd_names(forge: GitHubForge) -> None:
    found = hunks(await forge.diff("o/r", 7))
    assert [hunk.path for hunk in found] == ["a.py", "a.py", "new.py", 'für "dich".py']
    assert found[1].added == {22: "breakpoint()"}
    assert await forge.head("o/r", 7) == f"{7:040x}"


async def test_a_comment_hangs_on_the_right_side_and_is_posted_once(forge: GitHubForge, server: GitHubServer) -> None:
    comment = await post(forge)
    (posted,) = server.by_bot()
    assert (posted["path"], posted["line"], posted["side"]) == ("a.py", 2, "RIGHT")
    assert posted["body"].startswith("[rule] words")
    assert comment.url == posted["html_url"]
    assert comment.id == posted["id"] > 2**32
    assert await post(forge) == comment
    # Another process finds it on GitHub, though GitHub gives its line ends back changed, on a later page.
    for number in range(5):
        await post(forge, f"[rule] more\nof {number}")
    async with github.connect("o/r") as other:
        assert (await post(other, "[rule] more\nof 3")).id == server.by_bot()[4]["id"]
        assert (await post(other)).id == comment.id
    assert len(server.by_bot()) == 6


async def test_a_comment_that_only_looks_like_the_bots_keeps_nothing_unsaid(
    forge: GitHubForge, server: GitHubServer
) -> None:
    hunk = await first_hunk(forge)
    forged = {"body": f"[rule] words\n\n<!-- hunk:{hunk.hash} -->", "path": "a.py", "line": 2, "side": "RIGHT"}
    _, posted = server.post_comment(server.pulls[7], forged | {"commit_id": server.pulls[7].sha})
    posted["user"] = {"login": "author", "type": "User"}
    comment = await post(forge)
    assert comment.id != posted["id"]
    assert len(server.by_bot()) == 1


@pytest.mark.parametrize(("line", "sentence"), [(99, "Line 99 is not in hunk"), (4, "which shows lines 1 to 3")])
async def test_a_line_beside_the_diff_is_refused_before_github_is_asked(
    forge: GitHubForge, server: GitHubServer, line: int, sentence: str
) -> None:
    with pytest.raises(ForgeError, match=sentence):
        await post(forge, line=line)
    assert server.asked("POST", COMMENTS) == 0


async def test_a_line_github_refuses_is_said_in_a_sentence(forge: GitHubForge, server: GitHubServer) -> None:
    await forge.diff("o/r", 7)
    # Somebody has pushed since: the line that was read is no longer in the diff.
    server.open(7, DIFF.split("diff --git a/logo")[0].replace("@@ -1,2 +1,3 @@", "@@ -11,2 +11,3 @@"))
    with pytest.raises(ForgeError, match=r"takes no comment on a.py:2 .*must be part of the diff.*may have changed"):
        await post(forge)
    assert server.asked("POST", COMMENTS) == 1


async def test_it_waits_as_long_as_github_asks(forge: GitHubForge, server: GitHubServer) -> None:
    secondary = {"message": "You have exceeded a secondary rate limit."}
    server.fail("POST", COMMENTS, 403, secondary, retry_after="1")
    server.fail("GET", PULL, 429, secondary, retry_after="0")
    await post(forge)
    assert server.asked("POST", COMMENTS) == 2
    assert len(server.by_bot()) == 1


async def test_it_does_not_wait_for_an_hour(forge: GitHubForge, server: GitHubServer) -> None:
    server.fail("GET", PULL, 403, {"message": "secondary rate limit"}, retry_after="3600")
    with pytest.raises(ForgeError, match="no more requests from this token for 3600 s"):
        await forge.diff("o/r", 7)
    assert server.asked("GET", PULL) == 1


async def test_it_does_not_wait_for_ever(forge: GitHubForge, server: GitHubServer) -> None:
    for _ in range(9):
        server.fail("GET", PULL, 429, {"message": "secondary rate limit"}, retry_after="0")
    with pytest.raises(ForgeError, match="no more requests"):
        await forge.diff("o/r", 7)
    assert server.asked("GET", PULL) == 4


async def test_a_bad_gateway_is_asked_again(forge: GitHubForge, server: GitHubServer) -> None:
    server.fail("GET", PULL, 502)
    server.fail("GET", COMMENTS, 502)
    server.fail("POST", COMMENTS, 502)
    await post(forge)
    assert len(server.by_bot()) == 1


async def test_a_comment_whose_answer_was_lost_is_not_posted_twice(forge: GitHubForge, server: GitHubServer) -> None:
    server.fail("POST", COMMENTS, 502, after=True)
    comment = await post(forge)
    assert [each["id"] for each in server.by_bot()] == [comment.id]
    assert server.asked("POST", COMMENTS) == 1


async def test_a_diff_github_does_not_give_is_made_of_the_files(forge: GitHubForge, server: GitHubServer) -> None:
    big = "".join(f"+line {number}\n" for number in range(21_000))
    diff = f"{DIFF}diff --git a/big.txt b/big.txt\nnew file mode 100644\n--- /dev/null\n+++ b/big.txt\n"
    patch = "@@ -1,2 +1,3 @@\n import os\n+x = y == None\n f()"
    files = [
        {"filename": "a.py", "status": "modified", "changes": 1, "patch": patch},
        {"filename": "logo.png", "status": "modified", "changes": 0},
        {"filename": "huge.sql", "status": "modified", "changes": 90_000},
        {
            "filename": "new.py",
            "previous_filename": "old.py",
            "status": "renamed",
            "changes": 1,
            "patch": "@@ -1 +1 @@\n-two = 2\n+two = 3\n\\ No newline at end of file",
        },
        {"filename": "moved.py", "previous_filename": "here.py", "status": "renamed", "changes": 0},
        {"filename": "cut.py", "status": "modified", "changes": 9, "patch": "@@ -1,5 +1,9 @@\n a\n+b"},
        {"filename": "big.txt", "status": "added", "changes": 21_000, "patch": f"@@ -0,0 +1,21000 @@\n{big}"},
        {"filename": 'tab\t"q".py', "status": "added", "changes": 1, "patch": "@@ -0,0 +1 @@\n+t = 1"},
    ]
    server.open(7, f"{diff}@@ -0,0 +1,21000 @@\n{big}", files=files)
    text = await forge.diff("o/r", 7)
    assert [hunk.path for hunk in hunks(text)] == ["a.py", "new.py", 'tab\t"q".py']
    assert notes_of(text) == [
        "logo.png, binary or empty",
        "huge.sql, too large for GitHub to show (90,000 lines)",
        "cut.py, whose patch cannot be read",
        "big.txt, too long (21,005 lines)",
    ]
    assert server.asked("GET", f"{PULL}/files") == 4
    assert (await post(forge)).path == "a.py"


async def test_files_that_github_does_not_list_are_counted(forge: GitHubForge, server: GitHubServer) -> None:
    server.fail("GET", PULL, 200, {"title": "T", "head": {"sha": "5"}, "changed_files": 3005})
    server.fail("GET", PULL, 406, {"message": "Sorry, the diff exceeded the maximum number of files (300)."})
    assert notes_of(await forge.diff("o/r", 7))[-1] == "3,001 more files, which GitHub does not list"


async def test_each_thing_a_reviewer_does_is_seen(forge: GitHubForge, server: GitHubServer) -> None:
    ids = [(await post(forge, f"[rule] {number}")).id for number in range(12)]
    server.reply(ids[0], "ann", "> [rule] 0\n\nThis is a **false positive**: it is set above.")
    server.react(ids[1], "ann", "-1")
    server.react(ids[1], "codecov[bot]", "+1", bot=True)
    server.minimised[ids[2]] = "off-topic"
    server.dismiss(ids[3], "ben", "The check does not fit here.")
    server.resolved[ids[4]] = "ann"
    server.react(ids[5], "ann", "+1")
    server.delete(ids[6])
    server.minimised[ids[7]] = "outdated"
    server.reply(ids[8], "stranger", "false positive", "NONE")
    server.reply(ids[8], "dependabot[bot]", "false positive", bot=True)
    server.resolved[ids[9]] = None
    server.react(ids[10], "ann", "+1")
    server.react(ids[10], "ben", "-1")
    server.reply(ids[11], "ann", "false positive")
    server.reply(ids[11], "ann", "Sorry, good that you ask. You are right.")
    server.resolved[ids[11]] = "ann"
    said = {ids.index(id): (each.verdict, each.sign, each.by) for id, each in (await forge.opinions(7, ids)).items()}
    assert said == {
        0: ("bad", "reply", "ann"),
        1: ("bad", "thumb", "ann"),
        2: ("bad", "minimised", None),
        3: ("bad", "dismissed", "ben"),
        4: ("good", "resolved", "ann"),
        5: ("good", "thumb", "ann"),
        6: ("bad", "deleted", None),
        10: ("partial", "thumb", None),
        11: ("good", "reply", "ann"),
    }
    opinions = await forge.opinions(7, ids)
    assert opinions[ids[0]].reason == "This is a **false positive**: it is set above."
    assert opinions[ids[3]].reason == "The check does not fit here."


async def test_a_bad_gateway_over_threads_is_asked_again(forge: GitHubForge, server: GitHubServer) -> None:
    comment = await post(forge)
    server.resolved[comment.id] = "ann"
    server.fail("POST", "/graphql", 502)
    assert (await forge.opinions(7, [comment.id]))[comment.id].reason == "resolved by ann"


async def test_it_keeps_to_the_pull_request_it_was_asked_about(forge: GitHubForge, server: GitHubServer) -> None:
    server.open(8, DIFF)
    for repo, pr in (("o/r", 8), ("o/other", 7)):
        with pytest.raises(ForgeError, match=f"{repo}#{pr} is left alone"):
            await forge.diff(repo, pr)
    assert server.asked("GET", ".*") == 0


@pytest.mark.parametrize(
    ("repo", "pr", "environment", "sentence"),
    [
        ("o/r", 9, {}, "does not show pull request o/r#9: there is none, or the token"),
        ("o/secret", 7, {}, "does not show pull request o/secret#7"),
        ("o/r", 7, {"GITHUB_TOKEN": "wrong"}, "does not accept the token in GITHUB_TOKEN .Bad credentials"),
        ("o/r", 7, {"GITHUB_TOKEN": " "}, "GITHUB_TOKEN is not set"),
        ("o/r", 7, {"GITHUB_API_URL": "github.example.com"}, "GITHUB_API_URL is 'github.example.com'"),
        ("just-a-name", 7, {}, "write it as owner/name"),
        ("o/r/../x", 7, {}, "write it as owner/name"),
    ],
)
async def test_what_cannot_be_done_is_said_in_a_sentence(
    server: GitHubServer,
    monkeypatch: pytest.MonkeyPatch,
    repo: str,
    pr: int,
    environment: dict[str, str],
    sentence: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ForgeError, match=sentence):
        async with github.connect(repo) as forge:
            await forge.pull_request(pr)


async def test_a_server_that_is_not_there_is_said_in_a_sentence(
    server: GitHubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_API_URL", "http://127.0.0.1:1/api/v3")
    monkeypatch.setattr("review_bot_parts.github_client.MAX_RETRIES", 1)
    async with github.connect("o/r") as forge:
        with pytest.raises(ForgeError, match="cannot be reached for pull request o/r#7"):
            await forge.pull_request(7)
