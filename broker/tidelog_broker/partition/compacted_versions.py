"""The versions of one partition's epochs: every copy in the log is brought to the newest that is decided (ADR 0074).

By a pass of this node's own over what it holds, which must end as decided. What the owner made before its proposal is
used once it is decided, and only then. What this node cannot make comes from another one, see
`core.replication.backfill`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from tidelog_broker.core.replication.ports import Position
from tidelog_broker.partition.changes import Changes
from tidelog_broker.partition.pass_watch import PassWatch
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.storage.io.workers import WorkersFullError
from tidelog_broker.storage.partition.compaction_pass import (
    CompactionPass,
    EpochRange,
    Made,
    PassStoppedError,
    Terms,
)
from tidelog_broker.storage.partition.copied import LogPosition
from tidelog_proto import broker_pb2 as pb

log = logging.getLogger(__name__)

WHOLE_S: Final = 10.0
"""How long a copy is waited for that lacks something still."""

WHOLE_AGAIN_S: Final = 0.02


class Passed(NamedTuple):
    """What a pass has made, which epochs it has left as they are, and what it has done."""

    made: list[Made]
    left: list[int]
    terms: Terms


class CompactedVersions:
    """See the module. All methods are for the event loop's thread, and one at a time.

    Args:
        state, changes: of the partition.
        driver: its replica's.
        tools, io_key: the node's, and the partition's I/O worker.
        watch: told what is waited for, and what moves.
        replaced: called with the end of each epoch whose compacted version is in the log from now on.
    """

    def __init__(
        self,
        state: PartitionState,
        changes: Changes,
        driver: ReplicaDriver,
        *,
        tools: PartitionTools,
        io_key: int,
        watch: PassWatch,
        replaced: Callable[[int], None],
    ) -> None:
        self._watch = watch
        self._replaced = replaced
        self._state = state
        self._changes = changes
        self._driver = driver
        self._tools = tools
        self._io_key = io_key
        self._made: dict[int, Made] = {}
        """Finished versions by epoch, which wait for a decision."""
        self._differing: set[tuple[int, int]] = set()
        """Epochs and decided digests of which a pass here has made something else."""
        self._stop = threading.Event()
        """Set once a pass that is under way has to end."""
        self._passing = threading.Event()
        """Set while the compactor's thread is at work here, which may be longer than anybody waits for it."""

    async def close(self) -> None:
        """Begin nothing more, and end what is under way: the log is about to be closed, or removed."""
        self._stop.set()
        while self._passing.is_set():  # noqa: ASYNC110 - it ends on a thread, which knows no event of the loop
            await asyncio.sleep(WHOLE_AGAIN_S)

    @property
    def is_behind(self) -> bool:
        """Whether a copy here is not what was decided last about compacting it."""
        return bool(self._differing) or any(True for _ in self._outdated())

    @property
    def is_converging(self) -> bool:
        """Whether a copy here is to be replaced still, and can be; what differs waits for the next round instead."""
        versions = self._state.replica.backfill.versions
        return any(versions.can_make(epoch) or not versions.has_later(epoch) for epoch, _, _ in self._outdated())

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be begun any more."""
        return self._stop.is_set() or self._state.refusal is not None

    def must_stop(self) -> bool:
        """Whether a pass has to end."""
        return self.is_over or self._state.topic.config.hold

    def keep(self, made: Iterable[Made]) -> None:
        """Keep what a pass has made until it is decided, instead of what was kept before."""
        self._made = {one.epoch: one for one in made}

    async def converge(self) -> None:
        """Bring the copies in the log to the newest versions that are decided, the earliest epoch first.

        No copy is replaced before all older ones are at their newest versions that are made with it: here, or at a node
        that fetches it, they could not be made any more. Nor is anything put in place while the journal lacks a
        decision: after a crash the epoch might be the open one again, with a log that nobody appended. And what
        batches say of producers stays as long as others are asked what they had sent before.
        """
        if not await self._until_may_replace():
            return
        self._differing = {one for one in self._differing if self._is_outdated(*one)}
        await self._forget_made()
        versions, has_changed = self._state.replica.backfill.versions, False
        for decided, terms in self._outdated_terms():
            if self.must_stop() or self._state.log.limbo is not None:
                break
            wanted = {epoch: end for epoch, end, own in self._outdated() if own == (decided, terms)}
            ready = [made for made in self._made.values() if wanted.get(made.epoch) == made.end]
            missing = [epoch for epoch in wanted if epoch not in {made.epoch for made in ready}]
            missing = [epoch for epoch in missing if versions.can_make(epoch)]
            if missing and self.can_pass(terms, missing):
                one = await self.make(missing, terms)
                ready += one.made
                for epoch in one.left:
                    self._note_differing(epoch, wanted[epoch])
            behind = set(versions.behind())
            for made in sorted(ready):
                is_base = any(older < made.epoch and versions.is_base_of(made.epoch, older) for older in behind)
                if is_base or self.must_stop() or self._may_not_replace():
                    self._made[made.epoch] = made  # put in place when that has ended
                    continue
                self._made.pop(made.epoch, None)
                if await self._put_in_place(made, decided, wanted[made.epoch]):
                    behind.discard(made.epoch)
                    has_changed = True
        if has_changed or self._is_to_be_fetched():
            self._driver.compacted()
        await self.remove_replaced()

    def _is_to_be_fetched(self) -> bool:
        """Whether a newest version cannot be made here any more, and the core has not noticed."""
        backfill = self._state.replica.backfill
        outdated = (epoch for epoch, _, _ in self._outdated())
        return any(epoch not in backfill.incomplete and not backfill.versions.can_make(epoch) for epoch in outdated)

    async def remove_replaced(self) -> None:
        """Remove what has been replaced: deleting large files takes long, and no append waits for it.

        Raises:
            StorageFailedError: the disk failed.
        """
        store = self._state.log
        if not store.compacted.has_replaced or self.is_over:
            return

        def run() -> None:
            self._watch.begun()
            try:
                store.compacted.remove_replaced()
            finally:
                self._passing.clear()

        self._watch.step(lambda: "this node's disk, from which replaced files are removed", queued=True)
        self._passing.set()
        try:
            await self._tools.compactor.call(0, run)
        except (WorkersFullError, RuntimeError):
            self._passing.clear()  # it has not begun
            raise

    def _may_not_replace(self) -> bool:
        return self._driver.is_learning or self._state.replica.backfill.producers.is_asking

    async def _until_may_replace(self) -> bool:
        until_s = self._tools.loop.time() + WHOLE_S
        self._watch.step(lambda: "what was decided to be written down, and other nodes to tell what producers sent")
        while self._may_not_replace():
            if self.is_over or self._tools.loop.time() >= until_s:
                return False
            await asyncio.sleep(WHOLE_AGAIN_S)
        return True

    async def _forget_made(self) -> None:
        """Remove what was made and is in the log meanwhile, as it came from another node."""
        for epoch in [epoch for epoch, made in self._made.items() if self._driver.view.epoch_end(epoch) == made.end]:
            del self._made[epoch]
            await self._tools.io.call(self._io_key, self._state.log.compacted.abandon, epoch)

    def _outdated(self) -> Iterable[tuple[int, LogPosition, tuple[int, Terms]]]:
        """Yield each whole copy in the log that is not what was decided last: how that ends, and its terms."""
        known = self._state.replica.state
        for epoch, compactions in sorted(known.chain.compactions.items()):
            ends, newest = known.ends_of(epoch), compactions[-1].terms
            held = self._driver.view.epoch_end(epoch)
            is_here = held is not None and Position(*held) in ends and held != ends[-1]
            is_kept = max(newest.floor, known.log_start) < ends[-1].offset  # else retention takes it
            if is_here and is_kept and (epoch, newest.end_digest) not in self._differing:
                yield epoch, LogPosition(*ends[-1]), (compactions[-1].at, _terms(newest))

    def _outdated_terms(self) -> Sequence[tuple[int, Terms]]:
        return sorted({own for _, _, own in self._outdated()})

    def can_pass(self, terms: Terms, epochs: Sequence[int]) -> bool:
        """Whether all is here that a pass looks at."""
        store = self._state.log
        first = self._state.replica.state.start_of(min(epochs))
        is_whole = store.start_offset <= max(terms.floor, first) and store.end_offset >= terms.horizon
        return is_whole and self._driver.cut_offset is None

    async def _put_in_place(self, made: Made, decided: int, end: LogPosition) -> bool:
        """Return whether that version is in the log now."""
        if self.is_over:
            return False
        if made.end != end:
            self._note_differing(made.epoch, end)
            await self._tools.io.call(self._io_key, self._state.log.compacted.abandon, made.epoch)
            return False
        self._watch.step(lambda: "this node's disk, on which the new version is put in place")
        await self._tools.io.call(self._io_key, self._replace, made, decided)
        self._replaced(end.offset)
        self._changes.wake()
        return True

    def _is_outdated(self, epoch: int, digest: int) -> bool:
        """Whether the version with that digest is still the one wanted, and the copy here another."""
        known = self._state.replica.state
        if epoch not in known.chain.compactions:
            return False
        held, newest = self._driver.view.epoch_end(epoch), known.ends_of(epoch)[-1]
        return held is not None and held != newest and newest.digest == digest

    def _note_differing(self, epoch: int, end: LogPosition) -> None:
        self._differing.add((epoch, end.digest))
        log.warning(
            "%s: compacting epoch %d here gives other bytes than were decided (another version of a library?); "
            "the older ones are kept",
            self._state.name,
            epoch,
        )

    def _replace(self, made: Made, decided: int) -> None:
        """Put a version in place, once what its records said of producers is kept. Runs on the I/O worker."""
        view, store = self._driver.view, self._state.log
        snapshot = view.producers.at_end(
            made.epoch, committed=self._state.high_watermark, log_start=self._state.replica.state.log_start
        )
        if snapshot is not None:
            store.save_producer_snapshot(*snapshot, committed=self._state.high_watermark)
        store.compacted.put_in_place(made.epoch, decided, made.end)
        store.copies.abandon_fill(made.epoch)  # of the same version, begun before it could be made here

    async def make(self, epochs: Sequence[int], terms: Terms) -> Passed:
        """Run a pass over epochs of the log; nothing is put in place.

        Raises:
            PassStoppedError: it was to end before it was done.
            StorageError, ProtocolError: of the pass.
        """
        known, store = self._state.replica.state, self._state.log
        ranges = [EpochRange(each, known.start_of(each), known.decision(each).end_offset) for each in sorted(epochs)]
        one = CompactionPass(
            store.reader,
            store.compacted,
            ranges,
            terms,
            begin=store.start_offset,
            memory_bytes=self._tools.settings.compaction_bytes,
            pace=partial(wait_pace, self._tools.settings.compaction_bytes_per_s, self.must_stop, self._watch.moved),
        )

        def run() -> list[Made] | None:
            self._watch.begun()
            try:
                return one.run()
            except PassStoppedError:
                return None
            finally:
                self._passing.clear()

        self._watch.step(lambda: "this node's disk, from which the log is read and to which it is written", queued=True)
        self._passing.set()
        try:
            made = await self._tools.compactor.call(0, run)
        except (WorkersFullError, RuntimeError):
            self._passing.clear()  # it has not begun
            raise
        if made is None:
            raise PassStoppedError
        return Passed(made, one.left, one.terms)


def _terms(compaction: pb.Compaction) -> Terms:
    return Terms(compaction.horizon, compaction.tombstones_below, compaction.floor)


def wait_pace(bytes_per_s: int, must_stop: Callable[[], bool], moved: Callable[[], None], size_bytes: int) -> None:
    """Wait so long that no more than so much is read a second. Runs on the compactor's thread.

    Raises:
        PassStoppedError: the pass has to end.
    """
    until_s = time.monotonic() + (size_bytes / bytes_per_s if bytes_per_s else 0)
    while not must_stop():
        moved()
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return
        time.sleep(min(left_s, 0.05))
    raise PassStoppedError
