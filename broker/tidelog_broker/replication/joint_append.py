"""Appends of several partitions, one batch of each, with one write and one sync for all of them.

A node that stores one small batch in each of thousands of partitions would spend its time on the steps between the
parts: effects, queues of writes, a write, a request for a sync and an answer for each. If the stores share a log, and
nothing else is pending in a partition, these steps have nothing to decide. So the batches of a request are given
offsets one after the other (`core.replication.sole_append`), written together, and completed together.

The caller adds the batches and then calls `write`, without returning to the event loop in between.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from tidelog_broker.core.replication import sole_append
from tidelog_broker.core.replication.sole_append import SoleAppend
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.driver_ports import Tools
from tidelog_broker.replication.log_writer import sleeps
from tidelog_broker.storage.engine.store import STAGED_BYTES, EpochStore, StagedBatch, SyncGroup, padded
from tidelog_broker.storage.io.errors import StorageError
from tidelog_proto.batch.header import BatchHeader

ROOM_BYTES: Final = 16 * 1024
"""Space is reserved in steps of this size, because most requests have several small batches."""


class _Part(NamedTuple):
    driver: ReplicaDriver
    store: EpochStore
    append: SoleAppend
    data: memoryview


class JointAppend:
    """Collects the batches of one request, and writes them together. Used on the event loop."""

    __slots__ = (
        "_group",
        "_is_open",
        "_parts",
        "_room_bytes",
        "_size_bytes",
        "_staged",
        "_started_s",
        "_tools",
    )

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._group: SyncGroup | None = None
        self._parts: list[_Part] = []
        self._staged: list[StagedBatch] = []
        self._size_bytes = self._room_bytes = 0
        self._started_s = time.perf_counter()
        self._is_open = tools.inline_writes.allows(0, self._started_s)

    def add(self, driver: ReplicaDriver, header: BatchHeader, data: memoryview) -> SoleAppend | None:
        """Give a verified batch its offsets, to be written by `write`; None if the partition needs a write of its own.

        If None is returned, nothing has changed.
        """
        tools = self._tools
        if not self._is_open or tools.io.pending or not driver.may_join:
            return None
        needed_bytes = padded(len(data)) + STAGED_BYTES
        store = driver.view.store.staging(driver.replica.state.tail.epoch, needed_bytes)
        if store is None or not self._has_room(store.sync_group, needed_bytes):
            return None
        append = sole_append.accept(driver.replica, header, data, now_us=tools.wall_us())
        if append is None:
            return None
        driver.begin_joint()
        self._room_bytes -= needed_bytes
        self._size_bytes += needed_bytes
        # Staged first: `write` acknowledges each part, and must not know one without its batch.
        self._staged.append(store.stage(data, append.header))
        self._parts.append(_Part(driver, store, append, data))
        return append

    def _has_room(self, group: SyncGroup | None, needed_bytes: int) -> bool:
        if needed_bytes <= self._room_bytes and group is self._group:
            return True
        if group is None or (self._group is not None and group is not self._group):
            return False
        if not self._tools.inline_writes.allows(self._size_bytes + needed_bytes, self._started_s):
            return False
        self._group = group
        try:
            for size_bytes in (max(needed_bytes, ROOM_BYTES), needed_bytes):
                if group.has_room(size_bytes):
                    self._room_bytes += size_bytes
                    return True
        except StorageError:  # A write of the partition's own reports it.
            return False
        return False

    def write(self) -> None:
        """Write the batches, and complete them after a sync; the object is not used again."""
        self._is_open = False
        if self._group is None:
            return
        before, sleeps_before = time.perf_counter(), sleeps()
        try:
            self._group.append_staged(self._staged)
        except Exception as error:  # noqa: BLE001 - otherwise the partitions of the write would wait forever
            self._complete(error)
            return
        if not self._parts:
            return
        ended = time.perf_counter()
        self._tools.inline_writes.took(self._size_bytes, ended - before, ended, sleeps_before=sleeps_before)
        self._tools.syncs.request(self._group, self._complete)

    def _complete(self, error: BaseException | None) -> None:
        now_ms, seconds = self._tools.now_ms(), time.perf_counter() - self._started_s
        for driver, store, append, data in self._parts:
            driver.end_joint(append, data, store, error, now_ms=now_ms, seconds=seconds)
