"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take interrupts even where whoever started the tests ignores them (a shell's `&` does): tests send some."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
