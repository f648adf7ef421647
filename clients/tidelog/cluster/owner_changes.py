"""Requests that wait for a partition's owner are abandoned when the partition has moved to another node.

A request to a node that died silently (stopped, cable cut) would wait until its time-out, long after the partition has
failed over. Each operation that waits for an owner is therefore registered as an `Expectation` and checked several
times a second:

- when an answer has been due for `SILENCE_S` and the node has sent nothing in the meantime, the client refreshes
  metadata (the router prefers responsive nodes);
- when a read waits for a node that has been silent for `READER_SILENCE_S` and another replica exists, it is abandoned;
- when metadata names another owner, the expectation is abandoned: immediately if the node is silent or the operation is
  a subscription, otherwise after `GRACE_S`, because a responsive node may still answer with the outcome. An abandoned
  request has an unknown outcome: a publish is sent again with the same sequence number, and a late answer to the
  abandoned request is ignored. A new owner needs a higher epoch, so a lagging node cannot cause an abandonment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.metadata import Metadata
from tidelog.errors import ConnectionLostError, TidelogError

T = TypeVar("T")

SILENCE_S: Final = 0.5

LOG_AFTER_S: Final = 2.0
"""How long a request is retried before the client logs the reason."""
READER_SILENCE_S: Final = 1.5
GRACE_S: Final = 1.0
TICKS_PER_SILENCE: Final = 4


@dataclass(slots=True, eq=False)
class Expectation:
    """A pending operation that waits for the owner of a partition.

    Attributes:
        address: address of the node for whose answer the operation waits.
        connection: the connection to that node; None until it is open.
        abandon: called at most once, to abandon the operation.
        due_at: loop time from which silence counts; None for a subscription, which has no due answer.
        instead_of: address of the owner that the node replaces; None if the node is the owner, or the owner is unknown.
        reads: whether another replica can serve the request.
        moved_at: loop time at which metadata named another owner; None while it does not.
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
"""Registers pending operations whose abandonment calls the argument."""


class OwnerChanges:
    """Abandons the pending operations of one client whose partition has moved to another node.

    Args:
        refresh: requests metadata of a topic in the background.
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
        """Register an operation that waits for an owner; it ends with `forget` or by being abandoned.

        Args:
            at: the connection, or the address of one that is not open yet.
            abandon: called with the reason when another node is the owner or, with `reads`, the node is silent.
            wait_s: how long the node was asked to hold the answer back; None if no answer is due.
            instead_of: see `Expectation`.
            reads: whether another replica exists and can serve the request.
        """
        loop = asyncio.get_running_loop()
        connection = at if isinstance(at, Connection) else None
        address = at.address if isinstance(at, Connection) else at
        due_at = None if wait_s is None else loop.time() + wait_s
        expectation = Expectation(topic, partition, address, connection, abandon, due_at, instead_of, reads)
        self._expected.setdefault(topic, set()).add(expectation)
        if due_at is not None and self._timer is None:
            self._arm(loop)
        return expectation

    def forget(self, expectation: Expectation) -> None:
        """Remove an expectation that was answered or cancelled."""
        of_topic = self._expected.get(expectation.topic)
        if of_topic is not None:
            of_topic.discard(expectation)
            if not of_topic:
                del self._expected[expectation.topic]

    def changed(self, topic: str) -> None:
        """Abandon the expectations of a topic whose partition has another owner now; see `check`."""
        self.check(list(self._expected.get(topic, ())))

    def check(self, expectations: Iterable[Expectation]) -> None:
        """Abandon those of the expectations whose partition has another owner now, if necessary after `GRACE_S`."""
        now = asyncio.get_running_loop().time()
        for expectation in expectations:
            if expectation not in self._expected.get(expectation.topic, ()):
                continue  # an `abandon` callback has removed it
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
        """Stop the timer."""
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
                f"{host}:{port} did not answer, and another node may serve "
                f"{expectation.topic!r}/{expectation.partition}"
            )
        )


async def unless_moved(moves: OwnerChanges, expect: Expect, answer: Awaitable[T]) -> T:
    """Wait for `answer`, unless the operation is abandoned first.

    Raises:
        ConnectionLostError: the operation was abandoned.
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
    """Return whether the answer has been due for `silence_s` and the node has sent nothing in the meantime."""
    if expectation.due_at is None or now - expectation.due_at < silence_s:
        return False
    return expectation.connection is None or expectation.connection.silent_s >= silence_s
