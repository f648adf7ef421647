"""The versions of one partition's epochs: converging every copy in the log to the newest decided version (ADR 0074).

A compacted version of an epoch is written by a compaction pass over this node's own copy. Its end offset and digest
must be those of the decision. The owner writes its version before it proposes it, and uses it only once it is decided.
A version that this node cannot write is fetched from another node, see `core.replication.backfill`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tidelog_broker.core.replication.ports import Position
from tidelog_broker.partition.change_notifier import ChangeNotifier
from tidelog_broker.partition.compaction_pace import CompactionPace
from tidelog_broker.partition.compaction_progress import CompactionProgress
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.storage.io.workers import WorkersFullError
from tidelog_broker.storage.partition.compaction_pass import (
    CompactionPass,
    EpochRange,
    FinishedVersion,
    PassStoppedError,
    Terms,
)
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_proto import broker_pb2 as pb

log = logging.getLogger(__name__)

COMPLETE_COPY_TIMEOUT_S: Final = 10.0
"""How long to wait until this node's copy is complete, or until epochs in the log may be replaced."""

WHOLE_AGAIN_S: Final = 0.02
"""Interval between two checks whether the copy is complete, or whether epochs may be replaced."""

PACED_REQUESTS: Final = ("publish", "fetch", "credit")
"""The kinds of requests for which a compaction pass rests, see `compaction_pace`."""


class PassResult(NamedTuple):
    """The result of a compaction pass.

    Attributes:
        made: the new versions of epochs, complete and durable but not in the log yet.
        left: epochs left unchanged, because a batch of their surviving records would be too large.
        terms: the bounds that the pass has applied, see `CompactionPass.terms`.
    """

    made: list[FinishedVersion]
    left: list[int]
    terms: Terms


