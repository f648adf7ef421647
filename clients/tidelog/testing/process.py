"""A node as a child process over a directory: started, stopped, killed. It blocks.

The child is the `tidelog` command of this interpreter, so a node in a test is what a node in production is. It runs in
a session of its own: Ctrl-C reaches the tests alone, and they end it. It ends with this process, however that ends, and
takes its directory along (`tidelog_cli.up.temporary_child`).
"""

from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tidelog.testing.free_ports import HOST, free_ports
from tidelog_proto.process.private_files import open_private_log

STOP_TIMEOUT_S: Final = 10.0
"""From SIGTERM to SIGKILL."""

STARTS_MAX: Final = 5
"""How often other ports are tried where somebody was faster to take those that had been free."""

_SETTING: Final = "TIDELOG_NODE_"
_LOG_LINES: Final = 20
_MS: Final = 1000
_LEFT_OUT: Final = frozenset({"PYTHONOPTIMIZE"})
"""A node refuses to run without its assertions."""


class NodeStartError(RuntimeError):
    """A node of a test does not run; the text has the end of its log, and what to install if that is missing."""


class NodeProcess:
    """One node over one directory; it keeps its ports from one start to the next.

    Args:
        directory: an existing one, for its data and its log; removed by the child if this process ends.
        settings: of the node, by the names of the configuration.
        start_timeout_s: from start to readiness.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object], start_timeout_s: float) -> None:
        self.directory = directory
        self._environ = _environ(settings)
        self._start_timeout_s = start_timeout_s
        self._log_path = directory / "node.log"
        self._ports: Sequence[int] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_by_us = ""

    @property
    def port(self) -> int:
        """The native port; known once it has been started."""
        return self._ports[0]

    @property
    def management_port(self) -> int:
        """Where health and metrics are; known once it has been started."""
        return self._ports[1]

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            NodeStartError: it does not run.
        """
        self.check()
        assert self._process is not None
        return self._process.pid

    def check(self) -> None:
        """Pass where the node runs.

        Raises:
            NodeStartError: it does not.
        """
        process = self._process
        if process is None:
            raise NodeStartError(self._ended_by_us or "the node has not been started")
        if process.poll() is not None:
            raise NodeStartError(self._with_log(f"the node ended by itself with code {process.returncode}"))

    def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            NodeStartError: it ended, or took too long, before it was ready.
        """
        first = not self._ports
        for left in reversed(range(STARTS_MAX)):
            if first:
                self._ports = free_ports(2)
            try:
                self._start()
            except NodeStartError as error:
                if not first or not left or os.strerror(errno.EADDRINUSE).casefold() not in str(error).casefold():
                    raise
            else:
                return

    def stop(self) -> None:
        """Stop it in good order; what does not run is left alone."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._forget("the node was stopped")

    def kill(self) -> None:
        """Kill it with SIGKILL; what does not run is left alone."""
        if self._process is not None:
            self._process.kill()
            self._forget("the node was killed with `kill()`: `restart()` starts it again")

    def log(self) -> str:
        """Return what it has said so far, over all starts; empty for nothing."""
        try:
            return self._log_path.read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def _start(self) -> None:
        native, management = self._ports
        node = ("--data", str(self.directory / "data"), "--host", HOST)
        ports = ("--port", str(native), "--management-port", str(management))
        with open_private_log(self._log_path, append=True) as log:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments of our own
                # -P: a module of the tests' own folder is not taken for one that the node wants.
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "tidelog_cli.up.temporary_child",
                    self.directory,
                    "tidelog_cli",
                    "node",
                    *node,
                    *ports,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environ,
                start_new_session=True,
            )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the line that a node prints when it serves.

        Raises:
            NodeStartError: there was none.
        """
        assert process.stdout is not None
        poll, line, deadline = select.poll(), b"", time.monotonic() + self._start_timeout_s
        poll.register(process.stdout, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * _MS):
                raise NodeStartError(self._with_log(f"the node was not ready after {self._start_timeout_s:g} s"))
            piece = os.read(process.stdout.fileno(), 1 << 12)
            if not piece:
                code = process.wait()
                raise NodeStartError(self._with_log(f"the node did not start, it ended with code {code}"))
            line += piece
        assert json.loads(line)["port"] == self.port, "it listens where it was told to"

    def _forget(self, why: str) -> None:
        assert self._process is not None
        process, self._process, self._ended_by_us = self._process, None, why
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def _with_log(self, what: str) -> str:
        lines = self.log().splitlines()[-_LOG_LINES:]
        return "\n  ".join([f"{what}; it said last:" if lines else f"{what}, without a word", *lines])


def _environ(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the child's environment: this process's own settings of nodes are not its."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SETTING)}
    told = {f"{_SETTING}{name.upper()}": str(value) for name, value in settings.items()}
    return {name: value for name, value in kept.items() if name not in _LEFT_OUT} | told
