"""Datasets: publishing, replaying, reading the results, and finding similar cases."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import quantiles
from typing import Any

import everyturn as et
from everyturn import testing
from everyturn.datasets.compare import diff
from everyturn.datasets.report import report

from . import harness
from .harness import Row, Scale

_CASES = (
    "INSERT INTO eval_case (source, prompt, reference, tags, captured_by)"
    " SELECT 'production', 'What is ' || n || '? ' || repeat(md5(n::text), 8), n::text, ARRAY['t' || n %% 10], 'bench'"
    " FROM generate_series(1, %s) AS n"
)
_RUNS = """
INSERT INTO eval_run (dataset_id, case_id, model, prompt_rev, output, pass, judge_score, latency_ms, input_tokens,
                      output_tokens, cost_usd, replay_id, trial)
SELECT p.dataset_id, c.id, p.model, p.prompt_rev, repeat('answer ', 30), random() < 0.9, round(random()::numeric, 2),
       (random() * 3000)::int, 500, 100, 0.002, p.id, t
  FROM eval_replay p
 CROSS JOIN LATERAL unnest(p.case_ids) AS c (id)
 CROSS JOIN generate_series(1, p.trials) AS t
"""
_VECTORS = """
INSERT INTO eval_case (source, prompt, captured_by, embedding, embedded_by)
SELECT 'production', 'case ' || n, 'bench', v.embedding, 'bench'
  FROM generate_series(1, %s) AS n
 CROSS JOIN LATERAL (
       -- Around one of 4,000 middles, so that there are near ones to be found.
       SELECT array_agg(sin((n %% 4000 + 1) * d * 0.37) + 0.6 * (random() - 0.5 + 0 * n))::real[]::vector AS embedding
         FROM generate_series(1, 384) AS d) AS v
"""
_FLAT = """
import asyncio, sys
import everyturn as et

async def model(request):
    return et.ModelTurn(text="x")

async def main():
    async with et.connect(sys.argv[1], embedder=False) as db:
        done = await db.datasets.replay("core", model=model, concurrency=32)
        assert done.progress.done == int(sys.argv[2]), done

asyncio.run(main())
"""
# Not ru_maxrss: a process starts with its parent's.
_HIGH_WATER = """
with open("/proc/self/status") as file:
    print(next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024)
"""


async def rows(scale: Scale) -> AsyncIterator[Row]:
    yield await replay_speed(scale)
    async for row in large(scale):
        yield row
    yield await similar(scale)


async def replay_speed(scale: Scale) -> Row:
    """1,000 cases, 32 in flight, a model that takes 100 ms: against as long as the model alone would take."""
    count, flight, latency = scale(1000, 100), 32, 0.1

    async def model(request: et.ModelRequest) -> et.ModelTurn:
        await asyncio.sleep(latency)
        return et.ModelTurn(text="x", usage=et.Usage(10, 2))

    async with harness.database() as db:
        await db.execute(_CASES, (count,))
        await db.datasets.publish("core")
        start = time.perf_counter()
        await db.datasets.replay("core", model=model, concurrency=flight)
        taken = time.perf_counter() - start
    ideal = -(-count // flight) * latency
    share = ideal / taken
    return Row(
        f"replay {count:,} cases, 100 ms model, 32 in flight",
        f"{taken:.2f} s",
        f"ideal {ideal:.2f} s",
        share,
        "≥ 0.9 of ideal",
        share >= 0.9,
    )


async def large(scale: Scale) -> AsyncIterator[Row]:
    """100,000 cases and 1,000,000 runs."""
    count, trials = scale(100_000, 2_000), 5
    async with harness.database() as db:
        await db.execute(_CASES, (count,))
        await db.execute("ANALYZE eval_case")
        start = time.perf_counter()
        dataset = await db.datasets.publish("core")
        taken = time.perf_counter() - start
        yield Row(f"publish {count:,} cases", f"{taken:.2f} s", "", None, "< 2 s", taken < 2)

        before = await _peak(db.url, "import everyturn.connecting, everyturn.datasets.replay\n")
        after = await _peak(db.url, _FLAT, str(count))
        yield Row(
            f"memory of a replay of {count:,} cases",
            f"{after:.0f} MB",
            f"imports alone {before:.0f} MB",
            None,
            "< 200 MB",
            after < 200,
        )
        await db.execute("TRUNCATE eval_run, eval_replay")
        for model in ("old", "new"):
            await db.execute(
                "INSERT INTO eval_replay (dataset_id, model, prompt_rev, case_ids, trials, status)"
                " SELECT id, %s, 'r1', case_ids, %s, 'finished' FROM eval_dataset WHERE name = 'core'",
                (model, trials),
            )
        await db.execute(_RUNS)
        await db.execute("VACUUM ANALYZE eval_run")
        runs = 2 * trials * count
        for what, ask in (
            ("report", lambda: report(db, dataset)),
            ("diff", lambda: diff(db, dataset, baseline="old", candidate="new")),
        ):
            median = await _median(ask)
            yield Row(f"{what} over {runs:,} runs", f"{median:.0f} ms", "", None, "< 500 ms", median < 500)


async def similar(scale: Scale) -> Row:
    """Cases like a case, over 100,000 with vectors of 384 dimensions."""
    count = scale(100_000, 2_000)

    async def embed(texts: list[str], kind: str) -> list[list[float]]:
        raise NotImplementedError

    async with testing.database(embedder=et.Embedder(embed, name="bench", dimensions=384)) as db:
        # The index is made at the end, as a bulk load would.
        await db.execute("DROP INDEX eval_case_embed_idx")
        await db.execute(_VECTORS, (count,))
        async with db.own_connection() as conn:
            await conn.execute("SET maintenance_work_mem = '1GB'")
            await conn.execute("CREATE INDEX eval_case_embed_idx ON eval_case USING hnsw (embedding vector_cosine_ops)")
        await db.execute("VACUUM ANALYZE eval_case")
        ids = [row["id"] for row in await db.fetch("SELECT id FROM eval_case ORDER BY md5(id::text) LIMIT 60")]
        times = []
        for id in ids:
            start = time.perf_counter()
            assert len(await db.cases.similar(id)) == 10
            times.append((time.perf_counter() - start) * 1000)
    p95 = quantiles(times[10:], n=20)[-1]
    return Row(f"similar cases among {count:,}, p95", f"{p95:.1f} ms", "", None, "≤ 25 ms", p95 <= 25)


async def _median(ask: Callable[[], Awaitable[Any]]) -> float:
    await ask()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        await ask()
        times.append((time.perf_counter() - start) * 1000)
    return sorted(times)[2]


async def _peak(url: str, program: str, *arguments: str) -> float:
    """The most memory a process of its own held, in MB."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program + _HIGH_WATER, url, *arguments, stdout=subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return float(said.split()[-1])
