"""The names of a partition's directories, and renaming them with the power cut anywhere."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest
from tests.broker.storage.build import HOME, PARTITION, TOPIC_ID, append, batch
from tests.broker.storage.logs import EPOCH, create, disk_on, new_disk
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.partition.partition_dirs import (
    REASON_NAME,
    PartitionName,
    aside_dirs,
    demote,
    epoch_dirs,
    missing_epoch,
    parse_partition_dir_name,
    partial_copy_dir_name,
    partial_copy_dirs,
    partition_dir_name,
    put_aside,
)


def with_epochs(*epochs: int) -> SimDisk:
    sim = new_disk()
    for epoch in epochs:
        log = create(sim, HOME / f"epoch-{epoch:08d}", epoch=epoch)
        append(log, [batch()], epoch=epoch)
        log.close()
    return sim


def test_directory_names_round_trip() -> None:
    name = partition_dir_name("events", TOPIC_ID, PARTITION)
    assert parse_partition_dir_name(name) == PartitionName("events", TOPIC_ID, PARTITION)
    assert parse_partition_dir_name("a.b-c." + "0" * 32 + "-12") == PartitionName("a.b-c", bytes(16), 12)
    assert parse_partition_dir_name(".trash-" + name + "x") is None


def test_each_role_has_distinct_names() -> None:
    sim = with_epochs(0, 1, 2, 3, 100_000_000)
    demote(disk_on(sim), HOME / "epoch-00000000")
    assert put_aside(sim, HOME / "epoch-00000001", "rot").name == "epoch-00000001.bad-1"
    assert put_aside(sim, HOME / partial_copy_dir_name(0), "rot").name == "epoch-00000000.fill.bad-1"
    demote(disk_on(sim), HOME / "epoch-00000002")
    assert list(epoch_dirs(sim, HOME)) == [3, 100_000_000]
    assert list(partial_copy_dirs(sim, HOME)) == [2]
    assert [path.name for path in aside_dirs(sim, HOME)] == ["epoch-00000000.fill.bad-1", "epoch-00000001.bad-1"]
    reason = sim.node(HOME / "epoch-00000001.bad-1" / REASON_NAME)
    assert bytes(reason.current) == b"rot\n"


def test_set_aside_copies_are_numbered() -> None:
    sim = with_epochs(0)
    assert put_aside(sim, EPOCH, "one").name == "epoch-00000000.bad-1"
    create(sim, EPOCH).close()
    assert put_aside(sim, EPOCH, "two").name == "epoch-00000000.bad-2"


def test_newest_epoch_that_was_set_aside_is_missing() -> None:
    sim = with_epochs(0, 1, 2)
    assert missing_epoch(sim, HOME) is None
    put_aside(sim, HOME / "epoch-00000001", "sealed")
    assert missing_epoch(sim, HOME) is None
    put_aside(sim, HOME / "epoch-00000002", "newest")
    assert missing_epoch(sim, HOME) == 2
    create(sim, HOME / "epoch-00000002", epoch=2).close()
    assert missing_epoch(sim, HOME) is None


def test_set_aside_copy_is_not_missing() -> None:
    sim = with_epochs(0, 7)
    demote(disk_on(sim), HOME / "epoch-00000007")
    put_aside(sim, HOME / partial_copy_dir_name(7), "wrong")
    assert missing_epoch(sim, HOME) is None


def test_full_disk_does_not_prevent_setting_a_copy_aside() -> None:
    sim = with_epochs(0)
    sim.fail = lambda operation, path: OSError(errno.ENOSPC, "full") if operation in {"create", "write"} else None
    assert put_aside(sim, EPOCH, "rot").name == "epoch-00000000.bad-1"
    sim = with_epochs(0)
    sim.fail = lambda operation, path: OSError(errno.EIO, "broken") if operation == "rename" else None
    with pytest.raises(OSError, match="broken"):
        put_aside(sim, EPOCH, "rot")


def test_power_loss_leaves_one_of_the_two_names() -> None:
    for cut in range(10):
        sim = with_epochs(0)
        sim.cut_at = sim.steps + cut
        with suppress(PowerCutError):
            demote(disk_on(sim), EPOCH)
            put_aside(sim, HOME / partial_copy_dir_name(0), "rot")
            return
        again = sim.power_cut(Random(cut))
        assert len(again.list_dir(HOME)) == 1
    raise AssertionError("the directory was never set aside")
