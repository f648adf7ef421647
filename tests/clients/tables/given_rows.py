"""Topics whose rows are given, for tests of engines without a node."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidelog.tables.read_arrow import TopicSnapshot
from tidelog.tables.topic_dataset import TopicDataset


class GivenRows(TopicSnapshot):
    """A snapshot of a topic with the rows of a table, in batches of three.

    Attributes:
        asked: the columns of each read.
        ended: how many reads have ended.
    """

    asked: list[list[str]]
    ended: list[bool]

    def __init__(self, table: pa.Table) -> None:
        super().__init__(lambda: pytest.fail("no connection is needed"), [], None)
        for name, value in {"table": table, "asked": [], "ended": []}.items():
            object.__setattr__(self, name, value)

    @property
    def columns(self) -> pa.Schema:
        table: pa.Table = object.__getattribute__(self, "table")
        return table.schema

    def read(self, columns: Sequence[str] | None) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None]]:
        assert columns is not None
        self.asked.append(list(columns))
        table: pa.Table = object.__getattribute__(self, "table")
        picked = table.select(list(columns))
        return picked.schema, self._batches(picked)

    def _batches(self, table: pa.Table) -> Generator[pa.RecordBatch, None, None]:
        try:
            yield from table.to_batches(max_chunksize=3)
        finally:
            self.ended.append(True)

    def dataset(self) -> TopicDataset:
        """Return the dataset of the rows."""
        return TopicDataset(self.columns, self.read, self.columns.names[0])


_NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
_EACH: dict[str, tuple[pa.DataType, list[Any]]] = {
    "_offset": (pa.int64(), [0, 1, 2, 3, 4, 5, 6]),
    "flag": (pa.bool_(), [True, False, None, True, None, False, True]),
    "i": (pa.int32(), [1, -(2**31), None, 2**31 - 1, 0, 1, None]),
    "l": (pa.int64(), [2**53 + 1, -(2**63), None, 2**63 - 1, 2**53, 0, None]),
    "f": (pa.float64(), [1.5, math.nan, None, -math.inf, -0.0, 0.0, math.inf]),
    "g": (pa.float32(), [math.nan, 1.5, None, 2.25, -0.0, math.nan, 0.0]),
    "d": (
        pa.decimal128(20, 2),
        [Decimal(text) if text else None for text in ["1.00", "1.01", "", "-" + "9" * 18, "1", "0", ""]],
    ),
    "s": (pa.string(), ["a", "", None, "é", "Z", "a\0b", "😀"]),
    "b": (pa.binary(), [b"a", b"", None, b"\xff", b"\0", b"a", b"b"]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None, date(2026, 11, 30), date(1970, 1, 1), None, None]),
    "at": (pa.timestamp("us", "UTC"), [_NOON, None, _NOON.replace(microsecond=1), _NOON, None, _NOON, _NOON]),
    "local": (
        pa.timestamp("us"),
        [_NOON.replace(tzinfo=None), None, datetime(1, 1, 1), datetime(9999, 12, 31), None, None, None],  # noqa: DTZ001
    ),
    "tags": (pa.list_(pa.string()), [["x", None], [], None, ["y"], None, [], ["x"]]),
    "place": (
        pa.struct([pa.field("city", pa.string()), pa.field("high", pa.float64())]),
        [
            *({"city": "Köln", "high": math.nan}, {"city": None, "high": 1.0}, None, {"city": "Bonn", "high": None}),
            *(None, {"city": "", "high": -0.0}, {"city": "Köln", "high": 2.0}),
        ],
    ),
}


def every_type() -> pa.Table:
    """Return a table with a column of each type, with nulls, NaN and extremes."""
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in _EACH.items()})
