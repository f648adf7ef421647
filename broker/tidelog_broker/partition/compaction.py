"""Compaction of one partition's sealed epochs: the owner decides when and how far, every replica compacts (ADR 0074).

    owner     writes the new versions beside its log, then proposes their ends with its next planned end of an epoch
    replicas  converge to the newest decided version, see `compacted_versions`

The owner's versions are used only once they are decided: with another decision, or after a restart, they are written
again. A failed compaction is retried at the next check, and until then the older versions are served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tidelog_broker.partition.change_notifier import ChangeNotifier
from tidelog_broker.partition.compacted_versions import COMPLETE_COPY_TIMEOUT_S, WHOLE_AGAIN_S, CompactedVersions
from tidelog_broker.partition.compaction_progress import CompactionProgress
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.storage.io.errors import DiskFullError, StorageFailedError
from tidelog_broker.storage.partition.compaction_pass import (
    FinishedVersion,
    PassStoppedError,
    Terms,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_BYTES_MAX, DERIVED_EXTRA_BYTES

log = logging.getLogger(__name__)

COMPACTIONS_MAX: Final = 256
"""Maximum number of epochs compacted by one decision, which is sent as a whole and stays in the chain."""

DECIDE_S: Final = 10.0
"""How long the owner waits for the decision about a proposed end of an epoch."""

NO_PROGRESS_S: Final = 30.0
"""Timeout of a requested pass without progress; longer than each timeout within the pass."""

LOOK_S: Final = 0.2
"""How often progress is checked."""


class CompactionState(NamedTuple):
    """The result of a requested compaction.

    Attributes:
        below: offset below which the partition is compacted.
        size_bytes: size of the log on this node.
    """

    below: int
    size_bytes: int


class Compaction:
    """Compacts the sealed epochs of one partition, when its owner has decided so or an operator requests it.

    All methods are for the event loop's thread.

    Args:
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
        replaced: Callable[[int], None],
    ) -> None:
        self._state = state
        self._changes = changes
        self._driver = driver
        self._tools = tools
        self._io_key = io_key
        self._watch = CompactionProgress(tools.loop.time, tools.passes)
        self.versions = CompactedVersions(
            state, changes, driver, tools=tools, io_key=io_key, watch=self._watch, replaced=replaced
        )
        self.left: frozenset[int] = frozenset()
        """Epochs that the owner's last pass has left unchanged, see `CompactionPass`; the next one tries again."""
        self._busy = asyncio.Lock()
        self._requested_passes: set[asyncio.Task[None]] = set()
        """Requested passes; the requests that started them may have been answered with TIMED_OUT."""

    async def close(self) -> None:
        """Stop a running pass and begin no more, because the log is about to be closed or removed."""
        await self.versions.close()

    @property
    def is_behind(self) -> bool:
        """Whether a copy on this node differs from the newest decided version."""
        return self.versions.is_behind

    @property
    def wants_check(self) -> bool:
        """Whether there may be work. Cheap, because it is called for every partition."""
        return self.is_configured or bool(self._state.replica.state.chain.compactions)

    @property
    def is_configured(self) -> bool:
        """Whether the topic is compacted."""
        return self._state.topic.config.cleanup in {pb.COMPACT, pb.COMPACT_AND_DELETE}

    async def check(self) -> None:
        """Converge copies to decided versions; as the owner, compact if enough is dirty. Does nothing during a pass.

        Errors other than a failed disk are logged, and the next check tries again.

        Raises:
            StorageFailedError: the disk failed.
        """
        if self._busy.locked():
            return
        async with self._busy:
            try:
                await self.versions.remove_replaced()  # A fetched copy may have replaced an older version.
                await self.versions.converge()
                if self.is_due():
                    await self._compact(self.horizon_of(await self._last_appends()))
                    await self.versions.converge()
            except PassStoppedError:
                pass
            except DiskFullError as error:
                log.warning("%s: cannot be compacted now, retrying later: %s", self._state.name, error.message)
            except StorageFailedError:
                if not self.versions.is_over:
                    raise
            except ProtocolError as error:
                log.warning("%s: compaction failed, retrying later: %s", self._state.name, error.message)

    async def run_now(self) -> CompactionState:
        """Compact everything committed so far; return when it is done on this node.

        Raises:
            ProtocolError: INVALID_REQUEST if the topic is not compacted, or is on hold; NOT_OWNER; EPOCH_CHANGING if it
                was not decided in time; TIMED_OUT, with the awaited resource, without progress for `NO_PROGRESS_S`: a
                pass that has begun continues when that becomes available, another one is cancelled; DISK_FULL and
                other errors of the pass.
        """
        config, name = self._state.topic.config, self._state.name
        if not self.is_configured:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{name} is not compacted by its settings; set that first: tidelog topic alter "
                f"{self._state.topic.name} --cleanup compact",
            )
        if config.hold:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{name} is on hold; end the hold first: tidelog topic alter {self._state.topic.name} --no-hold",
            )
        await self._while_it_moves()
        self._check_owner()
        return CompactionState(self._compacted_below(), self._state.log.size_bytes)

    async def _while_it_moves(self) -> None:
        """Run a pass and wait for its end while it makes progress.

        A pass that hangs cannot be stopped: it keeps its resources until the operation that it waits for completes.
        """
        began_s, loop = self._tools.loop.time(), self._tools.loop
        has_turn = asyncio.Event()
        running = loop.create_task(self._run(has_turn), name=f"compact {self._state.name}")
        self._requested_passes.add(running)
        running.add_done_callback(self._ended)
        is_left = False
        try:
            while not (await asyncio.wait([running], timeout=LOOK_S))[0]:
                idle_s = min(self._watch.idle_s, loop.time() - began_s)
                if idle_s >= NO_PROGRESS_S:
                    is_left = has_turn.is_set()
                    raise ProtocolError(
                        pb.TIMED_OUT,
                        f"{self._state.name}: the compaction has made no progress for {idle_s:.0f} s, because it waits "
                        f"for {self._watch.waits_for}; "
                        + ("it continues when that is available" if is_left else "send the request again later"),
                    )
        finally:
            if not is_left:
                running.cancel()
        running.result()

    async def _run(self, has_turn: asyncio.Event) -> None:
        async with self._busy:
            has_turn.set()
            try:
                await self.versions.converge()
                await self._compact(self._state.high_watermark)
                await self.versions.converge()
            except PassStoppedError:
                raise ProtocolError(
                    pb.EPOCH_CHANGING,
                    f"{self._state.name}: the compaction was stopped, because the partition is being closed or its "
                    "topic was put on hold; retry; while the topic is on hold, after its end",
                ) from None

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._requested_passes.discard(running)
        if not running.cancelled():
            running.exception()  # The caller has received the error.

    # --- the owner -------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Return whether this node, as the owner, has to compact: enough is dirty, or tombstones have expired."""
        state = self._state
        config = state.topic.config
        if not self.is_configured or config.hold or self.versions.is_over or state.assigner is None or state.is_moving:
            return False
        below = self._compacted_below()
        dirty = (held for held in state.log.epochs if held.end_offset > below and held.epoch not in self.left)
        dirty_bytes = sum(held.size_bytes for held in dirty)
        is_dirty = dirty_bytes >= max(config.segment_bytes, state.log.size_bytes * config.dirty_percent // 100)
        # Tombstones after the start of an epoch that was left unchanged cannot be removed.
        starts = [state.replica.state.start_of(epoch) for epoch in self.left]
        return is_dirty or min([self._tombstones_below(), *starts]) > self._tombstones_gone_below()

    async def _compact(self, horizon: int) -> None:
        """Compact the epochs that end at or below `horizon`, and have the new versions decided.

        If the horizon is in the open epoch, that epoch is ended first.

        All steps happen within epochs of this owner (ADR 0123): a pass of another owner that was decided meanwhile may
        have removed tombstones of values that this pass has kept.
        """
        self._check_owner()
        known = self._state.replica.state
        if horizon > known.active.start_offset:
            await self.end_epoch(())
        epoch = known.active.epoch
        sealed = range(known.chain.genesis.epoch, epoch)
        ranges = [epoch for epoch in sealed if known.start_of(epoch) < known.decision(epoch).end_offset <= horizon]
        floor = max(known.log_start, known.deleted_below)
        ranges = [epoch for epoch in ranges if known.decision(epoch).end_offset > floor]
        terms = Terms(
            max((known.decision(epoch).end_offset for epoch in ranges), default=0), self._tombstones_below(), floor
        )
        if not ranges:
            return
        await self._until_whole(terms, ranges)
        made, left, terms = await self.versions.make(ranges, terms)
        self.left = frozenset(left)
        if left:
            log.warning(
                "%s: epochs %s stay uncompacted, because a batch of their surviving records would have more than %d "
                "bytes; all their records remain readable",
                self._state.name,
                left,
                BATCH_BYTES_MAX + DERIVED_EXTRA_BYTES,
            )
        self.versions.keep(made)
        changed = [one for one in made if one.end.digest != known.ends_of(one.epoch)[-1].digest]
        # A pass that changed nothing is decided, too, because its decision starts the expiry of tombstones.
        proposed = changed or made[-1:]
        for at in range(0, len(proposed), COMPACTIONS_MAX):
            self._check_owner()
            if self._state.epoch != epoch:
                raise self._interrupted_error(epoch)
            now_us = self._tools.clock.now_us()
            part = proposed[at : at + COMPACTIONS_MAX]
            await self.end_epoch([_compaction(one, terms, now_us).SerializeToString() for one in part])
            epoch += 1

    async def _until_whole(self, terms: Terms, epochs: Sequence[int]) -> None:
        """Wait until this node's log has all records that the pass reads: a quorum may commit records without it.

        Raises:
            ProtocolError: EPOCH_CHANGING if that takes too long.
        """
        until_s = self._tools.loop.time() + COMPLETE_COPY_TIMEOUT_S
        history = self._state.replica.backfill
        self._watch.step(self._missing_here)
        while self.versions.is_converging or history.is_lacking or not self.versions.can_pass(terms, epochs):
            self._check_open()
            if self._tools.loop.time() >= until_s:
                raise ProtocolError(
                    pb.EPOCH_CHANGING,
                    f"{self._state.name} was not compacted: the copy on this node is incomplete and waits for "
                    f"{self._missing_here()}; retry",
                    retry_after_ms=1000,
                )
            await asyncio.sleep(WHOLE_AGAIN_S)

    async def end_epoch(self, compactions: Sequence[bytes]) -> None:
        """End the open epoch by a planned decision, and become the owner of the next one.

        Args:
            compactions: serialized `pb.Compaction` messages, to be decided together with the end.

        Raises:
            ProtocolError: EPOCH_CHANGING if that is not decided in time, or another decision ended the epoch;
                NOT_OWNER.
        """
        epoch = self._state.epoch
        self._watch.step(self.awaited_copies)
        plan = replace(self._state.replica.ownership.plan_next(), compactions=tuple(compactions))
        self._driver.roll_over(plan)
        try:
            async with asyncio.timeout(DECIDE_S):
                while self._state.epoch == epoch or (self._owns and self._state.assigner is None):
                    self._check_open()
                    await self._changes.change()
        except TimeoutError:
            raise ProtocolError(
                pb.EPOCH_CHANGING,
                f"{self._state.name}: the end of epoch {epoch} was not decided within {DECIDE_S:.0f} s; the decision "
                f"waits for {self.awaited_copies()}; retry",
            ) from None
        self._check_owner()
        decision = self._state.replica.state.decision(epoch)
        if [one.SerializeToString() for one in decision.compactions] != list(compactions):
            raise self._interrupted_error(epoch)

    def _interrupted_error(self, epoch: int) -> ProtocolError:
        return ProtocolError(
            pb.EPOCH_CHANGING,
            f"{self._state.name}: epoch {epoch} was ended by another decision during the compaction; send again",
            retry_after_ms=1000,
        )

    def awaited_copies(self) -> str:
        """Return what a decision may be waiting for, for a message.

        That is the unavailable copies, all other copies if all are available, or the journal of an only copy.
        """
        replica = self._state.replica
        active, alive = replica.state.active, replica.state.cluster_hints.alive
        streaming = {each.node_id for each in replica.followers if each.streaming}
        others = [node for node in active.placement if node != replica.state.node_id]
        away = [node for node in others if not alive(node) or node not in streaming]
        return f"the copies on {', '.join(map(repr, away or others))}" if others else "this node's journal"

    def _missing_here(self) -> str:
        missing = self._state.replica.backfill.missing()
        if missing is None:
            return "this node's disk, or the end of an earlier compaction"
        where = repr(missing.source) if missing.source else "a node that has them"
        return f"{missing.records:,} older records from {where}"

    def _compacted_below(self) -> int:
        """Return the horizon of the newest decided pass; 0 before the first."""
        return max((each.horizon for each in self.rounds()), default=0)

    def _tombstones_gone_below(self) -> int:
        return max((each.tombstones_below for each in self.rounds()), default=0)

    def _tombstones_below(self) -> int:
        """Return the offset below which a new pass may remove tombstones.

        It is the horizon of the newest pass whose decision is older than the topic's tombstone retention.
        """
        before_us = self._tools.clock.now_us() - self._state.topic.config.tombstone_retention_ms * 1000
        return max((each.horizon for each in self.rounds() if each.decided_us <= before_us), default=0)

    def rounds(self) -> Iterable[pb.Compaction]:
        """Return the bounds of all decided compactions of the chain."""
        chain = self._state.replica.state.chain
        return (each.terms for own in chain.compactions.values() for each in own)

    def horizon_of(self, last_appends: Sequence[tuple[int, int]]) -> int:
        """Return the end of the last epoch that may be compacted; 0 if no epoch may.

        All epochs up to that end are older than the topic's compaction lag.

        Args:
            last_appends: each epoch's end in the log, and the append time of its last batch in µs, oldest epoch first.
        """
        lag_us = self._state.topic.config.compaction_lag_ms * 1000
        before_us = self._tools.clock.now_us() - lag_us
        horizon = 0
        for end_offset, append_us in last_appends:
            if lag_us and append_us > before_us:
                break
            horizon = end_offset
        return horizon

    async def _last_appends(self) -> list[tuple[int, int]]:
        """Return each epoch's end in the log, and the append time of its last batch in µs, oldest epoch first."""
        epochs = [held for held in self._state.log.epochs if held.end_offset > held.start_offset]

        def read() -> list[tuple[int, int]]:
            found: list[tuple[int, int]] = []
            for held in epochs:
                end_offset = held.end_offset
                last = [header.append_timestamp_us for header in held.reader.scan_headers(end_offset - 1)]
                found.append((end_offset, max(last, default=0)))
            return found

        return await self._tools.readers.call(self._io_key, read)

    # --- internals -------------------------------------------------------------------------------------

    @property
    def _owns(self) -> bool:
        state = self._state.replica.state
        return state.active.owner == state.node_id

    def _check_open(self) -> None:
        if self.versions.is_over or self._state.replica.state.halted is not None:
            raise self._state.refusal or ProtocolError(pb.EPOCH_CHANGING, f"{self._state.name} is being closed; retry")

    def _check_owner(self) -> None:
        self._check_open()
        if not self._owns:
            raise self._state.not_owner()
        if self._state.assigner is None:
            raise ProtocolError(pb.EPOCH_CHANGING, f"{self._state.name} is starting a new epoch; retry")


def _compaction(made: FinishedVersion, terms: Terms, now_us: int) -> pb.Compaction:
    return pb.Compaction(
        epoch=made.epoch,
        horizon=terms.horizon,
        tombstones_below=terms.tombstones_below,
        end_digest=made.end.digest,
        size_bytes=made.size_bytes,
        floor=terms.floor,
        decided_us=now_us,
    )
