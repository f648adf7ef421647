"""Appends of several partitions, one batch of each, with one write and one sync for all of them.

A node that stores one small batch in each of thousands of partitions would spend its time on the steps between the
parts: effects, queues of writes, a write, a request for a sync and an answer for each. If the stores share a log, and
nothing else is pending in a partition, these steps have nothing to decide. So the batches of a request are given
offsets one after the other (`core.replication.sole_append`), written together, and completed together.

The caller adds the batches and then calls `write`, without returning to the event loop in between.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from tidelog_broker.core.replication import sole_append
from tidelog_broker.core.replication.sole_append import SoleAppend
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.driver_ports import Tools
from tidelog_broker.replication.log_writer import sleeps
from tidelog_broker.storage.engine.store import EpochStore, StagedBatch, SyncGroup, padded
from tidelog_broker.storage.io.errors import StorageError
from tidelog_proto.batch.header import BatchHeader


class _Part(NamedTuple):
    driver: ReplicaDriver
    store: EpochStore
    append: SoleAppend
    data: memoryview


class JointAppend:
    """Collects the batches of one request, and writes them together. Used on the event loop."""

    __slots__ = ("_group", "_is_open", "_parts", "_size_bytes", "_staged", "_started_s", "_tools")

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._group: SyncGroup | None = None
        self._parts: list[_Part] = []
        self._staged: list[StagedBatch] = []
        self._size_bytes = 0
        self._started_s = time.perf_counter()
        self._is_open = tools.inline_writes.allows(0, self._started_s)

    def add(self, driver: ReplicaDriver, header: BatchHeader, data: memoryview) -> SoleAppend | None:
        """Give a verified batch its offsets, to be written by `write`; None if the partition needs a write of its own.

        If None is returned, nothing has changed.
        """
        if not (self._is_open and driver.may_join) or self._tools.io.pending:
            return None
        needed_bytes = padded(len(data))
        if not self._tools.inline_writes.allows(self._size_bytes + needed_bytes, self._started_s):
            return None
        if not sole_append.may_accept(driver.replica, header):
            return None
        store = driver.view.store.with_room(driver.replica.state.tail.epoch, needed_bytes)
        if store is None or (group := store.sync_group) is None or (self._group is not None and group is not self._group):
            return None
        self._group = group
        append = sole_append.accept(driver.replica, header, data, now_us=self._tools.wall_us())
        driver.begin_joint()
        self._parts.append(_Part(driver, store, append, data))
        self._staged.append(store.stage(data, append.header))
        self._size_bytes += needed_bytes
        return append

    def write(self) -> None:
        """Write the batches, and complete them after a sync; the object is not used again."""
        self._is_open = False
        if self._group is None:
            return
        before, sleeps_before = time.perf_counter(), sleeps()
        try:
            self._group.append_staged(self._staged)
        except StorageError as error:
            self._complete(error)
            return
        ended = time.perf_counter()
        self._tools.inline_writes.took(self._size_bytes, ended - before, ended, sleeps_before=sleeps_before)
        self._tools.syncs.request(self._group, self._complete)

    def _complete(self, error: BaseException | None) -> None:
        now_ms, seconds = self._tools.now_ms(), time.perf_counter() - self._started_s
        for driver, store, append, data in self._parts:
            driver.end_joint(append, data, store, error, now_ms=now_ms, seconds=seconds)
