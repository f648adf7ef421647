"""A process of a run, a node or a gateway: started, killed, stopped, woken and watched.

Only processes started here are signalled, by their process object. Each logs to a file of its own, which is searched
in the end for lines that a healthy process never logs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from tests.faults import tied

READY_S: Final = 60
STOP_S: Final = 40
LAST_WORDS: Final = 15
"""Lines of its log that are shown when it does not start."""
_ALARMING: Final = re.compile(r" ERROR | CRITICAL |^Traceback|^\w*Error|DIVERGED|DATA_LOSS|never retrieved")


class Process:
    """One process at a time, with all that came of those before it.

    Args:
        name: name in reports.
        prefix: command that runs a command on its machine.
        log: the file that takes its stderr.
    """

    def __init__(self, name: str, prefix: tuple[str, ...], log: Path) -> None:
        self.name = name
        self.log = log
        self.bad_ends: list[str] = []
        self.paused = False
        self.python = sys.executable
        """The interpreter that runs the next command; that of another environment has another build."""
        self._prefix = prefix
        self._process: asyncio.subprocess.Process | None = None
        self._expected = False

    @property
    def running(self) -> bool:
        """Whether there is one."""
        return self._process is not None and self._process.returncode is None

    async def start(self, *command: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Start a command of `tidelog` and wait until it logs that it serves; return that line.

        Args:
            command: its words.
            environment: variables besides the inherited ones.

        Raises:
            RuntimeError: it ended, or took too long.
        """
        assert not self.running
        self._note_end()
        tying = [sys.executable, "-S", tied.__file__, str(os.getpid())]
        whole = [*tying, *self._prefix, self.python, "-m", "tidelog_cli", *command]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *whole, stdout=PIPE, stderr=log, env={**os.environ, **(environment or {})}
            )
        self._expected = self.paused = False
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise RuntimeError(f"{self.name} was not ready after {READY_S} s: {self._last_words()}") from None
        if not line:
            code = await self._process.wait()
            raise RuntimeError(f"{self.name} ended with {code} at its start: {self._last_words()}")
        ready: dict[str, Any] = json.loads(line)
        assert ready["event"] == "ready"
        return ready

    async def ends_at_start(self, *command: str) -> None:
        """Start a command that reports a missing file, and wait until it has ended.

        Raises:
            RuntimeError: it serves.
        """
        try:
            await self.start(*command)
        except RuntimeError:
            self._expected = True
        else:
            await self.kill()
            raise RuntimeError(f"{self.name} serves, and should have reported the missing file")

    async def kill(self) -> None:
        """Kill it; its writes stay in the page cache."""
        if self._process is not None and self.running:
            self._expected = True
            self._process.kill()
            await self._process.wait()
        self.paused = False

    async def ends(self, code: int, late: str, other: str) -> None:
        """Wait until it ends by itself; otherwise that counts as its failure.

        Args:
            code: expected exit code.
            late: failure text if it has not ended in time.
            other: failure text if it ends with another code, which is added.
        """
        assert self._process is not None
        self._expected = True
        try:
            async with asyncio.timeout(STOP_S):
                ended = await self._process.wait()
        except TimeoutError:
            await self.kill()
            self.bad_ends.append(late)
            return
        if ended != code:
            self.bad_ends.append(f"{other} with {ended}")

    async def stop(self) -> None:
        """Ask it to stop and wait. Ending with anything but 0, or not in time, counts as its failure."""
        self.resume()
        if self._process is None or not self.running:
            return
        self._process.terminate()
        await self.ends(0, f"it had not stopped {STOP_S} s after SIGTERM", "it stopped")

    def expect_end(self) -> None:
        """Take the end of the process for one that was wanted."""
        self._expected = True

    def pause(self) -> None:
        """Stop it where it is; it does not know."""
        if self.running and self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            self.paused = True

    def resume(self) -> None:
        """Resume it."""
        if self.paused and self.running and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self.paused = False

    def failures(self, besides: Collection[str] = ()) -> list[str]:
        """Return faults of the process: unexpected ends, and alarming lines of its log.

        Args:
            besides: parts of alarming lines that are expected.
        """
        self._note_end()
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        alarming = [(at, line) for at, line in enumerate(lines, 1) if _ALARMING.search(line)]
        ends = [f"{self.name}: {end}" for end in self.bad_ends]
        unexpected = [(at, line) for at, line in alarming if not any(part in line for part in besides)]
        return ends + [f"{self.log.name}:{at}: {line}" for at, line in unexpected]

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_WORDS:]
        return "\n".join([f"the last lines of {self.log}:", *lines])

    def _note_end(self) -> None:
        if self._process is not None and self._process.returncode is not None and not self._expected:
            self.bad_ends.append(f"it ended by itself with {self._process.returncode}")
            self._expected = True
