"""Final checks of a run: all copies are complete and equal byte by byte, and the answers to clients were true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation import forks
from tests.simulation.payload import KeyedRecord, is_sound, keyed_records, make_batch, payload_of
from tests.simulation.truth import Truth, ViolationError

from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.storage.io.errors import DamagedError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header

if TYPE_CHECKING:
    from tests.simulation.copies import Copy
    from tests.simulation.world import World


def _copies(world: World, key: PartitionKey) -> list[Copy]:
    processes = [machine.process for machine in world.machines if machine.process is not None]
    return [process.partitions[key] for process in processes if key in process.partitions]


def _stores(copy: Copy, epoch: int) -> bool:
    """Whether a node is to hold the partition, and is able to."""
    replica = copy.replica
    return replica.state.active.epoch == epoch and replica.state.is_member and able(copy)


def able(copy: Copy) -> bool:
    """Whether a partition is not damaged on a node."""
    return copy.limbo() is None and copy.replica.state.halted is None


def unequal(world: World, key: PartitionKey) -> str | None:
    """Say what keeps the copies of a partition from being complete and equal; None when nothing does."""
    copies = _copies(world, key)
    opening = [
        machine.node_id for machine in world.machines if machine.process is not None and machine.process.is_opening
    ]
    if opening:
        return f"{opening} are being opened"
    goal = forks.newest(world.checks.truths[key])
    for copy in copies:
        if world.checks.truth_of(copy) is not goal:
            return f"{describe(copy)} does not know an operator's decision, or has another one"
    newest = max(copy.replica.state.active.epoch for copy in copies)
    members = [copy for copy in copies if _stores(copy, newest)]
    owner = next((copy for copy in members if copy.replica.state.owner is not None), None)
    if owner is None:
        return f"epoch {newest} has no owner: {[describe(copy) for copy in copies]}"
    end = owner.log.end_offset
    for copy in copies:
        if copy.replica.state.active.epoch != newest and able(copy):
            return f"{describe(copy)} does not know epoch {newest}"
    for copy in members:
        has_all = copy.log.end_offset == end or copy.replica.state.log_start >= end
        if not has_all or copy.replica.state.high_watermark != end or not copy.is_idle:
            return f"{describe(copy)}, {owner.name} is at {end}"
        if copy.partition.compaction.is_behind:
            return f"{describe(copy)} has not been compacted as decided"
        if copy.log.start_offset > max(copy.replica.state.log_start, copy.replica.backfill.lost_below):
            return f"{describe(copy)} lacks the records before {copy.log.start_offset}"
    if world.scenario.scrubs and (rotten := [copy.name for copy in members if _rots(copy)]):
        return f"{rotten} have bit rot in epochs that have ended"
    for one in world.consumers:
        if one.key == key and (one.position < end or one.truth is not goal):
            return f"a consumer is at {one.position} of {end}, or in given-up records"
    return None


def describe(copy: Copy) -> str:
    """Return a replica's state in a line."""
    replica = copy.replica
    return (
        f"{copy.name} {replica.state.role} of epoch {replica.state.active.epoch} (owner {replica.state.active.owner}, "
        f"placement {list(replica.state.active.placement)}) at {copy.log.end_offset}, watermark "
        f"{replica.state.high_watermark}, {replica.candidate.phase}, halted {replica.state.halted}, "
        f"limbo {copy.limbo()}"
    )


def _sound_log(copy: Copy) -> list[bytes] | None:
    """Return a log; None if it has undetected bit rot, which the CRC reports at the next read."""
    try:
        log = copy.all_batches()
    except DamagedError:
        log = [b""]
    if all(map(is_sound, log)):
        return log
    machine = copy.process.machine
    if not copy.process.world.faults.may_lose(machine):
        raise ViolationError("I15", f"{copy.name} holds rotten batches, and nothing has rotted there")
    return None


def _rots(copy: Copy) -> bool:
    """Whether an ended epoch has bit rot; an open epoch is not repaired from other nodes."""
    for held in copy.log.epochs:
        try:
            batches = held.reader.read(held.start_offset, 1 << 20, limit_offset=held.end_offset).batches
        except DamagedError:
            batches = [memoryview(b"")]
        if held is not copy.log.active and not all(is_sound(bytes(batch)) for batch in batches):
            return True
    return False


def compare_logs(world: World, key: PartitionKey) -> list[bytes]:
    """Compare every copy byte by byte (I15) and return the log."""
    copies = _copies(world, key)
    newest = max(copy.replica.state.active.epoch for copy in copies)
    members = [copy for copy in copies if _stores(copy, newest)]
    sound = [(copy, log) for copy in members if (log := _sound_log(copy)) is not None]
    if not sound:
        raise ViolationError("I15", f"no copy of partition {key[1]} is sound")
    start_offset = max(copy.log.start_offset for copy, _ in sound)
    sound = [(copy, [data for data in log if unpack_header(data).base_offset >= start_offset]) for copy, log in sound]
    logs = [log for _, log in sound]
    for copy, log in sound:
        if log != logs[0]:
            number = next((i for i, (a, b) in enumerate(zip(log, logs[0], strict=False)) if a != b), -1)
            what = f"{unpack_header(log[number])} and {unpack_header(logs[0][number])}" if number >= 0 else "in length"
            raise ViolationError("I15", f"the logs of {copy.name} and {sound[0][0].name} differ: {what}")
    return logs[0]


