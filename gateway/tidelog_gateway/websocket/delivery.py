"""One subscription's way from the log to the socket: where it begins, and batches as credit allows.

The shell reads from a consumer of the client only while there is credit, and as much ahead as credit and the budget
for what goes out allow (`read_ahead.py`). What was read ahead and has to be let go is read again: positions move with
what is sent, and nothing is lost.

A subscription at the end of the log follows a shared feed (`following.py`), unless it names a group, whose committed
positions decide where partitions begin that are added later. A subscription with a consumer of its own looks for a
feed to follow whenever nothing more has arrived.
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
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem
from tidelog_gateway.query_parameters import parse_key
from tidelog_gateway.records_out import BatchReader
from tidelog_gateway.resume_tokens import ResumeTokens
from tidelog_gateway.websocket.beginning import beginning_of
from tidelog_gateway.websocket.codecs import Codec
from tidelog_gateway.websocket.following import Following
from tidelog_gateway.websocket.json_codec import JSON
from tidelog_gateway.websocket.lag import Lag
from tidelog_gateway.websocket.membership import Membership, start_of
from tidelog_gateway.websocket.messages import Sub
from tidelog_gateway.websocket.read_ahead import AHEAD_BYTES, ReadAhead, Window
from tidelog_gateway.websocket.sending import MessageSender, SlowClientError
from tidelog_gateway.websocket.ws_protocol import WsProtocol, batch_message, ok_message, too_large
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import check_group_name, check_topic_name

NEW_US: Final = 1_000_000
"""A record younger than this counts as the end of its log."""

QUIET_S: Final = 0.02
"""A subscription without a record for this time has reached the end of the log."""

QUIET_AGAIN_S: Final = 1.0
"""The same if others follow a feed to which this subscription cannot attach yet."""


_EXPECTED: Final = (
    *(TidelogError, ProtocolError, Problem, SlowClientError, WebSocketDisconnect),
    asyncio.CancelledError,
)
"""How reading ends when nothing is wrong with the gateway."""


def _forgotten(error: BaseException) -> BaseException:
    """Return an error without its traceback, which keeps batches that are not counted any more.

    A task group keeps errors until garbage is collected. The frames must not be cleared instead: one error may be
    raised to several subscriptions, and clearing the frame of one that still waits closes it.
    """
    error.__context__ = None
    return error.with_traceback(None)


def _no_room() -> Problem:
    return Problem(503, "overloaded", "the gateway has no room for what this member reads", retryable=True)


class Delivery:
    """Opens a subscription and sends its batches until it is cancelled or the log ends it.

    Args:
        gateway: the caller's.
        protocol: of the connection.
        sub: what was asked for.
        sender: the connection's.
        surface: what its records are counted as.
        codec: encodes its records.

    Attributes:
        answered: whether the request that began it has its answer.
        lag: what is done when it falls behind; None: nothing.
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
        self._let_go = False
        self._topic_id = b""
        self._surface = surface
        self._following: Following | None = None
        self._is_at_end = sub.start == "latest" and not sub.resume and sub.resume_token is None

    def wake(self) -> None:
        """Look at the credit again."""
        self._credit_added.set()
        if self._following is not None:
            self._following.wake()

    async def open(self, request_id: int) -> None:
        """Find where each partition begins and answer the request.

        Raises:
            Problem, TidelogError, ProtocolError: as `beginning_of`; 422 for a key that is not base64.
        """
        if self._sub.key is not None:
            self._key = parse_key(self._sub.key, self._sub.key_encoding)
        check_topic_name(self._sub.topic)
        if self._sub.group is not None:
            check_group_name(self._sub.group)
        answer: dict[str, Any] = {"sid": self._sub.sid, "offsets": {}}
        if self._membership is None:
            beginning = await beginning_of(self._gateway, self._sub, self._key)
            self._topic_id = beginning.scope.topic_id
            self._protocol.opened(self._sub.sid, beginning.positions, ResumeTokens(*beginning))
            answer["offsets"] = {str(number): offset for number, offset in beginning.positions.items()}
            answer["resume_token"] = self._protocol.resume_token(self._sub.sid)
            if self._sub.group is None and self._codec.shares_feeds and self._takes_shared():
                shared = (self._sub.sid, beginning.scope, self._sender)
                self._following = Following(
                    self._gateway,
                    self._protocol,
                    *shared,
                    surface=self._surface,
                    lag=self.lag if self.lag is not None and self.lag.skips else None,
                )
        else:
            await self._gateway.client.topic(self._sub.topic)  # one that is not there is told of in the answer
            self._protocol.opened(self._sub.sid, {})  # the group tells, when it has let the member in
        await self._sender.send(ok_message(request_id, answer))
        self.answered = True

    async def run(self) -> None:
        """Deliver for ever. Without credit nothing is asked of a node.

        Raises:
            TidelogError: the log ended the subscription.
        """
        if self._membership is not None:
            await self._run_member(self._membership)
            return
        while True:
            await self._credit()
            await self._skip()
            if self._following is not None:
                is_at_end, self._is_at_end = self._is_at_end, False
                await self._following.run(found=is_at_end)
                await self._credit()
                await self._skip()
            try:
                await self._ahead.begin()
                await self._read(self._ahead.window(self._protocol.credit(self._sub.sid)))
            except OverloadedError:
                if not self._ahead.refused:
                    raise
            except _EXPECTED as error:
                raise _forgotten(error) from None
            finally:
                self._ahead.end()

    def _takes_shared(self) -> bool:
        """Whether the client takes messages as long as those of a feed."""
        bytes_max = self._protocol.subscriptions[self._sub.sid].message_bytes_max
        return bytes_max is None or bytes_max >= self._gateway.settings.ws_batch_bytes_max

    async def commit(self, offsets: Mapping[int, int], note: str) -> dict[int, Committed] | None:
        """Keep positions as a member of the group; None: this is none.

        Raises:
            TidelogError: as `Membership.commit`.
        """
        return None if self._membership is None else await self._membership.commit(offsets, note)

    async def _run_member(self, membership: Membership) -> None:
        """Deliver as a member of the group, until the client leaves or cannot be served on.

        To read again later, as others do, would be to leave the group and to join it again: so it ends instead.

        Raises:
            Problem: it has to be let go.
            TidelogError: the log or the group ended it.
        """
        try:
            async with self._gateway.client.consumer(
                self._sub.topic,
                group=membership.wish(),
                start=start_of(self._sub.start),
                prefetch_bytes=AHEAD_BYTES,
                admit=self._ahead.admit,
                dropped=self._ahead.dropped,
                key=self._key,
                tag=self._sub.tag,
            ) as consumer:
                membership.reads_with(consumer)
                try:
                    while await self._deliver(await consumer.next_batch()):
                        pass
                    raise _no_room()
                finally:
                    membership.end()
        except _EXPECTED as error:
            raise _forgotten(error) from None
        finally:
            self._ahead.end()

    async def _skip(self) -> None:
        """Continue at the end of the log if the subscription is to skip what it is behind."""
        if self.lag is not None and await self.lag.skip():
            self._is_at_end = True

    async def _read(self, window: Window) -> None:
        """Deliver from the positions on, until there is a reason to read again from where that ends."""
        starts = dict(self._protocol.subscriptions[self._sub.sid].positions)
        # All of them: what is added to the topic begins where the group has come to, or at its beginning.
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
        ) as consumer:
            if consumer.topic_ids.get(self._sub.topic) != self._topic_id:  # the positions are those of another topic
                raise deleted_topic_error(self._sub.topic)
            # No name for a batch here: it would keep what is no longer counted while this waits, and in tracebacks.
            while await self._deliver(await self._next(consumer)) and await self._credit():
                if self._ahead.window(self._protocol.credit(self._sub.sid)).is_much_more_than(window):
                    return
                if self.lag is not None and await self.lag.is_due():
                    return

    async def _next(self, consumer: Consumer) -> ConsumedBatch | None:
        """Wait for the next batch; None if there is no batch, or the subscription should follow a feed."""
        if self._following is None or consumer.has_arrivals:
            return await consumer.next_batch()
        if self._is_at_end and not self._following.has_feed():
            return None
        coming = asyncio.ensure_future(consumer.next_batch())
        try:
            for quiet_s in (0, QUIET_S, QUIET_AGAIN_S):
                await asyncio.wait({coming}, timeout=quiet_s)
                if coming.done():
                    return coming.result()
                if self._following.is_possible() or (quiet_s and not self._following.has_feed()):
                    break
            self._is_at_end = True
            return None
        finally:
            coming.cancel()
            await asyncio.wait({coming})
            if not coming.cancelled():
                coming.exception()  # the next read runs into the same error

    async def _deliver(self, consumed: ConsumedBatch | None) -> bool:
        """Send one batch in as many messages as credit and limits make of it; False when it had to be let go.

        None, and so False, when the gateway's client was closed, or reading goes on with others.
        """
        if consumed is None:
            return False
        term = self._protocol.term(self._sub.sid, consumed.partition)
        may_send = partial(self._protocol.may_send, self._sub.sid, consumed.partition, term)
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
        reader = BatchReader(consumed.batch)
        while len(reader):
            if not await self._credit(may_send):
                return False
            if not may_send():
                break
            allowance = self._protocol.allowance(self._sub.sid)
            size_bytes_max = self._codec.bytes_max(reader, allowance.records, allowance.bytes)
            size_bytes_max += self._protocol.token_chars(self._sub.sid)
            await self._sender.send_made(size_bytes_max, partial(self._take, reader, consumed.partition))
        self._ahead.done(consumed.batch)
        self._is_at_end = consumed.batch.header.append_timestamp_us >= time.time_ns() // 1000 - NEW_US
        return True

    async def _credit(self, may_send: Callable[[], bool] = lambda: True) -> bool:
        """Wait for credit, as long as it `may_send`; False when what was read ahead has been let go meanwhile."""
        while may_send() and not self._protocol.allowance(self._sub.sid).records:
            self._credit_added.clear()
            with self._ahead.idle(self._give_way):
                try:
                    async with asyncio.timeout(self._idle_s):
                        await self._credit_added.wait()
                except TimeoutError:
                    text = f"no credit came for {self._idle_s:g} s: others of the group get the partitions"
                    raise Problem(409, "member_fenced", text, retryable=True) from None
            if self._let_go:
                self._let_go = False
                return False
            if self.lag is not None and await self.lag.is_due():
                return False
        return True

    def _give_way(self) -> None:
        self._let_go = True
        self._credit_added.set()

    def _take(self, reader: BatchReader, partition: int) -> Mapping[str, Any]:
        """Take as many records as may be sent now and return their message."""
        sid = self._sub.sid
        allowance, first_offset = self._protocol.allowance(sid), reader.first_offset
        taken = self._codec.take(reader, allowance.records, allowance.bytes, self._protocol.records_bytes_max(sid))
        subscription = self._protocol.subscriptions[sid]
        if not subscription.takes(taken.records, len(taken.data)):
            raise too_large(subscription, partition, first_offset, len(taken.data))
        self._protocol.delivered(
            sid, partition, records=taken.records, payload_bytes=taken.payload_bytes, next_offset=reader.next_offset
        )
        token = self._protocol.batch_token(sid, size_bytes=len(taken.data))
        self._gateway.metrics.records_out.labels(self._surface).inc(taken.records)
        return batch_message(sid, partition, self._codec.records_member(taken.data), reader.next_offset, token)
