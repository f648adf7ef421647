"""A partition's pipeline: the single writer. Drain, verify, reserve, append, sync, complete.

One group is on its way at a time. While it is written and synced the next one gathers in the queue, so a
partition under load makes few large writes and an idle one answers at once; no linger knob is needed.
Verification happens as batches arrive, in parallel to the write of the group before them; a batch that is
refused gets its error and its neighbours go on.

Disk space is made sure of before an offset is given out, so a full disk refuses a group cleanly. A write or
sync that fails after that is final: the outcome of the group is unknown, everything waiting is refused and
the node is told to stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tidelog_broker.core.inline_writes import InlineWrites
from tidelog_broker.core.owner import Candidate, Group, Owner
from tidelog_broker.core.producers import StoredBatch
from tidelog_broker.offload import Offload
from tidelog_broker.storage.errors import DiskFullError, StorageError
from tidelog_broker.storage.partition_log import PartitionLog
from tidelog_broker.storage.segment import padded
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import BatchHeader

log = logging.getLogger(__name__)

Settle = Callable[[StoredBatch | ProtocolError, bool], None]
"""Called once per batch with where it went, or why not, and whether it had been there before."""

DISK_FULL_RETRY_MS = 1000
OVERLOADED_RETRY_MS = 20


class Pending:
    """A batch on its way through the pipeline. `header` is None until its verification has passed."""

    __slots__ = ("data", "header", "refusal", "settle")

    def __init__(self, data: memoryview, header: BatchHeader | None, settle: Settle) -> None:
        self.data = data
        self.header = header
        self.refusal: ProtocolError | None = None
        self.settle = settle


class WrittenPartition(Protocol):
    """The partition as its pipeline sees it."""

    name: str
    io_key: int
    log: PartitionLog
    offload: Offload
    owner: Owner | None

    @property
    def syncs_every_group(self) -> bool:
        """Whether an append is synced before it is acknowledged."""
        ...

    def activate_soon(self) -> object:
        """Begin to open an epoch; `go_on` is called after it."""

    def has_room(self, owner: Owner, needed_bytes: int) -> bool:
        """Whether a group can be appended at once."""
        ...

    def make_room(self, owner: Owner, needed_bytes: int) -> None:
        """Make sure of the space for a group; runs on an I/O worker."""

    def appended(self, group: Group, *, seconds: float) -> None:
        """A group is durable."""

    def failed(self, error: BaseException) -> None:
        """The disk has failed."""


class Pipeline:
    """The queue of one partition and the group that is being written."""

    def __init__(
        self, partition: WrittenPartition, *, bytes_max: int, group_bytes: int, inline_writes: InlineWrites
    ) -> None:
        self._partition = partition
        self._inline_writes = inline_writes
        self._bytes_max = bytes_max
        self._group_bytes = group_bytes
        self._queue: deque[Pending] = deque()
        self._awaiting: deque[tuple[int, Settle, StoredBatch, bool]] = deque()
        self._waiting_for_idle: list[asyncio.Future[None]] = []
        self._busy = False
        self._refusal: ProtocolError | None = None
        self.queued_bytes = 0

    async def idle(self) -> None:
        """Wait until nothing is queued or being written."""
        while self._busy or self._queue or self._awaiting:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for_idle.append(done)
            await done

    def _tell_idle(self) -> None:
        waiting, self._waiting_for_idle = self._waiting_for_idle, []
        for done in waiting:
            if not done.done():
                done.set_result(None)

    def submit(self, pending: Pending) -> None:
        """Queue a batch. It is settled exactly once, possibly before this returns."""
        if self._refusal is not None:
            pending.settle(self._refusal, False)
            return
        if self._queue and self.queued_bytes + len(pending.data) > self._bytes_max:
            name = self._partition.name
            pending.settle(
                ProtocolError(
                    pb.OVERLOADED, f"{name} has all it can queue; send again", retry_after_ms=OVERLOADED_RETRY_MS
                ),
                False,
            )
            return
        self._queue.append(pending)
        self.queued_bytes += len(pending.data)
        if not self._busy:
            self.go_on()

    def refuse(self, error: ProtocolError) -> None:
        """Refuse everything that waits and everything that comes: the partition is gone or failed."""
        self._refusal = error
        self.flush(error)

    def flush(self, error: ProtocolError) -> None:
        """Refuse everything that waits."""
        while self._queue:
            self._take().settle(error, False)
        self._tell_idle()

    def go_on(self) -> None:
        """Start the next group if the partition is active and the head of the queue is verified."""
        if self._busy:
            return
        if not self._queue:
            self._tell_idle()
            return
        owner = self._partition.owner
        if owner is None:
            self._partition.activate_soon()
            return
        picked = self._drain()
        if not picked:
            if not self._queue:
                self._tell_idle()
            return
        self._busy = True
        needed_bytes = 0
        for pending in picked:
            needed_bytes += padded(len(pending.data))
        if self._partition.has_room(owner, needed_bytes):
            self._append(owner, picked)
            return
        self._partition.offload.start(
            self._partition.io_key,
            lambda: self._partition.make_room(owner, needed_bytes),
            lambda _, error: self._reserved(owner, picked, error),
        )

    def _drain(self) -> list[Pending]:
        """Take verified batches from the head, up to a group's size; settle refused ones."""
        picked: list[Pending] = []
        size_bytes = 0
        while self._queue:
            head = self._queue[0]
            if head.refusal is not None:
                self._take().settle(head.refusal, False)
                continue
            if head.header is None or (picked and size_bytes + len(head.data) > self._group_bytes):
                break
            picked.append(self._take())
            size_bytes += len(head.data)
        return picked

    def _take(self) -> Pending:
        pending = self._queue.popleft()
        self.queued_bytes -= len(pending.data)
        return pending

    def _reserved(self, owner: Owner, picked: list[Pending], error: BaseException | None) -> None:
        if self._refusal is not None:
            # Deleted or stopped while space was taken: the files may be closed by the time a write came to them.
            self._turn_down(picked, self._refusal)
        elif error is None:
            self._append(owner, picked)
        elif isinstance(error, DiskFullError):
            self._turn_down(picked, ProtocolError(pb.DISK_FULL, error.message, retry_after_ms=DISK_FULL_RETRY_MS))
        else:
            self._fail([pending.settle for pending in picked], error)

    def _turn_down(self, picked: list[Pending], refusal: ProtocolError) -> None:
        """Refuse a group that has no offsets yet, and go on."""
        for pending in picked:
            pending.settle(refusal, False)
        self._busy = False
        self.go_on()

    def _append(self, owner: Owner, picked: list[Pending]) -> None:
        """Give offsets to a group and hand it to the I/O worker."""
        candidates = [Candidate(pending.header, pending.data) for pending in picked if pending.header is not None]
        assert len(candidates) == len(picked), "only verified batches are drained"
        group = owner.reserve(candidates, now_us=time.time_ns() // 1000)
        for pending, outcome, duplicate in zip(picked, group.outcomes, group.duplicates, strict=True):
            if isinstance(outcome, StoredBatch):
                self._awaiting.append((outcome.end_offset, pending.settle, outcome, duplicate))
            else:
                pending.settle(outcome, False)
        if not group.batches:
            self._busy = False
            self._release(owner.high_watermark)
            self.go_on()
            return
        started = time.perf_counter()
        epoch_log, synced = self._partition.log, self._partition.syncs_every_group

        def write() -> None:
            epoch_log.append(group.batches)
            if synced:
                epoch_log.sync()

        offload = self._partition.offload
        if not synced and offload.idle and self._inline_writes.allows(group.size_bytes, started):
            error = _error_of(write)
            ended = time.perf_counter()
            self._inline_writes.took(ended - started, ended)
            self._appended(owner, group, started, error)
            return
        offload.start(self._partition.io_key, write, lambda _, error: self._appended(owner, group, started, error))

    def _appended(self, owner: Owner, group: Group, started: float, error: BaseException | None) -> None:
        if error is not None:
            self._fail([], error)
            return
        high_watermark = owner.acknowledge(owner.node_id, group.end_offset)
        self._partition.appended(group, seconds=time.perf_counter() - started)
        self._busy = False
        self._release(high_watermark)
        self.go_on()

    def _release(self, high_watermark: int) -> None:
        """Settle what is committed now."""
        while self._awaiting and self._awaiting[0][0] <= high_watermark:
            _, settle, stored, duplicate = self._awaiting.popleft()
            settle(stored, duplicate)

    def _fail(self, settles: list[Settle], error: BaseException) -> None:
        """The disk has failed: what was being written has an unknown outcome, and nothing more is accepted."""
        log.critical("%s: the log cannot be written any more: %s", self._partition.name, error)
        failure = ProtocolError(
            pb.STORAGE_FAILED, f"{self._partition.name}: the log cannot be written any more: {error}"
        )
        for settle in settles:
            settle(failure, False)
        while self._awaiting:
            self._awaiting.popleft()[1](failure, False)
        self.refuse(failure)
        self._busy = False
        self._partition.failed(error)


def _error_of(work: Callable[[], None]) -> BaseException | None:
    """Run `work` here and return what it raised."""
    try:
        work()
    except StorageError as error:
        return error
    return None
