"""Time-ordered ids."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

import pytest

from everyturn import ids
from everyturn.ids import uuid7


def test_ids_are_version_7_of_now() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    after = time.time_ns() // 1_000_000
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert before <= made.int >> 80 <= after


def test_ids_of_a_process_only_grow() -> None:
    made = [uuid7() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_grow_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """field case 22: the tie-breaker of every listing follows the order in which things were made."""
    now = time.time_ns()
    first = uuid7()
    monkeypatch.setattr(time, "time_ns", lambda: now - 3_600_000_000_000)
    assert uuid7() > first
    monkeypatch.undo()
    monkeypatch.setattr(ids, "_last", 0)


def test_threads_never_make_the_same_id() -> None:
    made: list[list[UUID]] = [[] for _ in range(8)]

    def work(mine: list[UUID]) -> None:
        mine.extend(uuid7() for _ in range(2000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in made)
    assert len({id for mine in made for id in mine}) == 16_000


def test_a_forked_child_makes_its_own_ids_although_a_thread_of_the_parent_held_the_lock() -> None:
    reader, writer = os.pipe()
    with ids._lock:
        child = os.fork()
        if child == 0:
            os.write(writer, uuid7().bytes)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        theirs = UUID(bytes=pipe.read(16))
    os.waitpid(child, 0)
    assert theirs != uuid7()
    assert theirs.version == 7
