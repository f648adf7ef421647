"""A node as a child process with a directory: start, stop, kill. Calls block.

The child is the `tidelog` command of this interpreter, as in production. The child runs in its own session, so Ctrl-C
reaches only the tests, which end the child. When this process ends in any way, the child ends, too, and removes its
directory (`tidelog_cli.up.temporary_child`).
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
"""Time between SIGTERM and SIGKILL."""

START_ATTEMPTS: Final = 5
"""Attempts to start, each with other ports, if other processes take the chosen ones first."""

_SETTING_PREFIX: Final = "TIDELOG_NODE_"
_LOG_LINES: Final = 20
_MS: Final = 1000
_EXCLUDED_VARIABLES: Final = frozenset({"PYTHONOPTIMIZE"})
"""Environment variables that the child does not inherit, because a node refuses to run without assertions."""


class NodeStartError(RuntimeError):
    """A test node does not run; the message has the end of its log, and the package to install if one is missing."""


class NodeProcess:
    """One node with one directory; it keeps its ports over restarts.

    Args:
        directory: an existing directory for data and log; the child removes it when this process ends.
        settings: settings of the node by their configuration names.
        start_timeout_s: longest time from start to readiness, in seconds.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object], start_timeout_s: float) -> None:
        self.directory = directory
        self._environ = _environ(settings)
        self._start_timeout_s = start_timeout_s
        self._log_path = directory / "node.log"
        self._ports: Sequence[int] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._stop_reason = ""

    @property
    def port(self) -> int:
        """The native port; known after the first start."""
        return self._ports[0]

    @property
    def management_port(self) -> int:
        """The port of health checks and metrics; known after the first start."""
        return self._ports[1]

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            NodeStartError: the node does not run.
        """
        self.check()
        assert self._process is not None
        return self._process.pid

    def check(self) -> None:
        """Check that the node runs.

        Raises:
            NodeStartError: the node does not run.
        """
        process = self._process
        if process is None:
            raise NodeStartError(self._stop_reason or "the node has not been started")
        if process.poll() is not None:
            raise NodeStartError(self._with_log(f"the node has exited with code {process.returncode}"))

    def start(self) -> None:
        """Start the node and wait until it is ready.

        Raises:
            NodeStartError: the node exited or was not ready in time.
        """
        first = not self._ports
        for left in reversed(range(START_ATTEMPTS)):
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
        """Stop the node gracefully; has no effect if it does not run."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._clear_process("the node was stopped with `stop()`; start it again with `restart()`")

    def kill(self) -> None:
        """Kill the node with SIGKILL; has no effect if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._clear_process("the node was killed with `kill()`; start it again with `restart()`")

    def log(self) -> str:
        """Return the log of all starts; may be empty."""
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
                # -P: modules in the working directory must not replace modules of the node.
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
        """Wait for the line that a node prints when it is ready."""
        assert process.stdout is not None
        poll, line, deadline = select.poll(), b"", time.monotonic() + self._start_timeout_s
        poll.register(process.stdout, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * _MS):
                raise NodeStartError(self._with_log(f"the node was not ready after {self._start_timeout_s:g} s"))
            chunk = os.read(process.stdout.fileno(), 1 << 12)
            if not chunk:
                code = process.wait()
                raise NodeStartError(self._with_log(f"the node did not start: it exited with code {code}"))
            line += chunk
        assert json.loads(line)["port"] == self.port, "the node listens on the given port"

    def _clear_process(self, why: str) -> None:
        assert self._process is not None
        process, self._process, self._stop_reason = self._process, None, why
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def _with_log(self, what: str) -> str:
        lines = self.log().splitlines()[-_LOG_LINES:]
        return "\n  ".join([f"{what}; the end of its log:" if lines else f"{what}; its log is empty", *lines])


def _environ(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the environment of the child, without the node settings of this process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_SETTING_PREFIX)}
    own = {f"{_SETTING_PREFIX}{name.upper()}": str(value) for name, value in settings.items()}
    return {name: value for name, value in inherited.items() if name not in _EXCLUDED_VARIABLES} | own
