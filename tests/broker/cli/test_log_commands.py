"""`tidelog log inspect|verify|dump` on files of a real log: sound, torn, damaged, foreign."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tidelog_broker.cli.log_commands import log_app
from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.io.filesystem import File, RealFileSystem
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.layout import SEGMENT_HEADER_BYTES
from tidelog_cli.records.json_records import records_of
from tidelog_proto.batch.header import stamp_owner
from tidelog_proto.batch.record_batch import encode_batch

runner = CliRunner()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with one partition: three synced batches of two records."""
    partitions = tmp_path / "partitions"
    partitions.mkdir()
    log = PartitionLog.open(Disk(), partitions, topic="t", topic_id=b"i" * 16, partition=0, segment_bytes=1 << 20)
    log.start_epoch(0, 0)
    digest = 0
    for number in range(3):
        columns = pa.record_batch({"value": pa.array([b"x" * 50] * 2, pa.binary())})
        batch = bytearray(encode_batch(columns, now_us=1).to_bytes())
        digest = stamp_owner(
            batch,
            base_offset=2 * number,
            append_timestamp_us=1,
            epoch=0,
            owner_incarnation=1,
            previous_digest=digest,
        )
        log.ensure_space(padded(len(batch)))
        log.append([memoryview(batch)])
        log.sync()
    log.close()
    return tmp_path


def segment_of(data: Path) -> Path:
    (segment,) = data.rglob("*.seg")
    return segment


def test_verify_of_a_sound_log(data: Path) -> None:
    result = runner.invoke(log_app, ["verify", str(data)])
    assert result.exit_code == 0
    assert "6 records: sound" in result.stdout
    assert "0..6" in result.stdout


def test_json_lists_the_segments(data: Path) -> None:
    (report,) = json.loads(runner.invoke(log_app, ["inspect", str(data), "--json"]).stdout)
    assert (report["topic"], report["epoch"], report["base_offset"], report["end_offset"]) == ("t", 0, 0, 6)
    assert (report["batches"], report["records"], report["sound"]) == (3, 6, True)
    assert Path(report["path"]) == segment_of(data)


def test_flipped_bit_in_synced_data_is_damage(data: Path) -> None:
    segment = segment_of(data)
    raw = bytearray(segment.read_bytes())
    raw[SEGMENT_HEADER_BYTES + 150] ^= 1
    segment.write_bytes(raw)
    result = runner.invoke(log_app, ["verify", str(data)])
    assert result.exit_code == 1
    assert "DAMAGED" in result.stdout
    assert str(segment) in result.stdout.replace("\n", "")
    assert runner.invoke(log_app, ["inspect", str(data)]).exit_code == 0


def test_copies_beside_the_log_have_their_role(data: Path) -> None:
    (partition,) = (path for path in (data / "partitions").iterdir() if path.is_dir())
    (partition / "epoch-00000000").rename(partition / "epoch-00000000.fill")
    result = runner.invoke(log_app, ["verify", str(data)])
    assert result.exit_code == 0
    assert "filling" in result.stdout
    (partition / "epoch-00000000.fill").rename(partition / "epoch-00000000.making")
    assert "being compacted" in runner.invoke(log_app, ["verify", str(data)]).stdout
    (partition / "epoch-00000000.making").rename(partition / "epoch-00000000")
    shutil.copytree(partition / "epoch-00000000", partition / "epoch-00000000.c00000001")
    assert "older version" in runner.invoke(log_app, ["verify", str(data)]).stdout
    shutil.rmtree(partition / "epoch-00000000.c00000001")
    (partition / "epoch-00000000").rename(partition / "epoch-00000000.fill.bad-1")
    result = runner.invoke(log_app, ["inspect", str(data)])
    assert result.exit_code == 0
    assert "set aside" in result.stdout


def test_directory_of_several_nodes_is_read_node_by_node(data: Path, tmp_path: Path) -> None:
    home = tmp_path / "cluster"
    for name in ("node1", "node2"):
        (home / name).mkdir(parents=True)
        shutil.copytree(data / "partitions", home / name / "partitions")
    (home / "logs").mkdir()
    result = runner.invoke(log_app, ["verify", str(home)])
    assert result.exit_code == 0
    assert "2 segments, 12 records: sound" in result.stdout
    result = runner.invoke(log_app, ["inspect", str(home), "--json"])
    assert ["node1" in report["path"] for report in json.loads(result.stdout)] == [True, False]


