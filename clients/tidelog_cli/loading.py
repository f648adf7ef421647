"""Ctrl-C while a program is still loading.

Importing everything takes a moment, and an interrupt in that moment would print a traceback out of somebody's import.
So until everything is loaded it ends the process as the system does it, without a word. Who ignores interrupts
(`nohup`) still does.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts_end_quietly() -> Iterator[None]:
    """Let an interrupt end the process at once, with no traceback; afterwards it is a KeyboardInterrupt again."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
