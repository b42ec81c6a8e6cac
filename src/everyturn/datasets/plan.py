"""What a replay is going to do: which cases, with what, and what it will cost."""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from everyturn import payloads
from everyturn.agent import Agent
from everyturn.errors import InvalidValue
from everyturn.judge import Judge
from everyturn.models import Leaf, resolve
from everyturn.names import check_name
from everyturn.objects import is_reference, load_object
from everyturn.values import Usage

from .asking import Asker, LeafAsker
from .recorded import AgentAsker
from .scorers import Judged, Scorer, resolve_all

if TYPE_CHECKING:
    from everyturn.database import Database

    from .values import Dataset

_CHARACTERS_PER_TOKEN = 4
_ASSUMED_OUTPUT = 300
_JUDGE_INPUT = 350
_JUDGE_OUTPUT = 120


@dataclass(frozen=True, slots=True)
class Target:
    """What answers the cases, as it was named, so that another process can find it again."""

    model: Any = None
    """A model string, `python:…`, a function or a leaf; None with an agent means the agent's own."""
    agent: Any = None
    """`python:…`, an Agent, or a function that takes the database and returns one."""
    prompt: str | None = None
    prompt_rev: str | None = None
    model_name: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None

    def named(self) -> dict[str, Any]:
        """The part that is stored in `eval_replay.settings`; an object has no name to find it by."""
        return {
            "model": self.model if isinstance(self.model, str) else None,
            "agent": self.agent if isinstance(self.agent, str) else None,
            "modelName": self.model_name,
            "settings": dict(self.settings),
            "timeout": self.timeout,
        }

    async def asker(self, db: Database, replay_id: UUID) -> Asker:
        """What asks it. Raises InvalidValue and ModelError."""
        leaf = self.leaf()
        if self.agent is not None:
            if self.prompt_rev is not None:
                raise InvalidValue("The revision of an agent's prompt is that of its instructions; it cannot be given.")
            return AgentAsker(
                db,
                await load_agent(db, self.agent),
                replay_id=replay_id,
                leaf=leaf,
                model=self.model_name,
                instructions=self.prompt,
                settings=self.settings,
                timeout=self.timeout,
            )
        if leaf is None:
            raise InvalidValue("A replay needs a model, such as anthropic:claude-opus-4-7, or an agent.")
        return LeafAsker(
            leaf,
            model=self.model_name or leaf.name,
            prompt=self.prompt,
            prompt_rev=self.prompt_rev or payloads.prompt_rev(self.prompt),
            settings=self.settings,
            timeout=self.timeout,
        )

    def leaf(self) -> Leaf | None:
        """The model, where one is named."""
        if self.model is None:
            return None
        if isinstance(self.model, str) and is_reference(self.model):
            return resolve(load_object(self.model))
        return resolve(self.model)


async def load_agent(db: Database, agent: Any) -> Agent:
    """The agent, from an agent, its `python:…` name, or a function that takes the database."""
    found = load_object(agent) if isinstance(agent, str) else agent
    if not isinstance(found, Agent) and callable(found):
        found = found(db)
        if inspect.isawaitable(found):
            found = await found
    if not isinstance(found, Agent):
        raise InvalidValue(
            f"{agent!r:.200} is a {type(found).__name__}: neither an agent nor a function that takes the database and "
            "returns one."
        )
    return found


def read_prompt(path: str | Path) -> str:
    """The text of a prompt file, byte for byte: its revision is what `git hash-object` says of the file."""
    data = Path(path).read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidValue(f"The prompt {path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None


def choose(case_ids: Sequence[UUID], sample: int | None, seed: int | None) -> tuple[list[UUID], int | None]:
    """The cases of a sample, in their order, and the seed: the same seed picks the same cases anywhere."""
    if sample is None:
        return list(case_ids), seed
    if sample < 1:
        raise InvalidValue(f"A sample of {sample} cases is none; give a number from 1 up.")
    if seed is None:
        seed = random.SystemRandom().randrange(2**31)
    if sample >= len(case_ids):
        return list(case_ids), seed
    ranked = sorted(case_ids, key=lambda id: hashlib.sha256(f"{seed}:{id}".encode()).digest())
    chosen = set(ranked[:sample])
    return [id for id in case_ids if id in chosen], seed


def scorer_names(scorers: Sequence[Any], resolved: Sequence[Scorer]) -> list[str]:
    """What is stored of the scorers: what was written, else the name of the object."""
    return [spec if isinstance(spec, str) else scorer.name for spec, scorer in zip(scorers, resolved, strict=True)]


def default_scorers(db: Database, scorers: Sequence[Any] | None) -> tuple[list[Scorer], list[str]]:
    """The scorers to use, and how they are stored; none given means `exact`, for the cases with a reference."""
    given = list(scorers) if scorers is not None else []
    if isinstance(scorers, str):
        raise InvalidValue(f"Scorers are a list; got the string {scorers!r}.")
    resolved = resolve_all(given or ["exact"], db.embedder)
    return resolved, scorer_names(given, resolved) if given else []


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a replay will take, before it is begun."""

    cases: int
    trials: int
    calls: int
    """Answers to be made: cases times trials."""
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal | None
    """The model's; None where its price is not known."""
    judge_cost_usd: Decimal | None
    """The judges'; None where there are none, or a price is not known."""
    basis: str
    """What the estimate rests on."""


async def estimate(
    db: Database, dataset: Dataset, target: Target, scorers: Sequence[Scorer], case_ids: Sequence[UUID], trials: int
) -> Estimate:
    """Estimate from what these cases took before, else from the length of their prompts."""
    leaf = target.leaf()
    if leaf is None:
        leaf = (await load_agent(db, target.agent)).leaf
    name = target.model_name or leaf.name
    [row] = await db.query("replay_estimate", case_ids=list(case_ids), model=check_name(name, "model name"))
    calls = len(case_ids) * trials
    if row["runs"]:
        each = Usage(round(row["input_tokens"]), round(row["output_tokens"]))
        basis = f"{row['runs']} earlier runs of these cases" + ("" if row["same_model"] else " by other models")
    else:
        characters = float(row["characters"] or 0) + len(target.prompt or "")
        each = Usage(round(characters / _CHARACTERS_PER_TOKEN), _ASSUMED_OUTPUT)
        basis = f"{_CHARACTERS_PER_TOKEN} characters a token and {_ASSUMED_OUTPUT} tokens an answer"
    price = row["cost_usd"] if row["same_model"] and row["cost_usd"] is not None else leaf.cost(each, leaf.name)
    judges = [scorer.judge for scorer in scorers if isinstance(scorer, Judged)]
    return Estimate(
        len(case_ids),
        trials,
        calls,
        each.input_tokens * calls,
        each.output_tokens * calls,
        None if price is None else Decimal(price) * calls,
        _judges_cost(judges, each, calls),
        basis,
    )


def _judges_cost(judges: Sequence[Judge], each: Usage, calls: int) -> Decimal | None:
    total = Decimal(0)
    for judge in judges:
        asked = Usage(each.input_tokens + each.output_tokens + _JUDGE_INPUT, _JUDGE_OUTPUT)
        price = judge.leaf.cost(asked, judge.leaf.name)
        if price is None:
            return None
        total += price * calls
    return total if judges else None