def test_foreign_path_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    assert runner.invoke(log_app, ["verify", str(tmp_path)]).exit_code == 2
    assert runner.invoke(log_app, ["verify", str(tmp_path / "nowhere")]).exit_code == 2


def dumped(*arguments: str, exit_code: int = 0) -> list[int]:
    """Return the offsets of the records that `log dump` prints."""
    result = runner.invoke(log_app, ["dump", *arguments])
    assert result.exit_code == exit_code, result.output
    return [json.loads(line)["offset"] for line in result.stdout.splitlines()]


def test_dumped_records_can_be_published_again(data: Path) -> None:
    result = runner.invoke(log_app, ["dump", str(data), "--max", "1"])
    assert json.loads(result.stdout) == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 0.001,
        "key": None,
        "value": "x" * 50,
    }
    columns = records_of([line.encode() for line in result.stdout.splitlines()], 1)
    assert columns is not None
    assert columns.column("value").to_pylist() == [b"x" * 50]


def test_dump_is_limited_to_a_range(data: Path) -> None:
    assert dumped(str(data)) == dumped(str(segment_of(data))) == dumped(str(segment_of(data).parent)) == [*range(6)]
    assert dumped(str(data), "--from", "3") == [3, 4, 5]
    assert dumped(str(data), "--from", "1", "--to", "4") == [1, 2, 3]
    assert dumped(str(data), "--from", "1", "--max", "2") == [1, 2]
    assert dumped(str(data), "--from", "6") == dumped(str(data), "--to", "0") == []


def test_records_before_damage_are_dumped(data: Path) -> None:
    segment = segment_of(data)
    raw = bytearray(segment.read_bytes())
    raw[raw.rindex(b"xxx")] ^= 1
    segment.write_bytes(raw)
    assert dumped(str(data), exit_code=1) == [0, 1, 2, 3]
    result = runner.invoke(log_app, ["dump", str(data)])
    assert "damage: " in result.stderr
    assert str(segment) in result.stderr


def test_copy_beside_the_log_is_dumped_only_by_its_path(data: Path) -> None:
    epoch = segment_of(data).parent
    aside = epoch.rename(epoch.with_name("epoch-00000000.bad-1"))
    assert dumped(str(data)) == []
    assert dumped(str(aside)) == [*range(6)]


def test_closed_output_ends_the_dump(data: Path) -> None:
    command = [sys.executable, "-m", "tidelog_cli", "log", "dump", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(30)) == (b"", 0)


@pytest.mark.parametrize("arguments", [["--from", "-1"], ["--max", "0"], ["--value", "yaml"]])
def test_invalid_range_is_refused(data: Path, arguments: list[str]) -> None:
    assert runner.invoke(log_app, ["dump", str(data), *arguments]).exit_code == 2


def test_path_without_data_is_refused(tmp_path: Path) -> None:
    result = runner.invoke(log_app, ["dump", str(tmp_path / "nothing")])
    assert result.exit_code == 2
    assert "does not exist" in result.stderr


def test_segments_deleted_during_a_dump_are_skipped(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = segment_of(data)
    read = RealFileSystem.open_readonly

    def deleting(self: RealFileSystem, path: Path) -> File:
        gone.unlink(missing_ok=True)
        return read(self, path)

    monkeypatch.setattr(RealFileSystem, "open_readonly", deleting)
    for command in ("dump", "verify", "inspect"):
        assert runner.invoke(log_app, [command, str(data)]).exit_code == 0, command


def test_epochs_of_other_engines_are_counted(data: Path) -> None:
    (partition,) = (data / "partitions").glob("t.*-0")
    for epoch in (1, 2):
        (partition / f"epoch-{epoch:08d}").mkdir()
        (partition / f"epoch-{epoch:08d}" / "engine-rocksdb").touch()
    said = runner.invoke(log_app, ["verify", str(data)]).stdout
    assert "epochs in engine rocksdb, which this command does not read: 2\n" in said
