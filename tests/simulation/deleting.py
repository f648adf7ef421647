"""An operator who requests deletions, and who now and then holds the topic, so that nothing is deleted.

Deletion requests have any offset, also one after the end. Answers are checked against the later state: see I26.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

if TYPE_CHECKING:
    from tests.simulation.copies import Copy
    from tests.simulation.process import Process
    from tests.simulation.world import World

ASK_US = 150_000
HOLD_US = 400_000


class Deleter:
    """Asks some node for a deletion in one partition, again and again, until the world is calm."""

    def __init__(self, world: World, key: PartitionKey) -> None:
        self._world = world
        self._key = key
        self._random = world.clock.random

    def start(self) -> None:
        """Begin."""
        self._world.clock.after(self._random.randrange(1, ASK_US), self._ask)

    def _ask(self) -> None:
        if self._world.calm:
            return
        self._world.ask(self._random.choice(self._world.registered), self._arrive)
        self._world.clock.after(self._random.randrange(1, 2 * ASK_US), self._ask)

    def _arrive(self, process: Process) -> None:
        copy = process.partitions.get(self._key)
        if copy is None:
            return
        end = copy.replica.state.high_watermark
        offset = self._random.choice([end, end + 3, self._random.randint(0, end)])
        self._world.checks.deletions[self._key].asks(offset)
        process.spawn(
            copy.partition.deletion.delete_below(offset), lambda _, error: self._answered(copy, offset, error)
        )

    def _answered(self, copy: Copy, offset: int, error: BaseException | None) -> None:
        checks = self._world.checks
        if error is None:
            checks.deleted(copy, offset)
        elif not isinstance(error, ProtocolError):
            raise error
        elif error.code == pb.OFFSET_OUT_OF_RANGE:
            checks.says_deleted(copy, error.log_start_offset)


class Holder:
    """Holds the topic for a while, and releases it; every node learns of it at another time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.clock.random

    def start(self) -> None:
        """Begin."""
        self._world.clock.after(self._random.randrange(1, 2 * HOLD_US), self._change)

    def _change(self) -> None:
        self._world.hold(not self._world.topic.config.hold and not self._world.calm)
        if not self._world.calm:
            self._world.clock.after(self._random.randrange(1, 2 * HOLD_US), self._change)
