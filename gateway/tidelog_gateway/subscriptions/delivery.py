"""Delivery of one subscription: resolves its start offsets, then sends batches as credit allows.

A delivery reads from a consumer of the client only while the subscription has credit, and reads ahead only as far as
credit and the response budget allow (`read_ahead.py`). Positions advance when records are sent; records that were read
ahead and dropped are read again.

A subscription at the end of the log follows a shared feed (`feed_reader.py`), unless it has a group, whose committed
offsets determine the start of partitions that are added later. A subscription with a consumer of its own looks for a
feed to follow whenever no more records have arrived.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from starlette.websockets import WebSocketDisconnect

from tidelog import Consumer
from tidelog.cluster.metadata import deleted_topic_error
from tidelog.errors import OverloadedError, TidelogError
from tidelog.model import Committed, ConsumedBatch
from tidelog_gateway.auth.needed_permission import requiring
from tidelog_gateway.context import Gateway
from tidelog_gateway.feed.read_ahead import AHEAD_BYTES, ReadAhead, Window
from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.codecs import Codec
from tidelog_gateway.protocol.json_codec import JSON
from tidelog_gateway.protocol.messages import Sub
from tidelog_gateway.protocol.resume_tokens import ResumeTokens
from tidelog_gateway.protocol.ws_protocol import WsProtocol, batch_message, ok_message, too_large
from tidelog_gateway.records.row_batches import RecordReader, reader_of
from tidelog_gateway.requests.columns import check_columns
from tidelog_gateway.requests.parameters import parse_key
from tidelog_gateway.subscriptions.feed_reader import FeedReader
from tidelog_gateway.subscriptions.lag import Lag
from tidelog_gateway.subscriptions.membership import Membership, start_of
from tidelog_gateway.subscriptions.message_sender import MessageSender, SlowClientError
from tidelog_gateway.subscriptions.start_positions import start_positions_of
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import check_group_name, check_topic_name

NEW_US: Final = 1_000_000
"""A subscription that has sent a record younger than this counts as at the end of the log."""

QUIET_S: Final = 0.02
"""A subscription that receives no record for this time counts as at the end of the log."""

QUIET_AGAIN_S: Final = 1.0
"""How long the subscription reads by itself before it tries again to attach to an existing feed."""


_EXPECTED: Final = (
    *(TidelogError, ProtocolError, Problem, SlowClientError, WebSocketDisconnect),
    asyncio.CancelledError,
)
"""Exceptions that end reading without a fault of the gateway."""


def _without_traceback(error: BaseException) -> BaseException:
    """Remove an error's traceback, whose frames refer to batches that are no longer counted in the budget.

    A task group keeps errors until the next garbage collection. `traceback.clear_frames` does not help: several
    subscriptions may raise the same error, and clearing the frame of a waiting coroutine closes it.
    """
    error.__context__ = None
    return error.with_traceback(None)


def _no_room() -> Problem:
    detail = (
        "the response budget, or this connection's share of it, has no room for the records of this member, which has "
        "left its group: subscribe again later"
    )
    return Problem(503, "overloaded", detail, retryable=True)


class Delivery:
    """Opens a subscription and sends its batches until it is cancelled or the log ends it.

    Args:
        surface: label of the sent records in metrics.

    Attributes:
        answered: whether the request was answered.
        lag: policy for a lagging subscription; None: the subscription may lag without limit.
    """

    def __init__(
        self,
        gateway: Gateway,
        protocol: WsProtocol,
        sub: Sub,
        sender: MessageSender,
        *,
        surface: str = "websocket",
        codec: Codec = JSON,
    ) -> None:
        self._codec = codec
        self.answered = False
        self._gateway = gateway
        self._protocol = protocol
        self._sub = sub
        self._key: bytes | None = None
        self._sender = sender
        self._ahead = ReadAhead(sender.outlet)
        self.lag = Lag(gateway, protocol, sub, sender) if sub.on_lag != "pause" else None
        self._membership = Membership(protocol, sub, sender, self.wake) if sub.member else None
        self._idle_s = gateway.settings.ws_member_idle_s if sub.member else None
        self._credit_added = asyncio.Event()
        self._was_evicted = False
        self._topic_id = b""
        self._surface = surface
        self._feed_reader: FeedReader | None = None
        self._is_at_end = sub.start == "latest" and not sub.resume and sub.resume_token is None

    def wake(self) -> None:
        """Check the credit again."""
        self._credit_added.set()
        if self._feed_reader is not None:
            self._feed_reader.wake()

    async def open(self, request_id: int) -> None:
        """Resolve the start offset of each partition and answer the request.

        Raises:
            Problem, TidelogError, ProtocolError: as `start_positions_of`; 422 for a key that is not base64.
        """
        if self._sub.key is not None:
            self._key = parse_key(self._sub.key, self._sub.key_encoding)
        check_topic_name(self._sub.topic)
        if self._sub.group is not None:
            check_group_name(self._sub.group)
        if self._sub.columns is not None:
            async with requiring(self._gateway.client, "consume", self._sub.topic):
                schema = await self._gateway.client.newest_schema(self._sub.topic)
            check_columns(self._sub.topic, schema, tuple(self._sub.columns), pointer="/sub/columns")
        answer: dict[str, Any] = {"sid": self._sub.sid, "offsets": {}}
        if self._membership is None:
            start = await start_positions_of(self._gateway, self._sub, self._key)
            self._topic_id = start.scope.topic_id
            self._protocol.opened(self._sub.sid, start.positions, ResumeTokens(*start))
            answer["offsets"] = {str(number): offset for number, offset in start.positions.items()}
            answer["resume_token"] = self._protocol.resume_token(self._sub.sid)
            is_plain = self._sub.group is None and self._sub.columns is None
            if is_plain and self._codec.shares_feeds and self._accepts_shared():
                shared = (self._sub.sid, start.scope, self._sender)
                self._feed_reader = FeedReader(
                    self._gateway,
                    self._protocol,
                    *shared,
                    surface=self._surface,
                    lag=self.lag if self.lag is not None and self.lag.skips else None,
                )
        else:
            async with requiring(self._gateway.client, "consume", self._sub.topic):
                # Requested here, so that the answer reports a missing topic.
                await self._gateway.client.topic(self._sub.topic)
            self._protocol.opened(self._sub.sid, {})  # The group assigns partitions after the member has joined.
        await self._sender.send(ok_message(request_id, answer))
        self.answered = True

    async def run(self) -> None:
        """Deliver until cancelled; without credit no request is sent to a node.

        Raises:
            TidelogError, ProtocolError: the log ended the subscription.
            Problem: a record is too large for the client; for a member also as `_run_member`.
        """
        if self._membership is not None:
            await self._run_member(self._membership)
            return
        while True:
            await self._credit()
            await self._skip()
            if self._feed_reader is not None:
                is_at_end, self._is_at_end = self._is_at_end, False
                await self._feed_reader.run(create=is_at_end)
                await self._credit()
                await self._skip()
            try:
                await self._ahead.begin()
                await self._read(self._ahead.window(self._protocol.credit(self._sub.sid)))
            except OverloadedError:
                if not self._ahead.refused:
                    raise
            except _EXPECTED as error:
                raise _without_traceback(error) from None
            finally:
                self._ahead.end()

    def _accepts_shared(self) -> bool:
        """Return whether the client accepts messages as long as those of a feed."""
        bytes_max = self._protocol.subscriptions[self._sub.sid].message_bytes_max
        return bytes_max is None or bytes_max >= self._gateway.settings.ws_batch_bytes_max

    async def commit(self, offsets: Mapping[int, int], note: str) -> dict[int, Committed] | None:
        """Commit offsets as a member of the group; None if this subscription is not a member.

        Raises:
            TidelogError: as `Membership.commit`.
        """
        return None if self._membership is None else await self._membership.commit(offsets, note)

    async def _run_member(self, membership: Membership) -> None:
        """Deliver as a member of the group until cancelled.

        If the budget is exhausted, the subscription ends. It cannot read again later, as other subscriptions do,
        because that would require leaving the group and joining it again.

        Raises:
            Problem: the budget is exhausted, or the client has given no credit for too long.
            TidelogError: the log or the group ended the subscription.
        """
        try:
            async with self._gateway.client.consumer(
                self._sub.topic,
                group=membership.group(),
                start=start_of(self._sub.start),
                prefetch_bytes=AHEAD_BYTES,
                admit=self._ahead.admit,
                dropped=self._ahead.dropped,
                key=self._key,
                tag=self._sub.tag,
                columns=self._sub.columns,
            ) as consumer:
                membership.reads_with(consumer)
                try:
                    while await self._deliver(await consumer.next_batch()):
                        pass
                    raise _no_room()
                finally:
                    membership.end()
        except _EXPECTED as error:
            raise _without_traceback(error) from None
        finally:
            self._ahead.end()

    async def _skip(self) -> None:
        """Continue at the end of the log if the subscription lags too much and its policy is to skip."""
        if self.lag is not None and await self.lag.skip():
            self._is_at_end = True

    async def _read(self, window: Window) -> None:
        """Deliver from the positions until reading has to be restarted with other parameters."""
        starts = dict(self._protocol.subscriptions[self._sub.sid].positions)
        # All partitions, including those added later, which begin at the group's offset or at their log start offset.
        async with self._gateway.client.consumer(
            self._sub.topic,
            group=self._sub.group,
            start=starts,
            partitions="all",
            prefetch_records=window.records,
            prefetch_bytes=window.bytes,
            admit=self._ahead.admit,
            key=self._key,
            tag=self._sub.tag,
            columns=self._sub.columns,
        ) as consumer:
            if consumer.topic_ids.get(self._sub.topic) != self._topic_id:  # the topic was deleted and created again
                raise deleted_topic_error(self._sub.topic)
            # The batch is not kept in a local variable, which would keep it alive after it is no longer counted in the
            # budget.
            while await self._deliver(await self._next(consumer)) and await self._credit():
                if self._ahead.window(self._protocol.credit(self._sub.sid)).is_much_more_than(window):
                    return
                if self.lag is not None and await self.lag.is_due():
                    return

    async def _next(self, consumer: Consumer) -> ConsumedBatch | None:
        """Wait for the next batch; None if the consumer was closed, or the subscription should follow a feed."""
        if self._feed_reader is None or consumer.has_arrivals:
            return await consumer.next_batch()
        if self._is_at_end and not self._feed_reader.has_feed():
            return None
        coming = asyncio.ensure_future(consumer.next_batch())
        try:
            for quiet_s in (0, QUIET_S, QUIET_AGAIN_S):
                await asyncio.wait({coming}, timeout=quiet_s)
                if coming.done():
                    return coming.result()
                if self._feed_reader.is_possible() or (quiet_s and not self._feed_reader.has_feed()):
                    break
            self._is_at_end = True
            return None
        finally:
            coming.cancel()
            await asyncio.wait({coming})
            if not coming.cancelled():
                coming.exception()  # the next read raises the same error

    async def _deliver(self, consumed: ConsumedBatch | None) -> bool:
        """Send one batch, split by credit and limits; return False if reading must end or restart.

        Args:
            consumed: the batch, or None if `_next` returned none; the result is False then.
        """
        if consumed is None:
            return False
        assignment = self._protocol.assignment(self._sub.sid, consumed.partition)
        may_send = partial(self._protocol.may_send, self._sub.sid, consumed.partition, assignment)
        if not may_send():
            self._ahead.done(consumed.batch, decoded=False)
            return True
        if not len(consumed.batch):
            next_offset = consumed.batch.end_offset
            self._protocol.passed(self._sub.sid, consumed.partition, next_offset=next_offset)
            token = self._protocol.batch_token(self._sub.sid)
            await self._sender.send(batch_message(self._sub.sid, consumed.partition, [], next_offset, token))
            self._ahead.done(consumed.batch, decoded=False)
            return True
        if not self._ahead.decode(consumed.batch):
            return False
        reader = reader_of(consumed)
        while len(reader):
            if not await self._credit(may_send):
                return False
            if not may_send():
                break
            await reader.prepare()
            allowance = self._protocol.allowance(self._sub.sid)
            size_bytes_max = self._codec.bytes_max(reader, allowance.records, allowance.bytes)
            size_bytes_max += self._protocol.token_chars(self._sub.sid)
            await self._sender.send_made(size_bytes_max, partial(self._take, reader, consumed.partition))
        self._ahead.done(consumed.batch)
        self._is_at_end = consumed.batch.header.append_timestamp_us >= time.time_ns() // 1000 - NEW_US
        return True

    async def _credit(self, may_send: Callable[[], bool] = lambda: True) -> bool:
        """Wait for credit while `may_send` holds; False if reading has to be restarted.

        Reading restarts if read-ahead records were dropped for other connections, or the subscription is to skip.
        """
        while may_send() and not self._protocol.allowance(self._sub.sid).records:
            self._credit_added.clear()
            with self._ahead.idle(self._evict):
                try:
                    async with asyncio.timeout(self._idle_s):
                        await self._credit_added.wait()
                except TimeoutError:
                    text = (
                        f"the client gave no credit for {self._idle_s:g} s, so the member left its group: give credit "
                        "more often, and subscribe again"
                    )
                    raise Problem(409, "member_fenced", text, retryable=True) from None
            if self._was_evicted:
                self._was_evicted = False
                return False
            if self.lag is not None and await self.lag.is_due():
                return False
        return True

    def _evict(self) -> None:
        self._was_evicted = True
        self._credit_added.set()

    def _take(self, reader: RecordReader, partition: int) -> Mapping[str, Any]:
        """Take as many records as credit and limits allow, and return their message."""
        sid = self._sub.sid
        allowance, first_offset = self._protocol.allowance(sid), reader.first_offset
        encoded = self._codec.take(reader, allowance.records, allowance.bytes, self._protocol.records_bytes_max(sid))
        subscription = self._protocol.subscriptions[sid]
        if not subscription.accepts(encoded.records, len(encoded.data)):
            raise too_large(subscription, partition, first_offset, len(encoded.data))
        self._protocol.delivered(
            sid, partition, records=encoded.records, payload_bytes=encoded.payload_bytes, next_offset=reader.next_offset
        )
        token = self._protocol.batch_token(sid, size_bytes=len(encoded.data))
        self._gateway.metrics.records_out.tally(self._surface).inc(encoded.records)
        return batch_message(sid, partition, self._codec.records_member(encoded.data), reader.next_offset, token)
