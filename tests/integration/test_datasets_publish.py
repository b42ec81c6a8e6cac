"""Publishing: frozen membership, versions without races, and datasets that travel."""

from __future__ import annotations

import asyncio
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from datasets_helpers import embedder, numbers, quick  # noqa: F401
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everyturn as et
from everyturn import testing
from everyturn.datasets.exporting import export_cases
from everyturn.datasets.values import DatasetRef
from everyturn.errors import DatasetNotFound, InvalidValue, NotEnoughData


async def test_membership_is_frozen_in_the_order_of_capture(everyturn_db: et.Database) -> None:
    """Field case 106."""
    db = everyturn_db
    now = datetime.now(UTC)
    await db.cases.import_rows(
        {"prompt": f"p{n}", "captured_at": (now - timedelta(days=n)).isoformat()} for n in range(5)
    )
    dataset = await db.datasets.publish("core", notes="all of them")
    assert [case.prompt for case in await db.datasets.cases(dataset)] == ["p4", "p3", "p2", "p1", "p0"]
    assert (dataset.version, dataset.created, dataset.notes) == (1, True, "all of them")
    await db.cases.capture("p5")
    await db.cases.tag(dataset.case_ids[0], add=["superseded"])
    assert (await db.datasets.get("core@1")).case_ids == dataset.case_ids
    for statement in (
        "UPDATE eval_dataset SET notes = 'x'",
        "DELETE FROM eval_dataset",
        "TRUNCATE eval_dataset CASCADE",
    ):
        with pytest.raises(psycopg.errors.RestrictViolation):
            await db.execute(statement)
    with pytest.raises(psycopg.errors.RestrictViolation):
        await db.execute("DELETE FROM eval_case WHERE id = %s", (dataset.case_ids[0],))
    second = await db.datasets.publish("core")
    assert (second.version, len(second.case_ids)) == (2, 5)
    assert (await db.datasets.get("core")).version == 2


async def test_the_same_content_again_is_the_same_version(everyturn_db: et.Database) -> None:
    first = await numbers(everyturn_db, 3)
    again = await everyturn_db.datasets.publish("core")
    assert (again.id, again.version, again.created) == (first.id, 1, False)
    assert (await everyturn_db.datasets.publish("other")).created


async def test_filters(everyturn_db: et.Database) -> None:
    db = everyturn_db
    await numbers(db, 10)
    extra = await db.cases.capture("other", tags=["odd", "slow"], source="incident")

    async def prompts(**chosen: Any) -> list[str]:
        dataset = await db.datasets.publish(f"set-{uuid4()}", **chosen)
        return [case.prompt for case in await db.datasets.cases(dataset)]

    assert await prompts(tags=["odd", "slow"]) == ["other"]
    assert len(await prompts(any_tags=["slow", "even"])) == 6
    assert len(await prompts(not_tags=["odd"])) == 5
    assert await prompts(source="incident") == ["other"]
    assert await prompts(where_sql="c.reference::int > 7 -- large") == ["say 8", "say 9"]
    assert await prompts(limit=2) == ["say 9", "other"]
    assert await prompts(case_ids=[extra.id]) == ["other"]
    assert await prompts(case_ids=[extra.id], where_sql="true") == ["other"]
    assert len(await prompts(since=datetime.now(UTC) - timedelta(hours=1))) == 11
    for nothing in ({"tags": ["x"]}, {"until": datetime(2020, 1, 1, tzinfo=UTC)}, {"case_ids": []}):
        with pytest.raises(NotEnoughData):
            await prompts(**nothing)


@pytest.mark.parametrize(
    "condition",
    ["true; DELETE FROM eval_case", "nothing = 1", "nextval('agent_events_id_seq') > 0", ") OR (true", "1"],
)
async def test_a_condition_cannot_write(everyturn_db: et.Database, condition: str) -> None:
    """Field case 143: SQL of one's own reads, and is refused in a sentence where it is none."""
    await numbers(everyturn_db, 2)
    if condition == ") OR (true":
        await everyturn_db.datasets.publish("x", where_sql="(true" + condition + ")")
        return
    with pytest.raises(InvalidValue, match="condition"):
        await everyturn_db.datasets.publish("x", where_sql=condition)
    assert len(await everyturn_db.cases.list()) == 2


async def test_the_nearest_cases() -> None:
    async with testing.database(embedder=embedder()) as db:
        for text in ("parse a diff", "parse a patch", "capital of France", "capital of Spain"):
            await db.cases.capture(text)
        dataset = await db.datasets.publish("capitals", similar_to="the capital of Italy", limit=2)
        assert {case.prompt for case in await db.datasets.cases(dataset)} == {"capital of France", "capital of Spain"}
        with pytest.raises(InvalidValue, match="vector"):
            await db.datasets.publish("x", similar_to=uuid4())


