"""One partition on one process: the shipped `Partition` with its driver, asked by clients, and looked at by checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.simulation.history import PublishReply

from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.replication.producers import PlacedBatch
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.pipeline import QueuedBatch
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader
from tidelog_proto.errors import ProtocolError

if TYPE_CHECKING:
    from tests.simulation.process import Process

SLOW = 0.1
SLOW_TIMES = 100
READ_BYTES = 1500
VERIFIED_LATE = 0.1
"""How many batches are verified by a worker, as large ones are."""


class Copy:
    """See the module.

    Attributes:
        partition: the replica's partition for clients; exists once the replica takes part.
    """

    partition: Partition

    def __init__(self, process: Process, key: PartitionKey, driver: ReplicaDriver) -> None:
        self.process = process
        self.key = key
        self.driver = driver
        self.replica = driver.replica
        self.view = driver.view
        self.log = driver.view.store

    @property
    def name(self) -> str:
        """The node and the partition, for traces."""
        return f"{self.process.node_id}/{self.key[1]}"

    # ------------------------------------------------------------------------------------------ clients

    def publish(
        self, header: BatchHeader, data: bytearray, acks: pb.Acks, reply: Callable[[PublishReply], None]
    ) -> None:
        """Queue a client's batch, as `server.handlers.publish` does."""
        random, pipeline = self.process.world.clock.random, self.partition.pipeline

        def settle(outcome: PlacedBatch | ProtocolError, duplicate: bool) -> None:
            reply(self._reply(outcome))

        if random.random() >= VERIFIED_LATE:
            joint = self.process.replication.joint_append()
            pipeline.submit_jointly(memoryview(data), header, settle, joint, acks=acks)
            joint.write()
            return
        pending = QueuedBatch(memoryview(data), None, settle, acks=acks)

        def verified() -> None:
            pending.header = header
            pipeline.start_next_group()

        self.process.after(self.process.read_us(), verified)
        pipeline.submit(pending)

    def _reply(self, outcome: PlacedBatch | ProtocolError) -> PublishReply:
        if isinstance(outcome, ProtocolError):
            return PublishReply(
                "denied" if outcome.definite else "unknown",
                error=outcome.code,
                owner_hint=self.replica.state.active.owner,
            )
        return PublishReply(
            "stored", outcome.base_offset, outcome.end_offset, outcome.epoch, duplicates=outcome.duplicates
        )

    async def read(self, offset: int) -> Sequence[memoryview]:
        """Read for a consumer, as `server.handlers.fetch` does.

        Raises:
            ProtocolError: why there is nothing here.
        """
        partition = self.partition
        await partition.access.ensure_readable()
        shown_from = self.replica.state.deleted_below
        partition.reader.check_offset(offset)
        await partition.access.ensure_given_out(offset)
        self.process.world.checks.reads(self, offset, shown_from)
        hot = partition.reader.read_hot(offset, READ_BYTES)
        if hot is not None:
            return [entry.data for entry in hot]
        found = await partition.reader.read_to_send(offset, READ_BYTES, is_prompt=True)
        # Bytes of a mapping are sent later, and much later to a slow reader.
        slow = SLOW_TIMES if self.process.world.clock.random.random() < SLOW else 1
        await asyncio.sleep(self.process.read_us() * slow / 1e6)
        return found.batches

    async def latest(self, waits_at: int) -> int:
        """Return the committed end, as LIST_OFFSETS does; no node has committed more before the call.

        Before that a reader is let wait at an offset, as FETCH and SUBSCRIBE do.

        Raises:
            ProtocolError: the end is unknown: OFFSET_OUT_OF_RANGE if no node has given that offset out.
        """
        await self.partition.access.ensure_readable()
        await self.partition.access.ensure_given_out(waits_at)
        await self.partition.access.confirm_owner()
        return self.partition.state.latest

    # ------------------------------------------------------------------------------------------ operations

    def roll_over(self, plan: Plan) -> None:
        """Let an owner end its epoch by plan."""
        self.process.run(lambda: self.driver.roll_over(plan))

    # ------------------------------------------------------------------------------------------ looks

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self.driver._queue

    def limbo(self) -> str | None:
        """The reason why the log is damaged; None if it is intact, or only lacks history that is being fetched."""
        log = self.log
        damaged = log.unreadable_epoch is not None or any(held.damage is not None for held in log.epochs)
        return log.limbo if damaged and not self.view.repairing else None

    def all_batches(self) -> list[bytes]:
        """Read everything."""
        found: list[bytes] = []
        offset = self.log.start_offset
        while offset < self.log.end_offset:
            result = self.log.reader.read(offset, 1 << 20, limit_offset=self.log.end_offset)
            found += [bytes(batch) for batch in result.batches]
            offset = result.next_offset
        return found
