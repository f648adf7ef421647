"""`tidelog top` in a real terminal: it ends on q, Ctrl-C and signals, and leaves the terminal as it was."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidelog_cli.base.failures import EXIT_INTERRUPTED

TIMEOUT_S = 60
MODES = ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?25l", b"\x1b[?25h"))
"""The sequences that begin and end the use of the alternate screen, and hide and show the cursor."""


class Terminal:
    """`tidelog top` in a pseudo-terminal.

    Attributes:
        shown: everything that it has written.
    """

    def __init__(self, process: subprocess.Popen[bytes], controller: int, terminal: int) -> None:
        self.process = process
        self.shown = b""
        self._controller, self._terminal = controller, terminal
        self._attributes = termios.tcgetattr(terminal)

    def press(self, keys: bytes) -> None:
        os.write(self._controller, keys)

    def wait_for(self, text: bytes) -> None:
        self._read_until(lambda: text in self.shown)

    def ended(self) -> int:
        """Wait for the end, check that the terminal is as before, and return the exit code."""
        self._read_until(lambda: self.process.poll() is not None)
        assert termios.tcgetattr(self._terminal) == self._attributes
        for begins, ends in MODES:
            assert self.shown.rfind(ends) > self.shown.rfind(begins) >= 0
        assert b"Traceback" not in self.shown
        return self.process.returncode

    def _read_until(self, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < until_s, self.shown[-2000:]
            self._drain()
            time.sleep(0.01)
        self._drain()

    def _drain(self) -> None:
        try:
            while more := os.read(self._controller, 65536):
                self.shown += more
        except BlockingIOError:
            return


@contextmanager
def top(node: str) -> Iterator[Terminal]:
    """Run the command until it shows the node."""
    controller, terminal = pty.openpty()
    os.set_blocking(controller, False)
    environ = os.environ | {"TIDELOG_BOOTSTRAP": node, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}
    command = [sys.executable, "-m", "tidelog_cli", "top", "--interval", "0.2"]
    try:
        with subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=environ, start_new_session=True
        ) as process:
            shown = Terminal(process, controller, terminal)
            try:
                shown.wait_for(b"running")
                yield shown
            finally:
                process.kill()
    finally:
        os.close(controller)
        os.close(terminal)


@pytest.mark.parametrize(("keys", "code"), [(b"q", 0), (b"\x03", EXIT_INTERRUPTED)], ids=["q", "Ctrl-C"])
def test_keys_quit_and_restore_the_terminal(node: str, keys: bytes, code: int) -> None:
    with top(node) as terminal:
        terminal.press(keys)
        assert terminal.ended() == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_restore_the_terminal(node: str, number: signal.Signals) -> None:
    with top(node) as terminal:
        terminal.process.send_signal(number)
        assert terminal.ended() == 128 + number


@pytest.mark.parametrize("interval_s", [0.002, 0.02])
def test_repeated_interrupts_restore_the_terminal(node: str, interval_s: float) -> None:
    with top(node) as terminal:
        until_s = time.monotonic() + TIMEOUT_S
        while terminal.process.poll() is None:
            assert time.monotonic() < until_s, "the command does not end"
            terminal.process.send_signal(signal.SIGINT)
            time.sleep(interval_s)
        assert terminal.ended() == EXIT_INTERRUPTED
