"""The process of one member of a group: started, told things, signalled, ended, and everything noted that it writes.

The member's own behavior is in `sharer_process.py`. Only processes started here are signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path
from signal import SIGCONT
from typing import Final

from tests.faults import tied
from tests.faults.sharer_process import BLOCKING, Word, replay
from tests.faults.tenures import Tenures
from tests.faults.world import World

LEAVE_S: Final = 30.0
LINE_BYTES_MAX: Final = 16 * 1024 * 1024
ROOT: Final = Path(__file__).parents[2]


class MemberProcess:
    """One process: `start` it, speak to it, `end` it.

    Args:
        world: the run's.
        tenures: takes the member's observations.
        topics: the group's topics.
        who: name of the member.
        first_life: which of the lives of `sharer.py` it begins with.
        prefix: command that runs a command on its machine.
        blocking: whether it is written as programs that block are.
    """

    def __init__(  # noqa: PLR0917 # the parameters of a member
        self,
        world: World,
        tenures: Tenures,
        topics: Sequence[str],
        who: str,
        first_life: int,
        prefix: Sequence[str] = (),
        *,
        blocking: bool = False,
    ) -> None:
        self.who = who
        self._world = world
        self._tenures = tenures
        self._topics = topics
        self._first_life = first_life
        self._prefix = prefix
        self._blocking = blocking
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start it, without waiting until it has joined."""
        tying = [sys.executable, "-S", tied.__file__, str(os.getpid())]
        module = [sys.executable, "-m", "tests.faults.sharer_process", *([BLOCKING] if self._blocking else [])]
        member = [self.who, self._tenures.group, ",".join(self._topics), str(self._first_life)]
        command = [*tying, *self._prefix, *module, *member, *self._world.addresses]
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, cwd=ROOT, limit=LINE_BYTES_MAX
        )
        self._listening = asyncio.create_task(self._listen(self._process))

    def say(self, word: Word) -> None:
        """Set its mode; has no effect after its end."""
        if self._process is not None and self._process.stdin is not None and self._process.returncode is None:
            self._process.stdin.write(f"{word}\n".encode())

    def signal(self, number: int) -> None:
        """Send it a signal.

        Raises:
            ProcessLookupError: it has ended.
        """
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> None:
        """Wait until it has ended without a request, which it should not.

        Raises:
            RuntimeError: it has.
            ValueError: it wrote a line of an unknown kind.
        """
        assert self._process is not None
        assert self._listening is not None
        await asyncio.shield(self._listening)
        raise RuntimeError(f"{self.who} ended by itself with {await self._process.wait()}")

    async def end(self) -> None:
        """Kill it, or when all is quiet let it leave; note everything that it has written, and its death."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(TimeoutError, ProcessLookupError):
            if self._world.quiet:
                process.send_signal(SIGCONT)
                process.stdin.close()
                async with asyncio.timeout(LEAVE_S):
                    await process.wait()
        await self.kill()
        if self._listening is not None:
            await self._listening
        self._tenures.die(self.who, at=time.monotonic())

    async def kill(self) -> None:
        """End it without a warning, if it has not ended."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while (line := await process.stdout.readline()).endswith(b"\n"):
            complaint = replay(line, self._tenures)
            if complaint is not None:
                self._world.history.complain("sharer", *complaint)
