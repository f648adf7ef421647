from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Cli
from tests.json_texts import EXAMPLES

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.parquet.importing import chunks_of, files_in


def written(path: Path, columns: dict[str, Any], rows_per_group: int = 100) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return path


def test_records_go_where_they_were_in_their_order(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.parquet", {"partition": [0, 0, 1, 0], "value": [b"a", b"b", b"c", b"d"], "offset": [1] * 4}
    )
    pieces = list(chunks_of([path], keep_partitions=True, keep_timestamps=True))
    assert [(piece.partition, piece.records.column("value").to_pylist()) for piece in pieces] == [
        *((0, [b"a", b"b"]), (1, [b"c"]), (0, [b"d"]))
    ]
    assert {tuple(piece.records.schema.names) for piece in pieces} == {("value",)}
    (piece,) = chunks_of([path], keep_partitions=False, keep_timestamps=True)
    assert piece.partition is None


def test_large_values_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", {"value": [bytes([n]) * 1_000_000 for n in range(20)]})
    assert max(piece.records.num_rows for piece in chunks_of([path], keep_partitions=True, keep_timestamps=True)) <= 8


def test_files_of_a_directory_come_by_name(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{name}.parquet", {"value": [b"x"]}) for name in "cab"]
    assert files_in([tmp_path, paths[0]]) == [*sorted(paths), paths[0]]
    (tmp_path / "empty").mkdir()
    with pytest.raises(CommandFailed, match=r"no \.parquet file"):
        files_in([tmp_path / "empty"])


def test_json_comes_back_through_lines_and_files_as_it_was(cli: Cli, topic: str, tmp_path: Path) -> None:
    sent = [f'{{"value_encoding":"json","value": {text} }}' for text in EXAMPLES]
    produce = ("produce", topic, "--format", "records", "--partition", 0)
    assert cli(*produce, stdin="\n".join(sent).encode()).code == 0
    assert cli("export", topic, tmp_path / "out").code == 0
    assert cli("import", topic, tmp_path / "out").code == 0
    assert cli(*produce, stdin=cli("consume", topic, "--json").out.encode()).code == 0
    assert cli("consume", topic).out.splitlines() == [*EXAMPLES] * 4


def test_invalid_file_is_refused_before_publishing(cli: Cli, topic: str, tmp_path: Path) -> None:
    good = written(tmp_path / "a.parquet", {"partition": [0], "value": [b"x"]})
    far = written(tmp_path / "b.parquet", {"partition": [0, 7], "value": [b"x", b"y"]})
    ended = cli("import", topic, good, far)
    assert ended.code == 1
    assert f"records of partition 7, but {topic} has only 2" in ended.err
    assert "--by-key" in ended.err
    below = written(tmp_path / "e.parquet", {"partition": [1, -1], "value": [b"x", b"y"]})
    assert "records of partition -1; partitions must be >= 0" in cli("import", topic, below).err
    (tmp_path / "c.parquet").write_text("no")
    assert "is not a Parquet file" in cli("import", topic, good, tmp_path / "c.parquet").err
    twice = pa.table([pa.array([b"x"]), pa.array([b"y"])], names=["value", "value"])
    pq.write_table(twice, tmp_path / "f.parquet")
    assert "f.parquet has more than one column `value`" in cli("import", topic, good, tmp_path / "f.parquet").err
    odd = written(tmp_path / "d.parquet", {"partition": ["0"], "value": [b"x"]})
    assert "must be an integer in each row" in cli("import", topic, good, odd).err
    other = written(tmp_path / "e.parquet", {"a": [1]})
    assert "has no column `value`" in cli("import", topic, good, other).err
    assert cli("import", topic, tmp_path / "nothing.parquet").code == 1
    assert cli("import", "nowhere", good).code == 1
    assert cli("consume", topic).out == ""
    assert cli("import", topic, far, "--by-key", "--json").code == 0
    assert sorted(cli("consume", topic).out.split()) == ["x", "y"]


def test_a_damaged_file_is_named_with_what_was_published_before(cli: Cli, topic: str, tmp_path: Path) -> None:
    good = written(tmp_path / "a.parquet", {"value": [b"x"] * 5})
    damaged = bytearray(good.read_bytes())
    damaged[6:20] = b"\xff" * 14  # the first page's header: Arrow has an OSError for that
    (tmp_path / "b.parquet").write_bytes(damaged)
    ended = cli("import", topic, tmp_path)
    assert ended.code == 1
    assert f"{tmp_path / 'b.parquet'} cannot be read" in ended.err
    assert "(5 records were acknowledged before)" in ended.err
    assert cli("consume", topic).out.split() == ["x"] * 5
    huge = written(tmp_path / "c.parquet", {"value": [b"x"], "partition": pa.array([2**64 - 1], pa.uint64())})
    assert f"{huge} cannot be read" in cli("import", topic, huge).err


def test_times_are_kept_unless_told(cli: Cli, topic: str, tmp_path: Path) -> None:
    stamps = pa.array([1_000_000]).cast(pa.timestamp("us", "UTC"))
    path = written(tmp_path / "a.parquet", {"timestamp": stamps, "key": ["k"], "value": ["text"]})
    assert cli("import", topic, path).code == 0
    assert cli("import", topic, path, "--now").code == 0
    kept, new = sorted(json.loads(line)["timestamp_ms"] for line in cli("consume", topic, "--json").out.splitlines())
    assert kept == 1000
    assert new > 1_600_000_000_000
