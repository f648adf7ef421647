"""`tidelog log inspect|verify` on files of a real log: sound, torn, damaged, foreign."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tidelog_broker.cli.log_commands import log_app
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.layout import SEGMENT_HEADER_BYTES, padded
from tidelog_proto.batch import encode_batch
from tidelog_proto.header import stamp_owner

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


def test_a_sound_log(data: Path) -> None:
    result = runner.invoke(log_app, ["verify", str(data)])
    assert result.exit_code == 0
    assert "6 records: sound" in result.stdout
    assert "0..6" in result.stdout


def test_json_names_the_segments(data: Path) -> None:
    (report,) = json.loads(runner.invoke(log_app, ["inspect", str(data), "--json"]).stdout)
    assert (report["topic"], report["epoch"], report["base_offset"], report["end_offset"]) == ("t", 0, 0, 6)
    assert (report["batches"], report["records"], report["sound"]) == (3, 6, True)
    assert Path(report["path"]) == segment_of(data)


def test_a_flipped_bit_in_what_was_synced_is_damage(data: Path) -> None:
    segment = segment_of(data)
    raw = bytearray(segment.read_bytes())
    raw[SEGMENT_HEADER_BYTES + 150] ^= 1
    segment.write_bytes(raw)
    result = runner.invoke(log_app, ["verify", str(data)])
    assert result.exit_code == 1
    assert "DAMAGED" in result.stdout
    assert str(segment) in result.stdout.replace("\n", "")
    assert runner.invoke(log_app, ["inspect", str(data)]).exit_code == 0


def test_copies_beside_the_log_say_what_they_are(data: Path) -> None:
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


def test_a_directory_of_several_nodes_is_walked_node_by_node(data: Path, tmp_path: Path) -> None:
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


def test_a_path_that_is_not_tidelogs_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    assert runner.invoke(log_app, ["verify", str(tmp_path)]).exit_code == 2
    assert runner.invoke(log_app, ["verify", str(tmp_path / "nowhere")]).exit_code == 2
