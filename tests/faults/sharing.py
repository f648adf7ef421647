"""A group whose members share topics, while nodes fail and members join, leave, idle, stop and die.

Three members live in this process, one of them a static one that comes back under its instance; a fourth has a process
of its own, which is stopped for longer than its session lasts, killed, and started again, every second time as a
program that blocks. Where networks may be cut a fifth runs on a machine of its own, see `far_member.py`. A task keeps
asking for the group's positions. The observations are judged in `tenures.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from random import Random
from signal import SIGCONT, SIGSTOP
from typing import Any, Final

from tests.faults.far_member import FarMember
from tests.faults.history import Key
from tests.faults.member_process import MemberProcess
from tests.faults.reading import PAUSE_S
from tests.faults.sharer import SESSION_S, STAY_S, Sharer
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
MEMBERS_MAX: Final = IN_PROCESS + 2
ASK_TIMEOUT_S: Final = 30.0


class Sharing:
    """The group and its members: run their `lives`, cancel them, `settle`, then `stop`.

    Args:
        world: the run's.
        topics: topics that may be shared; the first ones are.
        rng: decides.
        place: command that runs a member on a machine that can be cut off; None if there is no such machine.

    Attributes:
        far: the member that lives there; None where there is no place, or too few partitions for one more member.
    """

    def __init__(self, world: World, topics: Sequence[str], rng: Random, place: Sequence[str] | None = None) -> None:
        self.world = world
        self.topics = topics[:TOPICS_MAX]
        self.tenures = Tenures(GROUP, world.history)
        self._rng = rng
        self._clients = [
            Client(world.addresses, client_id=f"sharer-{number}", request_timeout_s=15) for number in range(IN_PROCESS)
        ]
        self._asker = Client(world.addresses, client_id="sharers-asker", request_timeout_s=15)
        self._alone: MemberProcess | None = None
        self.far: FarMember | None = None
        if place is not None and sum(len(world.partitions_of(topic)) for topic in self.topics) >= MEMBERS_MAX:
            self.far = FarMember(world, self.tenures, self.topics, place)

    def lives(self) -> list[Coroutine[Any, Any, None]]:
        """Return the tasks to run until cancelled; each fails only with errors that a member must not get."""
        lives = [self._sharer(number, client).run(number) for number, client in enumerate(self._clients)]
        far = [] if self.far is None else [self.far.life()]
        return [*lives, self._run_alone(), *far, self._ask()]

    def late(self, ends: Mapping[Key, int], subscriber: str) -> list[str]:
        """Return records that a subscriber of everything got, and no member yet."""
        history, tenures = self.world.history, self.tenures
        return [
            f"{GROUP} was handed {key} to {tenures.read_to(key):,} of {end:,}"
            for key, end in ends.items()
            if key.topic in self.topics and history.has_behind(subscriber, key, tenures.read_to(key))
        ]

    async def settle(self) -> None:
        """Read the group's positions a last time, after its members have left.

        Raises:
            TidelogError: the positions are unknown.
        """
        await self._ask_once()

    async def stop(self) -> None:
        """Stop the remaining members, and their clients."""
        for process in (self._alone, self.far):
            if process is not None:
                await process.kill()
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
        """Ask for the group's positions; a missing one counts only while that can be confirmed."""
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
            who, blocking = f"sharer-alone-{number}", number % 2 == 1
            alone = MemberProcess(self.world, self.tenures, self.topics, who, number, blocking=blocking)
            self._alone = alone
            await alone.start()
            try:
                if await self._torment(alone):
                    continue
                alone.say("stay")
                await alone.ended()
            finally:
                await alone.end()
                number += 1

    async def _torment(self, alone: MemberProcess) -> bool:
        """Stop the process once; return whether it is to be killed now, False when it is to stay."""
        await self.world.idle(self._rng.uniform(*STAY_S))
        if self.world.quiet:
            return False
        since = time.monotonic()
        alone.signal(SIGSTOP)
        await asyncio.sleep(self._rng.uniform(*STOPPED_S))
        self.tenures.stop(alone.who, since=since, until=time.monotonic())
        alone.signal(SIGCONT)
        await self.world.idle(self._rng.uniform(*STAY_S))
        return not self.world.quiet
