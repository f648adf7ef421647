"""Observation of the shipped code by the checks while a seed runs: writes to logs, journal entries, reads.

Writes are observed where they happen, not where they are reported, because a crash may come between. It changes nothing
except one fault of the world's own: a machine that lies reads other content than it has.
"""

from __future__ import annotations

import logging
from asyncio.events import _get_running_loop
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from tests.simulation.copies import Copy
from tests.simulation.lies import lie

from tidelog_broker.core.replication.effects import Append, ReadLog
from tidelog_broker.core.replication.epoch_writer import Group
from tidelog_broker.core.replication.ports import Batch
from tidelog_broker.core.replication.replica import Replica
from tidelog_broker.core.replication.sole_append import SoleAppend
from tidelog_broker.partition import partition
from tidelog_broker.partition.retention import Retention
from tidelog_broker.replication import log_writer
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.joint_append import JointAppend
from tidelog_broker.replication.log_writer import LogWrite
from tidelog_broker.replication.replica_log import BatchRange, ReplicaLog
from tidelog_broker.storage.engine.store import EpochStore
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto.batch.header import BatchHeader

if TYPE_CHECKING:
    from tests.simulation.loop import VirtualLoop
    from tests.simulation.world import World


@contextmanager
def watched(world: World) -> Iterator[None]:
    """Let a world's checks see everything that is done in the block."""
    watch = _Watch(world)
    with ExitStack() as stack:
        for target, name, watching in (
            (log_writer, "append", watch.append),
            (log_writer, "append_in_place", watch.append_in_place),
            (log_writer, "perform", watch.perform),
            (ReplicaLog, "read_epoch", watch.read_epoch),
            (Retention, "_prepare", watch.prepare),
            (ReplicaDriver, "_appended", watch.appended),
            (ReplicaDriver, "end_joint", watch.end_joint),
            (JointAppend, "add", watch.add),
            (ReplicaDriver, "accept_group", watch.accept_group),
            (ReplicaDriver, "delete_below", watch.delete_below),
            (PartitionLog, "_delete_oldest", watch.delete_oldest),
            (Replica, "deadline_ms", watch.deadline_ms),
        ):
            stack.enter_context(patch.object(target, name, watching(getattr(target, name))))
        stack.enter_context(patch.object(partition, "log", _losses(world)))
        yield


