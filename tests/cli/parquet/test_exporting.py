"""A topic to files and back, at a real node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Cli

from tidelog.requests.offset_ranges import OffsetRange
from tidelog_cli.parquet.exporting import files_of


@pytest.fixture
def filled(cli: Cli, topic: str) -> str:
    """Hold 100 records with all that a record may have, 60 in partition 0, 40 in partition 1."""
    for partition, count in ((0, 60), (1, 40)):
        lines = b"".join(b"k%d:%d\n" % (number % 7, number) for number in range(count)) + b"t:\n"
        options = ("--key-delimiter", ":", "--header", "h=1", "--tag", "x", "--timestamp", "2013-01-02", "--tombstones")
        assert cli("produce", topic, *options, "--partition", partition, stdin=lines).code == 0
    return topic


def records(cli: Cli, topic: str) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in cli("consume", topic, "--json").out.splitlines()]
    kept = ("partition", "offset", "timestamp_ms", "key", "value", "headers", "tag")
    return sorted(
        ({name: record[name] for name in kept} for record in read), key=lambda r: (r["partition"], r["offset"])
    )


@pytest.mark.parametrize("target", ["out", "out.parquet"])
def test_there_and_back(cli: Cli, filled: str, tmp_path: Path, target: str) -> None:
    ended = cli("export", filled, tmp_path / target, "--compression", "lz4", "--file-records", 25)
    assert ended.out == f"exported 102 records of {filled} to {tmp_path / target}\n"
    other = f"{filled}-{len(target)}"
    assert cli("topic", "create", other, "--partitions", 2).code == 0
    ended = cli("import", other, tmp_path / target)
    assert ended.out == f"imported 102 records into {other}; their offsets are new\n"
    assert records(cli, other) == records(cli, filled)
    if target == "out":
        names = sorted(path.name for path in (tmp_path / target).iterdir())
        assert names == [
            f"{number:05}-{start:020}.parquet" for number, start in ((0, 0), (0, 25), (0, 50), (1, 0), (1, 25))
        ]


def test_run_again_it_takes_what_is_new(cli: Cli, filled: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("export", filled, out).code == 0
    assert "exported 0 records" in cli("export", filled, out).out
    assert cli("produce", filled, "--partition", 1, stdin=b"new\n").code == 0
    assert json.loads(cli("export", filled, out, "--json").out)["records"] == 1
    (out / f"00001-{41:020}.parquet").unlink()  # as if it had been killed before the last file was done
    assert cli("produce", filled, "--partition", 1, stdin=b"newer\n").code == 0
    assert "exported 2 records" in cli("export", filled, out).out
    found = [value for path in sorted(out.iterdir()) for value in pq.read_table(path)["value"].to_pylist()]
    assert len(found) == 104
    assert found[-2:] == [b"new", b"newer"]


def test_records_deleted_between_exports_are_reported(cli: Cli, filled: str, tmp_path: Path) -> None:
    assert cli("topic", "delete-records", filled, "--before", "10", "--partition", 0).code == 0
    assert "exported 92 records" in cli("export", filled, tmp_path / "out").out
    assert cli("produce", filled, "--partition", 0, stdin=b"1\n2\n3\n").code == 0
    assert cli("topic", "delete-records", filled, "--before", "63", "--partition", 0).code == 0
    ended = cli("export", filled, tmp_path / "out")
    assert "partition 0: offsets 61 to 62 were deleted before this export" in ended.err
    assert "exported 1 record " in ended.out


def test_invalid_export_is_refused(cli: Cli, filled: str, tmp_path: Path) -> None:
    target = tmp_path / "a.parquet"
    assert cli("export", filled, target).code == 0
    ended = cli("export", filled, target)
    assert (ended.code, "--overwrite" in ended.err) == (1, True)
    assert cli("export", filled, target, "--overwrite", "--since", "2100-01-01").code == 0
    assert pq.read_metadata(target).num_rows == 0
    assert cli("export", "nowhere", tmp_path / "b.parquet").code == 1
    assert cli("export", filled, tmp_path / "b.parquet", "--since", "5").code == 2
    assert "is an export of" in cli_of_another_topic(cli, filled, tmp_path)


def cli_of_another_topic(cli: Cli, filled: str, tmp_path: Path) -> str:
    assert cli("export", filled, tmp_path / "out").code == 0
    assert cli("topic", "delete", filled, "--yes").code == 0
    assert cli("topic", "create", filled).code == 0
    ended = cli("export", filled, tmp_path / "out")
    assert ended.code == 1
    return ended.err


def test_killed_in_the_middle_it_leaves_no_half_file_and_goes_on(
    cli: Cli, topic: str, node: str, tmp_path: Path
) -> None:
    assert cli("produce", topic, "--partition", 0, stdin=b"".join(b"%d\n" % n for n in range(20_000))).code == 0
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tidelog_cli", "export", topic, str(out), "--file-records", "400"]
    with subprocess.Popen(command, env=os.environ | {"TIDELOG_BOOTSTRAP": node}, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not list(out.glob("*.parquet")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    for path in out.glob("*.parquet"):
        assert pq.read_metadata(path).num_rows == 400
    assert cli("export", topic, out).code == 0
    found = [value for path in sorted(out.iterdir()) for value in pq.read_table(path)["value"].to_pylist()]
    assert found == [b"%d" % n for n in range(20_000)]


def test_which_files_there_are() -> None:
    ranges = [OffsetRange("t", 0, 3, 10), OffsetRange("t", 1, 0, 4)]
    assert list(files_of(ranges, Path("f.parquet"), False, 5)) == [(Path("f.parquet"), ranges)]
    assert [(path.name[:5], part[0].start, part[0].end) for path, part in files_of(ranges, Path("d"), True, 5)] == [
        *(("00000", 3, 8), ("00000", 8, 10), ("00001", 0, 4))
    ]
