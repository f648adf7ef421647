"""Following of `__meta`.

A node that stores `__meta` applies its own log as commits advance. Any other node reads it from the owner by FETCH,
with long polling, so that a new topic is known everywhere within a round trip. In both cases the applied state is
saved to a file, for a start at which `__meta` cannot be read. Saving a large state again waits for a multiple of the
time that it takes, because creating thousands of topics would otherwise save all of them for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.topics import META_KEY, META_TOPIC_ID
from tidelog_broker.partition.partition import Partition
from tidelog_broker.storage.io.workers import WorkersFullError
from tidelog_broker.storage.node.meta_snapshot import save_meta_snapshot
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import split_attachment

log = logging.getLogger(__name__)

POLL_S: Final = 0.5
"""Interval of checks without a new commit: this node may have begun, or ceased, to store or own `__meta`."""
SAVE_AGAIN_S: Final = 0.2
UNSAVED_AGAIN_S: Final = 5.0
"""Minimum interval between attempts to save the same state after an error of the disk."""
SAVE_SHARE: Final = 20
"""Pause after saving, as a multiple of the event loop's time for it, if that exceeds `SAVE_S_LONG`."""
SAVE_S_LONG: Final = 0.005
SAVED_AT_ONCE: Final = 1_024
"""Number of records that are encoded before other tasks of the event loop run."""
_FETCH_WAIT_MS: Final = 1000
_FETCH_BYTES: Final = 4 * 1024 * 1024
_TIMEOUT_S: Final = 5.0


class MetaFollower:
    """Keeps this node's copy of `__meta` current, until `run` is cancelled."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._woken = asyncio.Event()
        self.attempted: int | None = None
        """The state that was saved, or last tried to be saved, as the offset in `__meta` before which it is applied."""
        self._retry_save_s: float | None = None
        """When the attempt is repeated, on the loop's clock; None if the state is saved."""
        self.may_save_s = 0.0
        """When the next state may be saved, on the loop's clock."""
        self._problem = ""
        self._save_problem = ""

    async def run(self) -> None:
        """Apply commits now, and later ones as they arrive."""
        listening: Partition | None = None
        while True:
            self._woken.clear()
            here = self._stored_here()
            if here is not listening:
                listening = here
                if here is not None:
                    here.changes.listeners.add(self._woken.set)
            try:
                if here is not None:
                    await self._broker.meta_log.apply_committed()
                else:
                    await self._fetch()
                await self._broker.meta_log.follow_changes()
                await self.save()
                if here is not None:
                    await self._ensure_offsets_topic()
                self._problem = ""
            except (ProtocolError, WorkersFullError) as error:
                why = error.message if isinstance(error, ProtocolError) else str(error)
                self._say(f"following __meta is interrupted, retrying: {why}")
                await asyncio.sleep(SAVE_AGAIN_S)
            if here is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._woken.wait()

    def _stored_here(self) -> Partition | None:
        route = self._broker.routes.get(META_KEY)
        if route is None or self._broker.node_id not in route.placement:
            return None
        return next(iter(self._broker.partitions.of_topic(META_TOPIC_ID)), None)

    async def _fetch(self) -> None:
        """Read the next records of `__meta` from its owner and apply them."""
        broker = self._broker
        owner = broker.routes.owner(META_KEY)
        if owner in {"", broker.node_id}:
            raise ProtocolError(
                pb.EPOCH_CHANGING, f"node {broker.node_id!r} does not know another node that owns __meta yet; retry"
            )
        entry = pb.FetchEntry(topic_id=META_TOPIC_ID, partition=0, offset=broker.meta_log.applied)
        request = pb.Fetch(entries=[entry], min_bytes=1, max_bytes=_FETCH_BYTES, wait_ms=_FETCH_WAIT_MS)
        frame = await broker.cluster.request(owner, pb.Envelope(fetch=request), timeout_s=_TIMEOUT_S)
        (result,) = frame.envelope.fetch_reply.results
        if result.error.code == pb.OFFSET_OUT_OF_RANGE and result.error.log_start_offset > entry.offset:
            # Earlier records were deleted after their state was written to the start of the log, as a snapshot.
            broker.meta_log.applied = result.error.log_start_offset
        elif result.HasField("error"):
            raise ProtocolError(result.error.code, result.error.message)
        elif result.length:
            (batches,) = split_attachment(frame.attachment, [result.length])
            broker.meta_log.take(batches)

    async def _ensure_offsets_topic(self) -> None:
        """Ensure that `__offsets` exists, if this node owns `__meta`."""
        broker = self._broker
        if broker.routes.owner(META_KEY) == broker.node_id:
            await broker.found_offsets()

    async def save(self) -> None:
        """Save the applied state, if it has advanced or the last attempt failed at least `UNSAVED_AGAIN_S` ago."""
        broker = self._broker
        applied, retry_s = broker.meta_log.applied, self._retry_save_s
        if applied == self.attempted and (retry_s is None or broker.loop.time() < retry_s):
            return
        if broker.loop.time() < self.may_save_s:
            return  # The next round saves it.
        snapshot = await self._snapshot(applied)
        problem = ""
        try:
            await broker.threads.io.call(0, save_meta_snapshot, broker.disk.fs, broker.dir.meta_state, snapshot)
        except OSError as error:
            problem = (
                f"cannot save the state of __meta to {broker.dir.meta_state}, so the next start would begin with older "
                f"metadata; retrying: {error}"
            )
        self.attempted = applied
        self._retry_save_s = broker.loop.time() + UNSAVED_AGAIN_S if problem else None
        if problem and problem != self._save_problem:
            log.info("%s", problem)
        self._save_problem = problem

    async def _snapshot(self, applied: int) -> pb.MetaSnapshot:
        """Return the state, which contains every commit below `applied`; it may contain later ones, too."""
        broker = self._broker
        took_s, began_s = 0.0, time.monotonic()
        records = list(broker.meta_log.current_records())
        snapshot = pb.MetaSnapshot(applied=applied, meta=broker.topics.get(META_TOPIC_ID))
        for first in range(0, len(records), SAVED_AT_ONCE):
            if first:
                took_s += time.monotonic() - began_s
                await asyncio.sleep(0)
                began_s = time.monotonic()
            snapshot.records.extend(record.SerializeToString() for record in records[first : first + SAVED_AT_ONCE])
        took_s += time.monotonic() - began_s
        if took_s > SAVE_S_LONG:
            self.may_save_s = broker.loop.time() + SAVE_SHARE * took_s
        return snapshot

    def _say(self, problem: str) -> None:
        """Log a problem once, however often the attempt is repeated."""
        if problem != self._problem:
            self._problem = problem
            log.info("%s", problem)
