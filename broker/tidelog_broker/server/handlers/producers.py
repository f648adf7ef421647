"""PRODUCER_BEGIN: start of a named producer's instance at each partition's owner, which fences older instances.

The owner appends a control batch with the producer's id, the instance's epoch and sequence 0. Once it is committed, the
producer table of every copy, and of every later owner, contains the epoch, and batches of older epochs are refused. The
log is therefore the only place that stores the newest instance.

A request with an idempotency key that writes no record to partition 0 is registered there in the same way: the control
batch has the id, the epoch and the digest of the request (`core/replication/idempotency_keys.py`). A repeated request
is answered with its first epoch, which encodes the number of partitions that the first attempt was split over.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from tidelog_broker.broker import Broker
from tidelog_broker.core.replication.producers import PlacedBatch
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.pipeline import QueuedBatch
from tidelog_broker.server.forwarding import ask_owner
from tidelog_broker.server.per_owner_requests import answer_each, check_users_partition
from tidelog_broker.wire.caller_forwarding import with_caller
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import encode_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import EPOCHS_PER_INSTANCE, KEYED_ID_MIN


async def begin(broker: Broker, request: Request) -> None:
    """Handle PRODUCER_BEGIN. A request from another node has one entry.

    Raises:
        ProtocolError: INVALID_REQUEST for a request that is malformed as a whole; to another node also see `_local`.
    """
    await answer_each(
        broker,
        request,
        request.envelope.producer_begin.entries,
        local=partial(_local, broker),
        ask=partial(_at_owner, broker, request),
        refused=lambda error: pb.ProducerBeginResult(error=error),
        reply=lambda results: pb.Envelope(producer_begin_reply=pb.ProducerBeginReply(results=results)),
    )


async def _at_owner(broker: Broker, request: Request, entry: pb.ProducerBeginEntry) -> pb.ProducerBeginResult:
    check_users_partition(broker, entry)
    if entry.producer_id == 0:
        raise ProtocolError(pb.INVALID_REQUEST, "PRODUCER_BEGIN needs a producer id, got 0")
    if entry.producer_id >= KEYED_ID_MIN:
        if entry.producer_epoch % 2 == 0:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"PRODUCER_BEGIN for an idempotency key needs an odd producer epoch, got {entry.producer_epoch}",
            )
    elif entry.base_sequence:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"a producer instance must begin at sequence 0, got {entry.base_sequence}"
        )
    elif not entry.producer_epoch or entry.producer_epoch % EPOCHS_PER_INSTANCE:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"the epoch of a producer instance must be a positive multiple of {EPOCHS_PER_INSTANCE}, got "
            f"{entry.producer_epoch}",
        )
    forwarded = with_caller(request, pb.Envelope(producer_begin=pb.ProducerBegin(entries=[entry])))
    reply = await ask_owner(
        broker, (entry.topic_id, entry.partition), forwarded, lambda envelope: _local(broker, envelope)
    )
    return reply.producer_begin_reply.results[0]


async def _local(broker: Broker, envelope: pb.Envelope) -> pb.Envelope:
    """Begin an instance as the partition's owner.

    If a newer instance has fenced it, the answer contains that error and the newest epoch. If this instance has begun
    before, the answer is marked as `repeated`.

    Raises:
        ProtocolError: this node cannot append.
    """
    (entry,) = envelope.producer_begin.entries
    await broker.partitions.awake([(entry.topic_id, entry.partition)])
    partition = broker.partitions.get(entry.topic_id, entry.partition)
    await partition.access.ensure_active()
    epoch = entry.producer_epoch
    outcome, repeated = await _append(partition, entry)
    if isinstance(outcome, ProtocolError):
        if outcome.code == pb.PRODUCER_FENCED:
            newest = _known_epoch(partition, entry.producer_id)
            if entry.producer_id >= KEYED_ID_MIN or newest // EPOCHS_PER_INSTANCE != epoch // EPOCHS_PER_INSTANCE:
                return _result(pb.ProducerBeginResult(error=outcome.to_message(), producer_epoch=newest))
        elif outcome.code != pb.DUPLICATE_OUT_OF_WINDOW:
            raise outcome
    elif not repeated:
        return _result(pb.ProducerBeginResult(producer_epoch=epoch))
    # A later owner may know a newer instance, so confirm that this node is still the owner.
    await partition.access.confirm_owner()
    return _result(pb.ProducerBeginResult(producer_epoch=epoch, repeated=True))


def _result(result: pb.ProducerBeginResult) -> pb.Envelope:
    return pb.Envelope(producer_begin_reply=pb.ProducerBeginReply(results=[result]))


def _known_epoch(partition: Partition, producer_id: int) -> int:
    owner = partition.state.assigner
    if owner is None:
        raise ProtocolError(pb.EPOCH_CHANGING, f"the epoch of {partition.name} has just ended; retry")
    return owner.producers.epoch_of(producer_id) or 0


async def _append(partition: Partition, entry: pb.ProducerBeginEntry) -> tuple[PlacedBatch | ProtocolError, bool]:
    """Append the control batch of an instance; return its outcome once it is certain, and whether it is a duplicate."""
    encoded = encode_batch(
        columns_of([None]),
        now_us=time.time_ns() // 1000,
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        base_sequence=entry.base_sequence,
        control=True,
    )
    settled: asyncio.Future[tuple[PlacedBatch | ProtocolError, bool]] = asyncio.get_running_loop().create_future()

    def settle(outcome: PlacedBatch | ProtocolError, duplicate: bool) -> None:
        if not settled.done():
            settled.set_result((outcome, duplicate))

    data = memoryview(bytearray(encoded.to_bytes()))
    partition.pipeline.submit(QueuedBatch(data, unpack_header(data), settle))
    return await settled
