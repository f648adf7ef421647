from __future__ import annotations

from collections.abc import Generator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidelog.errors import TidelogError
from tidelog.tables.read_arrow import schema_of
from tidelog_cli.sql.dataset import Scan, TopicDataset

asked: list[list[str]] = []


def offsets(columns: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
    asked.append(list(columns))
    assert set(columns) <= {"offset", "partition"}
    for start in (0, 10):
        given = {"offset": range(start, start + 10), "partition": [start // 10] * 10}
        columns_ = [pa.array(given[name], schema_of([name]).field(0).type) for name in columns]
        yield pa.RecordBatch.from_arrays(columns_, schema=schema_of(columns))


def test_each_scan_reads_its_columns() -> None:
    asked.clear()
    read: list[int] = []
    dataset = TopicDataset(offsets, read.append)
    assert dataset.scanner(["offset"]).to_table()["offset"].to_pylist() == list(range(20))
    later = pc.field("partition") == 1
    assert dataset.scanner(["offset"], filter=later).to_table().to_pydict() == {"offset": list(range(10, 20))}
    assert dataset.scanner([]).count_rows() == 20
    assert asked == [["offset"], ["offset", "partition"], ["offset"]]
    assert sum(read) == 60
    dataset.close()


def test_abandoned_scan_ends() -> None:
    ended: list[bool] = []

    def endless() -> Generator[pa.RecordBatch, None, None]:
        try:
            while True:
                yield from offsets(["offset"])
        finally:
            ended.append(True)

    scan = Scan(endless(), lambda rows: None)
    next(scan)
    scan.close()
    assert ended == [True]
    with pytest.raises(StopIteration):
        next(scan)


def test_why_a_scan_failed_is_kept() -> None:
    def failing(columns: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        yield from offsets(columns)
        raise TidelogError("gone")

    dataset = TopicDataset(failing, lambda rows: None)
    with pytest.raises(TidelogError, match="gone"):
        dataset.scanner(["offset"]).to_table()
    assert str(dataset.failure) == "gone"
    dataset.close()
