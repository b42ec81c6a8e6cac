"""`everyturn eval`: verdicts on turns, and the evaluators that give them."""

from __future__ import annotations

import json as json_text
from dataclasses import asdict
from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer

from everyturn.cli.command import Session, command, noun
from everyturn.cli.eval_run import follow
from everyturn.cli.eval_views import (
    DISAGREEMENTS,
    EVALS,
    WRONG,
    comparison_document,
    first,
    parse_side,
    show_agreement,
    show_comparison,
)
from everyturn.cli.exits import CHECK_FAILED, NOT_ENOUGH_DATA, OK, OPERATIONAL, sentence
from everyturn.cli.filters import (
    AgentOption,
    AllOption,
    ConversationOption,
    EmbedderOption,
    JsonOption,
    LimitOption,
    SinceOption,
    ToolOption,
    UntilOption,
    VerdictName,
    WhereOption,
    argument,
    embedder_named,
    parse_uuid,
    parse_where,
    readable,
    rows_wanted,
    text_argument,
)
from everyturn.cli.paging import DEFAULT_LIMIT, pages
from everyturn.errors import ImplementationChanged, InvalidValue

app = noun("Verdicts on turns, and the evaluators that give them.")


EvaluatorOption = Annotated[
    str | None, typer.Option("--evaluator", "-e", metavar="NAME", help="Only of this evaluator.", parser=readable)
]
AgainstOption = Annotated[str, typer.Option("--against", metavar="NAME", help="The one that is right.")]
SideOption = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=VALUE",
        help="Which turns: since=TIME, until=TIME, model=NAME, prompt=REVISION; repeat it, or separate by commas.",
    ),
]


@command(app, "record")
async def record_eval(
    session: Session,
    turn: Annotated[UUID, typer.Argument(metavar="TURN", parser=argument(parse_uuid), show_default=False)],
    verdict: Annotated[VerdictName, typer.Argument(show_default=False)],
    evaluator: Annotated[
        str, typer.Option("--evaluator", "-e", metavar="NAME", help="Whose verdict it is.", parser=readable)
    ] = "human",
    reason: Annotated[str | None, typer.Option("--reason", "-r", metavar="TEXT", help="Why; - reads stdin.")] = None,
    payload: Annotated[str | None, typer.Option("--payload", metavar="JSON", help="More about it.")] = None,
    json: JsonOption = False,
) -> None:
    """Record a verdict on a turn. A later one of the same evaluator stands in place of the earlier."""
    try:
        extra = None if payload is None else json_text.loads(payload)
    except ValueError as error:
        raise InvalidValue(f"--payload {payload!r} is not JSON: {error}.") from None
    async with session.database(embedder=False) as db:
        found = await db.evals.record(
            turn, evaluator, verdict.value, None if reason is None else text_argument(reason), extra
        )
    if json:
        session.out.json(asdict(found))
    else:
        session.out.fields(asdict(found))


@command(app, "list")
async def list_evals(
    session: Session,
    turn: Annotated[
        UUID | None, typer.Option("--turn", metavar="ID", help="Only on this turn.", parser=argument(parse_uuid))
    ] = None,
    conversation: ConversationOption = None,
    evaluator: EvaluatorOption = None,
    verdict: Annotated[VerdictName | None, typer.Option("--verdict", help="Only this verdict.")] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    json: JsonOption = False,
) -> None:
    """List verdicts, newest first."""
    rows = rows_wanted(limit, everything)
    async with session.as_it_is() as db:
        await session.out.listing(
            EVALS,
            pages(
                db,
                "evals_recorded",
                rows=rows,
                turn_id=turn,
                conversation=conversation,
                evaluator=evaluator,
                verdict=verdict,
            ),
            limit=rows,
            json=json,
            empty="No verdict was recorded.",
        )


@command(app, "run")
async def run_evaluator(
    session: Session,
    reference: Annotated[
        str,
        typer.Argument(metavar="MODULE:NAME", help="The evaluator: module:name or file.py:name.", show_default=False),
    ],
    agent: AgentOption = None,
    since: SinceOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on with new turns, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.05, metavar="SECONDS", help="How often --watch looks.")
    ] = 1.0,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-j", min=1, metavar="N", help="How many to judge at a time.")
    ] = 8,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="Stop after N verdicts.")
    ] = None,
    embedder: EmbedderOption = None,
    json: JsonOption = False,
) -> int:
    """Judge every turn, or conversation, that lacks an evaluator's verdict.

    Any number of workers may do so at once. Where the evaluator fails nothing is recorded, and the next run tries
    again; the exit code is then 4.
    """
    from everyturn.evaluators import Evaluator
    from everyturn.objects import is_reference, load_object

    found = load_object(reference if is_reference(reference) else f"python:{reference}")
    if not isinstance(found, Evaluator):
        raise InvalidValue(
            f"{reference!r} is a {type(found).__name__}, and not an evaluator: put @et.evaluator(name) in front of the "
            "function."
        )
    async with session.database(embedder=embedder_named(embedder)) as db:
        done = await follow(
            session.out,
            db,
            found,
            agent=agent,
            since=since,
            watch=watch,
            interval=interval,
            concurrency=concurrency,
            limit=limit,
        )
    counted = {key: value for key, value in asdict(done).items() if key != "failures"}
    if json:
        failures = [{"turn_id": failure.turn_id, "error": str(failure)} for failure in done.failures]
        session.out.json(counted | {"recorded": done.recorded, "failures": failures})
    else:
        session.out.fields(counted)
    return OPERATIONAL if done.failed else OK


