"""Where results go: tables for people, tab-separated values for pipes, JSON for programs.

Nothing that comes out of the database reaches a terminal as a control sequence: control characters, marks
of text direction and lone surrogates are written as escapes (`\\x1b`, `\\u202e`).

Tab-separated output has a header line and one line per row. In a cell, backslash, tab and line ends are
written `\\\\`, `\\t`, `\\n`, `\\r` (the form of Postgres' COPY), and a missing value is empty.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from everyturn.cli.text import as_cell, as_json, one_line, printable, shown

Row = Mapping[str, Any]

_GAP = 2
_NARROWEST = 12
_WIDEST = 32
"""Of a column that is neither an id nor flexible, on a terminal."""


@dataclass(frozen=True)
class Column:
    """One column of a list: its heading, how to get the value from a row, and how a terminal lays it out."""

    name: str
    value: Callable[[Row], Any] | None = None
    right: bool = False
    flexible: bool = False
    """Takes what width the others leave; cut to it."""
    whole: bool = False
    """Never cut on a terminal, however narrow: ids are there to be copied."""
    only_piped: bool = False
    """Left out of tables for people."""

    def of(self, row: Row) -> Any:
        return row.get(self.name) if self.value is None else self.value(row)


class Output:
    """The standard streams of one command."""

    def __init__(self, *, stdout: TextIO | None = None, stderr: TextIO | None = None, quiet: bool = False) -> None:
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self.quiet = quiet
        self.terminal = self._stdout.isatty()
        """Whether a person reads stdout."""
        self.closed = False
        """Whether the reader of stdout went away (`| head`): what is written from then on is dropped."""
        encoding = (getattr(self._stdout, "encoding", None) or "utf-8").lower().replace("-", "")
        self._ascii_json = encoding not in ("utf8", "utf16", "utf32")

    def write(self, text: str) -> None:
        """Write to stdout as it is; the caller has escaped what needs it."""
        if not self.closed:
            with self._leaving():
                self._stdout.write(text)

    def line(self, text: str = "") -> None:
        self.write(f"{printable(text)}\n")

    def flush(self) -> None:
        if not self.closed:
            with self._leaving():
                self._stdout.flush()

    def note(self, text: str) -> None:
        """Say something beside the result, on stderr, unless `--quiet`."""
        if not self.quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Say something beside the result that must not be missed, on stderr."""
        self.flush()
        try:
            self._stderr.write(f"{printable(text)}\n")
            self._stderr.flush()
        except (OSError, ValueError):
            pass

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show on a terminal's stderr that something takes its time."""
        if self.quiet or not self._stderr.isatty():
            yield
            return
        from rich.console import Console

        with Console(file=self._stderr).status(f"{what} …"):
            yield

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[object], None]]:
        """The same, with how far it has come: call what is given with that."""
        if self.quiet or not self._stderr.isatty():
            yield lambda so_far: None
            return
        from rich.console import Console

        with Console(file=self._stderr).status(f"{what} …") as status:
            yield lambda so_far: status.update(f"{what} … {so_far}")

    def json(self, value: Any) -> None:
        """One JSON document."""
        self.write(as_json(value, indent=2, ascii_only=self._ascii_json) + "\n")

    def json_line(self, value: Any) -> None:
        """One JSON document on one line."""
        self.write(as_json(value, ascii_only=self._ascii_json) + "\n")

    def fields(self, fields: Mapping[str, Any]) -> None:
        """One record: aligned names and values for people, `name<tab>value` lines in a pipe."""
        if not self.terminal:
            for name, value in fields.items():
                self.write(f"{as_cell(name)}\t{as_cell(value)}\n")
            return
        width = max(map(len, fields), default=0)
        for name, value in fields.items():
            text = printable(shown(value)).replace("\n", "\n" + " " * (width + 2))
            self.write(f"{name:<{width}}  {text}".rstrip() + "\n")

    async def listing(
        self,
        columns: Sequence[Column],
        pages: AsyncGenerator[Sequence[Row]],
        *,
        limit: int | None,
        json: bool,
        document: Callable[[Row], Any] = dict,
        empty: str = "Nothing to show.",
    ) -> int:
        """A list, page by page in constant memory; returns how many rows were written.

        At most `limit` rows are shown. When there were more, that is said on stderr.
        """
        count, cut = 0, False
        if json:
            self.write("[")
        async with aclosing(pages):
            async for page in pages:
                rows = page if limit is None else page[: limit - count]
                if json:
                    self._documents(rows, document, first=count == 0)
                elif rows:
                    self._table(columns, rows, header=count == 0)
                count += len(rows)
                cut = len(page) > len(rows)
                if cut or self.closed:
                    break
        if json:
            self.write("\n]\n" if count else "]\n")
        elif count == 0 and self.terminal:
            self.note(empty)
        elif count == 0:
            self._table(columns, [], header=True)
        self.flush()
        if cut:
            self.warn(f"Showing {count} of more; --limit N shows more, --all shows everything.")
        return count

    async def document_with(
        self,
        head: Mapping[str, Any],
        name: str,
        pages: AsyncGenerator[Sequence[Row]],
        *,
        document: Callable[[Row], Any] = dict,
    ) -> None:
        """One JSON object whose last member `name` is an array of any length."""
        members = {key: value for key, value in head.items() if key != name}
        text = as_json({**members, name: []}, ascii_only=self._ascii_json)
        self.write(text.removesuffix("]}"))
        first = True
        async with aclosing(pages):
            async for page in pages:
                self._documents(page, document, first=first)
                first = first and not page
                if self.closed:
                    break
        self.write("\n]}\n")

    def _documents(self, rows: Sequence[Row], document: Callable[[Row], Any], *, first: bool) -> None:
        for row in rows:
            self.write("\n" if first else ",\n")
            self.write(as_json(document(row), ascii_only=self._ascii_json))
            first = False

    def _table(self, columns: Sequence[Column], rows: Sequence[Row], *, header: bool) -> None:
        if self.terminal:
            if rows:
                self._rich_table(columns, rows)
            return
        lines = ["\t".join(column.name for column in columns)] if header else []
        lines += ["\t".join(as_cell(column.of(row)) for column in columns) for row in rows]
        self.write("".join(f"{line}\n" for line in lines))

    def _rich_table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        columns = [column for column in columns if not column.only_piped]
        cells = [[one_line(shown(column.of(row))) for column in columns] for row in rows]
        console = Console(file=self._stdout, markup=False, emoji=False, highlight=False)
        widths = [
            max(cell_len(column.name), *(cell_len(line[at]) for line in cells)) for at, column in enumerate(columns)
        ]
        for at, column in enumerate(columns):
            if not column.whole and not column.flexible:
                widths[at] = min(widths[at], _WIDEST)
        taken = sum(width for width, column in zip(widths, columns, strict=True) if not column.flexible)
        left = max(console.width - taken - _GAP * (len(columns) - 1), _NARROWEST)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for column, width in zip(columns, widths, strict=True):
            table.add_column(
                column.name,
                justify="right" if column.right else "left",
                no_wrap=True,
                width=min(width, left) if column.flexible else width,
            )
        for line in cells:
            # Text, not str: square brackets in stored data are not markup.
            table.add_row(*map(Text, line))
        # A terminal too narrow for the ids wraps the lines; nothing but flexible columns is cut for it.
        console.width = max(console.width, taken + left + _GAP * len(columns))
        with self._leaving():
            console.print(table, crop=False)

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """A reader that left ends the output; a disk that is full is an error."""
        try:
            yield
        except BrokenPipeError:
            self._abandon()
        except OSError:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Point stdout at nothing, so that the interpreter's last flush is quiet too."""
        self.closed = True
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stdout.fileno())
            os.close(nowhere)
        except (OSError, ValueError):
            pass
