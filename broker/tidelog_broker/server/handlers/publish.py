"""PUBLISH: storage of record batches; batches that another node owns are forwarded to it.

Each batch is verified on arrival (uncompressed ones up to `VERIFY_INLINE_BYTES` on the event loop, others on a worker)
and queued in its partition's pipeline. The reply is sent when the last batch has its result or the request's time is
over. Later results are discarded: the client knows that the outcome is unknown, and retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from tidelog_broker.broker import Broker
from tidelog_broker.core.replication.producers import PlacedBatch
from tidelog_broker.core.request_costs import (
    BATCH_US,
    BATCHES_PER_PIECE,
    PARTITION_BATCHES,
    batches_and_partitions,
)
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.metadata.meta_freshness import denial
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.pipeline import QueuedBatch
from tidelog_broker.replication.joint_append import JointAppend
from tidelog_broker.server.access import check_topic_id, count_refusal
from tidelog_broker.server.forwarding import Forwarded
from tidelog_broker.server.handlers.metadata import is_current
from tidelog_broker.server.handlers.schemas import unknown_schema
from tidelog_broker.server.typed_batches import UnknownSchemaError, check_schema, typed_in_untyped
from tidelog_broker.wire.connection import Request
from tidelog_broker.wire.read_turns import WORK_BYTES_PER_US
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Flags, claims_plain, claims_typed
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.batch.typed_verification import verify_typed
from tidelog_proto.batch.verification import verify_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCHES_PER_PUBLISH_MAX, KIB, PUBLISH_TIMEOUT_MS_DEFAULT
from tidelog_proto.names import AUDIT_TOPIC, INTERNAL_PREFIX
from tidelog_proto.wire.frames import split_attachment

VERIFY_INLINE_BYTES: Final = 4 * 1024 * 1024
"""Uncompressed batches up to this size are verified on the event loop, which takes about 60 µs plus 50 µs per MB."""

SLICE_PARTITIONS: Final = BATCHES_PER_PIECE // (1 + PARTITION_BATCHES)
"""Number of batches in a slice if each has its own partition."""

DROPPED_BYTES_MAX: Final = 256 * KIB
"""Maximum total size of the bitmaps of dropped records in an answer, since an envelope is bounded; one bitmap has up to
8 KiB. The limit includes the bitmaps in the results of forwarded batches."""

_length_of: Final = attrgetter("length")


class PublishInProgress:
    """A PUBLISH: its batches that are not yet verified and queued, in order, and the results of the others.

    A request with few batches is one slice. A larger one is processed in its caller's read turns, before any later
    request of its connection, so that a producer's batches keep their order.
    """

    __slots__ = (
        "_acks",
        "_answer",
        "_batches",
        "_broker",
        "_done",
        "_dropped_bytes",
        "_is_spread",
        "_request",
        "_results",
        "_timeout_ms",
        "_timer",
        "_unsettled_entries",
    )

    def __init__(self, broker: Broker, request: Request, batches: list[memoryview]) -> None:
        message = request.envelope.publish
        self._broker = broker
        self._request: Request | None = request
        """None once the request is answered."""
        self._batches = batches
        self._done = 0
        self._is_spread = len(batches) > SLICE_PARTITIONS and _is_spread(message.entries)
        self._timeout_ms, self._acks = message.timeout_ms or PUBLISH_TIMEOUT_MS_DEFAULT, message.acks
        self._answer = pb.Envelope()
        self._results = self._answer.publish_reply.results
        for _ in batches:
            self._results.add()
        self._unsettled_entries = len(batches)
        self._dropped_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    # --- batches that are not queued yet ---------------------------------------------------------------

    def next_slice(self) -> bool:
        """Verify and queue some batches; return whether they were the last."""
        first, count = self._done, len(self._batches)
        if first:
            if self._broker.lifecycle.stopping:
                self._refuse(ProtocolError(pb.SHUTTING_DOWN, "the node is stopping; retry at another node"))
                return True
            if self._request is None:  # the request has timed out
                return True
        stop, weight = self._slice_end(first)
        if first and self._request is not None:  # The first slice was charged before the request began.
            self._request.connection.took(WORK_BYTES_PER_US * BATCH_US * weight)
        self._queue(range(first, stop))
        self._done = stop
        # Started only now, because after the first slice most small requests have been answered.
        if not first and self._request is not None:
            self._timer = self._broker.loop.call_later(self._timeout_ms / 1000, self._time_out)
        return stop == count

    def _slice_end(self, first: int) -> tuple[int, int]:
        """Return where the slice that starts at `first` ends, and the number of batches that it counts as."""
        count = len(self._batches)
        if count <= SLICE_PARTITIONS or self._request is None:
            return count, count
        if self._is_spread:
            stop = min(first + SLICE_PARTITIONS, count)
            return stop, (1 + PARTITION_BATCHES) * (stop - first) - PARTITION_BATCHES
        entries = self._request.envelope.publish.entries
        stop = min(first + BATCHES_PER_PIECE, count)
        weight = batches_and_partitions(entries[first:stop])
        if weight > BATCHES_PER_PIECE:
            stop = first + SLICE_PARTITIONS
            weight = batches_and_partitions(entries[first:stop])
        return stop, weight

    def drop(self) -> None:
        """Discard the remaining batches: the connection is closed."""
        self._refuse(ProtocolError(pb.SHUTTING_DOWN, "the connection was closed before the batch was settled"))

    def _refuse(self, error: ProtocolError) -> None:
        for index in range(self._done, len(self._batches)):
            self.settle(index, error, False)

    def _queue(self, indices: range) -> None:
        broker, request, acks = self._broker, self._request, self._acks
        assert request is not None, "an answered request is not queued"
        message = request.envelope.publish
        joint = broker.replication.joint_append() if len(indices) > 1 else None
        forwarded: Forwarded | None = None
        unknown: list[_Unknown] = []
        unknown_schemas: list[_UnknownSchema] = []
        entries, batches = message.entries[indices.start : indices.stop], self._batches[indices.start : indices.stop]
        is_forwarded, session, by_topic = message.forwarded, request.session, broker.partitions.by_topic
        try:
            for index, entry, data in zip(indices, entries, batches, strict=True):
                settle, key = partial(self.settle, index), (entry.topic_id, entry.partition)
                try:
                    if session is not None:
                        check_topic_id(broker, session, pb.OP_PRODUCE, key[0])
                    stored = by_topic.get(key[0])
                    partition = None if stored is None else stored.get(key[1])
                    is_owned = partition is not None and partition.replica.assigner is not None
                    owner = "" if is_owned or is_forwarded else _other_owner(broker, entry)
                    if owner:
                        forwarded = forwarded or Forwarded(broker, request, self._timeout_ms / 1000)
                        forwarded.add(owner, entry, data, partial(self.settle_forwarded, index))
                    elif partition is None and key in broker.partitions.closed:
                        _submit_when_open(broker, key, data, settle, acks, of_node=request.is_of_node)
                    else:
                        partition = partition or broker.partitions.get(*key)
                        _submit(broker, partition, data, settle, acks, of_node=request.is_of_node, joint=joint)
                except UnknownSchemaError as error:
                    unknown_schemas.append(_UnknownSchema(entry.topic_id, error.number, settle))
                except ProtocolError as error:
                    is_forbidden = error.code == pb.FORBIDDEN
                    if is_forbidden:
                        count_refusal(broker, "publish", request, error)
                    if is_forbidden or message.forwarded or not broker.topics.may_exist(*key):
                        # The error of a forwarded batch is not final, because this node may not have applied a new
                        # topic that the forwarding node knows.
                        settle(denial(error, current=not message.forwarded), False)
                    else:
                        unknown.append(_Unknown(key, settle))
        finally:
            if joint is not None:
                joint.write()
        if forwarded is not None:
            forwarded.send()
        if unknown:
            broker.tasks.spawn(_refuse_unknown(broker, unknown), "checking unknown topics of a publish")
        if unknown_schemas:
            _refuse_unknown_schemas(broker, unknown_schemas)

    # --- results ---------------------------------------------------------------------------------------

    def settle(self, index: int, outcome: PlacedBatch | ProtocolError, duplicate: bool) -> None:
        """Record the outcome of one batch; answer after the last."""
        if self._request is None:
            return
        result = self._results[index]
        if isinstance(outcome, ProtocolError):
            self._broker.metrics.batches_refused.inc()
            result.error.CopyFrom(outcome.to_message())
        else:
            result.base_offset = outcome.base_offset
            result.epoch = outcome.epoch
            result.append_timestamp_us = outcome.append_timestamp_us
            if duplicate:
                self._broker.metrics.duplicates.inc()
                result.duplicate = True
            if outcome.duplicates:
                result.duplicates = outcome.duplicates
                if self._has_room(outcome.dropped):
                    result.dropped = outcome.dropped
        self._unsettled_entries -= 1
        if self._unsettled_entries == 0:
            self._reply()

    def _has_room(self, dropped: bytes) -> bool:
        """Count a bitmap of dropped records; return whether it fits the answer."""
        self._dropped_bytes += len(dropped)
        return self._dropped_bytes <= DROPPED_BYTES_MAX

    def settle_forwarded(self, index: int, owner_result: pb.PublishResult) -> None:
        """Record the result of a batch from its owner."""
        if self._request is not None:
            result = self._results[index]
            result.CopyFrom(owner_result)
            if result.dropped and not self._has_room(result.dropped):
                result.ClearField("dropped")
            self._unsettled_entries -= 1
            if self._unsettled_entries == 0:
                self._reply()

    def _reply(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        self._batches = []  # After a timeout, results that are still expected must not keep the memory of the batches.
        if self._timer is not None:
            self._timer.cancel()
        request.reply(self._answer)

    def _time_out(self) -> None:
        error = ProtocolError(
            pb.TIMED_OUT, "the batch was not settled in the request's time and may be stored; retry it unchanged"
        )
        for result in self._results:
            if not result.epoch and not result.append_timestamp_us and not result.HasField("error"):
                result.error.CopyFrom(error.to_message())
        self._reply()


def _is_spread(entries: Sequence[pb.PublishEntry]) -> bool:
    """Return whether each batch has a partition of its own."""
    return len({(entry.topic_id, entry.partition) for entry in entries}) == len(entries)


def publish(broker: Broker, request: Request) -> None:
    """Handle PUBLISH.

    Raises:
        ProtocolError: the request is malformed as a whole; nothing was queued.
    """
    message = request.envelope.publish
    entries = message.entries
    if not 1 <= len(entries) <= BATCHES_PER_PUBLISH_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"PUBLISH must have 1 to {BATCHES_PER_PUBLISH_MAX} batches, got {len(entries)}"
        )
    batches = split_attachment(request.attachment, list(map(_length_of, entries)))
    progress = PublishInProgress(broker, request, batches)
    if not progress.next_slice():
        request.connection.rest.begin(progress)


class _Unknown(NamedTuple):
    key: PartitionKey
    settle: partial[None]


async def _refuse_unknown(broker: Broker, unknown: list[_Unknown]) -> None:
    """Refuse batches for unknown partitions, permanently or with a retry, depending on the current `__meta`.

    The batches are not queued even if the partition becomes known, because later batches may have been queued already.
    """
    current = False
    try:
        current = await broker.meta_freshness.refresh_for(each.key for each in unknown)
    finally:  # also if the node is stopping
        for key, settle in unknown:
            settle(_unknown_partition_error(broker, key, current=current), False)


class _UnknownSchema(NamedTuple):
    topic_id: bytes
    number: int
    settle: partial[None]


def _refuse_unknown_schemas(broker: Broker, batches: list[_UnknownSchema]) -> None:
    """Refuse batches of unknown schemas, permanently or with a retry, depending on the current `__meta`.

    As with unknown partitions, the batches are not queued even if the schema becomes known.
    """

    async def refuse() -> None:
        current = False
        try:
            current = await is_current(broker)
        finally:  # also if the node is stopping
            for each in batches:
                record, known = broker.topics.get(each.topic_id), broker.schemas.of(each.topic_id)
                if each.number in known:
                    error: ProtocolError = UnknownSchemaError(each.number)
                else:
                    name = "" if record is None else record.name
                    error = unknown_schema(name, each.number, known, current=current)
                each.settle(error, False)

    broker.tasks.spawn(refuse(), "checking unknown schemas of a publish")


def _unknown_partition_error(broker: Broker, key: PartitionKey, *, current: bool) -> ProtocolError:
    try:
        broker.partitions.get(*key)
    except ProtocolError as error:
        return denial(error, current=current)
    return ProtocolError(pb.EPOCH_CHANGING, "the partition has just become known at this node; retry")


def _other_owner(broker: Broker, entry: pb.PublishEntry) -> str:
    """Return the other node that owns a partition; "" if this node owns it, refuses the batch, or reaches no owner."""
    owner = broker.routes.owner((entry.topic_id, entry.partition))
    if owner == broker.node_id or owner not in broker.cluster.linked:
        return ""
    record = broker.topics.with_id(entry.topic_id)
    if record.name.startswith(INTERNAL_PREFIX) or entry.partition >= record.config.partitions:
        return ""  # This node refuses the batch with the correct error.
    return owner


def _submit_when_open(
    broker: Broker, key: PartitionKey, data: memoryview, settle: partial[None], acks: pb.Acks, *, of_node: bool
) -> None:
    """Queue a batch as soon as its partition is open, before batches that arrive later."""

    def opened(partition: Partition | None, error: ProtocolError | None) -> None:
        try:
            if partition is not None:
                _submit(broker, partition, data, settle, acks, of_node=of_node)
        except UnknownSchemaError as unknown:
            _refuse_unknown_schemas(broker, [_UnknownSchema(key[0], unknown.number, settle)])
        except ProtocolError as refusal:
            error = refusal
        if error is not None:
            settle(error, False)

    broker.partitions.when_open(key, opened)


def _submit(
    broker: Broker,
    partition: Partition,
    data: memoryview,
    settle: partial[None],
    acks: pb.Acks,
    *,
    of_node: bool,
    joint: JointAppend | None = None,
) -> None:
    """Verify a batch on the event loop or on a worker, and queue it in order in either case.

    Args:
        joint: writes the batches of a request together, if that is possible; None: the batch is written alone.
    """
    # Clients' batches for internal topics are refused by the first node, so forwarded ones come from a node itself.
    if partition.state.is_internal and not (of_node and partition.state.topic.name == AUDIT_TOPIC):
        raise ProtocolError(pb.FORBIDDEN, f"{partition.state.topic.name} is an internal topic, written only by nodes")
    topic, keyed, schemas = partition.state.topic, partition.requires_keys, partition.schemas
    if schemas is not None:
        check_schema(data, topic.name, schemas, topic.config.schema_floor)
    if claims_plain(data) and len(data) <= VERIFY_INLINE_BYTES:
        header = _verified(data, topic.name, keyed=keyed, schemas=schemas)
        if joint is not None:
            partition.pipeline.submit_jointly(data, header, settle, joint, acks=acks)
        else:
            partition.pipeline.submit(QueuedBatch(data, header, settle, acks=acks))
        return
    pending = QueuedBatch(data, None, settle, acks=acks)

    def judged(header: BatchHeader | None, error: BaseException | None) -> None:
        pending.header = header
        if error is not None:
            pending.refusal = error if isinstance(error, ProtocolError) else _unexpected(error)
        partition.pipeline.start_next_group()

    broker.threads.verifiers.start(0, lambda: _verified(data, topic.name, keyed=keyed, schemas=schemas), judged)
    partition.pipeline.submit(pending)


def _verified(data: memoryview, topic: str, *, keyed: bool, schemas: Layouts | None) -> BatchHeader:
    """Verify a producer's batch: its checksums, no reserved flags and, for a compacted topic, a key in every record."""
    try:
        header = verify_batch(data) if schemas is None else verify_typed(data, schemas)
    except ProtocolError as error:
        if schemas is None and error.code == pb.UNSUPPORTED_BATCH and claims_typed(data):
            raise typed_in_untyped(topic) from error
        raise
    if header.flags & (Flags.CONTROL | Flags.DERIVED | Flags.TRANSACTIONAL):
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH,
            f"topic {topic!r}: producers may not send control, derived or transactional batches, got batch flags "
            f"{header.flags:#x}",
        )
    if header.sequence_span:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH,
            f"topic {topic!r}: producers may not set a sequence span, got {header.sequence_span}",
        )
    if keyed and schemas is None and _lacks_keys(header, data):  # A compacted typed topic has a required key.
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH,
            f"topic {topic!r} is compacted by key, but the batch has records without a key; give every record a key",
        )
    return header


def _lacks_keys(header: BatchHeader, data: memoryview) -> bool:
    return not header.flags & Flags.KEY or bool(RecordBatch.parse(data).columns().column("key").null_count)


def _unexpected(error: BaseException) -> ProtocolError:
    if isinstance(error, asyncio.CancelledError):
        return ProtocolError(pb.SHUTTING_DOWN, "the node is stopping; retry at another node")
    return ProtocolError(pb.INTERNAL, f"verifying the batch failed: {error!r}")
