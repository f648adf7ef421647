"""A group whose members share topics, while nodes fail under them and they themselves come, go, idle, stop and die.

Three members live in this process, one of them a static one that comes back under its instance; a fourth has a process
of its own, which is stopped for longer than its session lasts, killed, and started again. Somebody keeps asking where
the group stands. What they see is judged in `tenures.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGSTOP
from typing import Any, Final

from tests.faults import tied
from tests.faults.history import Key
from tests.faults.reading import PAUSE_S
from tests.faults.sharer import SESSION_S, STAY_S, Sharer
from tests.faults.sharer_process import replay
from tests.faults.tenures import Tenures
from tests.faults.world import World

from tidelog import Client
from tidelog.errors import TidelogError

GROUP: Final = "shared"
TOPICS_MAX: Final = 2
IN_PROCESS: Final = 3
STATIC: Final = 2
"""The number of the member that has an instance id."""
STOPPED_S: Final = (SESSION_S + 1, SESSION_S + 3)
ASK_TIMEOUT_S: Final = 30.0
LEAVE_S: Final = 30.0
LINE_BYTES_MAX: Final = 16 * 1024 * 1024
ROOT: Final = Path(__file__).parents[2]


class Sharing:
    """The group and its members: run their `lives`, cancel them, `settle`, then `stop`.

    Args:
        world: the run's.
        topics: what may be shared; the first ones of them are.
        rng: decides.
    """

    def __init__(self, world: World, topics: Sequence[str], rng: Random) -> None:
        self.world = world
        self.topics = topics[:TOPICS_MAX]
        self.tenures = Tenures(GROUP, world.history)
        self._rng = rng
        self._clients = [
            Client(world.addresses, client_id=f"sharer-{number}", request_timeout_s=15) for number in range(IN_PROCESS)
        ]
        self._asker = Client(world.addresses, client_id="sharers-asker", request_timeout_s=15)
        self._alone: asyncio.subprocess.Process | None = None

    def lives(self) -> list[Coroutine[Any, Any, None]]:
        """Return what is to run until it is cancelled; each fails only with what a member must not meet."""
        lives = [self._sharer(number, client).run(number) for number, client in enumerate(self._clients)]
        return [*lives, self._run_alone(), self._ask()]

    def late(self, ends: Mapping[Key, int], subscriber: str) -> list[str]:
        """Return what nobody was handed yet of what a subscriber of everything was."""
        history, tenures = self.world.history, self.tenures
        return [
            f"{GROUP} was handed {key} to {tenures.read_to(key):,} of {end:,}"
            for key, end in ends.items()
            if key.topic in self.topics and history.has_behind(subscriber, key, tenures.read_to(key))
        ]

    async def settle(self) -> None:
        """Ask a last time where the group stands, when its members have left.

        Raises:
            TidelogError: nobody can tell.
        """
        await self._ask_once()

    async def stop(self) -> None:
        """End what is left of the members, and their clients."""
        if self._alone is not None and self._alone.returncode is None:
            self._alone.kill()
            await self._alone.wait()
        for client in [*self._clients, self._asker]:
            await client.abort()

    def _sharer(self, number: int, client: Client) -> Sharer:
        return Sharer(
            f"sharer-{number}",
            self.topics,
            GROUP,
            client,
            self.tenures,
            lambda error: self.world.complain("sharer", error),
            lambda: self.world.quiet,
            Random(self._rng.random()),
            "static" if number == STATIC else None,
        )

    # ------------------------------------------------------------------------------------------------ asking

    async def _ask(self) -> None:
        while True:
            try:
                await self._ask_once()
            except TidelogError as error:
                self.world.complain("sharers' asker", error)
            await asyncio.sleep(PAUSE_S)

    async def _ask_once(self) -> None:
        """Ask where the group stands; what is left out counts only while that can be confirmed."""
        for topic in self.topics:
            calm, keys, asked_at = self.world.calm, self.world.partitions_of(topic), time.monotonic()
            held = {each.partition: each.next_offset for each in await self._asker.committed(GROUP, topic)}
            at = time.monotonic()
            for key in keys:
                if key.partition in held or (calm and self.world.calm):
                    self.tenures.told(key, held.get(key.partition, 0), asked_at=asked_at, at=at)
                    self.world.history.asked[f"place of {GROUP}"] += 1

    # ------------------------------------------------------------------------------------ a process of its own

    async def _run_alone(self) -> None:
        """Have a member live in a process that is stopped and killed; it stays when all is quiet, and then leaves."""
        number = 0
        while True:
            who = f"sharer-alone-{number}"
            process = await self._spawn(who, number)
            listening = asyncio.create_task(self._listen(process))
            try:
                if await self._torment(who, process):
                    continue
                assert process.stdin is not None
                process.stdin.write(b"stay\n")
                await asyncio.shield(listening)
                raise RuntimeError(f"{who} ended by itself with {await process.wait()}")
            finally:
                await self._end_alone(process, listening)
                self.tenures.die(who, at=time.monotonic())
                number += 1

    async def _spawn(self, who: str, number: int) -> asyncio.subprocess.Process:
        tying = [sys.executable, "-S", tied.__file__, str(os.getpid())]
        command = [sys.executable, "-m", "tests.faults.sharer_process", who, GROUP, ",".join(self.topics), str(number)]
        self._alone = await asyncio.create_subprocess_exec(
            *tying,
            *command,
            *self.world.addresses,
            stdin=PIPE,
            stdout=PIPE,
            cwd=ROOT,
            limit=LINE_BYTES_MAX,
        )
        return self._alone

    async def _torment(self, who: str, process: asyncio.subprocess.Process) -> bool:
        """Stop the process once; return whether it is to be killed now, False when it is to stay."""
        await self.world.idle(self._rng.uniform(*STAY_S))
        if self.world.quiet:
            return False
        since = time.monotonic()
        process.send_signal(SIGSTOP)
        await asyncio.sleep(self._rng.uniform(*STOPPED_S))
        self.tenures.stop(who, since=since, until=time.monotonic())
        process.send_signal(SIGCONT)
        await self.world.idle(self._rng.uniform(*STAY_S))
        return not self.world.quiet

    async def _end_alone(self, process: asyncio.subprocess.Process, listening: asyncio.Task[None]) -> None:
        """Kill the process, or when all is quiet let it leave; note everything that it has written."""
        assert process.stdin is not None
        with contextlib.suppress(TimeoutError, ProcessLookupError):
            if self.world.quiet:
                process.send_signal(SIGCONT)
                process.stdin.close()
                async with asyncio.timeout(LEAVE_S):
                    await process.wait()
        if process.returncode is None:
            process.kill()
        await listening
        await process.wait()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while (line := await process.stdout.readline()).endswith(b"\n"):
            complaint = replay(line, self.tenures)
            if complaint is not None:
                self.world.history.complain("sharer", *complaint)
