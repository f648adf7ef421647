"""`__offsets` in the world of groups: values in the order in which they were committed, and nodes with a read position.

A node keeps what it knows for all its life, also what it prepared as an owner and what has no outcome. It reads on when
it becomes the owner, and as it writes. A snapshot says all that stands once more, while others write; then what lies
before it is deleted.

In some worlds pending writes wait at the node while another one owns the log: it may learn of that late, and fails the
write; or it learns of it when it is the owner again, with the write still pending. The shipped `QueuedBatch` decides
then whether the write may be appended. In the others they fail at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog_broker.core.groups.positions import GroupOffsets, OffsetKey
from tidelog_broker.core.groups.records import GroupRecords
from tidelog_broker.partition.pipeline import QueuedBatch
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError

if TYPE_CHECKING:
    from tests.simulation.groups.world import World

NODES = 3
HEARS = 0.3
"""Probability that a node learns of the log's new owner, at each look."""
HEARS_AFTER_US = 300_000
HELD_US = 1_000_000
UNKNOWN_SHARE = 0.08
"""Of writes whose outcome is reported as unknown."""
REFUSED_AT_ONCE = 0.08
"""How often a write is refused as it comes, as an owner without a quorum does, while those before it are pending."""
Value = pb.GroupRecord | pb.OffsetRecord
Settle = Callable[[ProtocolError | None], None]


class Node:
    """A node's view of the log: the shipped maps."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.records = GroupRecords()
        self.positions = GroupOffsets()
        self.applied = 0

    def read_on(self) -> None:
        """Apply committed values."""
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
    """See the module. Its owner of the moment writes to it, in order. `owner` counts the epochs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.owner = 0
        self.start = 0
        """Values before this are deleted."""
        self._values: list[Value] = []
        self._due_us = 0
        self._nodes = [Node(self) for _ in range(NODES)]
        self._node = self._nodes[0]

    @property
    def node(self) -> Node:
        """The node that owns the log."""
        return self._node

    def hold(self) -> None:
        """Delay the commit of values that are written from now on."""
        self._due_us = max(self._due_us, self.world.clock.now_us) + HELD_US

    def takes_over(self, node: Node | None) -> Node:
        """Return the node that owns the log from now on, `node` or any, and has read all of it."""
        self._node = node or self.world.clock.random.choice(self._nodes)
        self._node.read_on()
        self._node.positions.forget_pending()
        return self._node

    def since(self, at: int) -> list[Value]:
        """Return committed values from a number on."""
        return self._values[at - self.start :]

    def write(self, owner: int, values: list[Value], settle: Settle) -> None:
        """Write all values, or none, in the epoch `owner`; `settle` gets the outcome, TIMED_OUT if it is unknown."""
        clock, random = self.world.clock, self.world.clock.random
        if not self.world.calm and random.random() < REFUSED_AT_ONCE:
            clock.after(random.randrange(100), lambda: settle(ProtocolError(pb.QUORUM_LOST, "simulated")))
            return
        node, pending = self._node, QueuedBatch(memoryview(b""), None, lambda *_: None, epoch=owner)
        self._due_us = max(self._due_us, clock.now_us) + int(random.expovariate(1.0) * 3_000) + 100
        fails = not self.world.calm and random.random() < 0.08
        unknown = not self.world.calm and random.random() < UNKNOWN_SHARE

        def come() -> None:
            if owner != self.owner and not self.world.hands_back:
                settle(ProtocolError(pb.TIMED_OUT, "another owner"))
            elif self._node is not node and random.random() < HEARS:
                settle(ProtocolError(pb.NOT_OWNER, "another owner"))
            elif self._node is not node:
                clock.after(random.randrange(HEARS_AFTER_US), come)
            elif not pending.may_enter(self.owner):
                settle(ProtocolError(pb.EPOCH_CHANGING, "another epoch"))
            elif fails:
                settle(ProtocolError(pb.DISK_FULL, "simulated"))
            else:
                self._apply(values)
                settle(ProtocolError(pb.TIMED_OUT, "simulated") if unknown else None)

        def lose() -> None:
            if self._node is node and pending.may_enter(self.owner):
                self._apply(values)

        if unknown and random.random() < 0.5:  # reported as failed before it is committed
            clock.after(self._due_us - clock.now_us, lose)
            clock.after(
                random.randrange(max(self._due_us - clock.now_us, 1)), lambda: settle(ProtocolError(pb.TIMED_OUT, ""))
            )
        else:
            clock.after(self._due_us - clock.now_us, come)

    def snapshot(self) -> None:
        """Let the owner write a snapshot, and delete the values before it."""
        live: list[Value] = [*self._node.positions.records(), *self._node.records.records()]
        start = self._node.applied

        def settled(error: ProtocolError | None) -> None:
            if error is None:
                del self._values[: start - self.start]
                self.start = start

        self.write(self.owner, live, settled)

    def _apply(self, values: list[Value]) -> None:
        self._values += values
        self._node.read_on()


class Positions:
    """Commits at a coordinator, as its handler and the log's writer do them."""

    def __init__(self, node: Node, write: Callable[[list[Value], Settle], None]) -> None:
        self._positions = node.positions
        self._write = write

    def commit(self, key: OffsetKey, offset: int, *, now_us: int, answer: Callable[[int | None], None]) -> None:
        """Store a position; `answer` is called with the resulting position, or None if it is unknown."""
        record = pb.OffsetRecord(
            group=key.group,
            topic_id=key.topic_id,
            partition=key.partition,
            next_offset=offset,
            commit_timestamp_us=now_us,
        )
        is_new = self._positions.prepare(key, record, reset=False)

        def settled(error: ProtocolError | None) -> None:
            if error is None:
                stored = self._positions.get(key)
                answer(0 if stored is None else stored.next_offset)
                return
            if is_new and NATURE[error.code].definite:
                self._positions.withdraw(record)
            answer(None)

        if is_new:
            self._write([record], settled)
        else:
            settled(None)
