"""Topics whose records are given, for tests of the engines alone."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pyarrow as pa
import pytest

from tidelog.tables.read_arrow import TopicSnapshot, schema_of
from tidelog_cli.base.offset_extents import Extent
from tidelog_cli.sql.columns import Shape, ValueKind, shape_of
from tidelog_cli.sql.tables import Cluster, TopicTable
from tidelog_proto.schema.topic_schema import Schema


class GivenValues(Cluster):
    """Reads records with these values."""

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__("", {})
        object.__setattr__(self, "values", values)

    def snapshot(self, extent: Extent, schema: Schema | None = None) -> TopicSnapshot:
        assert schema is None
        return GivenRecords(extent.topic, object.__getattribute__(self, "values"))


class GivenRecords(TopicSnapshot):
    """The records with these values."""

    def __init__(self, topic: str, values: Sequence[bytes]) -> None:
        super().__init__(lambda: pytest.fail("no connection is needed"), [], None)
        object.__setattr__(self, "given", (topic, values))

    def read(self, columns: Sequence[str] | None) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None]]:
        assert columns is not None
        return schema_of(columns), self._batches(columns)

    def _batches(self, columns: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        topic, values = object.__getattribute__(self, "given")
        count = len(values)
        arrays = {
            "topic": pa.array([topic] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.nulls(count, schema_of(["headers"]).field(0).type),
            "tag": pa.nulls(count, pa.string()),
        }
        yield pa.record_batch([arrays[name] for name in columns], schema=schema_of(columns))


def table_of(values: Sequence[bytes], seen: Sequence[bytes] | None = None, kind: ValueKind | None = None) -> TopicTable:
    """Return a topic `t` with these values whose shape is found by those that were seen, all unless told."""
    shape: Shape = shape_of([([], values if seen is None else seen)], kind)
    return TopicTable(GivenValues(values), Extent("t", {0: 0}, {0: len(values)}), shape)