@pytest.mark.parametrize("name", ["", " ", "../../x", "a/b", "a\\b", ".hidden", "a@1", "-x", "x" * 3000, "a\nb", "C:x"])
async def test_names_are_also_parts_of_file_names(everyturn_db: et.Database, name: str) -> None:
    """Field case 68, 148."""
    await everyturn_db.cases.capture("p")
    with pytest.raises(InvalidValue):
        await everyturn_db.datasets.publish(name)


async def test_a_name_written_by_another_program_does_not_leave_the_folder(
    everyturn_db: et.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field case 148."""
    monkeypatch.chdir(tmp_path)
    case = await everyturn_db.cases.capture("p")
    await everyturn_db.execute(
        "INSERT INTO eval_dataset (name, version, case_ids) VALUES ('../x', 1, %s)", ([case.id],)
    )
    with pytest.raises(InvalidValue):
        await everyturn_db.datasets.export(DatasetRef("../x", 1))
    assert list(tmp_path.iterdir()) == []
    assert not (tmp_path.parent / "x@1.jsonl").exists()


async def test_what_does_not_exist(everyturn_db: et.Database) -> None:
    for ref in ("core", "core@3"):
        with pytest.raises(DatasetNotFound):
            await everyturn_db.datasets.get(ref)
    for ref in ("core@", "core@x", "core@0", "core@99999999999", "@1"):
        with pytest.raises(InvalidValue):
            await everyturn_db.datasets.get(ref)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 4), min_size=2, max_size=6))
def test_any_interleaving_of_publishers_gives_distinct_versions(everyturn_url: str, sizes: list[int]) -> None:
    """Publishers of one name, each with cases of its own, over connections of their own."""
    name = f"set-{uuid4()}"

    async def publisher(size: int) -> et.Dataset:
        async with et.connect(everyturn_url, embedder=False) as db:
            cases = [await db.cases.capture(f"{uuid4()}") for _ in range(size)]
            return await db.datasets.publish(name, case_ids=[case.id for case in cases])

    async def publish_all() -> list[et.Dataset]:
        return await asyncio.gather(*map(publisher, sizes))

    published = asyncio.run(publish_all())
    assert sorted(dataset.version for dataset in published) == list(range(1, len(sizes) + 1))


def test_the_same_cases_published_side_by_side_are_one_version(everyturn_url: str) -> None:
    async def run() -> list[et.Dataset]:
        async with et.connect(everyturn_url, embedder=False) as db:
            await db.cases.capture("p")

            async def publish() -> et.Dataset:
                async with et.connect(everyturn_url, embedder=False) as other:
                    return await other.datasets.publish("core")

            return await asyncio.gather(*(publish() for _ in range(6)))

    published = asyncio.run(run())
    assert {dataset.version for dataset in published} == {1}
    assert sum(dataset.created for dataset in published) == 1


async def test_coverage_by_tag(everyturn_db: et.Database) -> None:
    await everyturn_db.cases.capture("p")
    await numbers(everyturn_db, 3)
    found = await everyturn_db.datasets.coverage("core")
    assert [(row["tag"], row["cases"], float(row["share"])) for row in found] == [
        ("even", 2, 0.5),
        ("(none)", 1, 0.25),
        ("odd", 1, 0.25),
    ]


@pytest.mark.parametrize("many", [False, True])
async def test_real_prompts_that_no_case_is_near(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with testing.database(embedder=embedder()) as db:
        await db.cases.capture("how do I parse a diff")
        if many:  # enough for the index to be asked
            await db.execute(
                "INSERT INTO eval_case (source, prompt, captured_by, embedding, embedded_by)"
                " SELECT 's', 'filler ' || n, 'x', array_fill(1, ARRAY[64])::real[]::vector, 'words'"
                " FROM generate_series(1, 5001) AS n"
            )
        await db.datasets.publish("core")
        for text in ("how do I parse a diff", "what is the capital of France", "what is the capital of France"):
            await db.turns.append(uuid4(), "a", "user", {"text": text})
        attributes = {"replay": "r"}
        await db.turns.append(uuid4(), "a", "user", {"text": "something else entirely", "attributes": attributes})
        since = datetime.now(UTC) - timedelta(days=30)
        [row] = await db.datasets.uncovered("core", since, below=0.9)
        assert (row["prompt"], row["times"], row["prompts"]) == ("what is the capital of France", 2, 2)
        assert row["similarity"] < 0.9
        assert await db.datasets.uncovered("core", since, agent="nobody") == []


async def test_a_bundle_restores_the_same_dataset_elsewhere(everyturn_db: et.Database, tmp_path: Path) -> None:
    db = everyturn_db
    await db.cases.capture("p\u2028\u0085 'q'", reference="r", context={"b": b"\x89PNG", "n": 1e22}, tags=["t"])
    dataset = await numbers(db, 3)
    file = await db.datasets.export("core@1", tmp_path / "bundle.jsonl")
    assert (await db.cases.import_file(file)).imported == 0
    async with testing.database(embedder=embedder()) as other:
        done = await other.cases.import_file(file)
        assert done.imported == 4
        assert done.dataset is not None
        assert (done.dataset.id, done.dataset.hash, done.dataset.case_ids) == (
            dataset.id,
            dataset.hash,
            dataset.case_ids,
        )
        assert [case.content_hash for case in await other.datasets.cases("core@1")] == [
            case.content_hash for case in await db.datasets.cases("core@1")
        ]
        again = await other.cases.import_file(file)
        assert (again.imported, again.dataset and again.dataset.created) == (0, False)
        owed = await other.fetch("SELECT 1 FROM eval_case WHERE embedding IS NULL")
        assert owed == []


# Of the first line of a bundle.
WRONG_HEADS: list[tuple[str, Any]] = [
    ("version", "x"),
    ("version", -1),
    ("version", 10**11),
    ("version", 1.5),
    ("cases", None),
    ("published_at", "yesterday"),
    ("published_at", 5),
    ("notes", {"a": 1}),
    ("name", "../../x"),
    ("name", None),
    ("id", "1"),
]


@pytest.mark.parametrize("damage", ["cut", "edited", "swapped", "header"])
async def test_a_damaged_bundle_restores_nothing(everyturn_db: et.Database, tmp_path: Path, damage: str) -> None:
    await numbers(everyturn_db, 3)
    file = await everyturn_db.datasets.export("core@1", tmp_path / "bundle.jsonl")
    head, *lines = file.read_text("utf-8").splitlines()
    if damage == "cut":
        lines.pop()
    elif damage == "edited":
        lines[1] = lines[1].replace("say 1", "say one")
    elif damage == "swapped":
        lines.reverse()
    else:
        head = json.dumps({**json.loads(head), "format": 99})
    file.write_text("\n".join([head, *lines]) + "\n", "utf-8")
    async with testing.database() as other:
        with pytest.raises(InvalidValue):
            await other.cases.import_file(file)
        for field, value in WRONG_HEADS:
            file.write_text("\n".join([json.dumps({**json.loads(head), "format": 1, field: value}), *lines]), "utf-8")
            with pytest.raises(InvalidValue, match=f"{field}|dataset name|UUID"):
                await other.cases.import_file(file)
        assert await other.cases.list() == []
        assert await other.datasets.list() == []


def write(folder: Path, name: str, text: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


async def test_jsonl(everyturn_db: et.Database, tmp_path: Path) -> None:
    """Field case 3, 114: NUL and Unicode line breaks within strings; a file is split on \\n only."""
    lines = [
        {"prompt": "a\x00b\u2028c\u0085d", "reference": "r", "tags": ["x"], "context": {"k": "\x00"}, "difficulty": 3},
        {"input": "q", "expected_output": 42, "metadata": {"a": 1}},
    ]
    text = "\n\n".join(json.dumps(line, ensure_ascii=number == 1) for number, line in enumerate(lines)) + "\n"
    done = await everyturn_db.cases.import_file(write(tmp_path, "c.jsonl", text), tags=["imported"], source="file")
    assert done.imported == 2
    second, first = await everyturn_db.cases.list()
    assert first.prompt == "a\ufffdb\u2028c\u0085d"
    assert first.context == {"difficulty": 3, "k": "\ufffd"}
    assert (first.tags, first.source) == (["x", "imported"], "file")
    assert (second.prompt, second.reference, second.context) == ("q", "42", {"a": 1})


async def test_csv(everyturn_db: et.Database, tmp_path: Path) -> None:
    """Field case 8: an empty cell and NaN are missing, not text."""
    text = (
        "\ufeffprompt,expected_output,tags,metadata,weight\r\n"
        '"two\nlines, a comma","""quoted""","a, b","{""k"": 1}",2\r\n'
        "plain,nan,,NaN,\r\nthird,NaN,,,nan\r\n"
    )
    done = await everyturn_db.cases.import_file(write(tmp_path, "c.csv", text))
    assert done.imported == 3
    third, plain, first = await everyturn_db.cases.list()
    assert (first.prompt, first.reference, first.tags) == ("two\nlines, a comma", '"quoted"', ["a", "b"])
    assert first.context == {"weight": "2", "k": 1}
    assert (plain.reference, plain.context) == (third.reference, third.context) == (None, {})


async def test_rows_of_a_data_frame(everyturn_db: et.Database) -> None:
    """Field case 8: NaN, wherever it is, is missing."""

    class NAType:
        """What pandas calls its missing value."""

    rows = [
        {"prompt": "a", "expected_output": math.nan, "metadata": {"x": math.nan, "y": [1.0, math.nan], "z": None}},
        {"prompt": "b", "expected_output": NAType(), "when": datetime(2026, 1, 2, tzinfo=UTC), "score": math.nan},
    ]
    await everyturn_db.cases.import_rows(rows)
    b, a = await everyturn_db.cases.list()
    assert (a.reference, a.context) == (None, {"y": [1, None], "z": None})
    assert (b.reference, b.context) == (None, {"when": "2026-01-02T00:00:00+00:00"})


async def test_an_import_is_all_or_nothing_and_says_where(everyturn_db: et.Database, tmp_path: Path) -> None:
    """Field case 110: bad lines are told with their numbers."""
    lines = [
        '{"prompt": "ok"}',
        "",
        '{"prompt": "half',
        '{"prompt": ""}',
        "[1]",
        '{"reference": "x"}',
        '{"prompt": "p", "tags": 7}',
        '{"prompt": "p", "id": "x"}',
        '{"prompt": "p", "captured_at": "yesterday"}',
    ]
    with pytest.raises(InvalidValue) as caught:
        await everyturn_db.cases.import_file(write(tmp_path, "c.jsonl", "\n".join(lines)))
    said = str(caught.value)
    assert "Nothing was imported" in said
    assert all(f"line {number} " in said for number in (3, 4, 5, 6, 7, 8, 9))
    assert not any(f"line {number} " in said for number in (1, 2))
    assert await everyturn_db.cases.list() == []
    with pytest.raises(InvalidValue, match="line 4 has 3 fields"):
        await everyturn_db.cases.import_file(write(tmp_path, "c.csv", 'prompt,tags\n"a\nb",x\np,a,b\n'))
    with pytest.raises(InvalidValue, match="line 3: unexpected end of data"):
        await everyturn_db.cases.import_file(write(tmp_path, "c.csv", 'prompt\na\n"open\nx\n'))
    with pytest.raises(InvalidValue, match="Line 1 names the column 'prompt' twice"):
        await everyturn_db.cases.import_file(write(tmp_path, "c.csv", "prompt,prompt \na,b\n"))
    for name, content in (("c.csv", b""), ("d.csv", b"prompt\n\xff\n"), ("e.csv", b'prompt\n"open\n')):
        with pytest.raises(InvalidValue):
            await everyturn_db.cases.import_file(write(tmp_path, name, content))


async def test_ids_are_one_case_each(everyturn_db: et.Database, tmp_path: Path) -> None:
    """Field case 105: the same file twice, one id twice in a file, and an id whose content is another."""
    id = uuid4()
    file = write(tmp_path, "c.jsonl", json.dumps({"id": str(id), "prompt": "p"}) + "\n" + json.dumps({"prompt": "q"}))
    assert (await everyturn_db.cases.import_file(file)).imported == 2
    again = await everyturn_db.cases.import_file(file)
    assert (again.imported, again.duplicates) == (0, 2)
    assert len(await everyturn_db.cases.list()) == 2
    twice = write(tmp_path, "d.jsonl", "\n".join(json.dumps({"id": str(UUID(int=5)), "prompt": p}) for p in "ab"))
    with pytest.raises(InvalidValue, match=r"line 2 has the id .* of line 1"):
        await everyturn_db.cases.import_file(twice)
    other = write(tmp_path, "e.jsonl", json.dumps({"id": str(id), "prompt": "changed"}))
    with pytest.raises(InvalidValue, match="line 1 has the id"):
        await everyturn_db.cases.import_file(other)
    kept = await everyturn_db.cases.import_rows([{"prompt": "q"}], on_duplicate="store")
    assert kept.imported == 1


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
async def test_what_is_exported_imports_again(everyturn_db: et.Database, tmp_path: Path, suffix: str) -> None:
    await everyturn_db.cases.capture("a,\n\"b\" 'c'", reference="x", context={"k": [1, {"n": None}]}, tags=["a,b", "c"])
    await everyturn_db.cases.capture("q")
    file = await export_cases(everyturn_db, tmp_path / f"out.{suffix}")
    async with testing.database() as other:
        await other.cases.import_file(file)
        assert await other.cases.list() == await everyturn_db.cases.list()
