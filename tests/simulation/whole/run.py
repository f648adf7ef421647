"""Runs seeds of the world of whole nodes: `python -m tests.simulation.whole.run --seeds 300`, or `--seed 7`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from tests.broker.storage.sim_disk import PowerCutError
from tests.simulation.process import Inline
from tests.simulation.truth import ViolationError
from tests.simulation.whole.checks import Checks
from tests.simulation.whole.gossip import SimGossip
from tests.simulation.whole.loop import Ordered, WholeWorkers
from tests.simulation.whole.network import SimLinks
from tests.simulation.whole.node_process import SimManagement, SimServer, SimTasks, process_of
from tests.simulation.whole.world import World

from tidelog_broker import broker
from tidelog_broker.base import threads
from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.cluster import cluster_view
from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.groups.positions import GroupOffsets
from tidelog_broker.core.groups.records import GroupRecords
from tidelog_broker.metadata import controller, state_log
from tidelog_broker.metadata.state_log import MetaLog
from tidelog_broker.node import cluster_membership, node
from tidelog_broker.partition import background_opener, change_notifier, partitions, pipeline
from tidelog_broker.rebalance.ownership_advice import OwnershipAdvice
from tidelog_broker.rebalance.preferred_owner import PreferredOwner
from tidelog_broker.rebalance.temporary_owner import TemporaryOwner
from tidelog_broker.replication import driver
from tidelog_broker.storage.io.errors import DiskFullError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.node import journal, node_dir, typed_journal
from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.typed_journal import JournalKind, TypedJournal
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.flow import fair_scheduler

JOURNAL_RESERVE_BYTES = 4096
COMPACT_AFTER_BYTES = 400
TRACE_SHOWN = 60
SNAPSHOT_AFTER_BYTES = 3_000
"""Where logs are handed over: small, so that records are pending while a snapshot is written."""
WRITE_TIMEOUT_S = 1.5
"""Settings for handovers of logs: short timeouts, so that records are pending whose writer has given up."""
SLEEPY_SHARE = 10_000
"""Partitions are opened only when needed, not gradually."""
HASH_SEED = "PYTHONHASHSEED"


@dataclass(frozen=True, slots=True)
class Result:
    """How a seed went; `invariant` is empty when all held."""

    seed: int
    invariant: str
    message: str
    checksum: int
    events: int
    decisions: int
    refusals: int
    rollbacks: int
    topics: int
    altered: int
    forgotten: int
    compactions: int
    trace: str = ""


class _BootId:
    def __init__(self, world: World) -> None:
        self._world = world

    def read_text(self, _: str) -> str:
        return f"boot {[machine.boot for machine in self._world.machines]}\n"


@contextmanager
def simulated(world: World, seed: int) -> Iterator[None]:
    """Let nodes that are made in the block live in a world, and its checks observe their writes."""
    random = Random(f"nonces {seed}")

    def now_s() -> float:
        return world.clock.now_us / 1e6

    def now_ns() -> int:
        return world.clock.now_us * 1000

    clock = SimpleNamespace(time_ns=now_ns, monotonic=now_s, perf_counter=now_s)
    uuids = SimpleNamespace(uuid4=lambda: UUID(int=random.getrandbits(128)))
    randoms = SimpleNamespace(Random=lambda: Random(random.getrandbits(64)))
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with ExitStack() as stack:
        stack.callback(logging.disable, disabled)
        for target, name, value in (
            (threads, "IoWorkers", WholeWorkers),
            (broker, "Tasks", SimTasks),
            (broker, "SteadyClock", partial(SteadyClock, wall_ns=now_ns, steady_ns=now_ns)),
            (broker, "InlineWrites", lambda: Inline(world.clock.random.random() < 0.5)),
            *(
                (module, "time", clock)
                for module in (broker, state_log, fair_scheduler, cluster_view, driver, pipeline)
            ),
            *(
                (broker, part.__name__, partial(part, clock_s=now_s))
                for part in (OwnershipAdvice, TemporaryOwner, PreferredOwner)
            ),
            (controller, "uuid", uuids),
            (cluster_view, "random", randoms),
            (cluster_membership, "Links", SimLinks),
            (cluster_membership, "Gossip", SimGossip),
            (cluster_membership, "check_udp_port", lambda host, port: None),
            (node, "Server", SimServer),
            (node, "Management", SimManagement),
            (node_dir, "BOOT_ID", _BootId(world)),
            (journal, "RESERVE_BYTES", JOURNAL_RESERVE_BYTES),
            (typed_journal, "COMPACT_AFTER_BYTES", COMPACT_AFTER_BYTES),
            (partitions, "OPEN_AHEAD", 0 if world.sleeps else partitions.OPEN_AHEAD),
            (background_opener, "SHARE", SLEEPY_SHARE if world.sleeps else background_opener.SHARE),
            (secrets, "randbits", random.getrandbits),
            (secrets, "token_bytes", random.randbytes),
            (secrets, "token_hex", lambda count: random.randbytes(count).hex()),
            *([(state_log, "SNAPSHOT_AFTER_BYTES", SNAPSHOT_AFTER_BYTES)] if world.hands_over else []),
            *([(state_log, "WRITE_TIMEOUT_S", WRITE_TIMEOUT_S)] if world.hands_over else []),
            *_watching(world),
        ):
            stack.enter_context(patch.object(target, name, value))
        stack.enter_context(patch.object(change_notifier, "set", Ordered, create=True))
        yield


def _watching(world: World) -> Sequence[tuple[Any, str, Any]]:
    """Return replacements that show the checks which data is durable, even if the node has not learned it."""
    write_record, apply_value = node_dir._write_record, MetaLog.apply_value
    append, compact, opens = TypedJournal.append, TypedJournal._compact, TypedJournal.open
    apply_group, apply_position = GroupRecords.apply, GroupOffsets.apply
    checks, journals = world.checks, world.checks.journals

    def number(fs: FileSystem) -> int | None:
        return next((machine.number for machine in world.machines if machine.disk is fs), None)

    def watched_record(fs: FileSystem, path: Path, record: node_dir.NodeRecord) -> None:
        write_record(fs, path, record)
        checks.written(fs, record)

    def watched_append(self: TypedJournal[Any], entries: Sequence[Any]) -> None:
        if self.kind is not CHAINS:
            append(self, entries)
            if self.kind is FENCES:
                checks.accepted(self._journal._fs, entries)
            return
        machine = number(self._journal._fs)
        assert machine is not None
        journals.appends(machine, entries)
        try:
            append(self, entries)
        except DiskFullError:
            journals.not_appended(machine)
            raise
        journals.appended(machine)
        checks.decided(self._journal._fs, entries)

    def watched_compact(self: TypedJournal[Any]) -> None:
        compact(self)
        journals.compactions += self.kind is CHAINS and self._dead_bytes == 0

    def watched_open(fs: FileSystem, path: Path, kind: JournalKind[Any]) -> TypedJournal[Any]:
        opened = opens(fs, path, kind)
        if kind is CHAINS:
            machine = number(fs)
            assert machine is not None
            journals.opened(machine, opened.load())
            checks.decided(fs, opened.load())
        return opened

    def watched_group(self: GroupRecords, record: pb.GroupRecord) -> bool:
        taken = apply_group(self, record)
        if taken and world.groups is not None:
            world.groups.stands(record)
        return taken

    def watched_position(self: GroupOffsets, record: pb.OffsetRecord) -> None:
        apply_position(self, record)
        if world.groups is not None:
            world.groups.position_stands(record)

    def watched_apply(self: MetaLog, value: bytes) -> None:
        _note_applied(checks, value)
        meta = pb.MetaRecord.FromString(value)
        if world.typed is not None and meta.HasField("schema"):
            world.typed.applied(meta.schema)
        apply_value(self, value)
        checks.named(self._topics.records())

    return [
        (Cluster, "take_part", _watched_take_part(world)),
        (node_dir, "_write_record", watched_record),
        (TypedJournal, "append", watched_append),
        (TypedJournal, "_compact", watched_compact),
        (TypedJournal, "open", watched_open),
        (MetaLog, "apply_value", watched_apply),
        (GroupRecords, "apply", watched_group),
        (GroupOffsets, "apply", watched_position),
    ]


def _watched_take_part(world: World) -> Callable[[Cluster], None]:
    """Return a replacement of `Cluster.take_part` by which the world sees that a copy takes part."""
    take_part = Cluster.take_part

    def watched_take_part(self: Cluster) -> None:
        machine = process_of(asyncio.get_running_loop()).machine
        if not (machine.is_copy and world.copy_takes_part(machine)):
            take_part(self)

    return watched_take_part


def _note_applied(checks: Checks, value: bytes) -> None:
    """Let the checks see a record that a node applies."""
    meta = pb.MetaRecord.FromString(value)
    record = meta.node if meta.HasField("node") else None
    if meta.HasField("schema"):
        number = meta.schema.schema.number.to_bytes(4, "big")
        checks.applied("schema", meta.schema.topic_id + number, 1, value)
    elif record is not None:
        checks.applied("node", record.node_id.encode(), record.revision, value)
    else:
        topic = pb.TopicRecord.FromString(value)
        checks.applied("topic", topic.topic_id, topic.revision, value)


def run_seed(seed: int, *, trace: int = TRACE_SHOWN, kind: str | None = None) -> Result:
    """Run one seed, perhaps in another kind of world than its own."""
    world = World(seed, kind)
    invariant = message = ""
    with simulated(world, seed):
        try:
            world.run()
        except ViolationError as error:
            invariant, message = error.invariant, str(error)
        except PowerCutError:
            raise
        except Exception:  # noqa: BLE001 - whatever the code under test raises is a finding
            invariant, message = "crash", traceback.format_exc(limit=-12)
    return Result(
        seed,
        invariant,
        message,
        world.clock.checksum,
        world.clock.events,
        world.checks.decisions,
        world.checks.refusals,
        world.checks.rollbacks,
        world.topics.made + world.topics.deleted,
        world.topics.altered,
        world.checks.journals.forgotten,
        world.checks.journals.compactions,
        "\n".join(f"{at_us / 1000:10.3f} {what}" for at_us, what in world.clock.trace(trace)) if invariant else "",
    )


def report(result: Result) -> str:
    """Return a failure as text."""
    again = f"(again: python -m tests.simulation.whole.run --seed {result.seed})"
    return f"{result.trace}\nseed {result.seed} of whole nodes: {result.message}\n{again}"


def many(first: int, count: int, processes: int, run: Callable[[int], Result] = run_seed) -> int:
    """Run seeds in processes, print the results, and return the number of failures."""
    began = time.monotonic()
    with get_context("fork").Pool(processes, maxtasksperchild=1) as pool:  # each seed in a new process
        results = list(pool.imap_unordered(run, range(first, first + count), chunksize=1))
    failed = sorted((result for result in results if result.invariant), key=lambda result: result.seed)
    for result in failed:
        print(f"seed {result.seed}: {result.message.splitlines()[-1][:300]}")
    seconds = time.monotonic() - began
    compacted = sum(result.compactions > 0 for result in results)
    print(
        f"{count} seeds of whole nodes in {seconds:.0f} s ({count / seconds:.1f} a second): "
        f"{sum(result.events for result in results)} events, {sum(result.decisions for result in results)} epochs of "
        f"__meta decided, {sum(result.refusals for result in results)} starts refused, "
        f"{sum(result.rollbacks for result in results)} disks rolled back, "
        f"{sum(result.topics for result in results)} topics made or deleted, "
        f"{sum(result.altered for result in results)} altered, metadata journals compacted in "
        f"{compacted} seeds, {len(failed)} seeds failed"
    )
    if failed:
        print(report(min(failed, key=lambda result: result.events)))
    return len(failed)


def with_ordered_sets(module: str) -> None:
    """Restart this process's module if sets of names are not in the order that seeds are repeated in.

    That order is a matter of the interpreter's start.
    """
    if os.environ.get(HASH_SEED) != "0":
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | {HASH_SEED: "0"})


def main() -> int:
    """Run with the arguments of the command line; the exit code is 1 if a seed failed."""
    parser = argparse.ArgumentParser(description="Run whole nodes in a simulated world.")
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one, with its trace")
    parser.add_argument("--trace", type=int, default=TRACE_SHOWN, help="how many events a failure shows")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kind", help="of world, another one than each seed's own")
    arguments = parser.parse_args()
    with_ordered_sets(__spec__.name)
    run = partial(run_seed, kind=arguments.kind)
    if arguments.seed is None:
        return 1 if many(arguments.first, arguments.seeds, arguments.processes, run) else 0
    result = run(arguments.seed, trace=arguments.trace)
    print(report(result) if result.invariant else f"seed {result.seed}: every invariant held")
    print(f"{result}"[:300])
    return 1 if result.invariant else 0


if __name__ == "__main__":
    sys.exit(main())
