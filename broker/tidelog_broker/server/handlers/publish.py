"""PUBLISH: batches in, offsets out; what another node owns is handed on to it.

Nothing here looks at a record. Each batch is verified as it arrives (on the event loop when that is cheaper
than a thread switch, on a worker when it is large once decompressed), queued on its partition's pipeline,
and the reply leaves when the last batch of the request is settled or the request's time is over. Results
that come after that go nowhere: the client has been told that the outcome is unknown, and retries.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from tidelog_broker.broker import Broker
from tidelog_broker.core.replication.producers import StoredBatch
from tidelog_broker.core.request_costs import BATCH_US, BATCHES_PER_PIECE
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.metadata.meta_freshness import denial
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.pipeline import PendingPublish
from tidelog_broker.server.access import check_topic_id, count_refusal
from tidelog_broker.server.forwarding import Forwarded
from tidelog_broker.wire.connection import Request
from tidelog_broker.wire.rounds import WORK_BYTES_PER_US
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Flags, claims_plain
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.verification import verify_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCHES_PER_PUBLISH_MAX, KIB, PUBLISH_TIMEOUT_MS_DEFAULT
from tidelog_proto.names import AUDIT_TOPIC, INTERNAL_PREFIX
from tidelog_proto.wire.frames import split_attachment

VERIFY_INLINE_BYTES: Final = 4 * 1024 * 1024
"""Up to this size a batch that claims to be uncompressed is verified on the loop: about 60 µs and 50 µs a MB."""


DROPPED_BYTES_MAX: Final = 256 * KIB
"""So much of an answer says which records were dropped: an envelope is bounded. A batch takes 8 KiB at most."""


class PublishInProgress:
    """A PUBLISH whose batches are on their way."""

    __slots__ = ("_answer_envelope", "_dropped_bytes", "_left", "_metrics", "_request", "_results", "_timer")

    def __init__(self, broker: Broker, request: Request, entries: int) -> None:
        self._request: Request | None = request
        self._metrics = broker.metrics
        self._answer_envelope = pb.Envelope()
        self._results = self._answer_envelope.publish_reply.results
        for _ in range(entries):
            self._results.add()
        self._left = entries
        self._dropped_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the client has its answer."""
        return self._request is None

    def start_clock(self, loop: asyncio.AbstractEventLoop, timeout_ms: int) -> None:
        """Answer in `timeout_ms` at the latest. Called when some are queued: most small ones are settled by then."""
        if self._request is not None:
            self._timer = loop.call_later(timeout_ms / 1000, self._time_out)

    def settle(self, index: int, outcome: StoredBatch | ProtocolError, duplicate: bool) -> None:
        """Note what became of one batch; answer after the last."""
        if self._request is None:
            return
        result = self._results[index]
        if isinstance(outcome, ProtocolError):
            self._metrics.batches_refused.inc()
            result.error.CopyFrom(outcome.to_message())
        else:
            result.base_offset = outcome.base_offset
            result.epoch = outcome.epoch
            result.append_timestamp_us = outcome.append_timestamp_us
            if duplicate:
                self._metrics.duplicates.inc()
                result.duplicate = True
            if outcome.duplicates:
                self._tell_dropped(result, outcome)
        self._settled()

    def _tell_dropped(self, result: pb.PublishResult, outcome: StoredBatch) -> None:
        """Tell how many records were dropped, and which while there is room for that."""
        result.duplicates = outcome.duplicates
        self._dropped_bytes += len(outcome.dropped)
        if self._dropped_bytes <= DROPPED_BYTES_MAX:
            result.dropped = outcome.dropped

    def settle_forwarded(self, index: int, told: pb.PublishResult) -> None:
        """Note what the owner of one batch has made of it."""
        if self._request is not None:
            self._results[index].CopyFrom(told)
            self._settled()

    def _settled(self) -> None:
        self._left -= 1
        if self._left == 0:
            if self._timer is not None:
                self._timer.cancel()
            self._answer()

    def _answer(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        request.reply(self._answer_envelope)

    def _time_out(self) -> None:
        error = ProtocolError(
            pb.TIMED_OUT, "not settled in the request's time; the batch may be stored: retry it unchanged"
        )
        for result in self._results:
            if not result.epoch and not result.append_timestamp_us and not result.HasField("error"):
                result.error.CopyFrom(error.to_message())
        self._answer()


def publish(broker: Broker, request: Request) -> None:
    """Handle PUBLISH.

    Raises:
        ProtocolError: the request as a whole is malformed; nothing of it was queued.
    """
    asked = request.envelope.publish
    entries = asked.entries
    if not 1 <= len(entries) <= BATCHES_PER_PUBLISH_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"{len(entries)} batches; a PUBLISH carries 1 to {BATCHES_PER_PUBLISH_MAX}"
        )
    batches = split_attachment(request.attachment, [entry.length for entry in entries])
    submission = Submission(broker, request, batches)
    if not submission.piece():
        request.connection.rest.begin(submission)


