"""A topic as a source of Polars, which asks for the columns and rows that a query needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.tables.topic_dataset import Read


def lazy_frame(columns: pa.Schema, read: Read) -> pl.LazyFrame:
    """Return a lazy frame of a topic with these columns, some of which `read` reads.

    Polars evaluates its predicates itself: pyarrow's comparisons differ for NaN, which is the largest number in Polars.
    """
    schema = pl.DataFrame(pl.from_arrow(columns.empty_table())).schema

    def frames(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        del batch_size  # a batch has the size of a fetch, whatever the engine suggests
        wanted = list(schema) if with_columns is None else with_columns
        used = {*wanted, *(() if predicate is None else predicate.meta.root_names())}
        needed = [name for name in schema if name in used] or list(schema)[:1]
        left = n_rows
        _, batches = read(needed)
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