@command(app, "agree")
async def agree(
    session: Session,
    evaluator: Annotated[
        str, typer.Option("--evaluator", "-e", metavar="NAME", help="Whose verdicts to look at.", parser=readable)
    ],
    against: AgainstOption = "human",
    agent: AgentOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    at_least: Annotated[
        float | None,
        typer.Option("--min-kappa", metavar="K", min=-1, max=1, help="Exit with 1 where kappa is below."),
    ] = None,
    limit: LimitOption = DEFAULT_LIMIT,
    everything: AllOption = False,
    json: JsonOption = False,
) -> int:
    """Judge a judge: agreement, Cohen's kappa, the confusion table, and the turns they disagree on."""
    out, rows = session.out, rows_wanted(limit, everything)
    filters = {"agent": agent, "since": since, "until": until}
    async with session.as_it_is() as db:
        found = await db.evals.agree(evaluator, against, **filters)  # type: ignore[arg-type]
        differing = pages(db, "disagreements", rows=rows, evaluator=evaluator, against=against, **filters)
        if json:
            await out.document_with(asdict(found), "disagreements", first(differing, rows))
        elif found.turns:
            show_agreement(out, found)
            if out.terminal:
                out.line()
            await out.listing(DISAGREEMENTS, differing, limit=rows, json=False, empty="They disagree on no turn.")
    if not found.turns:
        out.warn(f"No turn has a verdict of both {evaluator} and {against}.")
        return NOT_ENOUGH_DATA
    if at_least is not None and found.kappa is None:
        out.warn("Kappa is not defined: both gave one and the same verdict to every turn.")
        return NOT_ENOUGH_DATA
    if at_least is not None and found.kappa is not None and found.kappa < at_least:
        out.warn(f"Kappa is {found.kappa:.3f}, below {at_least:g}.")
        return CHECK_FAILED
    return OK


@command(app, "compare")
async def compare(
    session: Session,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Whose turns.", parser=readable)],
    baseline: SideOption,
    candidate: SideOption,
    tool: ToolOption = None,
    evaluator: EvaluatorOption = None,
    allow_changed: Annotated[
        bool, typer.Option("--allow-changed", help="Compare even if a tool is not what it was.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Compare verdicts between two time windows, models or prompt revisions.

    Refuses, with exit code 1, where the implementation of a tool changed in between.
    """
    sides = parse_side(baseline, "--baseline"), parse_side(candidate, "--candidate")
    async with session.as_it_is() as db:
        try:
            found = await db.evals.compare(
                agent, tool, baseline=sides[0], candidate=sides[1], evaluator=evaluator, allow_changed=allow_changed
            )
        except ImplementationChanged as error:
            session.out.warn(sentence(error))
            return CHECK_FAILED
    if json:
        session.out.json(comparison_document(found))
    else:
        show_comparison(session.out, found)
    if found.difference is None:
        session.out.warn("There is nothing to compare: a side has no verdicts.")
        return NOT_ENOUGH_DATA
    return OK


@command(app, "wrong")
async def wrong(
    session: Session,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Whose turns.", parser=readable)],
    tool: ToolOption = None,
    where: WhereOption = None,
    days: Annotated[float, typer.Option("--days", min=0, metavar="N", help="Of the last N days.")] = 90,
    since: SinceOption = None,
    evaluator: EvaluatorOption = None,
    limit: LimitOption = 20,
    everything: AllOption = False,
    json: JsonOption = False,
) -> None:
    """Ask what the agent got wrong: what was judged bad, and why, the most often dismissed first.

    A turn counts while its standing verdict is bad: the latest human one; where no human has spoken, the latest.
    """
    from everyturn.evals import payload_conditions

    rows = rows_wanted(limit, everything)
    window: dict[str, datetime | float | None] = {"since": since, "days": None if since is not None else days}
    async with session.as_it_is() as db:
        await session.out.listing(
            WRONG,
            pages(
                db,
                "what_did_i_get_wrong",
                rows=rows,
                agent=agent,
                tool=tool,
                evaluator=evaluator,
                **payload_conditions(parse_where(where)),
                **window,
            ),
            limit=rows,
            json=json,
            empty="Nothing was judged bad.",
        )