class Submission:
    """The batches of a PUBLISH that are still to be verified and queued, in order.

    A publish of few batches is one piece. The rest of a larger one is worked on in its caller's turns, before any later
    request is taken from its connection, so that the batches of a producer keep their order.
    """

    __slots__ = ("_acks", "_batches", "_broker", "_done", "_progress", "_request", "_timeout_ms")

    def __init__(self, broker: Broker, request: Request, batches: list[memoryview]) -> None:
        asked = request.envelope.publish
        self._broker = broker
        self._request = request
        self._batches = batches
        self._done = 0
        self._timeout_ms, self._acks = asked.timeout_ms or PUBLISH_TIMEOUT_MS_DEFAULT, asked.acks
        self._progress = PublishInProgress(broker, request, len(batches))

    def piece(self) -> bool:
        """Verify and queue some batches; return whether they were the last."""
        first, stop = self._done, min(self._done + BATCHES_PER_PIECE, len(self._batches))
        if first:  # the first piece was counted before it began
            if self._broker.life.stopping:
                self._refuse(ProtocolError(pb.SHUTTING_DOWN, "the node stops; send to another or again later"))
                return True
            if self._progress.is_answered:  # its time was over
                return True
            self._request.connection.took(WORK_BYTES_PER_US * BATCH_US * (stop - first))
        self._queue(range(first, stop))
        self._done = stop
        if not first:
            self._progress.start_clock(self._broker.loop, self._timeout_ms)
        return stop == len(self._batches)

    def drop(self) -> None:
        """Queue nothing more: the connection is closed."""
        self._refuse(ProtocolError(pb.SHUTTING_DOWN, "the connection was closed before this was done"))

    def _refuse(self, error: ProtocolError) -> None:
        for index in range(self._done, len(self._batches)):
            self._progress.settle(index, error, False)

    def _queue(self, indices: range) -> None:
        broker, request, acks, progress = self._broker, self._request, self._acks, self._progress
        asked = request.envelope.publish
        forwarded: Forwarded | None = None
        unknown: list[_Unknown] = []
        entries, batches = asked.entries[indices.start : indices.stop], self._batches[indices.start : indices.stop]
        for index, entry, data in zip(indices, entries, batches, strict=True):
            settle, key = partial(progress.settle, index), (entry.topic_id, entry.partition)
            try:
                if request.session is not None:
                    check_topic_id(broker, request.session, pb.OP_PRODUCE, entry.topic_id)
                partition = broker.partitions.find(key)
                is_owned = partition is not None and partition.state.writer is not None
                owner = "" if is_owned or asked.forwarded else _other_owner(broker, entry)
                if owner:
                    forwarded = forwarded or Forwarded(broker, request, self._timeout_ms / 1000)
                    forwarded.add(owner, entry, data, partial(progress.settle_forwarded, index))
                elif partition is None and key in broker.partitions.closed:
                    _submit_when_open(broker, key, data, settle, acks, of_node=request.is_of_node)
                else:
                    partition = partition or broker.partitions.get(*key)
                    _submit(broker, partition, data, settle, acks, of_node=request.is_of_node)
            except ProtocolError as error:
                is_forbidden = error.code == pb.FORBIDDEN
                if is_forbidden:
                    count_refusal(broker, "publish", request, error)
                if is_forbidden or asked.forwarded or not broker.topics.may_exist(*key):
                    # The forwarding node knows the partition; this node has not learned of it yet.
                    settle(denial(error, current=not asked.forwarded), False)
                else:
                    unknown.append(_Unknown(key, settle))
        if forwarded is not None:
            forwarded.send()
        if unknown:
            broker.tasks.spawn(_refuse_unknown(broker, unknown), "asking about topics of a publish")


