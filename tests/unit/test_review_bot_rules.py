"""The review bot's rules: what each speaks about, and what it must let pass."""

from __future__ import annotations

import textwrap

import pytest

from review_bot_parts.diff import hunks
from review_bot_parts.fragment import parse
from review_bot_parts.rules import Finding, review

# Put together here, so that nothing that reads this file takes them for real.
AWS_KEY = "AKIA" + "Q3EGRWZX5YJ7PLMN"
GITHUB_TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
PEM = "-----BEGIN RSA " + "PRIVATE KEY-----"
TODO = "TO" + "DO"
CONFLICT = "<" * 7


def added(path: str, source: str) -> list[Finding]:
    """The findings of a diff that adds these lines as a new file."""
    lines = textwrap.dedent(source).strip("\n").split("\n")
    body = "".join(f"+{line}\n" for line in lines)
    diff = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n{body}"
    return [finding for hunk in hunks(diff) for finding in review(hunk)]


def rules(path: str, source: str) -> list[str]:
    return [finding.rule for finding in added(path, source)]


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("bare-except", "try:\n    f()\nexcept:\n    log()"),
        ("swallowed-exception", "try:\n    f()\nexcept Exception:\n    pass"),
        ("swallowed-exception", "try:\n    f()\nexcept BaseException as error:\n    ..."),
        ("mutable-default", "def f(a, b=[]): ..."),
        ("mutable-default", "async def f(*, b={}): ..."),
        ("mutable-default", "f = lambda a=dict(): a"),
        ("leftover-debugger", "breakpoint()"),
        ("leftover-debugger", "import pdb"),
        ("leftover-debugger", "def f():\n    import ipdb; ipdb.set_trace()"),
        ("leftover-print", 'print("debug", x)'),
        ("leftover-print", 'print(f"{x=}")'),
        ("leftover-print", "print(type(x))"),
        ("hard-coded-secret", 'password = "tr0ub4dor&3"'),
        ("hard-coded-secret", 'self.api_key: str = "9f8e7d6c5b4a3f2e"'),
        ("hard-coded-secret", 'connect(user="me", auth_token="q8Zr71xLm0Pq")'),
        ("hard-coded-secret", 'config = {"secret_key": "q8Zr71xLm0Pq"}'),
        ("hard-coded-secret", f'key = "{AWS_KEY}"'),
        ("hard-coded-secret", f"# see {GITHUB_TOKEN}"),
        ("none-comparison", "if x == None:\n    f()"),
        ("none-comparison", "y = a.b != None"),
        ("literal-identity", 'if x is "yes":\n    f()'),
        ("literal-identity", "z = n is not 5"),
        ("eval-input", "eval(text)"),
        ("eval-input", "exec(read(), {})"),
        ("shell-injection", 'subprocess.run(f"rm {path}", shell=True, check=True)'),
        ("shell-injection", "os.system(command)"),
        ("request-without-timeout", "requests.get(url)"),
        ("request-without-timeout", "urllib.request.urlopen(url)"),
        ("unsafe-yaml", "yaml.load(text)"),
        ("blocking-sleep", "async def f():\n    time.sleep(1)"),
        ("naive-time", "now = datetime.utcnow()"),
        ("naive-time", "now = datetime.datetime.now()"),
        ("open-without-encoding", "open(path).read()"),
        ("open-without-encoding", "text = path.read_text()\n"),
        ("open-without-encoding", 'open(path, mode="w")'),
        ("sql-from-strings", 'db.execute(f"SELECT * FROM t WHERE id = {key}")'),
        ("sql-from-strings", 'db.execute("DELETE FROM t WHERE id = %s" % key)'),
        ("sql-from-strings", 'await conn.fetch("select * from {}".format(table))'),
        ("unchecked-command", 'subprocess.run(["git", "push"])'),
        ("discarded-task", "asyncio.create_task(work())"),
        ("always-true-assert", 'assert (x, "x is needed")'),
        ("raised-not-implemented", "raise NotImplemented"),
        ("raised-not-implemented", 'raise NotImplemented("later")'),
        (
            "return-in-finally",
            "def f():\n    try:\n        g()\n    finally:\n        if x:\n            return 1",
        ),
        ("long-function", "def f():\n" + "    x = 1\n" * 130),
        ("todo-without-owner", f"x = 1  # {TODO}: later"),
        ("broad-type-ignore", "x = 1  # type" + ": ignore"),
        ("broad-noqa", "x = 1  # no" + "qa"),
        ("merge-marker", f"{CONFLICT} HEAD\nx = 1"),
    ],
)
def test_a_rule_speaks(rule: str, source: str) -> None:
    assert rules("src/app.py", source) == [rule]


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    f()\nexcept:\n    undo()\n    raise",
        "try:\n    f()\nexcept FileNotFoundError:\n    pass",
        "try:\n    f()\nexcept Exception:\n    log()",
        "def f(a=None, b=(), c=frozenset()): ...",
        'print("3 files written")\nprint(x, file=sys.stderr)',
        'password = "changeme"\ntoken = os.environ["TOKEN"]\nsecret = "your-secret-here-123"',
        'TOKEN = "access_token"\npassword = get("x9!kk2mmQ")\npassword_field = "q8Zr71xLm0Pq"',
        'key = "AKIA' + "IOSFODNN7" + 'EXAMPLE"',
        "query.filter(User.name == None).all()\nselect(t).where(t.c.x != None)",
        "if x is None or y is True or z is ...:\n    f()",
        'eval("1 + 1")\nmodel.eval()\nconn.exec(sql)',
        'out = subprocess.run(["rm", path])\nout = subprocess.run("ls *", shell=True)\nos.system("clear")',
        "requests.get(url, timeout=5)\nrequests.get(url, **options)\nsession.get(url)",
        "yaml.load(text, Loader=yaml.SafeLoader)\nyaml.safe_load(text)",
        "def f():\n    time.sleep(1)\nasync def g():\n    await asyncio.sleep(1)",
        "async def f():\n    def inner():\n        time.sleep(1)",
        "assert (x), 'x is needed'\nassert ()",
        "raise NotImplementedError\nreturn NotImplemented",
        "try:\n    f()\nfinally:\n    def g():\n        return 1",
        f"# {TODO}(ada): later\n# {TODO} #12\n# {TODO}: see https://example.org/1\n# {TODO} ABC-12",
        f'text = "# {TODO}: not a comment"\ndoc = """\n# {TODO}: nor this\n"""',
        'text = "except:"\ntext = "breakpoint()"\ntext = "x == None"',
        "x = f()  # type: ignore[no-any-return]\ny = 1  # noqa: E501",
        "def f():\n" + "    x = 1\n" * 100,
        "=======\n",
        'open(path, "rb")\nopen(path, encoding="utf-8")\npath.write_text(text, "utf-8")\nopen(path, mode)',
        'db.execute("SELECT 1")\ndb.execute(f"{statement}")\nrun.execute(f"step {n}")\ndb.execute(sql.format(x))',
        'subprocess.run(["git", "push"], check=True)\ndone = subprocess.run(["git"])\nself.tasks.add(create_task(f()))',
        "now = datetime.now(UTC)\ntask = asyncio.create_task(work())\ntime.sleep(1)",
    ],
)
def test_the_rules_let_pass(source: str) -> None:
    assert rules("src/app.py", source) == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("web/app.ts", "  console.log(user)", ["leftover-debugger"]),
        ("web/app.js", "debugger;", ["leftover-debugger"]),
        ("web/app.js", "// console.log(user)", []),
        ("web/app.js", f"x() // {TODO}: later", ["todo-without-owner"]),
        ("lib.rs", f"/* {TODO} */", ["todo-without-owner"]),
        ("lib.go", f"// {TODO}(ada): later", []),
        ("README.md", f"# {TODO} list", []),
        ("key.pem", PEM, ["hard-coded-secret"]),
        ("config.yml", f"{CONFLICT} HEAD", ["merge-marker"]),
        ("docs/page.md", f"> {CONFLICT} HEAD", []),
        ("tests/test_app.py", 'password = "tr0ub4dor&3"\neval(x)\nprint("debug")', []),
        ("scripts/run.py", "print(type(x))", []),
        ("tests/test_app.py", "time.sleep(1)", ["sleep-in-test"]),
        ("tests/test_app.py", "time.sleep(0.01)\ntime.sleep(3600)\nf(open(path))", []),
        ("src/broken.py", "def f(:\n    except", []),
    ],
)
def test_the_kind_of_file_decides(path: str, source: str, expected: list[str]) -> None:
    assert rules(path, source) == expected


