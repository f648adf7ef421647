"""Shared feed: reads one topic for all subscriptions that follow it, and encodes each batch once.

A feed is a subscription without a client: it has positions, makes resume tokens and bounds its messages as each of its
followers would. It reads while at least one follower has taken all entries and has credit, so it is not faster than the
fastest follower. Its read-ahead and its kept entries are counted in the response budget; it drops the entries when
other connections need the budget.

A small batch is encoded and pushed within the call that receives it from the node, because a switch to the reading task
costs as much as encoding. This work is bounded per millisecond (`AT_ONCE_MAX`), so that one iteration of the event loop
stays short. The reading task handles larger batches and batches beyond the bound.

If reading fails, the feed ends without an error: its followers read by themselves, and a node reports the error to each
of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final
from weakref import WeakValueDictionary

from tidelog.client import Client
from tidelog.cluster.metadata import deleted_topic_error
from tidelog.errors import OverloadedError, TidelogError
from tidelog.model import ConsumedBatch
from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.feed.fan_out import EntryTokens, FanOut
from tidelog_gateway.feed.read_ahead import AHEAD_BYTES, ReadAhead
from tidelog_gateway.feed.ring import PUSHES_MAX, EntryEncoder, Follower, Ring, RingEntry
from tidelog_gateway.feed.whole_batch import whole_batch
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.protocol.messages import INTEGER_MAX
from tidelog_gateway.protocol.resume_tokens import ResumeTokens, Scope
from tidelog_gateway.protocol.ws_protocol import BATCH_MEMBERS_BYTES, TOKEN_GROWTH_CHARS, Subscription, WsProtocol
from tidelog_gateway.records.json_encoding import JSON_BYTES_PER_BYTE, JSON_BYTES_PER_RECORD, JsonRecords
from tidelog_gateway.records.plain_json import PLAIN_RECORDS_MAX, plain_json
from tidelog_gateway.records.row_batches import reader_of
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB, MIB

log = logging.getLogger(__name__)

RING_BYTES: Final = 1 * MIB
"""Memory of the encoded entries that a feed keeps for followers that are behind."""

WHOLE_BYTES: Final = 64 * KIB
"""Batches of up to this size are encoded as one entry, without a search for places to split them."""

COUNTED_BYTES: Final = 4 * KIB
"""Step in which kept entries are counted in the budget; one update costs as much as encoding a record."""

AT_ONCE_S: Final = 0.001
AT_ONCE_MAX: Final = PUSHES_MAX
"""Limit of the work within calls that receive batches, per `AT_ONCE_S` of the loop's clock, which uvloop advances once
per iteration. The unit is a push; a batch counts as `BATCH_PUSHES` plus one for each KiB."""
BATCH_PUSHES: Final = 5

NOTHING: Final = JsonRecords(b"[]", 0, 0)
_SID: Final = 0
_made: Final = tuple.__new__
"""Creates a named tuple; its own constructor is a slower wrapper of this."""


class SharedFeed:
    """Reads one topic for all followers of a ring; reading starts when the first follower attaches.

    Args:
        client: the client of the followers' caller.
        settings: limits of messages.
        outgoing: the response budget.
        scope: topic and filter.
        positions: partition -> next offset of the first follower.
        metrics: counts pushed records.
        ended: called after the feed has ended.
    """

    def __init__(
        self,
        client: Client,
        settings: GatewaySettings,
        outgoing: ResponseBudget,
        metrics: Metrics,
        *,
        scope: Scope,
        positions: Mapping[int, int],
        ended: Callable[[SharedFeed], None],
    ) -> None:
        self.scope = scope
        self._metrics = metrics
        self._client = client
        self._settings = settings
        self._outgoing = outgoing
        self._ended = ended
        self._protocol = WsProtocol(settings)
        self._state = Subscription(_SID, scope.topic, None, INTEGER_MAX, None)
        self._protocol.subscriptions[_SID] = self._state
        tokens = ResumeTokens(scope, positions)
        self._protocol.opened(_SID, positions, tokens)
        self._resume_tokens, self._tokens = tokens, EntryTokens(tokens)
        self._fan_outs: WeakValueDictionary[tuple[EntryEncoder, bool], FanOut] = WeakValueDictionary()
        self._protocol.resume_token(_SID)
        self.ring = Ring(self._state.positions, bytes_max=RING_BYTES)
        self._outlet = ConnectionOutput(outgoing, settings.ws_slow_timeout_s)
        self._ahead = ReadAhead(self._outlet)
        self._ring_bytes = 0
        self._stirred = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._plain_records_max = min(PLAIN_RECORDS_MAX, settings.ws_batch_records_max)
        self._short_token_chars = self._protocol.short_token_chars
        self._always_fits_bytes = settings.ws_batch_bytes_max // 2 - BATCH_MEMBERS_BYTES - TOKEN_GROWTH_CHARS
        """Records of up to this length fit a message with any resume token, which is at most half of the message."""
        self._loop = asyncio.get_running_loop()
        self._at_once_at = 0.0
        self._at_once_left = 0
        """Work that is still allowed within calls that receive batches in the interval that began at `_at_once_at`."""

    # ------------------------------------------------------------------------------------------ followers

    def attach(self, follower: Follower) -> bool:
        """Attach a follower if the feed can serve it; see `Ring.attach`."""
        encoder = follower.encoder
        is_exact = follower.watch is not None or follower.credit.credit_bytes is not None
        fan_out = self._fan_outs.get((encoder, is_exact))
        if fan_out is None:
            records_out = self._metrics.records_out.tally(encoder.surface)
            fan_out = FanOut(encoder, self._tokens, records_out, is_exact=is_exact)
            self._fan_outs[encoder, is_exact] = fan_out
        follower.pusher = fan_out
        if not self.ring.attach(follower):
            return False
        if self._task is None:
            self._outgoing.idle[self] = self._release_entries
            self._task = self._loop.create_task(self._run(), name=f"feed of {self.scope.topic}")
        self.stir()
        return True

    def leave(self, follower: Follower) -> None:
        """Remove a follower; the feed ends with the last one."""
        self.ring.leave(follower)
        if not self.ring.follower_count:
            self.close()

    def stir(self) -> None:
        """Check again whether a follower wants more records."""
        self._stirred.set()

    def close(self) -> None:
        """End the feed."""
        if self._task is not None:
            self._task.cancel()
        self._finish()

    # ------------------------------------------------------------------------------------------- reading

    async def _run(self) -> None:
        try:
            while True:
                await self._wanted()
                try:
                    await self._ahead.begin()
                    await self._read()
                except OverloadedError:
                    if not self._ahead.refused:
                        raise
                finally:
                    self._ahead.end()
        except (TidelogError, ProtocolError) as error:
            log.debug(
                "shared feed of topic %s ended; each subscription now reads from the nodes itself: %s",
                self.scope.topic,
                error,
            )
        finally:
            self._finish()

    async def _read(self) -> None:
        async with self._client.consumer(
            self.scope.topic,
            group=None,
            start=dict(self.ring.positions),
            partitions="all",
            prefetch_bytes=AHEAD_BYTES,
            admit=self._ahead.admit,
            key=self.scope.key,
            tag=self.scope.tag,
        ) as consumer:
            if consumer.topic_ids.get(self.scope.topic) != self.scope.topic_id:
                raise deleted_topic_error(self.scope.topic)
            consumer.at_once(self._take_at_once)
            while await self._take(await consumer.next_batch()):
                if consumer.has_arrivals:
                    await asyncio.sleep(0)  # lets other tasks run
                await self._wanted()

    def _take_at_once(self, partition: int, batch: RecordBatch) -> bool:
        """Push a small batch that arrived while the reading task waits; False: the task has to handle the batch."""
        header, ring = batch.header, self.ring
        size_bytes = header.uncompressed_length
        if size_bytes > WHOLE_BYTES or ring.closed or not ring.is_wanted:
            return False
        now = self._loop.time()
        if now - self._at_once_at >= AT_ONCE_S:
            self._at_once_at, self._at_once_left = now, AT_ONCE_MAX
        self._at_once_left -= ring.follower_count + BATCH_PUSHES + (size_bytes >> 10)
        if self._at_once_left < 0:
            return False
        try:
            taken = plain_json(batch) if header.record_count <= self._plain_records_max else None
            if taken is None or len(taken.data) > self._always_fits_bytes:
                taken = self._whole_at_once(batch, taken)
                if taken is None:
                    return False
            # The batch's property costs a call, so it is read only if needed: in a partition that is new to the ring.
            first_offset = header.base_offset if partition in ring.positions else batch.base_offset
            self._append(partition, first_offset, header.base_offset + header.last_offset_delta + 1, taken)
            if self._ahead.reserved_bytes:
                self._ahead.passed()
        except Exception:
            topic = self.scope.topic
            log.exception("shared feed of topic %s failed; each subscription now reads from the nodes itself", topic)
            self.close()
        return True

    def _whole_at_once(self, batch: RecordBatch, plain: JsonRecords | None) -> JsonRecords | None:
        """Return a batch as JSON; None if it does not fit one message or cannot be encoded here.

        Args:
            batch: the batch.
            plain: the result of `plain_json`, if it is not certain to fit.
        """
        if not 0 < len(batch) <= self._settings.ws_batch_records_max:
            return None
        bytes_max = self._protocol.records_bytes_max(_SID)
        if plain is not None and len(plain.data) <= bytes_max:
            return plain
        if batch.header.codec is not Codec.NONE:
            return None
        try:
            return whole_batch(batch, bytes_max)
        except ProtocolError:
            return None  # The reading task raises the same error and handles it.

    async def _take(self, consumed: ConsumedBatch | None) -> bool:
        """Add one batch to the ring, split by the limits of a message.

        Return False if the batch exceeds the budget, so that reading has to restart at the ring's positions.
        """
        if consumed is None:
            raise deleted_topic_error(self.scope.topic)  # The client was closed; any error ends the feed.
        partition, batch = consumed.partition, consumed.batch
        if not len(batch):
            await self._push(partition, batch.base_offset, batch.end_offset, NOTHING)
            self._ahead.done(batch, decoded=False)
            return True
        if not self._ahead.decode(batch):
            return False
        records_max, bytes_max = self._settings.ws_batch_records_max, self._settings.ws_batch_bytes_max
        whole = await self._whole(batch, records_max) if batch.layout is None else None
        if whole is not None:
            await self._push(partition, batch.base_offset, batch.end_offset, whole)
            self._ahead.done(batch)
            return True
        reader = reader_of(consumed)
        while len(reader):
            await self._wanted()
            await reader.prepare()
            size_bytes_max = reader.json_bytes_max(records_max, bytes_max)
            await self._outlet.wait_for_room(size_bytes_max)
            try:
                first_offset = reader.next_offset
                taken = reader.take_json(records_max, bytes_max, self._protocol.records_bytes_max(_SID))
            finally:
                self._outlet.give_back(size_bytes_max)
            await self._push(partition, first_offset, reader.next_offset, taken)
            await asyncio.sleep(0)
        self._ahead.done(batch)
        return True

    async def _whole(self, batch: RecordBatch, records_max: int) -> JsonRecords | None:
        """Return all records of a small batch as JSON; None if the batch has or may have to be split."""
        if len(batch) > records_max or batch.header.uncompressed_length > WHOLE_BYTES:
            return None
        size_bytes = JSON_BYTES_PER_BYTE * batch.header.uncompressed_length + JSON_BYTES_PER_RECORD * len(batch)
        await self._outlet.wait_for_room(size_bytes)
        try:
            return whole_batch(batch, self._protocol.records_bytes_max(_SID))
        finally:
            self._outlet.give_back(size_bytes)

    async def _push(self, partition: int, first_offset: int, next_offset: int, taken: JsonRecords) -> None:
        """Add records to the ring and push them to all followers in step."""
        is_more = self._append(partition, first_offset, next_offset, taken)
        while is_more:
            await asyncio.sleep(0)
            is_more = self.ring.push_pending()

    def _append(self, partition: int, first_offset: int, next_offset: int, taken: JsonRecords) -> bool:
        """Add records to the ring, from its position or, in a new partition, from `first_offset`.

        Returns:
            Whether `ring.push_pending` has to push them to some followers.
        """
        position = self.ring.positions.get(partition, first_offset)
        state = self._state
        if state.token_chars <= self._short_token_chars and partition in self.ring.positions:
            # The token that `batch_token` returns if it is short, without the cost of the call.
            self._tokens.usual = token = self._resume_tokens.after(partition, next_offset)
            state.token_chars, state.since_token_bytes = len(token), 0
        else:
            self._resume_tokens.move(partition, next_offset)
            self._tokens.usual = self._protocol.batch_token(_SID, size_bytes=len(taken.data))
        data, records, payload_bytes = taken
        entry = _made(RingEntry, (partition, position, next_offset, records, payload_bytes, data))
        is_more = self.ring.append(entry)
        if not 0 <= self._ring_bytes - self.ring.held_bytes <= COUNTED_BYTES:
            self._count()
        return is_more

    def _count(self) -> None:
        """Count the kept entries in the budget, in steps of `COUNTED_BYTES`; drop them if they exceed the budget."""
        counted_bytes = -(-self.ring.held_bytes // COUNTED_BYTES) * COUNTED_BYTES
        more_bytes = counted_bytes - self._ring_bytes
        if more_bytes > 0 and not self._outlet.take(more_bytes):
            self.ring.drop_entries()
            counted_bytes, more_bytes = 0, -self._ring_bytes
        if more_bytes < 0:
            self._outlet.give_back(-more_bytes)
        self._ring_bytes = counted_bytes

    def _release_entries(self) -> int:
        """Drop the entries because another connection needs the budget; return the freed bytes."""
        self.ring.drop_entries()
        freed_bytes = self._ring_bytes
        self._count()
        return freed_bytes

    async def _wanted(self) -> None:
        """Wait until a follower wants more records."""
        while not self.ring.is_wanted:
            self._stirred.clear()
            await self._stirred.wait()

    def _finish(self) -> None:
        if self.ring.closed:
            return
        self._outgoing.idle.pop(self, None)
        self.ring.drop_entries()
        self._count()
        self.ring.close()
        self._ended(self)
