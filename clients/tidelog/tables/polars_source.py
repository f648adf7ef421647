"""A topic as a source of Polars, which asks for the columns and rows that a query needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

if TYPE_CHECKING:
    from tidelog.tables.read_arrow import TopicSnapshot


def lazy_frame(snapshot: TopicSnapshot) -> pl.LazyFrame:
    """Return a lazy frame of a topic.

    Polars evaluates its predicates itself: pyarrow's comparisons differ for NaN, which is the largest number in Polars.
    """
    schema = _schema(snapshot)

    def frames(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        del batch_size  # a batch has the size of a fetch, whatever the engine suggests
        wanted = list(schema) if with_columns is None else with_columns
        used = {*wanted, *(() if predicate is None else predicate.meta.root_names())}
        needed = [name for name in schema if name in used] or list(schema)[:1]
        left = n_rows
        _, batches = snapshot.read(needed)
        with contextlib.closing(batches):
            for batch in batches:
                frame = pl.DataFrame(pl.from_arrow(batch))
                if left is not None:  # a limit comes before the predicate: Polars passes both only in this order
                    frame = frame.head(left)
                    left -= frame.height
                yield (frame if predicate is None else frame.filter(predicate)).select(wanted)
                if left == 0:
                    return

    return register_io_source(frames, schema=schema, validate_schema=True, is_pure=True)


def _schema(snapshot: TopicSnapshot) -> pl.Schema:
    return pl.DataFrame(pl.from_arrow(snapshot.columns.empty_table())).schema
