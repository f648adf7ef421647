"""SUBSCRIBE, CREDIT, UNSUBSCRIBE: batches pushed to clients within their credit.

Every append wakes the pumps of the subscriptions that follow the partition, which look at this partition only. A pump
sends as much as the credit and the client's reading allow: from the ring if it contains the position, otherwise by one
log read at a time per connection until the position has reached the ring. Ring and log are both addressed by offset and
end at the high watermark, so the transition can neither skip nor repeat a batch. Filtered and projected batches are
made on a reader thread, from the ring or the log.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.credit import Subscription
from tidelog_broker.core.hot_ring import RingEntry
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.security.tickets import ticket_refused
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.metadata.meta_freshness import denial
from tidelog_broker.partition.filtered_reader import parse_record_filter
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.projected_reader import SMALL_BATCH_BYTES, projection_of
from tidelog_broker.server.access import check_entries, check_entry, check_topic_id, end_reason
from tidelog_broker.server.handlers.fetch import end_of
from tidelog_broker.server.request_slices import in_slices
from tidelog_broker.server.typed_batches import check_reader
from tidelog_broker.storage.partition.matching import ReadResult, RecordFilter
from tidelog_broker.wire.connection import SESSION_S_MAX, Connection, Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.projection import Projection
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB

EVENT_BYTES: Final = 1 * MIB
"""Approximate maximum size of a MESSAGE_EVENT; a larger batch is sent alone."""
VISITS_MAX: Final = 64
"""Maximum number of partitions that a pump looks at before the event loop does other work: about 0.5 ms."""
PROGRESS_S: Final = 1.0
"""Minimum interval of progress reports for a filter without matches."""


@dataclass(slots=True)
class _Selection:
    """The records, columns and fields of a partition that a client requests.

    Attributes:
        record_filter: None for all records.
        projection: its columns and fields; None for all.
        reported_at_s: time of the last progress report of the filter, in loop time.
        timer: of the next progress report; None if no report is due.
    """

    record_filter: RecordFilter | None
    projection: Projection | None = None
    reported_at_s: float = -math.inf
    timer: asyncio.TimerHandle | None = None

    def takes_whole(self, entries: list[RingEntry]) -> bool:
        """Return whether batches are sent as they are."""
        return self.record_filter is None and all(len(entry.data) <= SMALL_BATCH_BYTES for entry in entries)

    async def read(self, partition: Partition, offset: int, bytes_max: int) -> ReadResult:
        """Read about `bytes_max` bytes, as stored, of the requested records, columns and fields.

        Raises:
            ProtocolError: as `PartitionReader.read_log`; EPOCH_CHANGING if this node does not know a schema.
        """
        if self.record_filter is None:
            assert self.projection is not None, "nothing is selected"
            # The headers of the batches are read here, and those of a mapping may only be read by system calls.
            return await partition.projected.read(offset, bytes_max, self.projection, is_prompt=False)
        found = await partition.filtered.read(offset, bytes_max, self.record_filter)
        return found if self.projection is None else await partition.projected.of(found, self.projection)

    def end(self) -> None:
        """Cancel the progress report."""
        if self.timer is not None:
            self.timer.cancel()


class Pump:
    """Sends the batches of one subscription to its connection.

    Log reads and confirmations of a partition's end are tasks; all other work is plain calls on the event loop.
    """

    def __init__(
        self, broker: Broker, connection: Connection, subscription: Subscription, caller: Session | None
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._account = None if caller is None else broker.accounts.of_caller(caller)
        if self._account is not None:
            self._account.users += 1
        self._caller = caller
        """The caller of a gateway; None if the subscription is the connection's own, which is closed when its identity
        ends."""
        self._refusal: ProtocolError | None = None
        self._expiry = None if caller is None else self._timer(caller)
        self.subscription = subscription
        self._partitions: dict[PartitionKey, Partition] = {}
        self._listeners: dict[PartitionKey, Callable[[], None]] = {}
        """The listener of each partition's changes."""
        self._selections: dict[PartitionKey, _Selection] = {}
        """Selections of the partitions that the client does not read whole."""
        self._reading = self._continues = False
        """Whether a read is in flight; whether `pump` continues in the next iteration of the event loop."""
        self._to_read: OrderedDict[PartitionKey, None] = OrderedDict()
        """Partitions whose next records are not in memory, in the order in which they are read."""
        self._record_epochs: dict[PartitionKey, int] = {}
        """For each partition the epoch of the record before its position, as the client gave it; removed when something
        is sent, because this node then has that record."""
        self._unconfirmed: set[PartitionKey] = set()
        """Partitions with a position that seems to be past the end, while a quorum confirms the end."""
        self._started = False
        self.stopped = False

    def check(self, session: Session) -> None:
        """Check that the subscription is still allowed.

        For the caller of a gateway, end the topics that the caller may no longer read, or all topics if its session has
        ended or the gateway may no longer act for callers.

        Args:
            session: the session of the connection.

        Raises:
            ProtocolError: the connection's own principal may no longer read a topic, so the connection has to end.
        """
        topic_ids = {topic_id for topic_id, _ in self._partitions}
        if self._caller is None:
            for topic_id in topic_ids:
                check_topic_id(self._broker, session, pb.OP_CONSUME, topic_id)
            return
        if not session.may(pb.OP_IMPERSONATE, pb.RES_CLUSTER, ""):
            self._refuse(
                ticket_refused(
                    "the gateway has lost the permission to act for callers; grant it `impersonate` on the cluster"
                )
            )
        elif ended := end_reason(self._broker, self._caller):
            self._refuse(ticket_refused(ended))
        for topic_id in topic_ids:
            try:
                check_topic_id(self._broker, self._caller, pb.OP_CONSUME, topic_id)
            except ProtocolError as error:
                self._end_topic(topic_id, error)

    def _timer(self, caller: Session) -> asyncio.TimerHandle | None:
        if not caller.expires_us:
            return None
        left_s = (caller.expires_us - time.time_ns() // 1000) / 1e6
        why = "the session has ended, because the credentials have expired"
        if left_s > SESSION_S_MAX:
            left_s = SESSION_S_MAX
            why = f"the session has ended, because it has lasted for {SESSION_S_MAX / 86_400:.0f} days, the maximum"
        return self._broker.loop.call_later(left_s, self._refuse, ticket_refused(why))

    def _refuse(self, error: ProtocolError) -> None:
        """End the subscription of all partitions with an error, which `follow` raises for further partitions."""
        self._refusal = error
        for topic_id in {topic_id for topic_id, _ in self._partitions}:
            self._end_topic(topic_id, error)

    def _end_topic(self, topic_id: bytes, error: ProtocolError) -> None:
        for key in [key for key in self._partitions if key[0] == topic_id]:
            self._end(key, error)

    def follow(
        self,
        key: PartitionKey,
        partition: Partition,
        offset: int,
        selection: _Selection | None = None,
        record_epoch: int | None = None,
    ) -> None:
        """Add a partition and listen to its appends.

        Args:
            selection: the requested records, columns and fields; None for all.
            record_epoch: the epoch of the record before `offset`, if the client knows it.

        Raises:
            ProtocolError: INVALID_REQUEST if the partition is followed already, OVERLOADED if a limit is reached,
                TICKET_REFUSED if the whole subscription has ended.
        """
        if self._refusal is not None:
            raise self._refusal
        followed, followed_max = self._broker.bounds.followed, self._broker.settings.followed_max
        if followed >= followed_max or self._connection.followed >= followed_max // 4:
            raise ProtocolError(
                pb.OVERLOADED,
                f"subscriptions follow {followed} partitions on this node and {self._connection.followed} on this "
                f"connection; the limits are {followed_max} (followed_max) and {followed_max // 4}; end some "
                "subscriptions first",
                retry_after_ms=1000,
            )
        self.subscription.add(key, offset)
        self._count(1)
        self._partitions[key] = partition
        if selection is not None:
            self._selections[key] = selection
        if record_epoch is not None:
            self._record_epochs[key] = record_epoch
        listener = self._listeners[key] = partial(self._woken, key)
        partition.changes.listeners.add(listener)

    def start(self) -> None:
        """Begin to send: the client has the reply of SUBSCRIBE."""
        self._started = True
        self.pump()

    def grant(self, *, records: int, size_bytes: int) -> None:
        """Add credit from the client and send what it allows."""
        self.subscription.grant(records=records, size_bytes=size_bytes)
        self.pump()

    def stop(self) -> None:
        """Stop listening and sending."""
        self.stopped = True
        if self._account is not None:
            self._account.users -= 1
            self._account = None
        if self._expiry is not None:
            self._expiry.cancel()
        self._count(-len(self._partitions))
        for key, partition in self._partitions.items():
            partition.changes.listeners.discard(self._listeners.pop(key))
        self._partitions.clear()
        self._to_read.clear()
        self._record_epochs.clear()
        for selection in self._selections.values():
            selection.end()
        self._selections.clear()

    def _count(self, more: int) -> None:
        self._broker.bounds.followed += more
        self._connection.followed += more

    def _woken(self, key: PartitionKey) -> None:
        """Serve a partition that has changed."""
        self.subscription.wake(key)
        self.pump()

    def pump(self) -> None:
        """Send as much as possible, with the partitions taking turns.

        After `VISITS_MAX` partitions the event loop does other work first.
        """
        if self._continues or not self._may_send:
            return
        for _ in range(VISITS_MAX):
            key = self.subscription.next_ready
            if key is None or not self._send_next(key):
                break
        else:
            self._continues = True
            self._broker.loop.call_soon(self._go_on)
        self._read_next()

    def _go_on(self) -> None:
        self._continues = False
        self.pump()

    @property
    def _may_send(self) -> bool:
        if not self._started or self.stopped or not self.subscription.may_send or not self._connection.is_writable:
            return False
        meter, account = self._connection.meter, self._account
        if account is not None and not account.may_send(self._connection):
            return False
        return meter is None or meter.may_send(self._connection)

    def _send_next(self, key: PartitionKey) -> bool:
        """Send the next event of a partition if it is in memory; return whether more may be sent."""
        partition = self._partitions.get(key)
        if partition is None:
            self.subscription.rest(key)
            return True
        ended = partition.state.refusal
        if ended is None and not partition.state.is_member:
            ended = partition.state.not_owner()
        offset = self.subscription.positions[key]
        if ended is None and partition.reader.is_deleted(offset):
            ended = partition.state.out_of_range(offset)
        if ended is None and partition.state.resume_offset(offset) > offset:
            ended = partition.state.lost_error(offset)
        if ended is not None:
            self._end(key, ended)
            return self._may_send
        if partition.state.lies_beyond(offset, self._record_epochs.get(key)):
            self.subscription.rest(key)
            self._confirm_end(key, partition, offset)
            return True
        hot: list[RingEntry] | None
        selection = self._selections.get(key)
        if selection is not None and selection.record_filter is not None:
            hot = [] if offset >= partition.state.readable_until(offset) else None
        else:
            hot = partition.reader.read_hot(offset, self._bytes_max, self.subscription.credit_records)
            if hot and selection is not None and not selection.takes_whole(hot):
                hot = None
        if not hot:
            self.subscription.rest(key)
            if hot is None:
                self._to_read[key] = None
            return True
        if not self._fits(sum(len(entry.data) for entry in hot)):
            return False
        records = sum(entry.record_count for entry in hot)
        self._send(key, partition, [entry.data for entry in hot], records, hot[-1].end_offset)
        self.subscription.served(key)
        return self._may_send

    def _read_next(self) -> None:
        """Start the log read of the next partition in `_to_read`, unless a read is in flight."""
        while self._to_read and not self._reading and self._may_send:
            key, _ = self._to_read.popitem(last=False)
            partition = self._partitions.get(key)
            if partition is not None:
                self._reading = True
                self._broker.tasks.spawn(self._read(key, partition), f"read {partition.name} for a subscription")

    def _confirm_end(self, key: PartitionKey, partition: Partition, offset: int) -> None:
        """End the subscription of a partition whose position is past its end, once that is confirmed.

        A node accepts any position while it owns no epoch or knows no end, and may later become the owner.
        """

        async def look() -> None:
            try:
                await partition.access.ensure_given_out(offset, self._record_epochs.get(key))
            except ProtocolError as error:
                if not self.stopped and self._partitions.get(key) is partition:
                    self._end(key, error)
            finally:
                self._unconfirmed.discard(key)
            self._woken(key)

        if key not in self._unconfirmed:
            self._unconfirmed.add(key)
            self._broker.tasks.spawn(look(), f"confirm the end of {partition.name}")

    @property
    def _bytes_max(self) -> int:
        """Size limit of the next event; positive."""
        room_bytes = EVENT_BYTES if self._connection.backlog.is_node else self._connection.backlog.room_bytes
        return max(1, min(EVENT_BYTES, self.subscription.credit_bytes, room_bytes))

    def _fits(self, size_bytes: int) -> bool:
        """Return whether an event of this size may be sent; if not, the connection's backlog reports when it may."""
        if self._connection.backlog.fits(size_bytes):
            return True
        self._connection.backlog.want(size_bytes)
        return False

    async def _read(self, key: PartitionKey, partition: Partition) -> None:
        """Read once and send the result.

        The read waits for the connection's lock and is limited by the credit, so that a connection with many lagging
        partitions holds one read in memory, not one per partition.
        """
        is_unreadable = False
        try:
            async with self._connection.reading:
                if self._may_send and key in self._partitions:
                    offset, selection = self.subscription.positions[key], self._selections.get(key)
                    if selection is None:
                        found = await partition.reader.read_to_send(
                            offset, self._bytes_max, is_prompt=self._connection.backlog.is_prompt
                        )
                        batches, heads = found.batches, found.heads
                        next_offset = end_of(heads) if batches else offset
                    else:
                        batches, next_offset = await selection.read(partition, offset, self._bytes_max)
                        heads = batches
                        is_unreadable = next_offset == offset
                    if is_unreadable:
                        pass  # Nothing can be read now: reading continues at the partition's next change.
                    elif self.stopped or self.subscription.positions.get(key) != offset:
                        pass  # Not sent: the partition was ended meanwhile, or its batches were sent from memory.
                    elif batches and self._fits(sum(map(len, batches))):
                        self._send(key, partition, batches, count_records(heads), next_offset)
                    elif selection is not None and not batches:
                        self._skip(key, next_offset, selection)
        except ProtocolError as error:
            if not self.stopped and key in self._partitions:  # Otherwise the end of the partition was reported before.
                self._end(key, error)
        finally:
            self._reading = False
        if not is_unreadable:
            self.subscription.wake(key)
        self.pump()

    def _send(
        self, key: PartitionKey, partition: Partition, batches: list[memoryview], records: int, next_offset: int
    ) -> None:
        size_bytes = sum(map(len, batches))
        self.subscription.spend(key, records=records, size_bytes=size_bytes, next_offset=next_offset)
        self._to_read.pop(key, None)
        self._record_epochs.pop(key, None)
        self._broker.metrics.bytes_out.inc(size_bytes)
        envelope = pb.Envelope(message_event=self._event(key, partition, records))
        meter = self._connection.meter
        if self._account is not None:
            self._account.sent(size_bytes)
        if meter is not None:
            meter.sent(size_bytes)
            envelope.throttle_ms = meter.throttle_ms("message_event")
        self._connection.send(envelope, batches)

    def _skip(self, key: PartitionKey, next_offset: int, selection: _Selection) -> None:
        """Advance past records that do not match, and report the new offset to the client soon."""
        self.subscription.spend(key, records=0, size_bytes=0, next_offset=next_offset)
        self._record_epochs.pop(key, None)
        if selection.timer is None:
            loop = self._broker.loop
            selection.timer = loop.call_at(
                max(loop.time(), selection.reported_at_s + PROGRESS_S), self._report_progress, key
            )

    def _report_progress(self, key: PartitionKey) -> None:
        """Send the client the offset that a filter has reached."""
        selection, partition = self._selections[key], self._partitions[key]
        selection.timer, selection.reported_at_s = None, self._broker.loop.time()
        self._connection.send(pb.Envelope(message_event=self._event(key, partition, 0)), [])

    def _event(self, key: PartitionKey, partition: Partition, records: int) -> pb.MessageEvent:
        return pb.MessageEvent(
            subscription_id=self.subscription.subscription_id,
            topic_id=key[0],
            partition=key[1],
            record_count=records,
            high_watermark=partition.state.high_watermark,
            next_offset=self.subscription.positions[key],
        )

    def _end(self, key: PartitionKey, error: ProtocolError) -> None:
        """End the subscription of a partition and send the reason to the client."""
        partition = self._partitions.pop(key, None)
        self._record_epochs.pop(key, None)
        if partition is not None:
            partition.changes.listeners.discard(self._listeners.pop(key))
            self._to_read.pop(key, None)
            self._count(-1)
            if (selection := self._selections.pop(key, None)) is not None:
                selection.end()
        self.subscription.remove(key)
        ended = pb.SubscriptionEnded(
            subscription_id=self.subscription.subscription_id,
            topic_id=key[0],
            partition=key[1],
            error=error.to_message(),
        )
        self._connection.send(pb.Envelope(subscription_ended=ended), [])


async def subscribe(broker: Broker, request: Request) -> None:
    """Handle SUBSCRIBE: answer per partition, then push.

    Raises:
        ProtocolError: INVALID_REQUEST for an id in use, too many subscriptions, no partition or too many;
            SHUTTING_DOWN, see `check_wanted`.
    """
    message = request.envelope.subscribe
    connection = request.connection
    check_entries(len(message.entries))
    if message.subscription_id in connection.pumps:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"subscription id {message.subscription_id} is in use on this connection; choose another one",
        )
    if len(connection.pumps) >= broker.settings.subscriptions_max:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"the connection has reached its limit of {broker.settings.subscriptions_max} subscriptions "
            "(subscriptions_max); unsubscribe one, or open another connection",
        )
    subscription = Subscription(
        message.subscription_id, credit_records=message.credit_records, credit_bytes=message.credit_bytes
    )
    caller = request.session if request.session is not connection.session else None
    pump = connection.pumps[message.subscription_id] = Pump(broker, connection, subscription, caller)
    current = await broker.meta_freshness.refresh_for((entry.topic_id, entry.partition) for entry in message.entries)
    await broker.partitions.awake((entry.topic_id, entry.partition) for entry in message.entries)
    reply = pb.SubscribeReply()
    async for entry in in_slices(broker, request, message.entries):
        result = reply.results.add()
        try:
            check_entry(broker, "subscribe", request, pb.OP_CONSUME, entry.topic_id)
            partition = broker.partitions.get(entry.topic_id, entry.partition)
            check_reader(connection, partition)
            await partition.access.ensure_readable()
            partition.reader.check_offset(entry.offset)
            record_epoch = entry.record_epoch if entry.HasField("record_epoch") else None
            await partition.access.ensure_given_out(entry.offset, record_epoch)
            selection = _selection_of(entry)
            # Check again, because rules may have changed; from here on changes are applied to the pump.
            check_entry(broker, "subscribe", request, pb.OP_CONSUME, entry.topic_id)
            pump.follow((entry.topic_id, entry.partition), partition, entry.offset, selection, record_epoch)
            result.log_start_offset = partition.state.earliest
            result.high_watermark = partition.state.high_watermark
            result.epoch = partition.state.epoch
        except ProtocolError as error:
            result.error.CopyFrom(denial(error, current=current).to_message())
    if pump.stopped or not connection.is_open:
        # The client has unsubscribed or disconnected meanwhile, so unfollow the partitions that were added since.
        pump.stop()
    elif not subscription.positions:
        pump.stop()
        del connection.pumps[message.subscription_id]
    request.reply(pb.Envelope(subscribe_reply=reply))
    pump.start()


