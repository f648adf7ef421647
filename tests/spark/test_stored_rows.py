from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidelog.stored_rows import StoredRows
from tidelog_proto.batch.columns import canonical, columns_of

ROW = st.tuples(st.sampled_from([None, b"", b"a", b"bb"]), st.sampled_from([None, b"", b"x", b"yy" * 200]))
Row = tuple[bytes | None, bytes | None]


def columns(rows: list[Row]) -> pa.RecordBatch:
    return columns_of([value for value, _ in rows], keys=[key for _, key in rows])


def missing_rows(known: StoredRows, batch: pa.RecordBatch, partition: int | None) -> pa.RecordBatch:
    return batch.filter(pa.array(~known.are_stored(batch, partition)))


def back(batch: pa.RecordBatch) -> list[Row]:
    return list(zip(batch["value"].to_pylist(), batch["key"].to_pylist(), strict=True))


@given(st.lists(st.lists(ROW, min_size=1)), st.lists(st.lists(ROW, min_size=1)))
def test_each_stored_row_matches_one_new_row(stored: list[list[Row]], coming: list[list[Row]]) -> None:
    known = StoredRows(with_time=False)
    for rows in stored:
        known.add(columns(rows), 1)
    missing = [row for rows in coming for row in back(missing_rows(known, columns(rows), None))]
    has, comes = (Counter(row for rows in batches for row in rows) for batches in (stored, coming))
    assert Counter(missing) == comes - has
    assert known.left == (has - comes).total()


PLACED = st.tuples(ROW, st.none() | st.integers(0, 1), st.integers(0, 1), st.booleans())
"""A row, the partition that it names, where it goes if it names none, and whether it was stored before."""


@given(st.lists(PLACED, max_size=12).flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(rows))))
def test_rows_that_name_their_partition_and_others_are_each_stored_once(
    both: tuple[list[tuple[Row, int | None, int, bool]], list[tuple[Row, int | None, int, bool]]],
) -> None:
    rows, again = both
    known = StoredRows(with_time=False)
    there: Counter[tuple[Row, int]] = Counter()
    for row, named, chosen, is_stored in rows:
        if is_stored:
            partition = chosen if named is None else named
            known.add(columns([row]), partition)
            there[row, partition] += 1
    for row, named, chosen, _ in again:
        for missing in back(missing_rows(known, columns([row]), named)):
            there[missing, chosen if named is None else named] += 1
    contents: Counter[Row] = Counter()
    for (row, _), count in there.items():
        contents[row] += count
    assert contents == Counter(row for row, *_ in rows), "each once"
    assert known.left == 0
    for (row, partition), count in Counter((row, named) for row, named, *_ in rows if named is not None).items():
        assert there[row, partition] >= count, "a row with a partition is stored there"


def test_partition_and_time_count_where_the_query_names_them() -> None:
    row = columns_of([b"v"], timestamps_us=[7])
    known = StoredRows(with_time=True)
    known.add(row, 3)
    assert missing_rows(known, row, 2).num_rows == 1
    assert missing_rows(known, columns_of([b"v"], timestamps_us=[8]), 3).num_rows == 1
    assert missing_rows(known, row, 3).num_rows == 0
    untimed = StoredRows(with_time=False)
    untimed.add(row, 0)
    assert missing_rows(untimed, columns_of([b"v"]), None).num_rows == 0


def test_how_columns_are_given_does_not_matter() -> None:
    known = StoredRows(with_time=False)
    known.add(columns_of([b"v"], keys=[None], headers=[[]]), 0)
    assert missing_rows(known, canonical(pa.record_batch({"value": ["v"]})), None).num_rows == 0