def _losses(world: World) -> logging.Logger:
    """Return a logger for partitions that reports losses to the checks, and logs nothing."""

    class Losses(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text, loop = record.getMessage(), _get_running_loop()
            if text.startswith("DATA_LOSS"):
                world.checks.logged(cast("VirtualLoop", loop).process, text)

    logger = logging.Logger("simulated losses", logging.WARNING)  # noqa: LOG001 - it belongs to this world only
    logger.addHandler(Losses())
    return logger


class _Watch:
    def __init__(self, world: World) -> None:
        self._world = world

    def append(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def append(view: ReplicaLog, group: Sequence[Append], *, synced: bool) -> bool:
            done = original(view, group, synced=synced)
            if not _is_synced_later(view, group):
                self._tell(view, group, done=done)
            return done

        return append

    def append_in_place(self, original: Callable[..., None]) -> Callable[..., None]:
        def append_in_place(view: ReplicaLog, group: Sequence[Append]) -> None:
            original(view, group)
            if not _is_synced_later(view, group):
                self._tell(view, group, done=True)

        return append_in_place

    def appended(self, original: Callable[..., None]) -> Callable[..., None]:
        def appended(
            driver: ReplicaDriver, group: list[Append], started: float, *, ok: bool, error: BaseException | None
        ) -> None:
            if error is None and _is_synced_later(driver.view, group):
                self._tell(driver.view, group, done=ok)
            original(driver, group, started, ok=ok, error=error)

        return appended

    def end_joint(self, original: Callable[..., None]) -> Callable[..., None]:
        def end_joint(
            driver: ReplicaDriver,
            append: SoleAppend,
            data: memoryview,
            store: EpochStore,
            error: BaseException | None,
            **when: Any,
        ) -> None:
            if error is None:
                tail, placed = append.tail, append.placed
                effect = Append(tail.epoch, tail.start_offset, placed.base_offset, placed.end_offset, [data])
                self._tell(driver.view, [effect], done=True)
            original(driver, append, data, store, error, **when)

        return end_joint

    def add(self, original: Callable[..., SoleAppend | None]) -> Callable[..., SoleAppend | None]:
        def add(joint: JointAppend, driver: ReplicaDriver, header: BatchHeader, data: memoryview) -> SoleAppend | None:
            append = original(joint, driver, header, data)
            if append is not None:
                self._world.checks.deletions[driver.key].stamped([append.header])
            return append

        return add

    def perform(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def perform(view: ReplicaLog, effect: Any) -> bool:
            done = original(view, effect)
            self._tell(view, [effect], done=done)
            return done

        return perform

    def prepare(self, original: Callable[..., None]) -> Callable[..., None]:
        def prepare(retention: Retention, offset: int) -> None:
            copy = self._copy(retention._driver.view)
            deletions = self._world.checks.deletions[copy.key]
            deletions.decides(copy, offset)
            original(retention, offset)
            deletions.notes(copy, offset)

        return prepare

    def accept_group(self, original: Callable[..., Group]) -> Callable[..., Group]:
        def accept_group(driver: ReplicaDriver, batches: Sequence[Batch]) -> Group:
            group = original(driver, batches)
            self._world.checks.deletions[driver.key].stamped(group.headers)
            return group

        return accept_group

    def delete_below(self, original: Callable[..., None]) -> Callable[..., None]:
        def delete_below(driver: ReplicaDriver, offset: int) -> None:
            copy = self._copy(driver.view)
            self._world.checks.deletions[copy.key].wants(copy, offset)
            original(driver, offset)

        return delete_below

    def deadline_ms(self, original: property) -> property:
        """A deadline that an owner has kept is the one that its parts name when they are asked again."""

        def deadline_ms(replica: Replica) -> int | None:
            kept_ms: int | None = original.__get__(replica)
            replica.deadlines_known = False
            asked_ms: int | None = original.__get__(replica)
            assert kept_ms == asked_ms, f"the kept deadline is {kept_ms}, the parts name {asked_ms}"
            return kept_ms

        return property(deadline_ms)

    def delete_oldest(self, original: Callable[..., int]) -> Callable[..., int]:
        def delete_oldest(log: PartitionLog) -> int:
            freed_bytes = original(log)
            if freed_bytes:
                copy = next(copy for copy in self._world.copies.values() if copy.log is log)
                self._world.checks.deletions[copy.key].deletes(copy)
            return freed_bytes

        return delete_oldest

    def read_epoch(self, original: Callable[..., BatchRange]) -> Callable[..., BatchRange]:
        def read_epoch(view: ReplicaLog, effect: ReadLog) -> BatchRange:
            found, copy = original(view, effect), self._copy(view)
            if copy.process.machine.lies and self._know_the_end(copy, effect):
                return BatchRange(*lie(*found))
            return found

        return read_epoch

    def _know_the_end(self, copy: Copy, effect: ReadLog) -> bool:
        """Whether both nodes know the decision about an epoch, without which wrong content cannot be served."""
        machine = self._world.machine_of(effect.to)
        process = machine.running if machine is not None else None
        other = process.partitions.get(copy.key) if process is not None else None
        return (
            effect.epoch < copy.replica.state.active.epoch
            and other is not None
            and effect.epoch < other.replica.state.active.epoch
        )

    def _tell(self, view: ReplicaLog, effects: Sequence[LogWrite], *, done: bool) -> None:
        copy = self._copy(view)
        for effect in effects:
            self._world.checks.performed(copy, effect, done=done)

    def _copy(self, view: ReplicaLog) -> Copy:
        return self._world.copies[view]


def _is_synced_later(view: ReplicaLog, group: Sequence[Append]) -> bool:
    """Return whether a sync after the append, for several partitions, makes a group durable."""
    return view.shares_log(group[0].epoch) and view.syncs_appends(group[0].epoch)
