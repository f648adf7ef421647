from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.clients.tables.given_rows import GivenRows, every_type

from tidelog.tables import polars_source


def lazy_frame(given: GivenRows) -> pl.LazyFrame:
    return polars_source.lazy_frame(given.columns, given.read)


Query = Callable[[pl.LazyFrame], pl.LazyFrame]

QUERIES: list[Query] = [
    lambda rows: rows,
    lambda rows: rows.filter(pl.col("f") > 1),
    lambda rows: rows.filter(pl.col("f") > 1).select("s"),
    lambda rows: rows.filter(~(pl.col("g") <= 1)).select("_offset", "g"),
    lambda rows: rows.filter(pl.col("place").struct.field("high") > 1),
    lambda rows: rows.filter(pl.col("f").is_nan() | (pl.col("l") > 2**53)),
    lambda rows: rows.filter(pl.col("l") == 2**53 + 1).select("d", "at"),
    lambda rows: rows.filter(pl.col("d") >= 1.01).select("d"),
    lambda rows: rows.filter(pl.col("s").is_in(["a", "é"])),
    lambda rows: rows.filter(pl.col("i") == 1).head(1),
    lambda rows: rows.head(5).filter(pl.col("i") == 1),
    lambda rows: rows.head(4),
    lambda rows: rows.slice(2, 3).select("s"),
    lambda rows: rows.tail(2).select("_offset"),
    lambda rows: rows.filter(pl.col("i").is_not_null()).slice(1, 2).select("s"),
    lambda rows: rows.select(pl.len()),
    lambda rows: rows.filter(pl.col("f") > 1).select(pl.len()),
    lambda rows: rows.select(pl.col("f").max(), pl.col("l").sum()),
    lambda rows: rows.group_by("flag", maintain_order=True).agg(pl.col("i").sum()),
    lambda rows: rows.join(rows.select("_offset", other="s"), on="_offset").sort("_offset"),
    lambda rows: rows.with_columns(twice=pl.col("_offset") * 2).filter(pl.col("twice") > 4),
    lambda rows: rows.head(0),
]


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_answers_are_those_of_a_frame_in_memory(number: int, engine: str) -> None:
    eager = pl.DataFrame(pl.from_arrow(every_type()))
    rows = lazy_frame(GivenRows(every_type()))
    found = QUERIES[number](rows).collect(engine=engine)  # type: ignore[call-overload]
    assert_frame_equal(found, QUERIES[number](eager.lazy()).collect())


def test_a_query_reads_only_its_columns_and_ends_when_it_has_its_rows() -> None:
    given = GivenRows(every_type())
    lazy_frame(given).filter(pl.col("f") > 1).select("s").collect()
    assert set(given.asked[0]) == {"f", "s"}
    lazy_frame(given).select("i").head(1).collect()
    assert given.asked[1] == ["i"]
    lazy_frame(given).select(pl.len()).collect()
    assert len(given.asked[2]) == 1
    assert len(given.ended) == 3


def test_a_topic_without_rows_has_its_columns() -> None:
    empty = lazy_frame(GivenRows(every_type().slice(0, 0)))
    assert empty.collect_schema() == pl.DataFrame(pl.from_arrow(every_type())).schema
    assert empty.filter(pl.col("f") > 1).collect().height == 0