def test_only_added_lines_are_spoken_about() -> None:
    diff = "--- a/a.py\n+++ b/a.py\n@@ -1,4 +1,5 @@\n try:\n     f()\n except:\n+    log()\n     undo()\n"
    assert [review(hunk) for hunk in hunks(diff)] == [[]]


def test_a_finding_is_on_the_line_it_is_about() -> None:
    diff = "--- a/a.py\n+++ b/a.py\n@@ -40,2 +50,3 @@\n         y = 1\n+        x = y == None\n     return y\n"
    (finding,) = [each for hunk in hunks(diff) for each in review(hunk)]
    assert (finding.path, finding.line, finding.rule) == ("a.py", 51, "none-comparison")
    assert finding.body.startswith("[none-comparison] `x = y == None`: ")
    assert finding.body.startswith(finding.topic)


def test_two_places_in_a_hunk_are_two_findings_and_the_same_words_are_one() -> None:
    source = "a = x == None\nb = x == None\nb = x == None"
    assert [(finding.line, finding.rule) for finding in added("a.py", source)] == [
        (1, "none-comparison"),
        (2, "none-comparison"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        f'token = "{GITHUB_TOKEN}"',
        f'print("debug", "{GITHUB_TOKEN}")',
        'breakpoint(); password = "tr0ub4dor&3"',
    ],
)
def test_a_comment_never_repeats_the_secret_it_is_about(source: str) -> None:
    findings = added("src/a.py", source)
    assert findings
    assert not any(secret in finding.body for finding in findings for secret in (GITHUB_TOKEN, "tr0ub4dor"))


@pytest.mark.parametrize(
    "piece",
    [
        "        x = 1\n    return x\n\ndef g():\n    pass",
        "    except KeyError:\n        pass\n    else:\n        f()",
        "        f()\n    elif y:\n        g()",
        "    try:\n        f()",
        "class A:\n    def f(self):",
        '    ends a docstring.\n    """\n    x = 1\n    return x',
        "    arguments=1,\n)\nx = 1\ny = 2",
        "    @property",
        "    case 1:\n        f()",
        "# only a comment",
        "\tif x:\n\t\ty = 1\n\treturn",
    ],
)
def test_a_piece_of_python_is_parsed(piece: str) -> None:
    assert parse(piece.split("\n")) is not None


@pytest.mark.parametrize("piece", ["", "\n\n", "plain words in a docstring", "a b\nc d\n" * 9])
def test_what_cannot_be_parsed_is_not_judged(piece: str) -> None:
    assert parse(piece.split("\n")) is None


def test_a_body_that_the_hunk_does_not_show_is_not_judged() -> None:
    diff = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,3 @@\n try:\n     f()\n+except Exception:\n"
    assert [review(hunk) for hunk in hunks(diff)] == [[]]
