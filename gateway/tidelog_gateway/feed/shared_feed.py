"""Reads one topic for all subscriptions that follow it, and encodes each batch once.

The feed is itself a subscription without a client: it has positions, makes resume tokens and bounds its messages as
each of its followers would. It reads while a follower wants more, and so not faster than the fastest of them. Its
read-ahead and the pieces that it keeps are counted in the budget for outgoing data; when other connections need that
budget, it drops the pieces.

A feed that cannot read on ends without an error: its followers read by themselves, and each gets the error from a node.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import orjson
from websockets.frames import Frame, Opcode

from tidelog.client import Client
from tidelog.errors import OverloadedError, TidelogError
from tidelog.metadata import gone_error
from tidelog.model import ConsumedBatch
from tidelog_gateway.feed.ring import Follower, Piece, Ring
from tidelog_gateway.feed.whole_batch import whole_batch
from tidelog_gateway.metrics import Metrics
from tidelog_gateway.outgoing import Outgoing
from tidelog_gateway.outlet import Outlet
from tidelog_gateway.records_out import JSON_BYTES_PER_BYTE, JSON_BYTES_PER_RECORD, BatchReader, TakenJson
from tidelog_gateway.resume_tokens import ResumeTokens, Scope
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.websocket.messages import INTEGER_MAX
from tidelog_gateway.websocket.read_ahead import AHEAD_BYTES, ReadAhead
from tidelog_gateway.websocket.ws_protocol import Subscription, WsProtocol, batch_message
from tidelog_proto.batch import RecordBatch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB, MIB

log = logging.getLogger(__name__)

RING_BYTES: Final = 1 * MIB
"""Of encoded pieces that a feed keeps for followers that are behind."""

WHOLE_BYTES: Final = 64 * KIB
"""A batch of so little is encoded without looking at where it could be cut."""

FRAMES_KEPT: Final = 8
"""WebSocket frames of the newest piece that are kept, one for each number of a subscription."""

_SID: Final = 0


class SharedFeed:
    """One feed; it reads from the moment that the first follower attaches.

    Args:
        client: of the caller whose subscriptions follow.
        settings: bound the messages.
        outgoing: the budget.
        scope: what is read.
        positions: where the first follower is.
        metrics: count the records that were pushed.
        ended: called when the feed has ended.

    Attributes:
        pushed: records of the newest piece that were pushed, by surface; subscriptions add to it.
    """

    def __init__(
        self,
        client: Client,
        settings: GatewaySettings,
        outgoing: Outgoing,
        metrics: Metrics,
        *,
        scope: Scope,
        positions: Mapping[int, int],
        ended: Callable[[SharedFeed], None],
    ) -> None:
        self.scope = scope
        self.pushed: Counter[str] = Counter()
        self._metrics = metrics
        self._client = client
        self._settings = settings
        self._outgoing = outgoing
        self._ended = ended
        self._protocol = WsProtocol(settings)
        self._state = Subscription(_SID, scope.topic, None, INTEGER_MAX, None)
        self._protocol.subscriptions[_SID] = self._state
        self._protocol.opened(_SID, positions, ResumeTokens(scope, positions))
        self._protocol.resume_token(_SID)
        self.ring = Ring(self._state.positions, bytes_max=RING_BYTES)
        self._outlet = Outlet(outgoing, settings.ws_slow_timeout_s)
        self._ahead = ReadAhead(self._outlet)
        self._ring_bytes = 0
        self._stirred = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._token: str | None = None
        """Of the newest piece, for a WebSocket."""
        self._event_token = ""
        self._frames: dict[int, bytes] = {}
        self._event: bytes | None = None

    # ------------------------------------------------------------------------------------------ followers

    def attach(self, follower: Follower) -> bool:
        """Take a follower, if the feed can serve it; see `Ring.attach`."""
        if not self.ring.attach(follower):
            return False
        if self._task is None:
            self._outgoing.idle[self] = self._let_go
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"feed of {self.scope.topic}")
        self.stir()
        return True

    def leave(self, follower: Follower) -> None:
        """Forget a follower; the feed ends with the last one."""
        self.ring.leave(follower)
        if not len(self.ring):
            self.close()

    def stir(self) -> None:
        """Look again whether more is wanted."""
        self._stirred.set()

    def close(self) -> None:
        """End the feed."""
        if self._task is not None:
            self._task.cancel()
        self._over()

    # -------------------------------------------------------------------------------------- encoded once

    def frame(self, piece: Piece, sid: int) -> bytes:
        """Return the newest piece as a whole WebSocket frame for a subscription with this number."""
        frame = self._frames.get(sid)
        if frame is None:
            message = batch_message(sid, piece.partition, orjson.Fragment(piece.data), piece.next_offset, self._token)
            frame = Frame(Opcode.TEXT, orjson.dumps(message)).serialize(mask=False)
            if len(self._frames) < FRAMES_KEPT:
                self._frames[sid] = frame
        return frame

    def event(self, piece: Piece, encode: Callable[[Piece, str], bytes]) -> bytes:
        """Return the newest piece as `encode` makes it of the piece and the resume token after it."""
        if self._event is None:
            tokens = self._state.tokens
            assert tokens is not None
            self._event = encode(piece, tokens.token() if self._token is None else self._token)
        return self._event

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
            log.debug("the feed of %s ends, and its subscriptions read by themselves: %s", self.scope.topic, error)
        finally:
            self._over()

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
                raise gone_error(self.scope.topic)
            while await self._take(await consumer.next_batch()):
                if consumer.has_arrivals:
                    await asyncio.sleep(0)  # others have their turn, and what was pushed is written
                await self._wanted()

    async def _take(self, consumed: ConsumedBatch | None) -> bool:
        """Add one batch to the ring, in as many pieces as the bounds of a message make of it; False to read again."""
        if consumed is None:
            raise gone_error(self.scope.topic)  # the client was closed
        partition, batch = consumed.partition, consumed.batch
        if not len(batch):
            self._append(partition, batch.base_offset, batch.end_offset, TakenJson(b"[]", 0, 0))
            self._count()
            self._ahead.done(batch, decoded=False)
            return True
        if not self._ahead.decode(batch):
            return False
        records_max, bytes_max = self._settings.ws_batch_records_max, self._settings.ws_batch_bytes_max
        whole = await self._whole(batch, records_max)
        if whole is not None:
            self._append(partition, batch.base_offset, batch.end_offset, whole)
            self._count()
            self._ahead.done(batch)
            return True
        reader = BatchReader(batch)
        while len(reader):
            await self._wanted()
            size_bytes_max = reader.json_bytes_max(records_max, bytes_max)
            await self._outlet.wait_for_room(size_bytes_max)
            try:
                first_offset = reader.next_offset
                taken = reader.take_json(records_max, bytes_max, self._protocol.records_bytes_max(_SID))
                self._append(partition, first_offset, reader.next_offset, taken)
            finally:
                self._outlet.give_back(size_bytes_max)
            self._count()
            await asyncio.sleep(0)
        self._ahead.done(batch)
        return True

    async def _whole(self, batch: RecordBatch, records_max: int) -> TakenJson | None:
        """Return all of a small batch; None where it has to be cut, or that is not known beforehand."""
        if len(batch) > records_max or batch.header.uncompressed_length > WHOLE_BYTES:
            return None
        size_bytes = JSON_BYTES_PER_BYTE * batch.header.uncompressed_length + JSON_BYTES_PER_RECORD * len(batch)
        await self._outlet.wait_for_room(size_bytes)
        try:
            return whole_batch(batch, self._protocol.records_bytes_max(_SID))
        finally:
            self._outlet.give_back(size_bytes)

    def _append(self, partition: int, first_offset: int, next_offset: int, taken: TakenJson) -> None:
        """Add records to the ring; they begin at the ring's position, or, of a new partition, at `first_offset`."""
        position = self.ring.positions.get(partition, first_offset)
        piece = Piece(partition, position, next_offset, taken.records, taken.payload_bytes, taken.data)

        def moved() -> None:
            assert self._state.tokens is not None
            self._state.tokens.move(partition, next_offset)
            self._frames.clear()
            self._event = None
            self._token = self._protocol.batch_token(_SID, size_bytes=len(taken.data))

        self.ring.append(piece, moved)
        for surface, count in self.pushed.items():
            self._metrics.records_out.labels(surface).inc(count)
        self.pushed.clear()

    def _count(self) -> None:
        """Count the pieces that are kept, as far as there is room for them; else keep none."""
        more_bytes = self.ring.held_bytes - self._ring_bytes
        if more_bytes > 0 and not self._outlet.take(more_bytes):
            self.ring.drop_pieces()
            more_bytes = -self._ring_bytes
        if more_bytes < 0:
            self._outlet.give_back(-more_bytes)
        self._ring_bytes = self.ring.held_bytes

    def _let_go(self) -> int:
        """Drop the pieces, because another connection needs the budget; return the bytes freed."""
        self.ring.drop_pieces()
        freed_bytes = self._ring_bytes
        self._count()
        return freed_bytes

    async def _wanted(self) -> None:
        """Wait until a follower could be sent more."""
        while not self.ring.is_wanted:
            self._stirred.clear()
            await self._stirred.wait()

    def _over(self) -> None:
        if self.ring.closed:
            return
        self._outgoing.idle.pop(self, None)
        self.ring.drop_pieces()
        self._count()
        self.ring.close()
        self._ended(self)
