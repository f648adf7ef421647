"""`python -m tidelog_demo`: load the demonstration, then run it."""

from __future__ import annotations

import sys

from tidelog_cli.base.interrupts import interrupts_end_quietly


def run() -> int:
    """Load the demonstration and run it; return the exit code."""
    with interrupts_end_quietly():
        from tidelog_demo.demo import main  # noqa: PLC0415 - Ctrl-C during this import ends without a traceback

    return main()


if __name__ == "__main__":
    sys.exit(run())
