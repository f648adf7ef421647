"""What every part of a node shares: tasks whose failures are seen, a disk whose failure ends the node."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.broker import Broker
from tidelog_broker.storage.node.node_dir import open_node_dir
from tidelog_proto import broker_pb2 as pb


async def test_a_task_that_fails_is_logged_by_name_and_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = open_node_dir(tmp_path / "data")
    services = Broker(NodeSettings.model_validate({"data": tmp_path / "data"}), directory)
    await services.open_services()

    async def fail() -> None:
        raise KeyError("lost")

    task = services.spawn(fail(), "looking for it")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert "looking for it failed" in caplog.text
    assert not services._tasks
    services._resources.close()
    directory.close()


async def test_the_journals_do_not_wait_for_a_log_that_is_synced(tmp_path: Path) -> None:
    directory = open_node_dir(tmp_path / "data")
    services = Broker(NodeSettings.model_validate({"data": tmp_path / "data", "io_workers": 1}), directory)
    await services.open_services()
    gate, written = threading.Event(), asyncio.Event()
    syncing = asyncio.ensure_future(services.io.call(0, gate.wait, 20))
    entry = pb.FenceEntry(topic_id=b"t" * 16, epoch=1, promised=pb.Ballot(round=1, node_id="a"))
    services.replication.chains.write_fences([entry], written.set)
    await asyncio.wait_for(written.wait(), 20)
    assert not syncing.done()
    gate.set()
    await syncing
    await services.replication.close()
    services._resources.close()
    directory.close()


async def test_a_failed_disk_ends_the_node_with_a_code_of_its_own(tmp_path: Path) -> None:
    directory = open_node_dir(tmp_path / "data")
    services = Broker(NodeSettings.model_validate({"data": tmp_path / "data"}), directory)
    services.storage_failed("t/0", OSError("gone"))
    assert (services.health.state, services.exit_code) == ("failed", os.EX_IOERR)
    assert services._stop_asked.is_set()
    directory.close()
