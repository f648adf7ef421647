"""Partition queues with a model of a node: records are stored once and in order despite losses, errors and delays."""

from __future__ import annotations

import contextlib
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clients.produce.test_partition_queue import chunk_of, queue_of

from tidelog.errors import (
    ConnectionLostError,
    CorruptBatchError,
    OverloadedError,
    error_of,
)
from tidelog.produce.batches import ColumnChunk, OutgoingBatch
from tidelog.produce.partition_queue import PartitionQueue
from tidelog.produce.sequence_errors import foreign_duplicate_error
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError


class Network:
    """A partition of a node, and a network that may deliver copies of batches later."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.table = ProducerTable()
        self.log: list[int] = []
        self.late: list[tuple[OutgoingBatch, bytes, list[int]]] = []
        self.is_shared = False
        """Whether several queues publish with one id. Then there are no other refusals, and the node forgets nothing: a
        queue relies on being the only one that can make a late copy storable."""

    def store(self, header_bytes: bytes, values: list[int]) -> int:
        """Check and store a batch like a node; return the base offset.

        Raises:
            ProtocolError: the batch is refused.
        """
        header = unpack_header(header_bytes)
        known = self.table.check(header)
        if known is not None:
            return known.base_offset
        header = header._replace(base_offset=len(self.log))
        self.table.apply(header)
        self.log.extend(values)
        return header.base_offset

    def deliver_late(self) -> None:
        """Deliver a copy from an abandoned connection."""
        _, header, values = self.late.pop(0)
        with contextlib.suppress(ProtocolError):  # the answer is lost
            self.store(header, values)

    def carry(self, queue: PartitionQueue, batch: OutgoingBatch, values: list[int], now: float) -> None:
        """Choose the result of one attempt at random."""
        fate = self.random.random()
        if fate < 0.45:
            self._answer(queue, batch, values, now)
        elif fate < 0.6:
            with contextlib.suppress(ProtocolError):  # the answer is lost
                self.store(batch.encoded.header, values)
            queue.failed(batch, ConnectionLostError("answer lost"), now)
        elif fate < 0.75:
            self.late.append((batch, batch.encoded.header, values))
            queue.failed(batch, ConnectionLostError("request delayed"), now)
        elif fate < 0.9 or self.is_shared:
            queue.failed(batch, OverloadedError("busy"), now)
        elif fate < 0.97:
            queue.failed(batch, CorruptBatchError("refused"), now)
        else:
            # The node forgets its producers, except while a batch with sequence number 0 has an unknown outcome: it
            # would be stored again. To avoid that, nodes remember thousands of producers.
            if not self.late and all(each.base_sequence or not each.maybe_stored for each in queue._batches):
                self.table = ProducerTable()
            queue.failed(batch, OverloadedError("restarting"), now)

    def _answer(self, queue: PartitionQueue, batch: OutgoingBatch, values: list[int], now: float) -> None:
        try:
            known = self.table.check(unpack_header(batch.encoded.header)) is not None
            base_offset = self.store(batch.encoded.header, values)
        except ProtocolError as error:
            if error.code == pb.PRODUCER_ID_SHARED and not self.is_shared:
                raise AssertionError("no other queue has the id") from error
            queue.failed(batch, error_of(error.to_message()), now)
            return
        if known and queue.is_foreign_duplicate(batch):
            assert self.is_shared, "no other queue has the id"
            queue.failed(batch, foreign_duplicate_error(), now)
        else:
            queue.acknowledged(batch, base_offset, 0)


Flight = tuple[PartitionQueue, OutgoingBatch, list[int]]


@given(seed=st.integers(0, 2**32), count=st.integers(1, 30), in_flight_max=st.integers(1, 5))
@settings(max_examples=150)
def test_records_are_stored_once_and_in_order(seed: int, count: int, in_flight_max: int) -> None:
    network = Network(seed)
    chunks = [chunk_of(b"%d" % number, deadline=1000.0 + number) for number in range(count)]
    publish_all(network, {queue_of(in_flight_max=in_flight_max): chunks})
    check_stored(network, chunks, [chunks])


@given(seed=st.integers(0, 2**32), count=st.integers(1, 20), queues=st.integers(2, 3), alike=st.booleans())
@settings(max_examples=150)
def test_records_of_producers_with_a_shared_id_are_not_confused(
    seed: int, count: int, queues: int, alike: bool
) -> None:
    network = Network(seed)
    network.is_shared = True
    each = [
        [chunk_of(b"alike" if alike else b"%d of %d" % (number, queue), deadline=1000.0) for number in range(count)]
        for queue in range(queues)
    ]
    publish_all(network, {queue_of(): chunks for chunks in each})
    check_stored(network, [chunk for chunks in each for chunk in chunks], each)


def publish_all(network: Network, of_queues: dict[PartitionQueue, list[ColumnChunk]]) -> None:
    """Publish the chunks of each queue in order until all are settled; chunks are numbered over all queues."""
    number_of = {
        id(chunk): number for number, chunk in enumerate(chunk for chunks in of_queues.values() for chunk in chunks)
    }
    waiting = {queue: list(chunks) for queue, chunks in of_queues.items()}
    in_flight: list[Flight] = []
    now = 0.0
    while any(waiting.values()) or not all(queue.idle for queue in waiting):
        now += network.random.random()
        for now_us, (queue, left) in enumerate(waiting.items()):  # the queues have different timestamps
            for chunk in left[: network.random.randrange(4)]:
                queue.add(left.pop(left.index(chunk)))
            while (batch := queue.next_to_send(now, now_us)) is not None:
                in_flight.append((queue, batch, [number_of[id(chunk)] for chunk in batch.chunks]))
        # Answers of one connection arrive in order; a lost connection affects all later batches.
        while in_flight and network.random.random() < 0.8:
            queue, batch, values = in_flight.pop(0)
            network.carry(queue, batch, values, now)
        if network.random.random() < 0.1:
            network.random.choice(list(waiting)).retry_now()
        while network.late and network.random.random() < 0.3:
            network.deliver_late()
        assert now < 3000.0, "every record settles soon after its deadline"
    assert not any(queue.unsettled_bytes for queue in waiting)


def check_stored(network: Network, chunks: list[ColumnChunk], orders: list[list[ColumnChunk]]) -> None:
    """Compare the log with the outcomes of the chunks and with the order of each queue."""
    assert len(network.log) == len(set(network.log)), "stored twice"
    number_of = {id(chunk): number for number, chunk in enumerate(chunks)}
    for order in orders:
        acknowledged = [number_of[id(chunk)] for chunk in order if chunk.error is None]
        assert [number for number in network.log if number in set(acknowledged)] == acknowledged, "lost or out of order"
    for number, chunk in enumerate(chunks):
        assert chunk.done
        error = chunk.error
        if error is None:
            assert network.log[chunk.base_offset] == number
        elif error.definite:
            assert number not in network.log, "stored despite a definite error"