class CompactedVersions:
    """Writes the compacted versions of one partition's epochs, and replaces the copies in the log by them.

    All methods are for the event loop's thread, one at a time.

    Args:
        watch: informed of the steps and the progress of each pass.
        replaced: called with the end of each epoch whose compacted version is now in the log.
    """

    def __init__(
        self,
        state: PartitionState,
        changes: ChangeNotifier,
        driver: ReplicaDriver,
        *,
        tools: PartitionTools,
        io_key: int,
        watch: CompactionProgress,
        replaced: Callable[[int], None],
    ) -> None:
        self._watch = watch
        self._replaced = replaced
        self._state = state
        self._changes = changes
        self._driver = driver
        self._tools = tools
        self._io_key = io_key
        self._finished_versions: dict[int, FinishedVersion] = {}
        """Finished versions by epoch that await a decision."""
        self._differing: set[tuple[int, int]] = set()
        """Epochs and decided digests for which a pass on this node has produced different bytes."""
        self._stop = threading.Event()
        """Set when a running pass must stop."""
        self._passing = threading.Event()
        """Set while the compactor's thread works for this partition, even after the coroutine that waits was cancelled.
        """

    async def close(self) -> None:
        """Stop a running pass and begin no more, because the log is about to be closed or removed."""
        self._stop.set()
        while self._passing.is_set():  # noqa: ASYNC110 - a pass ends on a thread, which cannot set the loop's events
            await asyncio.sleep(WHOLE_AGAIN_S)

    @property
    def is_behind(self) -> bool:
        """Whether a copy on this node differs from the newest decided version."""
        return bool(self._differing) or any(True for _ in self._outdated())

    @property
    def is_converging(self) -> bool:
        """Whether an epoch in the log is about to be replaced by a version that this node writes or fetches.

        An epoch for which a pass of this node has produced other bytes than decided does not count.
        """
        versions = self._state.replica.backfill.versions
        return any(versions.can_make(epoch) or not versions.has_later(epoch) for epoch, _, _ in self._outdated())

    @property
    def is_over(self) -> bool:
        """Whether no more passes may begin."""
        return self._stop.is_set() or self._state.refusal is not None

    def must_stop(self) -> bool:
        """Return whether a pass has to stop."""
        return self.is_over or self._state.topic.config.hold

    def keep(self, made: Iterable[FinishedVersion]) -> None:
        """Keep the versions of a pass until they are decided, replacing earlier ones."""
        self._finished_versions = {one.epoch: one for one in made}

    async def converge(self) -> None:
        """Replace the copies in the log by the newest decided versions, earliest decision first.

        A copy is not replaced while an older epoch still needs it as an input of its own newest version: otherwise
        neither this node nor one that fetches the copy could write that version any more. Nothing is replaced while a
        decision is not in this node's journal yet: after a crash the epoch might be open again, with batches that its
        owner never appended. Nor is anything replaced while other nodes are asked for the producers' state, which
        compaction removes from the batches.
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
            ready = [made for made in self._finished_versions.values() if wanted.get(made.epoch) == made.end]
            missing = [epoch for epoch in wanted if epoch not in {made.epoch for made in ready}]
            missing = [epoch for epoch in missing if versions.can_make(epoch)]
            if missing and self.can_pass(terms, missing):
                one = await self.make(missing, terms)
                ready += one.made
                for epoch in one.left:
                    self._note_differing(epoch, wanted[epoch])
            outdated = set(versions.outdated_epochs())
            for made in sorted(ready):
                is_base = any(older < made.epoch and versions.is_base_of(made.epoch, older) for older in outdated)
                if is_base or self.must_stop() or self._may_not_replace():
                    self._finished_versions[made.epoch] = made  # The version is used by a later call.
                    continue
                self._finished_versions.pop(made.epoch, None)
                if await self._put_in_place(made, decided, wanted[made.epoch]):
                    outdated.discard(made.epoch)
                    has_changed = True
        if has_changed or self._is_to_be_fetched():
            self._driver.compacted()
        await self.remove_replaced()

    def _is_to_be_fetched(self) -> bool:
        """Return whether this node can no longer write the newest version of an epoch, and does not fetch it yet."""
        backfill = self._state.replica.backfill
        outdated = (epoch for epoch, _, _ in self._outdated())
        return any(epoch not in backfill.incomplete and not backfill.versions.can_make(epoch) for epoch in outdated)

    async def remove_replaced(self) -> None:
        """Remove replaced versions. Runs on the compactor's thread, because deleting large files takes long.

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
            self._passing.clear()  # The removal has not begun.
            raise

    def _may_not_replace(self) -> bool:
        return self._driver.is_learning or self._state.replica.backfill.producers.is_asking

    async def _until_may_replace(self) -> bool:
        until_s = self._tools.loop.time() + COMPLETE_COPY_TIMEOUT_S
        self._watch.step(lambda: "the journal to store a decision, and other nodes to report the producers' state")
        while self._may_not_replace():
            if self.is_over or self._tools.loop.time() >= until_s:
                return False
            await asyncio.sleep(WHOLE_AGAIN_S)
        return True

    async def _forget_made(self) -> None:
        """Remove finished versions that are already in the log, fetched from another node."""
        for epoch in [
            epoch for epoch, made in self._finished_versions.items() if self._driver.view.epoch_end(epoch) == made.end
        ]:
            del self._finished_versions[epoch]
            await self._tools.io.call(self._io_key, self._state.log.compacted.abandon, epoch)

    def _outdated(self) -> Iterable[tuple[int, LogPosition, tuple[int, Terms]]]:
        """Yield each complete copy in the log that differs from the newest decision: epoch, decided end, and bounds.

        Epochs in `_differing`, and those that retention deletes, are omitted.
        """
        known = self._state.replica.state
        for epoch, compactions in sorted(known.chain.compactions.items()):
            ends, newest = known.ends_of(epoch), compactions[-1].terms
            held = self._driver.view.epoch_end(epoch)
            is_here = held is not None and Position(*held) in ends and held != ends[-1]
            is_kept = max(newest.floor, known.log_start) < ends[-1].offset  # Retention deletes it otherwise.
            if is_here and is_kept and (epoch, newest.end_digest) not in self._differing:
                yield epoch, LogPosition(*ends[-1]), (compactions[-1].at, _terms(newest))

    def _outdated_terms(self) -> Sequence[tuple[int, Terms]]:
        return sorted({own for _, _, own in self._outdated()})

    def can_pass(self, terms: Terms, epochs: Sequence[int]) -> bool:
        """Return whether the log has all records that a pass over these epochs reads."""
        store = self._state.log
        first = self._state.replica.state.start_of(min(epochs))
        is_whole = store.start_offset <= max(terms.floor, first) and store.end_offset >= terms.horizon
        return is_whole and self._driver.cut_offset is None

    async def _put_in_place(self, made: FinishedVersion, decided: int, end: LogPosition) -> bool:
        """Replace an epoch by a version; return whether it is in the log now."""
        if self.is_over:
            return False
        if made.end != end:
            self._note_differing(made.epoch, end)
            await self._tools.io.call(self._io_key, self._state.log.compacted.abandon, made.epoch)
            return False
        self._watch.step(lambda: "this node's disk, on which an epoch is replaced by its new version")
        await self._tools.io.call(self._io_key, self._replace, made, decided)
        self._replaced(end.offset)
        self._changes.wake()
        return True

    def _is_outdated(self, epoch: int, digest: int) -> bool:
        """Return whether the version with that digest is still the decided one, and the copy on this node differs."""
        known = self._state.replica.state
        if epoch not in known.chain.compactions:
            return False
        held, newest = self._driver.view.epoch_end(epoch), known.ends_of(epoch)[-1]
        return held is not None and held != newest and newest.digest == digest

    def _note_differing(self, epoch: int, end: LogPosition) -> None:
        self._differing.add((epoch, end.digest))
        log.warning(
            "%s: compacting epoch %d on this node produced other bytes than the cluster has decided, so this node "
            "keeps its earlier copy; install the same library versions on all nodes",
            self._state.name,
            epoch,
        )

    def _replace(self, made: FinishedVersion, decided: int) -> None:
        """Replace an epoch by a version, after saving the producers' state in its records. Runs on the I/O worker."""
        view, store = self._driver.view, self._state.log
        snapshot = view.producers.at_end(
            made.epoch, committed=self._state.high_watermark, log_start=self._state.replica.state.log_start
        )
        if snapshot is not None:
            store.save_producer_snapshot(*snapshot, committed=self._state.high_watermark)
        store.compacted.put_in_place(made.epoch, decided, made.end)
        # A partial copy of this version may have been begun before this node could write the version.
        store.copies.abandon_copy(made.epoch)

    async def make(self, epochs: Sequence[int], terms: Terms) -> PassResult:
        """Run a pass over epochs of the log, without replacing them.

        Raises:
            PassStoppedError: the partition is being closed, or its topic was put on hold.
            StorageError, ProtocolError: as `CompactionPass.run`.
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
            pace=self._pace(),
        )

        def run() -> list[FinishedVersion] | None:
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
            self._passing.clear()  # The pass has not begun.
            raise
        if made is None:
            raise PassStoppedError
        return PassResult(made, one.left, one.terms)

    def _pace(self) -> CompactionPace:
        kinds = [self._tools.metrics.requests.tally(kind) for kind in PACED_REQUESTS]
        return CompactionPace(
            self._tools.loop,
            self._tools.settings.compaction_bytes_per_s,
            requests=lambda: sum(kind.value for kind in kinds),
            must_stop=self.must_stop,
            moved=self._watch.moved,
            rests=self._rests,
        )

    def _rests(self, rests: bool) -> None:
        self._tools.compactor.rests = rests


def _terms(compaction: pb.Compaction) -> Terms:
    return Terms(compaction.horizon, compaction.tombstones_below, compaction.floor)
