"""Write the pages of docs/ that are made from the code: `make docs`. With --check, only say which are out of date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def command_line() -> str:
    """Every command of `everyturn` with its help, as typer writes it."""
    command = [sys.executable, "-m", "typer", "everyturn.cli.app", "utils", "docs", "--name", "everyturn"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.rstrip() + "\n"


def tables() -> str:
    """The migrations, one after the other: the contract as it is applied."""
    parts = ["# The tables\n\nWhat `everyturn db migrate` applies, in this order.\n"]
    for file in sorted((ROOT / "src/everyturn/migrations").glob("*.sql")):
        parts.append(f"## {file.name}\n\n```sql\n{file.read_text('utf-8').rstrip()}\n```\n")
    return "\n".join(parts)


def queries() -> str:
    """The named queries: the question each answers, and its text."""
    how = "Each runs as `await db.query(name, …)`, and in psql after `\\set` of its parameters."
    parts = [f"# The named queries\n\n{how}\n"]
    for file in sorted((ROOT / "src/everyturn/queries").glob("*.sql")):
        text = file.read_text("utf-8").rstrip()
        # Beside the questions the folder holds the statements that everyturn itself writes with.
        if "?" in text.partition("\n")[0]:
            parts.append(f"## {file.stem}\n\n```sql\n{text}\n```\n")
    return "\n".join(parts)


PAGES = {"cli.md": command_line, "tables.md": tables, "queries.md": queries}


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for name, page in PAGES.items():
        file = ROOT / "docs" / name
        text = page()
        if file.exists() and file.read_text("utf-8") == text:
            continue
        stale.append(name)
        if not check:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
    if stale:
        print(f"{'Out of date (make docs)' if check else 'Written'}: {', '.join(stale)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
