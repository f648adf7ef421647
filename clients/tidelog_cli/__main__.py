"""Where the `tidelog` command begins, as a script and as `python -m tidelog_cli`."""

from __future__ import annotations

import sys

from tidelog_cli.interrupts import interrupts_end_quietly


def run() -> int:
    """Load the command and run it; return its exit code."""
    with interrupts_end_quietly():
        from tidelog_cli.main import main  # noqa: PLC0415 - the point of this module is what happens before

    return main()


if __name__ == "__main__":
    sys.exit(run())
