"""The note that keeps a log in LIMBO while it lacks what it once held."""

from __future__ import annotations

from random import Random

import pytest
from tests.broker.storage.build import append, batch, read_all
from tests.broker.storage.logs import EPOCH, create, new_disk, reopen
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.directory.repair_markers import has_marker, remove_marker, write_marker
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import LimboError, StorageFailedError


def damaged() -> tuple[SimDisk, EpochLog, list[bytes]]:
    sim = new_disk()
    log = create(sim)
    batches: list[bytes] = []
    for number in range(4):
        batches += append(log, [batch(bytes([number]) * 200)])
        log.sync()
    log.close()
    node = sim.node(sim.files(EPOCH, ".seg")[0])
    node.current[bytes(node.current).index(batches[2][:128]) + 130] ^= 1
    node.sync()
    log = reopen(sim)
    assert log.state == "limbo"
    return sim, log, batches


def test_marker_is_durable_and_written_once() -> None:
    sim = new_disk()
    create(sim).close()
    assert not has_marker(sim, EPOCH)
    write_marker(sim, EPOCH)
    write_marker(sim, EPOCH)
    again = sim.power_cut(Random(1))
    assert has_marker(again, EPOCH)
    remove_marker(again, EPOCH)
    remove_marker(again, EPOCH)
    assert not has_marker(again.power_cut(Random(1)), EPOCH)


def test_log_with_a_marker_is_in_limbo_and_takes_missing_batches() -> None:
    sim, log, batches = damaged()
    with pytest.raises(LimboError):
        log.ensure_space(64)
    log.truncate_to_valid_prefix()
    assert (log.state, log.is_repairing, log.has_room(64)) == ("limbo", True, False)
    assert read_all(log) == batches[:2]
    append(log, [batch(bytes([2]) * 200)])
    log.sync()
    again = reopen(sim.power_cut(Random(3)))
    assert (again.state, again.is_repairing, again.end_offset) == ("limbo", True, 3)
    again.finish_repair()
    assert (again.state, again.damage) == ("active", None)
    assert not has_marker(again._disk.fs, EPOCH)
    append(again, [batch()])


def test_marker_is_removed_when_the_decided_end_is_reached() -> None:
    sim, log, _ = damaged()
    log.truncate_to_valid_prefix()
    log.close()
    assert reopen(sim, sealed_end_offset=2).state == "sealed"
    assert not has_marker(sim, EPOCH)


def test_new_damage_during_a_repair_is_truncated() -> None:
    sim, log, batches = damaged()
    log.truncate_to_valid_prefix()
    log.close()
    node = sim.node(sim.files(EPOCH, ".seg")[0])
    node.current[bytes(node.current).index(batches[0][:128]) + 130] ^= 1
    log = reopen(sim)
    assert (log.state, log.is_repairing) == ("limbo", False)
    log.truncate_to_valid_prefix()
    assert (log.state, log.is_repairing, log.end_offset) == ("limbo", True, 0)


def test_disk_failure_stops_the_log_in_limbo() -> None:
    sim, log, _ = damaged()
    sim.fail = lambda operation, path: OSError(5, "broken") if operation == "truncate" else None
    with pytest.raises(StorageFailedError):
        log.truncate_to_valid_prefix()
    assert log.state == "failed"
    sim.fail = lambda operation, path: None
    assert reopen(sim.restart()).state == "limbo"

    sim, log, _ = damaged()
    log.truncate_to_valid_prefix()
    sim.fail = lambda operation, path: OSError(5, "broken") if operation == "unlink" else None
    with pytest.raises(StorageFailedError):
        log.finish_repair()
    with pytest.raises(StorageFailedError):
        log.truncate_to_valid_prefix()
