"""The newest epoch made whole again: each operation, with the power cut at each of its steps."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from tests.broker.storage.build import append, batch, read_all
from tests.broker.storage.decided import decided, fill, rot, whole
from tests.broker.storage.logs import new_disk, open_partition
from tests.broker.storage.sim_disk import PowerCutError

from tidelog_broker.storage.io.errors import LimboError
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError

HISTORY = decided(Random(5), epochs=5, batches_min=6, batches_max=9)


ALL = [raw for one in HISTORY for raw in one.batches]


def test_newest_epoch_is_truncated_at_its_damage_and_repaired() -> None:
    sim = new_disk()
    whole(sim, HISTORY).close()
    rot(sim, HISTORY[4], 3)
    log = open_partition(sim.restart())
    assert log.repair.repairable_end(3) is None
    end = log.repair.repairable_end(4)
    assert end == (unpack_header(HISTORY[4].batches[2]).end_offset, unpack_header(HISTORY[4].batches[2]).digest)
    assert log.repair.truncate_to_valid_prefix(4) == end
    assert log.repair.truncate_to_valid_prefix(4) == end
    with pytest.raises(LimboError):
        log.ensure_space(64)
    with pytest.raises(ProtocolError):
        log.repair.append_repair(4, HISTORY[4].batches[4:])
    assert log.repair.append_repair(4, []) == end
    log.repair.append_repair(4, HISTORY[4].batches[3:5])
    for view in (log, open_partition(sim.power_cut(Random(2)))):
        assert view.state == "limbo"
        assert read_all(view) == ALL[: -len(HISTORY[4].batches) + 5]
    log.repair.append_repair(4, HISTORY[4].batches[5:])
    log.repair.finish_repair(4)
    for view in (log, open_partition(sim.power_cut(Random(2)))):
        assert view.state == "active"
        assert read_all(view) == ALL
    append(log, [batch()], epoch=4)


def test_power_loss_during_truncation_of_damage_does_not_end_limbo() -> None:
    for cut in range(60):
        sim = new_disk()
        whole(sim, HISTORY).close()
        rot(sim, HISTORY[4], 1)
        log = open_partition(sim)
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            log.repair.truncate_to_valid_prefix(4)
            return
        again = open_partition(sim.power_cut(Random(cut)))
        assert again.state == "limbo"
        again.repair.truncate_to_valid_prefix(4)
        again.repair.append_repair(4, HISTORY[4].batches[1:])
        again.repair.finish_repair(4)
        assert read_all(again) == ALL
    raise AssertionError("the damage was never cut off")


def test_decided_end_before_the_damage_ends_limbo() -> None:
    sim = new_disk()
    whole(sim, HISTORY).close()
    rot(sim, HISTORY[4], 3)
    ends = [unpack_header(one).end_offset for one in HISTORY[4].batches]
    log = open_partition(sim.restart())
    with pytest.raises(LimboError):
        log.truncate_epoch(4, ends[4])
    log.truncate_epoch(4, ends[2])
    assert log.state == "active"
    assert open_partition(sim.power_cut(Random(0))).state == "active"
    log.start_epoch(5, ends[2])
    assert read_all(log) == ALL[: -len(HISTORY[4].batches) + 3]


def test_next_epoch_ends_a_repair_and_the_valid_prefix_is_resumed() -> None:
    sim = new_disk()
    whole(sim, HISTORY).close()
    rot(sim, HISTORY[4], 3)
    log = open_partition(sim.restart())
    with pytest.raises(LimboError):
        log.start_epoch(5, HISTORY[4].end_offset)
    log.repair.truncate_to_valid_prefix(4)
    log.start_epoch(5, HISTORY[4].end_offset)
    assert (log.state, log.start_offset) == ("active", HISTORY[4].end_offset)
    four = HISTORY[4]
    position = log.copies.begin_copy(4, four.start_offset, four.end_offset, four.end_digest)
    assert position.offset == unpack_header(four.batches[2]).end_offset
    for epoch in (4, 3, 2, 1, 0):
        assert fill(log, HISTORY[epoch])
    assert read_all(log) == ALL


def test_a_repair_that_reached_the_decided_end_is_continued_by_the_next_epoch() -> None:
    sim = new_disk()
    whole(sim, HISTORY).close()
    rot(sim, HISTORY[4], 3)
    log = open_partition(sim.restart())
    log.repair.truncate_to_valid_prefix(4)
    log.repair.append_repair(4, HISTORY[4].batches[3:])
    log.start_epoch(5, HISTORY[4].end_offset)
    for view in (log, open_partition(sim.power_cut(Random(0)))):
        assert read_all(view) == ALL
        assert view.state == "active"
