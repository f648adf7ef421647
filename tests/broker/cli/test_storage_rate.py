"""The rate of storage alone is measured on real files, for both file models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidelog_broker.cli import storage_rate
from tidelog_broker.storage.io.errors import StorageFailedError


def measured(directory: Path, model: str, **changes: Any) -> dict[str, Any]:
    arguments = {"partitions": 40, "seconds": 0.2, "size": 50, "pending": 30} | changes
    command = [sys.executable, "-m", "tidelog_broker.cli.storage_rate", "--data", str(directory), "--model", model]
    command += [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(command, check=True, capture_output=True, timeout=120)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("model", ["per-partition", "shared"])
def test_records_are_stored_in_the_files_of_the_model(tmp_path: Path, model: str) -> None:
    result = measured(tmp_path, model)
    assert result["records_per_s"] > 0
    assert result["cpu_us"] > 0
    assert len(list(tmp_path.glob("epoch-*"))) == 40
    in_the_log = sum(path.stat().st_size for path in tmp_path.glob("commit-log/*"))
    assert (in_the_log > 0) == (model == "shared")


def test_fewer_partitions_than_pending_batches_are_measured(tmp_path: Path) -> None:
    assert measured(tmp_path, "shared", partitions=1, pending=1000)["records_per_s"] > 0


async def test_a_failed_write_ends_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageFailedError("the disk failed")

    monkeypatch.setattr(storage_rate, "stamp_owner", fail)
    with pytest.raises(StorageFailedError, match="the disk failed"):
        await storage_rate.measure(
            tmp_path, model="per-partition", partitions=3, seconds=0.2, size_bytes=10, pending_max=3
        )
