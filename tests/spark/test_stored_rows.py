from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidelog.stored_rows import StoredRows
from tidelog_proto.columns import canonical, columns_of

ROW = st.tuples(st.sampled_from([None, b"", b"a", b"bb"]), st.sampled_from([None, b"", b"x", b"yy" * 200]))
Row = tuple[bytes | None, bytes | None]


def columns(rows: list[Row]) -> pa.RecordBatch:
    return columns_of([value for value, _ in rows], keys=[key for _, key in rows])


def back(batch: pa.RecordBatch) -> list[Row]:
    return list(zip(batch["value"].to_pylist(), batch["key"].to_pylist(), strict=True))


@given(st.lists(st.lists(ROW, min_size=1)), st.lists(st.lists(ROW, min_size=1)))
def test_each_stored_row_stands_for_one_that_comes(stored: list[list[Row]], coming: list[list[Row]]) -> None:
    known = StoredRows(with_time=False)
    for rows in stored:
        known.add(columns(rows), None)
    missing = [row for rows in coming for row in back(known.without_stored(columns(rows), None))]
    has, comes = (Counter(row for rows in batches for row in rows) for batches in (stored, coming))
    assert Counter(missing) == comes - has
    assert known.left == (has - comes).total()


def test_partition_and_time_count_where_the_query_names_them() -> None:
    row = columns_of([b"v"], timestamps_us=[7])
    known = StoredRows(with_time=True)
    known.add(row, 3)
    assert known.without_stored(row, 2).num_rows == 1
    assert known.without_stored(columns_of([b"v"], timestamps_us=[8]), 3).num_rows == 1
    assert known.without_stored(row, 3).num_rows == 0
    untimed = StoredRows(with_time=False)
    untimed.add(row, None)
    assert untimed.without_stored(columns_of([b"v"]), None).num_rows == 0


def test_how_columns_are_given_does_not_matter() -> None:
    known = StoredRows(with_time=False)
    known.add(columns_of([b"v"], keys=[None], headers=[[]]), None)
    assert known.without_stored(canonical(pa.record_batch({"value": ["v"]})), None).num_rows == 0
