"""Kills of the engine at each of its steps: synced records survive, and no store is damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.broker.storage.rocksdb.killed import NODE, PARTITIONS, REMOVED, TOLD
from tests.broker.storage.rocksdb.stand import Stand

from tidelog.testing.engine_batches import append, batch, read_all
from tidelog_broker.storage.engines.stores import is_deleted, remove_store
from tidelog_proto.batch.header import unpack_header

STEPS = 500
"""More than a life has."""


def check(root: Path) -> None:
    told_path = root / TOLD
    told = json.loads(told_path.read_text()) if told_path.exists() else {}
    stand = Stand(root / NODE)
    for name, (start, synced, batches) in told.items():
        store = stand.open(int(name))
        assert (store.damage, store.state) == (None, "active")
        assert store.start_offset <= start[0] <= store.end_offset
        assert store.end_offset >= synced
        found = [one for one in read_all(store) if unpack_header(one).base_offset >= start[0]]
        assert [one.hex() for one in found[: len(batches)]] == batches, "a kill loses no record that was appended"
        append(store, [batch([b"after"])])
        store.close()
    for partition in (*range(PARTITIONS), REMOVED):
        directory = stand.directory(partition)
        if directory.exists() and str(partition) not in told:  # Its creation or removal was interrupted.
            if not is_deleted(stand.volume, directory):
                assert stand.open(partition).damage is None
            remove_store(stand.volume, directory)
            assert not directory.exists()
    stand.close()


@pytest.mark.parametrize("first", [1, pytest.param(0, marks=pytest.mark.long)])
def test_kill_at_each_step_loses_nothing_that_was_synced(tmp_path: Path, first: int) -> None:
    """The long variant kills at every step, the short one at every 17th."""
    stride = 17 if first else 1
    command = [sys.executable, "-m", "tests.broker.storage.rocksdb.killed", str(tmp_path), "1", str(STEPS), str(stride)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stderr
    killed = ended.stdout.split()
    assert len(killed) > 200 // stride, "the life is too short"
    assert len(killed) < (STEPS - 1) // stride, "the life is longer than the steps"
    for number in killed:
        check(tmp_path / number)
