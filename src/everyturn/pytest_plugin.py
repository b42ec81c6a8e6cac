"""Cases of a dataset as tests: `@pytest.mark.everyturn(dataset="core@4")`.

Each case is a parametrised test with the case's id, and each result a run of a replay, so that `everyturn report`,
`diff` and `gate` speak of them like of any other. What cannot be recorded never fails a test; it is said at the end.
With pytest-xdist the workers run the tests, and the process that started them records all results.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everyturn.datasets.from_pytest import Place, Results

MARK = "everyturn"
_ARGUMENTS = ("dataset", "model", "prompt", "prompt_rev", "database")
_OWN_ARGUMENT = "everyturn_case"
_PLACES = pytest.StashKey[dict["str | None", "Place"]]()
_ABOUT = pytest.StashKey[dict[str, Any]]()
_RUN = pytest.StashKey["CaseRun"]()
_MAX_TEXT = 20_000


@dataclass(slots=True)
class CaseRun:
    """What a test tells of its run, beside whether it passed: the fixture `everyturn_run`."""

    output: str = ""
    """What the model answered."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    score: float | None = None
    """From 0 to 1; what is outside is not stored."""
    reason: str | None = None
    latency_ms: int | None = None
    """None: the time the test took."""
    run_id: str | None = None
    """Its stream events."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("everyturn", "datasets as tests")
    group.addoption(
        "--everyturn-database",
        metavar="TARGET",
        help="where datasets are and results go: a Postgres URL or a directory (default: EVERYTURN_DATABASE, else the "
        "embedded database)",
    )
    group.addoption("--everyturn-model", metavar="NAME", help="the model that results are recorded under")
    group.addoption("--everyturn-no-record", action="store_true", help="run datasets, but record nothing")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        'everyturn(dataset, model="pytest", prompt=None, prompt_rev=None, database=None): run once for each case of a '
        "dataset, NAME@VERSION; `case` (or `everyturn_case`) is the case, `everyturn_run` takes its output",
    )
    config.stash[_PLACES] = {}
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recording(config), "everyturn-recording")


def pytest_unconfigure(config: pytest.Config) -> None:
    for place in config.stash.get(_PLACES, {}).values():
        place.close()


@pytest.fixture
def everyturn_case(request: pytest.FixtureRequest) -> Any:
    """The case of a test that is marked `everyturn`."""
    if not hasattr(request, "param"):
        raise pytest.fail.Exception('everyturn_case needs the mark: @pytest.mark.everyturn(dataset="core@4").')
    return request.param


@pytest.fixture
def everyturn_run(request: pytest.FixtureRequest) -> CaseRun:
    """What the test tells of its run: set `output`, and what else is known."""
    run = CaseRun()
    request.node.stash[_RUN] = run
    return run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    about = _about(mark, metafunc.config)
    place = _place(metafunc.config, about["database"])
    from everyturn.errors import EveryturnError

    try:
        _, cases = place.cases(about["dataset"])
    except EveryturnError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    name = "case" if "case" in metafunc.fixturenames else _OWN_ARGUMENT
    if name not in metafunc.fixturenames:
        metafunc.fixturenames.append(name)
    metafunc.parametrize(
        name, cases, ids=[str(case.id) for case in cases], indirect=[name] if name == _OWN_ARGUMENT else False
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker(MARK)
        callspec = getattr(item, "callspec", None)
        if mark is None or callspec is None:
            continue
        argument = _OWN_ARGUMENT if _OWN_ARGUMENT in callspec.params else "case"
        case = callspec.params.get(argument)
        about = _about(mark, config)
        dataset, _ = _place(config, about["database"]).cases(about["dataset"])
        item.stash[_ABOUT] = about | {
            "dataset": str(dataset),
            "dataset_id": str(dataset.id),
            "case_id": str(case.id),
            "test": item.nodeid.partition("[")[0],
        }


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    about = item.stash.get(_ABOUT, None)
    if about is not None:
        # Plain values only: a worker of xdist sends the report to another process.
        report.everyturn = _told(about, item.stash.get(_RUN, None), report, call)  # type: ignore[attr-defined]
    return report


def _told(
    about: dict[str, Any], run: CaseRun | None, report: pytest.TestReport, call: pytest.CallInfo[None]
) -> dict[str, Any]:
    """What a phase of a test says of its case; `passed` is None where it says nothing."""
    passed: bool | None = report.passed if report.when == "call" else None
    error = reason = None
    if hasattr(report, "wasxfail"):
        passed = report.passed
    elif report.skipped:
        passed = None
    if report.failed and call.excinfo is not None:
        passed = False
        said = call.excinfo.exconly(tryshort=True)[:_MAX_TEXT]
        if report.when == "call" and call.excinfo.errisinstance((AssertionError, pytest.fail.Exception)):
            reason = said
        else:
            error = said if report.when == "call" else f"{report.when}: {said}"
    run = run or CaseRun()
    score = run.score if isinstance(run.score, int | float) and 0 <= run.score <= 1 else None
    latency = call.duration * 1000 if run.latency_ms is None else run.latency_ms
    return {
        **about,
        "passed": passed,
        "error": error,
        "reason": reason or (str(run.reason) if run.reason is not None else None),
        "output": str(run.output),
        "input_tokens": max(int(run.input_tokens), 0),
        "output_tokens": max(int(run.output_tokens), 0),
        "cost_usd": None if run.cost_usd is None else str(run.cost_usd),
        "score": None if score is None else float(score),
        "latency_ms": max(int(latency), 0),
        "run_id": run.run_id,
    }


def _about(mark: pytest.Mark, config: pytest.Config) -> dict[str, Any]:
    """What a mark says, with what is left out filled in."""
    given = dict(zip(_ARGUMENTS, mark.args, strict=False)) | dict(mark.kwargs)
    unknown = sorted(set(given) - set(_ARGUMENTS))
    if unknown or len(mark.args) > len(_ARGUMENTS) or not isinstance(given.get("dataset"), str):
        what = f"has no argument {unknown[0]!r}" if unknown else "needs a dataset"
        raise pytest.Collector.CollectError(
            f'The mark everyturn {what}. Write @pytest.mark.everyturn(dataset="core@4").'
        )
    from everyturn.datasets.from_pytest import prompt_rev

    prompt = given.get("prompt")
    if isinstance(prompt, Path):
        prompt = prompt.read_text("utf-8")
    return {
        "dataset": given["dataset"],
        "database": given.get("database") or config.getoption("--everyturn-database"),
        "model": str(given.get("model") or config.getoption("--everyturn-model") or "pytest"),
        "prompt": prompt,
        "prompt_rev": given.get("prompt_rev") or prompt_rev(prompt),
    }


def _place(config: pytest.Config, target: str | None) -> Place:
    places = config.stash[_PLACES]
    if target not in places:
        from everyturn.datasets.from_pytest import Place
        from everyturn.errors import EveryturnError

        try:
            places[target] = Place(target)
        except EveryturnError as error:
            raise pytest.Collector.CollectError(str(error)) from None
    return places[target]


class _Recording:
    """Writes the results that reports carry; in the process that sees all of them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._results: dict[str | None, Results] = {}
        self._heard: dict[str, dict[str, Any]] = {}
        self._lost = 0
        self._why: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told: dict[str, Any] | None = getattr(report, "everyturn", None)
        if told is None:
            return
        if report.outcome == "rerun":  # type: ignore[comparison-overlap]
            self._heard.pop(report.nodeid, None)
        elif told["passed"] is not None:
            self._heard[report.nodeid] = told
        if report.when == "teardown":
            heard = self._heard.pop(report.nodeid, None)
            if heard is not None and not self._config.getoption("--everyturn-no-record"):
                self._record(heard)

    def _record(self, told: dict[str, Any]) -> None:
        if self._why is not None:
            self._lost += 1
            return
        try:
            target = told["database"]
            if target not in self._results:
                from everyturn.datasets.from_pytest import Results

                self._results[target] = Results(_place(self._config, target))
            self._results[target].record(told)
        except Exception as error:
            self._failed(error)
            self._lost += 1

    def _failed(self, error: Exception) -> None:
        self._why = self._why or " ".join(str(error).split()) or type(error).__name__

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        ran = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        finished = ran and not session.shouldfail and not session.shouldstop and self._why is None
        for results in self._results.values():
            try:
                results.end(finished=finished)
            except Exception as error:
                self._failed(error)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        replays = [replay for results in self._results.values() for replay in results.replays.values()]
        if not replays and self._why is None:
            return
        terminalreporter.section("everyturn", sep="-")
        for replay in replays:
            counts = ", ".join(f"{replay.outcomes[name]} {name}" for name in ("passed", "failed", "error"))
            terminalreporter.write_line(f"{replay.dataset}: {counts} (replay {replay.id})")
        if self._why is not None:
            terminalreporter.write_line(f"{self._lost} results were not recorded: {self._why}", yellow=True)
