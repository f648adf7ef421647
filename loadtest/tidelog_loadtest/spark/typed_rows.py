"""Rows of a typed topic for the benchmark of Spark: nine fields like those of flights, about 60 bytes a row."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("scheduled", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("flight", pa.int32(), nullable=False),
    pa.field("carrier", pa.string(), nullable=False),
    pa.field("origin", pa.string()),
    pa.field("tail", pa.string()),
    pa.field("distance", pa.int32()),
    pa.field("delay", pa.float64()),
    pa.field("fare", pa.decimal128(8, 2)),
    pa.field("is_late", pa.bool_()),
]
TYPED_SCHEMA: Final = pa.schema(_FIELDS)
TIME: Final = "scheduled"
SOME: Final = ("carrier", "delay")
"""The two fields that are read alone."""
_START_US: Final = 1_357_000_000_000_000
_NULLS: Final = 50
"""One of so many optional values is null."""


def typed_rows(count: int, seed: int = 1) -> pa.RecordBatch:
    """Return rows of `TYPED_SCHEMA`, equal for equal arguments."""
    random = np.random.default_rng(seed)
    missing = random.integers(0, _NULLS, count) == 0
    columns: dict[str, Any] = {
        "scheduled": pa.array(_START_US + np.arange(count) * 60_000_000).cast(TYPED_SCHEMA.field("scheduled").type),
        "flight": pa.array(random.integers(1, 9_000, count), pa.int32()),
        "carrier": _texts(random, count, 16, "C{}"),
        "origin": _texts(random, count, 300, "A{:02d}"),
        "tail": _texts(random, count, 4_000, "N{:05d}"),
        "distance": pa.array(random.integers(50, 5_000, count), pa.int32(), mask=missing),
        "delay": pa.array(random.normal(10, 30, count), mask=missing),
        "fare": pa.array(random.integers(0, 999_999, count)).cast(pa.decimal128(21, 2)).cast(pa.decimal128(8, 2)),
        "is_late": pa.array(random.integers(0, 2, count) == 1, mask=missing),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in TYPED_SCHEMA.names], schema=TYPED_SCHEMA)


def _texts(random: np.random.Generator, count: int, kinds: int, form: str) -> pa.Array[Any]:
    """Return texts of some kinds, such as `C7`."""
    known = pa.array([form.format(number) for number in range(kinds)])
    return known.take(pa.array(random.integers(0, kinds, count), pa.int64()))
