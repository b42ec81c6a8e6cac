"""`python -m benchmarks`: the speed table."""

from __future__ import annotations

import argparse
import asyncio
import csv
import dataclasses
import importlib
import importlib.util
import json
import platform
import sys
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from .harness import Row, Scale

MODULES = ("appends", "runs", "events", "recall", "datasets")


async def measure(modules: list[str], scale: Scale, console: Console) -> list[Row]:
    found: list[Row] = []
    for name in modules:
        module = importlib.import_module(f"benchmarks.{name}")
        async for row in module.rows(scale):
            found.append(row)
            console.print(f"[dim]{row.what}: {row.figure} ({row.target})[/dim]", highlight=False)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=MODULES, help="one part of the table (repeatable)")
    parser.add_argument("--scale", type=float, default=1.0, help="the share of the full sizes to use (0.1 is quick)")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON too")
    parser.add_argument("--csv", metavar="FILE", help="write the rows as CSV too")
    arguments = parser.parse_args()
    modules = arguments.only or [name for name in MODULES if importlib.util.find_spec(f"benchmarks.{name}")]
    rows = asyncio.run(measure(modules, Scale(arguments.scale), Console(stderr=True)))
    table = Table(title=f"everyturn, {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}")
    for heading in ("what", "figure", "baseline", "ratio", "target", "met"):
        table.add_column(heading, justify="right" if heading == "ratio" else "left")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        met = "" if row.met is None else "yes" if row.met else "NO"
        table.add_row(row.what, row.figure, row.baseline, ratio, row.target, met)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([dataclasses.asdict(row) for row in rows], file, indent=2)
    if arguments.csv:
        with open(arguments.csv, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(Row)])
            writer.writeheader()
            writer.writerows(dataclasses.asdict(row) for row in rows)


if __name__ == "__main__":
    main()
