"""`__offsets` in the world of groups: values in the order in which they came about, and nodes that have read so far.

A node keeps what it knows for all its life, also what it prepared as an owner and what has no outcome. It reads on when
it becomes the owner, and as it writes. A snapshot says all that stands once more, while others write; then what lies
before it is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog_broker.core.groups.positions import GroupOffsets, OffsetKey
from tidelog_broker.core.groups.records import GroupRecords
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError

if TYPE_CHECKING:
    from tests.simulation.groups.world import World

NODES = 3
Value = pb.GroupRecord | pb.OffsetRecord
Settle = Callable[[ProtocolError | None], None]


class Node:
    """What a node knows of the log: the shipped maps."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.records = GroupRecords()
        self.positions = GroupOffsets()
        self.applied = 0

    def read_on(self) -> None:
        """Apply what has come about."""
        if self.applied < self._log.start:
            self.records.forget_all()
            self.positions.forget_all()
            self.applied = self._log.start
        for value in self._log.since(self.applied):
            self.applied += 1
            if isinstance(value, pb.GroupRecord):
                self.records.apply(value)
                continue
            key = OffsetKey(value.group, value.topic_id, value.partition)
            before = self.positions.get(key)
            self.positions.apply(value)
            self._log.world.stands(key, before, self.positions.get(key))


class Log:
    """See the module. Its owner of the moment writes to it, in order; what an earlier owner still writes fails."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.owner = 0
        self.start = 0
        """Values in front of this are deleted."""
        self._values: list[Value] = []
        self._due_us = 0
        self._nodes = [Node(self) for _ in range(NODES)]
        self._node = self._nodes[0]

    def takes_over(self) -> Node:
        """Return a node that owns the log from now on, and has read all of it."""
        self._node = self.world.clock.random.choice(self._nodes)
        self._node.read_on()
        return self._node

    def since(self, at: int) -> list[Value]:
        """Return what has come about from a number on."""
        return self._values[at - self.start :]

    def write(self, owner: int, values: list[Value], settle: Settle) -> None:
        """Write all values or none; `settle` is told what became of them, or that nobody knows."""
        clock, random = self.world.clock, self.world.clock.random
        self._due_us = max(self._due_us, clock.now_us) + int(random.expovariate(1.0) * 3_000) + 100
        fails = not self.world.calm and random.random() < 0.08
        unknown = not self.world.calm and random.random() < 0.08

        def come() -> None:
            if owner != self.owner:
                settle(ProtocolError(pb.TIMED_OUT, "another owner"))
            elif fails:
                settle(ProtocolError(pb.DISK_FULL, "simulated"))
            else:
                self._apply(values)
                settle(ProtocolError(pb.TIMED_OUT, "simulated") if unknown else None)

        def lose() -> None:
            if owner == self.owner:
                self._apply(values)

        if unknown and random.random() < 0.5:  # said to have failed before it has come about
            clock.after(self._due_us - clock.now_us, lose)
            clock.after(
                random.randrange(max(self._due_us - clock.now_us, 1)), lambda: settle(ProtocolError(pb.TIMED_OUT, ""))
            )
        else:
            clock.after(self._due_us - clock.now_us, come)

    def snapshot(self) -> None:
        """Let the owner say all that stands once more, and delete what lies before it."""
        standing: list[Value] = [*self._node.positions.records(), *self._node.records.records()]
        start = self._node.applied

        def settled(error: ProtocolError | None) -> None:
            if error is None:
                del self._values[: start - self.start]
                self.start = start

        self.write(self.owner, standing, settled)

    def _apply(self, values: list[Value]) -> None:
        self._values += values
        self._node.read_on()


class Positions:
    """Commits at a coordinator, as its handler and the log's writer do them."""

    def __init__(self, node: Node, write: Callable[[list[Value], Settle], None]) -> None:
        self._positions = node.positions
        self._write = write

    def commit(self, key: OffsetKey, offset: int, *, now_us: int, answer: Callable[[int | None], None]) -> None:
        """Store a position; `answer` is told what stands then, or that it is not known, by None."""
        record = self._positions.prepare(key, next_offset=offset, note="", reset=False, now_us=now_us)

        def settled(error: ProtocolError | None) -> None:
            if error is None:
                standing = self._positions.get(key)
                answer(0 if standing is None else standing.next_offset)
                return
            if record is not None and NATURE[error.code].definite:
                self._positions.withdraw(record)
            answer(None)

        if record is None:
            settled(None)
        else:
            self._write([record], settled)