class _Unknown(NamedTuple):
    key: PartitionKey
    settle: partial[None]


async def _refuse_unknown(broker: Broker, unknown: list[_Unknown]) -> None:
    """Refuse batches for what this node did not know: for good, or until the client sends them again.

    They are not queued once it does: batches that came later may have been queued already.
    """
    current = False
    try:
        current = await broker.meta_freshness.refresh_for(each.key for each in unknown)
    finally:  # also when the node stops
        for key, settle in unknown:
            settle(_found(broker, key, current=current), False)


def _found(broker: Broker, key: PartitionKey, *, current: bool) -> ProtocolError:
    try:
        broker.partitions.get(*key)
    except ProtocolError as error:
        return denial(error, current=current)
    return ProtocolError(pb.EPOCH_CHANGING, "this node did not know the partition until now; send again")


def _other_owner(broker: Broker, entry: pb.PublishEntry) -> str:
    """Return the other node that owns a partition; "" for one of this node's, and where nobody can be asked."""
    owner = broker.routes.owner((entry.topic_id, entry.partition))
    if owner == broker.node_id or owner not in broker.cluster.linked:
        return ""
    record = broker.topics.with_id(entry.topic_id)
    if record.name.startswith(INTERNAL_PREFIX) or entry.partition >= record.config.partitions:
        return ""  # refused here, and rightly
    return owner


def _submit_when_open(
    broker: Broker, key: PartitionKey, data: memoryview, settle: partial[None], acks: pb.Acks, *, of_node: bool
) -> None:
    """Queue a batch as soon as its partition is open: in front of all that comes once others find it."""

    def opened(partition: Partition | None, error: ProtocolError | None) -> None:
        try:
            if partition is not None:
                _submit(broker, partition, data, settle, acks, of_node=of_node)
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
) -> None:
    """Verify a batch here or on a worker, and queue it in its place either way.

    Raises:
        ProtocolError: producers may not write to this partition, or the batch was looked at here and is wrong.
    """
    # Clients' batches for the broker's own topics are refused where they come first, and not handed on.
    if partition.state.is_internal and not (of_node and partition.state.topic.name == AUDIT_TOPIC):
        raise ProtocolError(pb.FORBIDDEN, f"{partition.state.topic.name} is written by the broker alone")
    keyed = partition.compaction.is_configured
    if claims_plain(data) and len(data) <= VERIFY_INLINE_BYTES:
        partition.pipeline.submit(PendingPublish(data, _verified(data, keyed=keyed), settle, acks=acks))
        return
    pending = PendingPublish(data, None, settle, acks=acks)

    def judged(header: BatchHeader | None, error: BaseException | None) -> None:
        pending.header = header
        if error is not None:
            pending.refusal = error if isinstance(error, ProtocolError) else _unexpected(error)
        partition.pipeline.go_on()

    broker.threads.verifiers.start(0, lambda: _verified(data, keyed=keyed), judged)
    partition.pipeline.submit(pending)


def _verified(data: memoryview, *, keyed: bool) -> BatchHeader:
    """Check a foreign batch, that it claims nothing that only the broker may, and that every record has a key."""
    header = verify_batch(data)
    if header.flags & (Flags.CONTROL | Flags.DERIVED | Flags.TRANSACTIONAL):
        raise ProtocolError(pb.UNSUPPORTED_BATCH, "control, derived and transactional batches are not for producers")
    if header.sequence_span:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH, "a sequence span is set by the node that drops records, and by no producer"
        )
    if keyed and (not header.flags & Flags.KEY or RecordBatch.parse(data).columns().column("key").null_count):
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH, "the topic keeps the latest record of each key: give every record a key"
        )
    return header


def _unexpected(error: BaseException) -> ProtocolError:
    if isinstance(error, asyncio.CancelledError):
        return ProtocolError(pb.SHUTTING_DOWN, "the node stops")
    return ProtocolError(pb.INTERNAL, f"verification failed: {error!r}")
