"""Deduplication by content: drops records that the partition already has, before they get offsets (ADR 0087).

The owner keeps a window of content hashes of its newest records, uncommitted ones included. A batch loses the records
that are in the window, or repeated within the batch; the other records are appended as one batch, or a control batch if
none remains. The appended batch has higher offsets than all records that caused the drops. So once it is committed,
these records are committed, too; and if the epoch ends before one of them, the appended batch is not stored either.

The window is a function of the log and the topic's settings: a new owner reads it back before it accepts batches. A
batch's producer sequence is checked first: a retry, or a refused batch, does not change the window.

Short batches are screened on the event loop, long ones on a reader thread while the pipeline waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from tidelog_broker.core.deduplication_window import ROW_BYTES, DeduplicationWindow
from tidelog_broker.core.replication.epoch_writer import Group, OffsetAssigner
from tidelog_broker.core.replication.ports import Batch
from tidelog_broker.core.replication.producers import PlacedBatch
from tidelog_broker.core.topics import deduplicates
from tidelog_broker.partition.content_history import ContentHistory
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.storage.engine.store import padded
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.content_hash import ContentHasher, Contents, first_of_each
from tidelog_proto.batch.deduplication import THINNED_EXTRA_BYTES, without_dropped
from tidelog_proto.batch.header import BatchHeader, Flags, unpack_header
from tidelog_proto.batch.record_batch import RecordBatch, layout_for
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import (
    DEDUPLICATE_RECORDS_MAX,
    DEDUPLICATED_BATCH_RECORDS_MAX,
    HEADER_BYTES,
    KIB,
)

log = logging.getLogger(__name__)

INLINE_BYTES: Final = 128 * KIB
"""Largest batch in bytes, compressed or not, that is screened on the event loop."""
INLINE_RECORDS: Final = 2048
"""Largest number of records of a batch that is screened on the event loop, in half a millisecond."""
GROUP_WORK_MAX: Final = 2.0
"""Bound on the cost of screening a group of batches on the event loop, as a multiple of that of the largest batch that
is screened there.
"""
READ_AGAIN_MS: Final = 100
NO_MEMORY_RETRY_MS: Final = 1000

Built = Callable[[ProtocolError | None], None]
"""Called with None when the window is complete, or with the error that prevented it."""


class _Screened(NamedTuple):
    """A batch without duplicates.

    Attributes:
        contents: content hashes of the remaining records.
        dropped: bitmap of the dropped records of the original batch; empty if no record or every record was dropped.
    """

    batch: Batch
    contents: Contents
    dropped: bytes


class _Rebuild(NamedTuple):
    """A window that is being built, and the owner state that it belongs to."""

    history: ContentHistory
    window: DeduplicationWindow
    owner: OffsetAssigner
    settings: tuple[int, int]
    built: Built


class Deduplication:
    """Drops records that one partition already has, before they get offsets.

    All methods are for the event loop's thread.

    Args:
        check_offset: raises ProtocolError if the log on this node lacks the record at an offset.
    """

    def __init__(
        self,
        state: PartitionState,
        driver: ReplicaDriver,
        *,
        tools: PartitionTools,
        io_key: int,
        check_offset: Callable[[int], None],
    ) -> None:
        self._state = state
        self._driver = driver
        self._tools = tools
        self._io_key = io_key
        self._check_offset = check_offset
        self._window: DeduplicationWindow | None = None
        self._owner: OffsetAssigner | None = None
        """The owner state that the window was built for."""
        self._prepared: tuple[Batch, _Screened | ProtocolError] | None = None
        self._settings: tuple[int, int] = (0, 0)
        self._logged_damage = ""
        """The damage that was logged last, to log it once."""
        self._hasher: ContentHasher | None = None
        self.configure()

    @property
    def is_on(self) -> bool:
        """Whether duplicates are dropped."""
        return self._hasher is not None

    @property
    def window_records(self) -> int | None:
        """The number of records in the window; None if there is no window. Thread-safe."""
        window = self._window
        return len(window) if window is not None else None

    def configure(self) -> None:
        """Apply the topic's current settings; if they have changed, the window is discarded, to be rebuilt."""
        config = self._state.topic.config
        settings = (config.deduplicate_s, config.deduplicate_records)
        if settings != self._settings:
            self.forget()
            self._settings = settings
            wanted = deduplicates(config) and not self._state.is_internal
            # An owner of `__meta` with an older build ignores these settings and creates no hash key.
            key = self._state.topic.content_key or self._state.topic.topic_id
            self._hasher = ContentHasher(key) if wanted else None

    def forget(self) -> None:
        """Discard the window: the epoch has ended, or the partition is closed."""
        window, self._window, self._owner, self._prepared = self._window, None, None, None
        if window is not None:
            window.close()

    # --- the window ------------------------------------------------------------------------------------

    def is_ready_for(self, owner: OffsetAssigner) -> bool:
        """Return whether the window was built for this owner."""
        return self._owner is owner

    def build(self, owner: OffsetAssigner, built: Built) -> None:
        """Build the window for an owner and call `built`, immediately if deduplication is off.

        The owner must have written everything to which it has assigned offsets.
        """
        self.forget()
        seconds, records = self._settings
        records_max, age_us = records or DEDUPLICATE_RECORDS_MAX, seconds * 1_000_000
        hasher, budget = self._hasher, self._tools.contents
        if hasher is None:
            built(None)
            return
        window = DeduplicationWindow(
            records_max=records_max, age_us=age_us, take=budget.take, give_back=budget.give_back
        )
        history = ContentHistory(
            self._state.log,
            hasher,
            log_start=self._state.held_from,
            end=owner.next_offset,
            records_max=records_max,
            oldest_us=self._now_us(owner) - age_us if age_us else None,
        )
        self._read_on(_Rebuild(history, window, owner, self._settings, built))

    def _read_on(self, rebuild: _Rebuild) -> None:
        history, built = rebuild.history, rebuild.built
        if history.is_whole:
            self._fill(rebuild)
            return
        try:
            self._check_offset(history.next_offset)
        except ProtocolError as error:
            built(self._not_yet(error))
            return

        def read(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._fetch_damaged(history, error)
                built(self._not_yet(error))
            elif not self._tools.contents.has_room(min(history.count, DEDUPLICATE_RECORDS_MAX) * ROW_BYTES):
                built(
                    self._no_memory()
                )  # Checked before the reading, which each publish would otherwise repeat in vain.
            elif self._is_wanted(rebuild):
                self._read_on(rebuild)
            else:
                built(None)

        self._tools.readers.start(self._io_key, history.step, read)

    def _fetch_damaged(self, history: ContentHistory, error: BaseException) -> None:
        """If records are damaged, have the replica fetch their epoch from another node; until then publishes fail."""
        if not isinstance(error, ProtocolError) or error.code not in {pb.LIMBO, pb.CORRUPT_BATCH}:
            return
        epochs = (held.epoch for held in self._state.log.epochs if held.end_offset > history.looked_at)
        damaged = next(epochs, None)
        if damaged is not None:
            if error.message != self._logged_damage:  # Logged once: clients retry, so this runs often.
                self._logged_damage = error.message
                log.error(
                    "%s: the newest records cannot be read for deduplication, so publishes are refused until the "
                    "damaged records have been fetched from another node: %s",
                    self._state.name,
                    error.message,
                )
            self._driver.damaged(damaged, error.message)

    def _fill(self, rebuild: _Rebuild) -> None:
        history, window, built = rebuild.history, rebuild.window, rebuild.built
        if not window.reserve(history.count):
            built(self._no_memory())
            return

        def filled(_: None, error: BaseException | None) -> None:
            if error is None and self._is_wanted(rebuild):
                self._window, self._owner = window, rebuild.owner
            else:
                window.close()
            built(self._not_yet(error) if error is not None else None)

        self._tools.readers.start(self._io_key, partial(history.fill, window), filled)

    def _is_wanted(self, rebuild: _Rebuild) -> bool:
        """Return whether the epoch and the topic's settings are still those for which a window is being built."""
        is_open = self._state.assigner is rebuild.owner and not self._driver.stopped
        return is_open and self._settings is rebuild.settings

    def _not_yet(self, error: BaseException) -> ProtocolError:
        if isinstance(error, ProtocolError) and error.code in {pb.EPOCH_CHANGING, pb.OVERLOADED}:
            return error
        return ProtocolError(
            pb.EPOCH_CHANGING,
            f"{self._state.name}: its newest records cannot be read for deduplication ({error}); send again, or set "
            "deduplicate_s and deduplicate_records of the topic to 0",
            retry_after_ms=READ_AGAIN_MS,
        )

    def _no_memory(self) -> ProtocolError:
        return ProtocolError(
            pb.OVERLOADED,
            f"{self._state.name}: the node has no memory left for the content hashes of this partition's newest "
            "records; set deduplication_bytes of the node higher, or deduplicate_records of topics lower",
            retry_after_ms=NO_MEMORY_RETRY_MS,
        )

    def _now_us(self, owner: OffsetAssigner) -> int:
        """Return the append time of a batch appended now, or a little less."""
        return max(self._tools.clock.now_us(), owner.producers.last_append_timestamp_us)

    # --- batches ---------------------------------------------------------------------------------------

    def is_long(self, owner: OffsetAssigner, batch: Batch) -> bool:
        """Return whether a batch must first be screened on another thread, by `prepare`."""
        if _work(batch.header) <= 1 or self._prepared_of(batch) is not None:
            return False
        return self._judge(owner, batch.header) is None

    def _prepared_of(self, batch: Batch) -> _Screened | ProtocolError | None:
        prepared = self._prepared
        return prepared[1] if prepared is not None and prepared[0].data is batch.data else None

    def prepare(self, owner: OffsetAssigner, batch: Batch, done: Callable[[], None]) -> None:
        """Screen a long batch on another thread; `done` is called when `screen_and_accept` may follow."""
        window = self._window
        assert window is not None

        def screened(result: _Screened | None, error: BaseException | None) -> None:
            if self._window is window:  # After a rebuild, another window screens the batch again.
                self._prepared = (batch, result if result is not None else _refusal(self._state.name, error))
            done()

        work = partial(self._screen, window, batch, now_us=self._now_us(owner), log_start=self._state.log_start)
        self._tools.readers.start(self._io_key, work, screened)

    def screen_and_accept(self, owner: OffsetAssigner, batches: Sequence[Batch]) -> Group:
        """Drop duplicates and have the driver assign offsets, in order, up to the first batch that needs `prepare`.

        The caller then calls `ReplicaDriver.execute_accepted`.

        Returns:
            The outcomes of the first batches, as many as were processed.
        """
        group = Group(owner.next_offset, owner.next_offset, owner.digest)
        work = 0.0
        for batch in batches:
            work += _work(batch.header)
            if self.is_long(owner, batch) or (group.outcomes and work > GROUP_WORK_MAX):
                break
            judged = self._judge(owner, batch.header)
            if judged is None:
                self._append(owner, batch, group)
            elif isinstance(judged, PlacedBatch):
                _note(group, self._with_dropped(judged, batch), is_retry=True)
            else:
                self._take(self._driver.accept_group([batch]), group)
        self._prepared = None
        group.end_offset = owner.next_offset
        return group

    def _judge(self, owner: OffsetAssigner, header: BatchHeader) -> PlacedBatch | bool | None:
        """Return None for a batch to be screened, the first outcome for a retry, and False for other batches."""
        if header.flags & Flags.CONTROL:
            return False
        try:
            return owner.producers.check(header)
        except ProtocolError:
            return False  # Not screened: the driver raises the same error for the batch.

    def _append(self, owner: OffsetAssigner, batch: Batch, group: Group) -> None:
        window = self._window
        assert window is not None
        try:
            screened = self._prepared_of(batch)
            if screened is None:
                screened = self._screen(window, batch, now_us=self._now_us(owner), log_start=self._state.log_start)
            if isinstance(screened, ProtocolError):
                raise screened
            if not window.reserve(len(screened.contents)):
                raise self._no_memory()
        except ProtocolError as error:
            _note(group, error, is_retry=False)
            return
        appended = self._driver.accept_group([screened.batch])
        (outcome,) = appended.outcomes
        if isinstance(outcome, PlacedBatch):
            first, count = outcome.base_offset, len(screened.contents)
            window.add(screened.contents, np.arange(first, first + count), np.full(count, outcome.append_timestamp_us))
            if outcome.duplicates:
                self._tools.metrics.deduplicated.tally(self._state.topic.name).inc(outcome.duplicates)
                appended.outcomes[0] = outcome._replace(dropped=screened.dropped)
                owner.producers.set_fingerprint(batch.header)
        self._take(appended, group)

    def _take(self, appended: Group, group: Group) -> None:
        group.batches += appended.batches
        group.ends += appended.ends
        group.headers += appended.headers
        group.outcomes += appended.outcomes
        group.duplicates += appended.duplicates

    def _screen(self, window: DeduplicationWindow, batch: Batch, *, now_us: int, log_start: int) -> _Screened:
        """Return a batch without records that are in the window, or repeated within the batch. Thread-safe.

        Raises:
            ProtocolError: BATCH_TOO_LARGE: the batch has too many records, or grows without its duplicates.
        """
        assert self._hasher is not None
        header, data = batch
        if header.record_count > DEDUPLICATED_BATCH_RECORDS_MAX:
            raise ProtocolError(
                pb.BATCH_TOO_LARGE,
                f"{self._state.name}: a batch of a topic with deduplication may have at most "
                f"{DEDUPLICATED_BATCH_RECORDS_MAX} records, got {header.record_count}; send smaller batches",
            )
        records = self._records(header, data)
        contents = self._hasher.hashes(records)
        keep = (window.find(contents, now_us=now_us, log_start=log_start) < 0) & first_of_each(contents)
        if keep.all():
            return _Screened(batch, contents, b"")
        thinned = memoryview(without_dropped(records, keep))
        if padded(len(thinned)) > padded(len(data)) + THINNED_EXTRA_BYTES:
            raise ProtocolError(
                pb.BATCH_TOO_LARGE,
                f"{self._state.name}: without its duplicates the batch grows from {len(data)} to {len(thinned)} bytes, "
                f"and may grow by {THINNED_EXTRA_BYTES}, because it was compressed at a higher level than the node "
                "uses; send it uncompressed, or compressed at the default level",
            )
        return _Screened(Batch(unpack_header(thinned, typed=True), thinned), contents[keep], _bits(~keep))

    def _records(self, header: BatchHeader, data: memoryview) -> RecordBatch:
        """Return a verified batch to be decoded.

        Raises:
            ProtocolError: EPOCH_CHANGING if this node does not know its schema yet.
        """
        return RecordBatch(header, data[HEADER_BYTES:], layout=layout_for(header, self._state.log.layouts))

    def _with_dropped(self, stored: PlacedBatch, batch: Batch) -> PlacedBatch:
        """Return the outcome of a retried batch, with its dropped records if the window still contains them."""
        kept = batch.header.record_count - stored.duplicates
        if not stored.duplicates or not kept or self._window is None or self._hasher is None:
            return stored
        contents = self._hasher.hashes(self._records(batch.header, batch.data))
        found = self._window.find(contents, now_us=stored.append_timestamp_us, log_start=self._state.log_start)
        keep = (found >= stored.base_offset) & (found < stored.end_offset) & first_of_each(contents)
        return stored._replace(dropped=_bits(~keep)) if int(keep.sum()) == kept else stored


def _note(group: Group, outcome: PlacedBatch | ProtocolError, *, is_retry: bool) -> None:
    group.outcomes.append(outcome)
    group.duplicates.append(is_retry)


def _work(header: BatchHeader) -> float:
    """Return the cost of screening a batch, relative to the largest that is screened on the event loop."""
    size_bytes = max(header.body_length, header.uncompressed_length)
    return max(size_bytes / INLINE_BYTES, header.record_count / INLINE_RECORDS)


def _bits(dropped: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> bytes:
    """Return which records of a batch were dropped as a bitmap, lowest bit first; empty if all were."""
    return b"" if dropped.all() else np.packbits(dropped, bitorder="little").tobytes()


def _refusal(name: str, error: BaseException | None) -> ProtocolError:
    if isinstance(error, ProtocolError):
        return error
    return ProtocolError(pb.INTERNAL, f"{name}: deduplication of a batch failed: {error!r}")