def compare_compacted(world: World, key: PartitionKey, truth: Truth, log: list[bytes]) -> None:
    """Compare a compacted log with the answers to producers and consumers: the newest record of each key exists (I27).

    Records deleted by retention may be missing, wherever they are still stored.
    """
    offset = _beginning(world, key, log) if world.scenario.deletes else 0
    shown_from = max([offset if log else 0, *(copy.replica.state.deleted_below for copy in _copies(world, key))])
    found: dict[int, KeyedRecord] = {}
    for data in log:
        header = unpack_header(data)
        if header.base_offset != offset:
            raise ViolationError("I2", f"the log has {header.base_offset} where {offset} comes next")
        offset = header.end_offset
        for record in keyed_records(data):
            if truth.payload_at(header.epoch, record.offset) != record.payload:
                raise ViolationError("I27", f"{record} was never written there")
            found[record.offset] = record
    latest = {record.key: record for record in found.values()}
    for publish in world.history.publishes:
        if publish.key != key or publish.outcome != "stored" or publish.acks == pb.ONE:
            continue
        _, made = make_batch(
            publish.payload, publish.records, producer_id=0, base_sequence=0, keyed=True, tombstones=True
        )
        for record in keyed_records(made):
            at = publish.base_offset + record.offset
            if at < shown_from:
                continue
            later = latest.get(record.key)
            is_over = later is not None and later.offset > at
            if at not in found and not is_over and not record.is_tombstone:
                gone = _later_tombstone(truth, record.key, at)
                if not gone:
                    raise ViolationError("I27", f"{publish} was acknowledged, the log lacks its record at {at}")
            if at in found and found[at].payload != publish.payload:
                raise ViolationError("I6", f"{publish} was acknowledged, the log has {found[at]} at {at}")
    for consumer in world.consumers:
        if consumer.key == key:
            known = {
                one.key: one for one in consumer.table.values() if not one.is_tombstone and one.offset >= shown_from
            }
            there = {one.key: one for one in latest.values() if not one.is_tombstone and one.offset >= shown_from}
            if known != there:
                raise ViolationError("I27", f"a consumer knows {known}, the log has {there}")


def _as_produced(payload: int, records: int) -> bytearray:
    return make_batch(payload, records, producer_id=0, base_sequence=0, keyed=True, tombstones=True)[1]


def _later_tombstone(truth: Truth, key: bytes, offset: int) -> bool:
    """Whether a tombstone of a key was written after an offset."""
    for (epoch, base), payload in truth.by_digest.items():
        header = truth.batches[epoch][base]
        if base > offset:
            _, data = make_batch(
                payload, header.record_count, producer_id=0, base_sequence=0, keyed=True, tombstones=True
            )
            if any(record.key == key and record.is_tombstone for record in keyed_records(data)):
                return True
    return False


def _beginning(world: World, key: PartitionKey, log: list[bytes]) -> int:
    """Return where a log begins that retention may have deleted all of."""
    return unpack_header(log[0]).base_offset if log else max(copy.log.end_offset for copy in _copies(world, key))


def compare_with_history(world: World, key: PartitionKey, truth: Truth, log: list[bytes]) -> None:
    """Compare the log with the answers to producers and consumers (I3, I6, I10, I12)."""
    at: dict[int, int] = {}
    digests: dict[int, int] = {}
    stamp_us = 0
    begins_late = world.scenario.deletes or world.scenario.in_memory
    start_offset = offset = _beginning(world, key, log) if begins_late else 0
    for data in log:
        header = unpack_header(data)
        if header.base_offset != offset:
            raise ViolationError("I2", f"the log has {header.base_offset} where {offset} comes next")
        offset = header.end_offset
        if not header.record_count:
            continue
        if header.append_timestamp_us < stamp_us:
            raise ViolationError("I19", f"the time goes back to {header.append_timestamp_us} at {header.base_offset}")
        stamp_us = header.append_timestamp_us
        payload = payload_of(data, header.record_count)
        if payload in at and not world.scenario.deduplicates:
            raise ViolationError("I12", f"payload {payload:#x} is at {at[payload]} and at {header.base_offset}")
        at[payload] = header.base_offset
        digests[header.base_offset] = header.digest
    for fork in forks.past(truth):
        lost = [base for base, digest in fork.kept if base >= start_offset and digests.get(base) != digest]
        if lost:
            raise ViolationError(
                "I21", f"{lost} were held when epoch {fork.epoch} was ended by an operator, and are gone"
            )
    denied, overruled = forks.denied(truth), forks.overruled_denials(truth)
    for publish in world.history.publishes if not world.scenario.deduplicates else ():
        if publish.key != key or publish.acks == pb.ONE or publish.base_offset in range(start_offset):
            continue
        place = at.get(publish.payload)
        if truth.losses is not None and truth.losses.is_lost(publish.base_offset):
            continue
        if publish.outcome == "stored" and place != publish.base_offset and not forks.was_cut(truth, publish):
            raise ViolationError("I6", f"{publish} was acknowledged, the log has it at {place}")
        if publish.outcome == "not written" and place is not None and publish.payload not in overruled:
            raise ViolationError("I12", f"{publish} was denied, the log has it at {place}")
    for payload in denied:
        if payload in at:
            raise ViolationError("I12", f"payload {payload:#x} was denied, the log has it at {at[payload]}")
    for consumer in world.consumers:
        if consumer.key == key:
            for _, base_offset, digest, _ in consumer.seen.batches:
                if truth.losses is not None and truth.losses.is_lost(base_offset):
                    continue
                if base_offset >= start_offset and digests.get(base_offset) != digest:
                    raise ViolationError("I10", f"a consumer was given something else at {base_offset}")