def _selection_of(entry: pb.SubscribeEntry) -> _Selection | None:
    """Return the requested records, columns and fields of a partition; None for all.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    record_filter = parse_record_filter(entry.filter) if entry.HasField("filter") else None
    projection = projection_of(entry.projection) if entry.HasField("projection") else None
    if projection is not None and projection != Projection(projection.columns, fields=projection.fields):
        raise ProtocolError(
            pb.INVALID_REQUEST,
            "the projection of a subscription has a time or an end offset; leave them unset, or read with FETCH",
        )
    if record_filter is None and projection is None:
        return None
    return _Selection(record_filter, projection)


def credit(_broker: Broker, request: Request) -> None:
    """Handle CREDIT, which has no reply; credit for an ended subscription is ignored."""
    granted = request.envelope.credit
    request.drop()
    pump = request.connection.pumps.get(granted.subscription_id)
    if pump is not None:
        pump.grant(records=granted.records, size_bytes=granted.bytes)


def unsubscribe(_broker: Broker, request: Request) -> None:
    """Handle UNSUBSCRIBE; nothing of the subscription is sent after the reply.

    Raises:
        ProtocolError: UNKNOWN_SUBSCRIPTION.
    """
    subscription_id = request.envelope.unsubscribe.subscription_id
    pump = request.connection.pumps.pop(subscription_id, None)
    if pump is None:
        raise ProtocolError(
            pb.UNKNOWN_SUBSCRIPTION, f"subscription {subscription_id} does not exist on this connection"
        )
    pump.stop()
    request.reply(pb.Envelope(unsubscribe_reply=pb.UnsubscribeReply()))


def count_records(buffers: list[memoryview]) -> int:
    """Return the number of records in buffers of whole batches, or of one header, by walking the headers."""
    records = 0
    for buffer in buffers:
        at = 0
        while at < len(buffer):
            header = unpack_header(buffer, at, is_sent=True, typed=True)
            records += header.record_count
            at += header.length
    return records
