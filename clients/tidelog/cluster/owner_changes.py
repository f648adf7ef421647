"""Who waits for the owner of a partition, and when that is in vain because another node owns it now.

A request to a node that is silently gone (stopped, or its cable cut) would hang until its time-out, long after the
partition has moved. So everything that waits for an owner is noted here as an `Expectation`. Two things are done with
it, at a few ticks a second while there are any:

- when an answer has been due for `SILENCE_S` and the node said nothing at all meanwhile, metadata is asked for,
  elsewhere (the router prefers nodes that speak);
- when a reader waits for a node that has been silent for longer, and another replica can be read, it is abandoned;
- when metadata names another owner, the expectation is abandoned: at once if its node is silent or if nothing is lost
  by it (a subscription), else after `GRACE_S`, because a node that still speaks knows best what became of a request.

Abandoning never decides an outcome: a publish is sent again under its old sequence, and a late answer to the abandoned
request is not looked at. A new owner needs a higher epoch, so a node that lags cannot cause any of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.metadata import Metadata
from tidelog.errors import ConnectionLostError, TidelogError

T = TypeVar("T")

SILENCE_S: Final = 0.5

TELL_AFTER_S: Final = 2.0
"""When the user is told why there is no answer yet."""
READER_SILENCE_S: Final = 1.5
GRACE_S: Final = 1.0
TICKS_PER_SILENCE: Final = 4


@dataclass(slots=True, eq=False)
class Expectation:
    """Something that waits for the owner of a partition.

    Attributes:
        topic: the topic's name.
        partition: 0-based.
        address: of the node that it waits for.
        connection: None while there is none yet.
        abandon: called at most once, when another node turned out to be the owner.
        due_at: loop time from which on silence counts; None for what waits for nothing in particular.
        instead_of: where the owner is in whose place that node is asked; None for the owner itself.
        reads: whether another replica will do.
        moved_at: loop time at which the move was learned.
    """

    topic: str
    partition: int
    address: Address
    connection: Connection | None
    abandon: Callable[[ConnectionLostError], None]
    due_at: float | None
    instead_of: Address | None = None
    reads: bool = False
    moved_at: float | None = None


Expect = Callable[[Callable[[ConnectionLostError], None]], list[Expectation]]
"""Notes what waits, to be abandoned by calling the argument."""


class Moves:
    """All expectations of one client.

    Args:
        metadata: who owns what.
        refresh: asks for metadata about a topic, in the background.
    """

    def __init__(self, metadata: Metadata, refresh: Callable[[str], None]) -> None:
        self._metadata = metadata
        self._refresh = refresh
        self._expected: dict[str, set[Expectation]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def expect(
        self,
        topic: str,
        partition: int,
        at: Connection | Address,
        abandon: Callable[[ConnectionLostError], None],
        *,
        wait_s: float | None = 0.0,
        instead_of: Address | None = None,
        reads: bool = False,
    ) -> Expectation:
        """Note that something waits for an owner; it ends with `forget`, or with its being abandoned.

        Args:
            topic: the topic's name.
            partition: 0-based.
            at: the connection on which it waits, or the address to which there is none yet.
            abandon: what to do when another node is the owner; it gets the reason.
            wait_s: how long the node was asked to hold the answer back, None for what may be silent for ever.
            instead_of: see `Expectation`.
            reads: whether there is another replica, and it will do.
        """
        loop = asyncio.get_running_loop()
        connection = at if isinstance(at, Connection) else None
        address = at.address if isinstance(at, Connection) else at
        due_at = None if wait_s is None else loop.time() + wait_s
        expectation = Expectation(topic, partition, address, connection, abandon, due_at, instead_of, reads)
        self._expected.setdefault(topic, set()).add(expectation)
        if due_at is not None:
            self._arm(loop)
        return expectation

    def forget(self, expectation: Expectation) -> None:
        """It has come, or nobody wants it any more."""
        of_topic = self._expected.get(expectation.topic)
        if of_topic is not None:
            of_topic.discard(expectation)
            if not of_topic:
                del self._expected[expectation.topic]

    def changed(self, topic: str) -> None:
        """Look at what is known of a topic's owners now, and abandon what waits in vain."""
        now = asyncio.get_running_loop().time()
        for expectation in list(self._expected.get(topic, ())):
            if expectation not in self._expected.get(topic, ()):
                continue  # forgotten by what abandoning another one set off
            if not self._moved(expectation):
                expectation.moved_at = None
                continue
            if expectation.moved_at is None:
                expectation.moved_at = now
            harmless = expectation.due_at is None or expectation.connection is None
            if harmless or _silent(expectation, now) or now - expectation.moved_at >= GRACE_S:
                self._abandon(expectation)
            else:
                self._arm(asyncio.get_running_loop())

    def close(self) -> None:
        """Stop ticking."""
        self._expected.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(SILENCE_S / TICKS_PER_SILENCE, self._tick)

    def _tick(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for topic, expected in list(self._expected.items()):
            if any(_silent(expectation, now) for expectation in expected):
                self._refresh(topic)
            for expectation in [each for each in expected if each.reads and _silent(each, now, READER_SILENCE_S)]:
                self._abandon(expectation)
            self.changed(topic)
        if any(each.due_at is not None for expected in self._expected.values() for each in expected):
            self._arm(loop)

    def _moved(self, expectation: Expectation) -> bool:
        address = self._metadata.owner_address(expectation.topic, expectation.partition)
        return address is not None and address not in {expectation.address, expectation.instead_of}

    def _abandon(self, expectation: Expectation) -> None:
        self.forget(expectation)
        host, port = expectation.address
        expectation.abandon(
            ConnectionLostError(
                f"{host}:{port} did not answer, and another node may for {expectation.topic!r}/{expectation.partition}"
            )
        )


async def unless_moved(moves: Moves, expect: Expect, answer: Awaitable[T]) -> T:
    """Wait for `answer`, but not if what waits for it is abandoned.

    Raises:
        ConnectionLostError: it was.
    """
    moved: asyncio.Future[TidelogError] = asyncio.get_running_loop().create_future()

    def abandon(error: TidelogError) -> None:
        if not moved.done():
            moved.set_result(error)

    answering = asyncio.ensure_future(answer)
    expected = expect(abandon)
    try:
        either: list[asyncio.Future[Any]] = [answering, moved]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise moved.result()
    finally:
        for expectation in expected:
            moves.forget(expectation)
        moved.cancel()
        answering.cancel()


def _silent(expectation: Expectation, now: float, silence_s: float = SILENCE_S) -> bool:
    """Whether its answer has been due for a while and the node says nothing at all."""
    if expectation.due_at is None or now - expectation.due_at < silence_s:
        return False
    return expectation.connection is None or expectation.connection.silent_s >= silence_s
