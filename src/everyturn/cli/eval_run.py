"""An evaluator at work, with its progress on a terminal's stderr."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from everyturn.cli.output import Output
from everyturn.cli.text import clip, one_line

if TYPE_CHECKING:
    from everyturn.database import Database
    from everyturn.evaluators import Evaluated, Evaluator

_FAILURES_SHOWN = 10


async def follow(
    out: Output, db: Database, evaluator: Evaluator, *, watch: bool, interval: float, **options: Any
) -> Evaluated:
    """Run a worker and show how it gets on; failures are said as they come."""
    from everyturn.evaluating import Evaluation

    with _bar(out, evaluator.name) as show:
        said = 0

        def progress(done: Evaluated) -> None:
            nonlocal said
            if done.failed > said:
                said = done.failed
                if said <= _FAILURES_SHOWN:
                    failure = done.failures[-1]
                    out.warn(f"Turn {failure.turn_id} was not judged: {clip(one_line(str(failure)), 500)}")
                elif said == _FAILURES_SHOWN + 1:
                    out.warn("More failures are only counted.")
            show(done, None)

        evaluation = Evaluation(db, evaluator, on_progress=progress, **options)

        async def count() -> None:
            show(evaluation.done, await evaluation.count())

        counting = asyncio.create_task(count()) if show is not _silent and not watch else None
        try:
            return await (evaluation.watch(interval) if watch else evaluation.once())
        finally:
            if counting is not None:
                counting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await counting


def _silent(done: Evaluated, total: int | None) -> None:
    pass


@contextlib.contextmanager
def _bar(out: Output, name: str) -> Iterator[Callable[[Evaluated, int | None], None]]:
    if out.quiet or not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    console = Console(file=sys.stderr, markup=False, highlight=False)
    counts = TextColumn("{task.fields[counts]}", markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, counts, console=console) as progress:
        task = progress.add_task(Text(one_line(name)).plain, total=None, counts="")

        def show(done: Evaluated, total: int | None) -> None:
            seen = done.recorded + done.abstained + done.failed + done.elsewhere
            counts = f"{done.good} good, {done.partial} partial, {done.bad} bad, {done.failed} failed"
            if total is not None:
                progress.update(task, total=seen + total)
            progress.update(task, completed=seen, counts=counts)

        yield show
