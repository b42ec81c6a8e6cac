"""The `everyturn` command: one module per noun, each loaded only when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` by default) and return its exit code.

    0 ok, 1 a check failed, 2 usage, 3 not enough data, 4 operational, 130 Ctrl-C.
    """
    try:
        if list(sys.argv[1:] if argv is None else argv) == ["claude-code", "hook"]:
            # Called after every tool of a session: without the fraction of a second that the command tree takes.
            from everyturn.integrations.claude_code.hook import main as hook

            return hook()
        from everyturn.cli.app import run

        return run(argv)
    except KeyboardInterrupt:
        return 130
