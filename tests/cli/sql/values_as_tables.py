"""Topics whose records are given, for tests of the engines alone."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pyarrow as pa

from tidelog.tables.read_arrow import schema_of
from tidelog_cli.base.offset_extents import Extent
from tidelog_cli.sql.columns import Shape, ValueKind, shape_of
from tidelog_cli.sql.tables import Cluster, TopicTable


class GivenValues(Cluster):
    """Reads records with these values."""

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__("", {})
        object.__setattr__(self, "values", values)

    def read(self, extent: Extent, columns: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        values: Sequence[bytes] = object.__getattribute__(self, "values")
        count = len(values)
        arrays = {
            "topic": pa.array([extent.topic] * count),
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
