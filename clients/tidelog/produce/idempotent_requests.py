"""Publishing with an idempotency key: the log recognises a retry from any client at any later time.

The key determines a producer id, under which one request writes one batch to each partition that it has records for.
The sequence number of the batches is a digest of the request, so a retry need not have the same bytes. Partition 0 is
written first: its batch, or a control batch if it gets no records, has the partition count by which the records are
split. A retry uses the same partition count even if the topic has more partitions by then, so every record goes to the
partition of the first attempt.

A node expects no consecutive sequence numbers under such a producer id, so the batches of a request are independent:
each one is retried until it is answered or times out.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.cluster.answers import check_answer, results_of
from tidelog.cluster.connection import Connection
from tidelog.cluster.routing import Router
from tidelog.cluster.trace_contexts import carry_current
from tidelog.errors import (
    NodeUnreachableError,
    OutcomeUnknownError,
    OverloadedError,
    ProducerFencedError,
    ProducerIdSharedError,
    TidelogError,
    UnknownProducerError,
    UnknownTopicError,
    error_of,
)
from tidelog.model import NOT_KNOWN, Receipt
from tidelog.produce.deduplicated_records import DroppedRecords, offsets_of
from tidelog.produce.expiry import expiry_error
from tidelog.produce.open_batch import RecordLists
from tidelog.produce.splitting import group_by_partition
from tidelog.requests.needed_permission import requiring
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.key_partitions import partitions_of_keys
from tidelog_proto.batch.record_batch import EncodedBatch, columns_of, encode_batch
from tidelog_proto.hello_features import KEYED_REQUESTS
from tidelog_proto.limits import KEYED_ID_MIN

SPLITS_MAX: Final = 3
"""Maximum number of partition counts that are tried; a second one is needed only if clients race with this request."""
PARTS_AT_ONCE: Final = 16
"""Maximum number of partitions to which one request writes at the same time."""
_SEQUENCE_BITS: Final = 62

Outcome = Receipt | TidelogError
R = TypeVar("R")


class RequestKey(NamedTuple):
    """The identity of a request in the log.

    Attributes:
        producer_id: determined by the idempotency key and its scope.
        digest: digest of the request's content.
    """

    producer_id: int
    digest: int


def request_key(scope: Iterable[bytes], content: Iterable[bytes]) -> RequestKey:
    """Return the identity of a request.

    A later release must return the same identity, because a node recognises a stored request by it.

    Args:
        scope: the idempotency key, and the names within which it is unique.
        content: the parts of the request that must be equal in a retry.
    """
    producer_id = KEYED_ID_MIN | int.from_bytes(_digest(scope)[:8]) >> 1
    return RequestKey(producer_id, int.from_bytes(_digest(content)[:8]) >> 64 - _SEQUENCE_BITS)


def _digest(parts: Iterable[bytes]) -> bytes:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8))
        hashed.update(part)
    return hashed.digest()


@dataclass(slots=True)
class _Part:
    """The records of one partition; `rows` are their indexes in the request."""

    partition: int
    rows: Sequence[int]
    encoded: EncodedBatch


class _Split(NamedTuple):
    """The partition count by which the first attempt split the records."""

    partitions: int


class IdempotentRequests:
    """Publishes requests with an idempotency key, for the gateway; created by `Client`.

    Args:
        check: raises an error if the client is closed.
    """

    def __init__(self, router: Router, check: Callable[[], None]) -> None:
        self._router = router
        self._check_usable = check

    async def publish(
        self, topic: str, rows: RecordLists, key: RequestKey, *, timeout_s: float | None = None
    ) -> list[Outcome]:
        """Store the records of a request unless they are stored already, and return the outcome of each.

        Args:
            timeout_s: the timeout in seconds; None: the client's request timeout.

        Raises:
            ProducerIdSharedError: the key belongs to another request.
            TidelogError: if `definite`, nothing was stored; otherwise that is unknown.
            ProtocolError: BATCH_TOO_LARGE, the records of a partition exceed a batch; nothing was stored.
        """
        self._check_usable()
        deadline = asyncio.get_running_loop().time() + (timeout_s or self._router.request_timeout_s)
        is_cached = self._router.metadata.topic(topic) is not None
        try:
            return await self._publish(topic, rows, key, deadline)
        except UnknownTopicError:
            if not is_cached:
                raise
            return await self._publish(topic, rows, key, deadline)  # the topic may have been recreated

    async def _publish(self, topic: str, rows: RecordLists, key: RequestKey, deadline: float) -> list[Outcome]:
        numbers = {number for number in rows.partitions or () if number is not None}
        async with requiring(self._router, pb.OP_PRODUCE, topic):
            route = await self._router.topic_with(topic, numbers)
        work = _Publish(self._router, topic, route.topic_id, key, deadline)
        split = route.partition_count
        for _ in range(SPLITS_MAX):
            parts = _parts(rows, split, key)
            receipts = await work.begin(parts, split)
            if not isinstance(receipts, _Split):
                return await work.rest(parts, receipts, len(rows.values))
            split = receipts.partitions
            await self._router.topic_with(topic, [split - 1])
        raise OutcomeUnknownError(
            f"attempts of this request to topic {topic!r} used {SPLITS_MAX} different partition counts; send the "
            "request again under its idempotency key",
            retriable=True,
        )


class _Publish:
    """Stores the records of one request, as one batch (`_Part`) in each partition."""

    def __init__(self, router: Router, topic: str, topic_id: bytes, key: RequestKey, deadline: float) -> None:
        self._router = router
        self._topic = topic
        self._topic_id = topic_id
        self._key = key
        self._deadline = deadline
        self._at_once = asyncio.Semaphore(PARTS_AT_ONCE)
        self._maybe_stored: set[int] = set()
        """Partitions with an attempt that is unanswered or has an unknown outcome."""
        self._last_errors: dict[int, TidelogError] = {}
        """Partition -> error of the last failed attempt."""

    async def begin(self, parts: Sequence[_Part], split: int) -> list[Receipt] | _Split:
        """Write to partition 0 first; return its receipts, which are empty if the request has no records for it.

        If an earlier attempt used another partition count, return that count instead.

        Raises:
            TidelogError: partition 0 did not accept the batch.
        """
        first = parts[0]
        try:
            if first.partition == 0:
                return await self._store(first)
        except ProducerFencedError:
            pass  # The claim returns the partition count of the first attempt.
        claimed = await self._trying(0, lambda: self._claim(split))
        if claimed.HasField("error") and claimed.error.code != pb.PRODUCER_FENCED:
            raise self._refusal(error_of(claimed.error))
        known = claimed.producer_epoch >> 1
        if known == split:
            return [] if first.partition else await self._store(first)
        return _Split(known)

    async def rest(self, parts: Sequence[_Part], receipts: list[Receipt], count: int) -> list[Outcome]:
        """Store the records of the other partitions, and return the outcome of each record."""
        outcomes: list[Outcome | None] = [None] * count

        def note(part: _Part, part_outcomes: Sequence[Outcome]) -> None:
            for row, outcome in zip(part.rows, part_outcomes, strict=True):
                outcomes[row] = outcome

        async def store(part: _Part) -> None:
            try:
                async with self._at_once:
                    note(part, await self._store(part))
            except TidelogError as error:
                note(part, [error] * len(part.rows))

        others = list(parts)
        if others[0].partition == 0:
            note(others.pop(0), receipts)
        await asyncio.gather(*map(store, others))
        return [outcome for outcome in outcomes if outcome is not None]

    async def _store(self, part: _Part) -> list[Receipt]:
        """Store a part, or return the receipts of its records if it is stored already.

        Raises:
            TidelogError: the part is not stored, or that is unknown.
        """
        result = await self._trying(part.partition, lambda: self._publish(part))
        if result.HasField("error"):
            raise self._refusal(error_of(result.error))
        self._router.stored_in(self._topic, part.partition, result.epoch)
        count = len(part.rows)
        offsets: Iterable[int] = range(result.base_offset, result.base_offset + count)
        if result.duplicates:
            flags = DroppedRecords(result.duplicates, result.dropped).flags(count)
            offsets = ([NOT_KNOWN] * count) if flags is None else offsets_of(result.base_offset, flags).tolist()
        return [Receipt(part.partition, offset, result.append_timestamp_us) for offset in offsets]

    def _refusal(self, error: TidelogError) -> TidelogError:
        if isinstance(error, ProducerIdSharedError):
            return ProducerIdSharedError(
                f"the idempotency key was used with another request to topic {self._topic!r}; no record of this "
                "request is stored; send the request with another key"
            )
        if isinstance(error, UnknownProducerError):
            return _too_old(error.node)
        return error

    # -------------------------------------------------------------------------------------------- one attempt

    async def _publish(self, part: _Part) -> pb.PublishResult:
        envelope = pb.Envelope()
        entry = envelope.publish.entries.add(
            topic_id=self._topic_id, partition=part.partition, length=part.encoded.length
        )
        envelope.publish.acks = pb.QUORUM
        parts = (part.encoded.header, part.encoded.body, *part.encoded.rest)
        frame = await self._ask(part.partition, envelope, parts, entry.length)
        return frame.publish_reply.results[0]

    async def _claim(self, split: int) -> pb.ProducerBeginResult:
        entry = pb.ProducerBeginEntry(
            topic_id=self._topic_id,
            partition=0,
            producer_id=self._key.producer_id,
            producer_epoch=_epoch_of(split),
            base_sequence=self._key.digest,
        )
        envelope = pb.Envelope(producer_begin=pb.ProducerBegin(entries=[entry]))
        return (await self._ask(0, envelope, (), 0)).producer_begin_reply.results[0]

    async def _ask(
        self, partition: int, envelope: pb.Envelope, attachment: Sequence[Any], size_bytes: int
    ) -> pb.Envelope:
        """Send a request to the owner of a partition, and return its answer, which has one result.

        Raises:
            TidelogError: there was no answer, or it has a retriable error.
        """
        router, loop = self._router, asyncio.get_running_loop()
        connection = await router.connection(self._topic, partition)
        if KEYED_REQUESTS not in connection.greeting.features:
            raise _too_old(connection.name)
        await self._ready(connection)
        left_s = max(0.1, min(router.request_timeout_s, self._deadline - loop.time()))
        kind = str(envelope.WhichOneof("kind"))
        if kind == "publish":
            envelope.publish.timeout_ms = int(left_s * 1000)
        carry_current(envelope)
        router.caller_tickets.attach(envelope, connection)
        was_sent = partition in self._maybe_stored
        if connection.liveness is not None and connection.liveness.is_lost and not was_sent:
            raise NodeUnreachableError(
                f"{connection.name} is connected, but answers neither requests nor a probe; check the node's process"
            )
        answer = connection.request(envelope, attachment, attachment_bytes=size_bytes, timeout_s=left_s)
        throttles = router.caller_tickets.throttles(connection)
        for throttle in throttles:
            throttle.published(size_bytes)
        self._maybe_stored.add(partition)

        def abandon(error: TidelogError) -> None:
            if not answer.done():
                answer.set_exception(error)

        expectation = router.owner_changes.expect(self._topic, partition, connection, abandon)
        try:
            watched = answer if connection.liveness is None else connection.liveness.watch(kind, answer, wait_s=0.0)
            frame = check_answer(kind, await watched, connection)
        except TidelogError as error:
            router.caller_tickets.note_error(envelope, error)
            if error.definite and not was_sent:
                self._maybe_stored.discard(partition)
            raise
        finally:
            router.owner_changes.forget(expectation)
            for throttle in throttles:
                throttle.answered(size_bytes)
        router.caller_tickets.note_throttle(frame.envelope, connection)
        reply = frame.envelope
        results: Sequence[pb.PublishResult | pb.ProducerBeginResult] = (
            reply.publish_reply.results if kind == "publish" else reply.producer_begin_reply.results
        )
        (result,) = results_of(results, 1, connection)
        if result.HasField("error"):
            refusal = error_of(result.error, connection.name)
            if isinstance(refusal, OverloadedError):
                router.caller_tickets.note_rejection(refusal, connection)
            if refusal.definite and not was_sent:
                self._maybe_stored.discard(partition)
            if refusal.retriable:
                raise refusal
        else:
            self._maybe_stored.discard(partition)
        return reply

    async def _ready(self, connection: Connection) -> None:
        """Wait until a connection accepts bytes and the quotas allow a publish.

        Raises:
            OverloadedError: a quota allows no publish before the deadline.
        """
        loop = asyncio.get_running_loop()

        async def until(when: Callable[[Callable[[], None]], None]) -> None:
            changed = asyncio.Event()
            when(changed.set)
            await changed.wait()

        while not connection.ready and not connection.closed:
            await until(connection.when_ready)
        for throttle in self._router.caller_tickets.throttles(connection):
            while not throttle.may_publish():
                if throttle.open_at >= self._deadline:
                    pause_s = throttle.open_at - loop.time()
                    raise OverloadedError(
                        f"the quota of {throttle.principal} is used up; publish again in {pause_s:.1f} s",
                        retriable=False,
                        retry_after_ms=int(pause_s * 1000),
                    )
                await until(partial(throttle.when_open, object()))

    async def _trying(self, partition: int, attempt: Callable[[], Awaitable[R]]) -> R:
        """Retry until an attempt returns a result or an error that is not retriable, or the deadline has passed.

        Raises:
            TidelogError: the error of the last attempt; its outcome is unknown if the outcome of any attempt is.
        """

        async def noting() -> R:
            try:
                return await attempt()
            except TidelogError as error:
                self._last_errors[partition] = error
                self._router.learn_from(self._topic, error, partition)
                raise

        left_s = max(self._deadline - asyncio.get_running_loop().time(), 0.1)
        try:
            async with asyncio.timeout(left_s):
                return await self._router.retrying(noting, repeatable=True, topic=self._topic)
        except TimeoutError:
            if partition not in self._maybe_stored:
                raise expiry_error(self._last_errors.get(partition), partition, definite=True) from None
            raise self._unknown(partition) from None
        except TidelogError as error:
            if partition in self._maybe_stored:
                raise self._unknown(partition) from error
            raise

    def _unknown(self, partition: int) -> TidelogError:
        last_error = self._last_errors.get(partition)
        return OutcomeUnknownError(
            f"an attempt to publish to {self._topic}/{partition} has an unknown outcome, so the records may be stored; "
            f"send the same request again under its idempotency key{f' ({last_error})' if last_error else ''}",
            retriable=True,
        )


def _too_old(node: str) -> NodeUnreachableError:
    return NodeUnreachableError(f"{node or 'the owner'} runs a release without idempotency keys; upgrade all nodes")


def _epoch_of(split: int) -> int:
    """Return the producer epoch that encodes a partition count; epochs of named producers are even."""
    return split << 1 | 1


def _parts(rows: RecordLists, partitions: int, key: RequestKey) -> list[_Part]:
    """Return the records by partition, in the order of the partitions.

    The partition of records without partition and key is derived from the request's key.
    """
    count = len(rows.values)
    columns = columns_of(
        rows.values, keys=rows.keys, headers=rows.headers, tags=rows.tags, timestamps_us=rows.timestamps_us
    )
    targets = _targets(rows, columns, partitions)
    keyless = key.producer_id % partitions
    targets = pa.array([keyless] * count, pa.int32()) if targets is None else pc.fill_null(targets, keyless)
    grouped = group_by_partition(columns, targets, lambda: keyless)
    order, now_us = grouped.order.to_numpy(), time.time_ns() // 1000
    parts: list[_Part] = []
    at = 0
    for partition, partition_columns, _ in grouped.slices:
        assert partition is not None, "every record has a partition"
        encoded = encode_batch(
            partition_columns,
            now_us=now_us,
            producer_id=key.producer_id,
            producer_epoch=_epoch_of(partitions),
            base_sequence=key.digest,
        )
        parts.append(_Part(partition, order[at : at + partition_columns.num_rows].tolist(), encoded))
        at += partition_columns.num_rows
    return parts


def _targets(rows: RecordLists, columns: pa.RecordBatch, partitions: int) -> Any:
    """Return the partition of each record as int32; None, or a null, if it is derived from the request's key."""
    hashed = partitions_of_keys(columns, partitions, rows.keys) if rows.keys else None
    explicit: Any = pa.array(rows.partitions, pa.int32()) if rows.partitions else None
    return explicit if hashed is None else hashed if explicit is None else pc.coalesce(explicit, hashed)
