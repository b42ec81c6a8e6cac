"""Names and ids as they are accepted."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from everyturn.errors import InvalidValue
from everyturn.names import MAX_NAME_BYTES, as_uuid, check_name


@pytest.mark.parametrize(
    "name", ["code-reviewer", "агент", "レビュー", "a b", "rubric:v3", "100%", "O'Brien", "x" * 512]
)
def test_ordinary_names_pass(name: str) -> None:
    assert check_name(name, "agent") == name


@pytest.mark.parametrize("name", ["", " ", "\t\n", None, 7, b"agent", ["agent"]])
def test_what_is_not_a_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidValue, match="is not a name"):
        check_name(name, "agent")


@pytest.mark.parametrize("name", ["a\x00b", "a\x1fb", "a\x1eb", "a\nb", "\x7f", "a\ud83d"])
def test_control_characters_and_lone_surrogates_are_refused(name: str) -> None:
    """field case 1: also in a name."""
    with pytest.raises(InvalidValue, match="which a name may not"):
        check_name(name, "agent")


@pytest.mark.parametrize("name", ["x" * (MAX_NAME_BYTES + 1), "é" * 257, "x" * 3000])
def test_long_names_are_refused_by_their_bytes(name: str) -> None:
    """field case 68: a clear length error, before a btree index refuses the row."""
    with pytest.raises(InvalidValue, match=f"at most {MAX_NAME_BYTES}") as caught:
        check_name(name, "agent")
    assert len(str(caught.value)) < 300


def test_ids_are_taken_as_uuid_or_text() -> None:
    id = uuid4()
    assert as_uuid(id, "turn") is id
    assert as_uuid(str(id), "turn") == id
    assert as_uuid(id.hex, "turn") == id


@pytest.mark.parametrize("value", ["", "not-a-uuid", None, 7, b"x", object, "x" * 36])
def test_what_is_no_uuid_is_named(value: object) -> None:
    with pytest.raises(InvalidValue, match="is not a UUID"):
        as_uuid(value, "conversation")


def test_a_uuid_subclass_is_a_uuid() -> None:
    class Ours(UUID):
        pass

    assert as_uuid(Ours(int=5), "turn") == UUID(int=5)
