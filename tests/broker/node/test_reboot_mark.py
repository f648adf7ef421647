from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.base.offload import Offload
from tidelog_broker.node.reboot_mark import clear_reboot_mark
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk

HOME = Path("/partitions")


class Rebooted:
    """A directory of a machine that went down."""

    machine_rebooted = True
    partitions = HOME

    def mark_reboot_noted(self) -> None:
        self.machine_rebooted = False


@pytest.mark.parametrize(("opened", "is_noted"), [([0, 1], True), ([0], False), ([], False)])
async def test_restart_mark_is_cleared_once_every_log_is_open(opened: list[int], is_noted: bool) -> None:
    fs = SimDisk()
    fs.make_dir(HOME)
    logs = [
        PartitionLog.open(Disk(fs=fs), HOME, topic="t", topic_id=b"i" * 16, partition=number, segment_bytes=4096)
        for number in (0, 1)
    ]
    for log in logs:
        log.start_epoch(0, 0)
    directory, workers = Rebooted(), IoWorkers(1)
    await clear_reboot_mark(
        cast(NodeDir, directory),
        fs,
        Offload(workers, asyncio.get_running_loop()),
        lambda: {logs[number].directory.name for number in opened},
    )
    workers.close()
    assert directory.machine_rebooted is not is_noted
