"""`tidelog export --columns`: one Parquet column for each JSON field, with the types of `tidelog sql`."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Cli

LINES = b"""{"carrier": "UA", "delay": 12, "day": "2024-02-29", "price": 1.10, "big": 12345678901234567890.125}
{"carrier": "AA", "delay": null, "day": "2024-03-01", "price": 2, "big": 1.5, "gate": {"no": 7}}
"""


def test_fields_are_columns_with_the_types_of_sql(cli: Cli, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "it's.parquet"
    assert cli("produce", topic, "--key-field", "carrier", stdin=LINES).code == 0
    told = cli("export", topic, path, "--columns")
    assert told.out == f"exported 2 records of {topic} to {path}\n"
    table = pq.read_table(path)
    rows = sorted(table.to_pylist(), key=lambda row: row["carrier"])
    assert [row["key"] for row in rows] == ["AA", "UA"]
    assert [row["delay"] for row in rows] == [None, 12]
    assert [row["day"] for row in rows] == [date(2024, 3, 1), date(2024, 2, 29)]
    assert [row["price"] for row in rows] == [Decimal("2.00"), Decimal("1.10")]
    assert [row["big"] for row in rows] == [Decimal("1.500"), Decimal("12345678901234567890.125")]
    assert json.loads(rows[0]["gate"]) == {"no": 7}
    assert sorted(row["value"] for row in rows) == sorted(LINES.decode().splitlines())
    assert [one.name for one in tmp_path.iterdir() if one.name != "stdin"] == [path.name]


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "lz4", "zstd"])
def test_each_codec_is_one_of_the_engine(cli: Cli, topic: str, tmp_path: Path, codec: str) -> None:
    assert cli("produce", topic, stdin=LINES).code == 0
    exported = cli("export", topic, tmp_path / "x.parquet", "--columns", "--compression", codec, "--json")
    assert json.loads(exported.out)["records"] == 2
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 2


def test_a_number_that_its_column_does_not_hold_leaves_no_file(cli: Cli, topic: str, tmp_path: Path) -> None:
    assert cli("produce", topic, "--partition", 0, stdin=b'{"n": 1}\n{"n": 1.5}\n{"n": 2}\n').code == 0
    failed = cli("export", topic, tmp_path / "x.parquet", "--columns", "--sample", 2)
    assert (failed.code, "1.5" in failed.err) == (1, True), failed
    assert [one.name for one in tmp_path.iterdir() if one.name != "stdin"] == []
    assert cli("export", topic, tmp_path / "x.parquet", "--columns", "--sample", 10).code == 0


def test_directories_existing_files_and_missing_topics_are_refused(cli: Cli, topic: str, tmp_path: Path) -> None:
    refused = cli("export", topic, tmp_path, "--columns")
    assert (refused.code, "--columns writes one file" in refused.err) == (2, True)
    refused = cli("export", topic, tmp_path / "x.parquet", "--sample", 2)
    assert (refused.code, "--sample requires --columns" in refused.err) == (2, True)
    path = tmp_path / "x.parquet"
    path.write_bytes(b"kept")
    assert "--overwrite" in cli("export", topic, path, "--columns").err
    assert path.read_bytes() == b"kept"
    assert "topic 'missing' does not exist" in cli("export", "missing", tmp_path / "y.parquet", "--columns").err
    assert cli("export", topic, tmp_path / "no" / "y.parquet", "--columns").code == 1


def test_without_duckdb_it_names_the_extra(
    cli: Cli, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    assert "pip install 'tidelog[sql]'" in cli("export", topic, tmp_path / "x.parquet", "--columns").err
