"""Where the `tidelog` command begins, as a script and as `python -m tidelog_cli`.

Loading the command takes a moment, and Ctrl-C in that moment must not print a traceback out of somebody's import: until
everything is loaded an interrupt ends the process as the system does it. Who ignores interrupts (`nohup`) still does.
"""

from __future__ import annotations

import signal
import sys


def run() -> int:
    """Load the command and run it; return its exit code."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tidelog_cli.main import main  # noqa: PLC0415 - the point of this module is what happens before

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


if __name__ == "__main__":
    sys.exit(run())
