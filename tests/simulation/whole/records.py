"""Records that a client publishes to the topics of this world, and what must have become of them in the end.

Every acknowledged record has an offset of its own, above those of all that were acknowledged before it was sent, at
whichever node: a partition that begins again from nothing, or from less, gives one out twice. And in the end every
partition takes a record, however long it was not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.broker.peer import batch
from tests.simulation.whole.network import Incoming

from tidelog_broker.wire.connection import Connection, Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame

if TYPE_CHECKING:
    from tests.simulation.whole.node_process import NodeProcess
    from tests.simulation.whole.world import World

GAP_MS = 120
ASK_MS = 1_000

Key = tuple[bytes, int]


class Records:
    """A client that publishes one record after the other, and never retries."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.clock.random
        self._offsets: dict[Key, set[int]] = {}
        """Those that were acknowledged."""
        self._names: dict[bytes, str] = {}
        self._in_calm: set[Key] = set()
        """Partitions that have taken a record since all is well."""
        self.published = 0

    def start(self) -> None:
        """Begin."""
        self._later()

    def _later(self) -> None:
        gap_ms = GAP_MS if not self._world.calm else GAP_MS / 6
        self._world.clock.after(int(self._random.uniform(0.2, 2) * gap_ms * 1000), self._next)

    def _next(self) -> None:
        self._later()
        processes = [process for process in self._world.processes() if process.is_up]
        keys = self._left() if self._world.calm else self._all()
        if processes and keys:
            self._publish(self._random.choice(processes), self._random.choice(keys))

    def _all(self) -> list[Key]:
        """Return the partitions of the topics that no client has asked to delete."""
        found: dict[Key, None] = {}
        for process in self._world.processes():
            if process.is_up:
                for name in sorted(self._world.topics.made_names):
                    record = process.node.broker.topics.find(name)
                    if record is not None:
                        self._names[record.topic_id] = name
                        found |= dict.fromkeys((record.topic_id, index) for index in range(record.config.partitions))
        return list(found)

    def _left(self) -> list[Key]:
        return [key for key in self._all() if key not in self._in_calm]

    def _publish(self, process: NodeProcess, key: Key) -> None:
        self.published += 1
        data = batch(b"record %d" % self.published)
        entry = pb.PublishEntry(topic_id=key[0], partition=key[1], length=len(data))
        above, in_calm = max(self._offsets.get(key, ()), default=-1), self._world.calm
        envelope = pb.Envelope(publish=pb.Publish(entries=[entry], timeout_ms=ASK_MS))

        def answered(answer: pb.Envelope, _: bytes) -> None:
            for result in answer.publish_reply.results:
                if not result.HasField("error"):
                    self._acknowledged(key, result.base_offset, above, in_calm=in_calm)

        connection = Incoming(process, answered, lambda _: None)
        connection.greeted = True
        request = Request(cast("Connection", connection), Frame(envelope, memoryview(bytearray(data))), 0)
        process.run(lambda: process.node.server.dispatch(request))

    def _acknowledged(self, key: Key, offset: int, above: int, *, in_calm: bool) -> None:
        """A record was stored at `offset`; when it was sent, one had been acknowledged at `above`."""
        offsets, name = self._offsets.setdefault(key, set()), f"{self._names[key[0]]}/{key[1]}"
        if offset in offsets:
            self._world.checks.fail("I1", f"{name} has given offset {offset} to two records")
        if offset <= above:
            self._world.checks.fail("I1", f"{name} gave out {above}, and then {offset}: records are lost")
        offsets.add(offset)
        if in_calm:
            self._in_calm.add(key)

    def unsettled(self) -> str:
        """Say which partition takes no record; empty when all do."""
        left = self._left()
        return f"nothing can be published to {[(self._names[key[0]], key[1]) for key in left]}" if left else ""
