"""Test results as the runs of a replay: what the pytest plugin loads and records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

from everyturn import jsonable
from everyturn.database import connect
from everyturn.ids import uuid7
from everyturn.payloads import prompt_rev
from everyturn.values import Usage

from .asking import Answer
from .recorder import RunKey, row_of
from .scoring import Judgement
from .values import Case, Dataset

SCORER = "pytest"


class Place:
    """One database, open until the session ends."""

    def __init__(self, target: str | None) -> None:
        self._stack = ExitStack()
        # Cases are loaded and runs are written: no vector is made.
        self.db: Any = self._stack.enter_context(connect(target, embedder=False))
        self._loaded: dict[str, tuple[Dataset, list[Case]]] = {}

    def cases(self, name: str) -> tuple[Dataset, list[Case]]:
        """A dataset and its cases in their order. Raises DatasetNotFound."""
        if name not in self._loaded:
            dataset = self.db.datasets.get(name)
            self._loaded[name] = (dataset, self.db.datasets.cases(dataset))
        return self._loaded[name]

    def close(self) -> None:
        self._stack.close()


@dataclass(slots=True)
class Replay:
    """The results of one test function under one model and prompt."""

    id: UUID
    dataset: str
    cases: dict[str, UUID] = field(default_factory=dict)
    trials: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)


class Results:
    """Records results as they come, each test function's as one replay."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.replays: dict[tuple[str, ...], Replay] = {}

    def record(self, result: Mapping[str, Any]) -> None:
        """Store one run. `result` is what a report of the plugin carries."""
        key = tuple(str(result[name]) for name in ("test", "dataset_id", "model", "prompt_rev"))
        replay = self.replays.get(key) or self._begin(key, result)
        case_id = result["case_id"]
        replay.trials[case_id] += 1
        error = result["error"]
        usage = Usage(int(result["input_tokens"]), int(result["output_tokens"]))
        answer = Answer(
            output=result["output"],
            latency_ms=int(result["latency_ms"]),
            usage=usage,
            cost_usd=None if result["cost_usd"] is None else Decimal(result["cost_usd"]),
            error=error,
            run_id=result["run_id"],
        )
        passed, score, reason = result["passed"], result["score"], result["reason"]
        judgement = Judgement(
            passed, score, reason, scores={SCORER: {"pass": passed, "score": score, "reason": reason}}
        )
        run = RunKey(
            replay.id,
            UUID(result["dataset_id"]),
            UUID(case_id),
            replay.trials[case_id],
            result["model"],
            result["prompt_rev"],
        )
        row = row_of(self._place.db, run, answer, judgement)
        self._place.db.query("record_runs", records=jsonable.dumps([row]))
        replay.cases[case_id] = UUID(case_id)
        replay.outcomes["error" if error else "passed" if passed else "failed"] += 1

    def _begin(self, key: tuple[str, ...], result: Mapping[str, Any]) -> Replay:
        db = self._place.db
        _, cases = self._place.cases(result["dataset"])
        replay = Replay(uuid7(), result["dataset"])
        db.query(
            "begin_replay",
            id=replay.id,
            dataset_id=UUID(result["dataset_id"]),
            model=result["model"],
            prompt_rev=result["prompt_rev"],
            prompt=result["prompt"],
            settings=db.encode({"runner": "pytest", "test": result["test"]}),
            scorers=[SCORER],
            case_ids=[case.id for case in cases],
            trials=1,
        )
        self.replays[key] = replay
        return replay

    def end(self, *, finished: bool) -> None:
        """Close the replays: with the cases that were run, or as stopped with all that were meant to be."""
        for replay in self.replays.values():
            _, cases = self._place.cases(replay.dataset)
            ids = [case.id for case in cases if not finished or str(case.id) in replay.cases]
            self._place.db.query(
                "end_pytest_replay",
                id=replay.id,
                status="finished" if finished else "stopped",
                case_ids=ids,
                trials=max(replay.trials.values()),
            )


__all__ = ["Place", "Replay", "Results", "prompt_rev"]
