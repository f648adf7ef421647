"""Fields that `produce` adds to every record or removes, and tombstones for empty values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_proto.batch.columns import HEADERS_TYPE, TIMESTAMP_TYPE, canonical


@dataclass(frozen=True, slots=True)
class Additions:
    """Columns with the same value for all records; created by `of`."""

    columns: dict[str, pa.Scalar[Any]]

    @classmethod
    def of(cls, *, key: str | None, timestamp: int | None, headers: Sequence[str] | None, tag: str | None) -> Self:
        """Return the columns for the options of `produce`.

        Args:
            key: the key of every record; None: do not add one.
            timestamp: µs since 1970; None: do not add one.
            headers: each NAME=VALUE.
            tag: the tag of every record; None: do not add one.

        Raises:
            CommandFailed: a header lacks a name or a value.
        """
        columns: dict[str, pa.Scalar[Any]] = {}
        if key is not None:
            columns["key"] = pa.scalar(key.encode(), pa.binary())
        if timestamp is not None:
            columns["timestamp"] = pa.scalar(timestamp, TIMESTAMP_TYPE)
        if headers:
            columns["headers"] = pa.scalar([_header(text) for text in headers], HEADERS_TYPE)
        if tag is not None:
            columns["tag"] = pa.scalar(tag, pa.string())
        return cls(columns)

    def to_all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with these columns added; a key and a timestamp replace those of the records.

        Raises:
            CommandFailed: the records already have headers or tags, which would be lost.
        """
        for batch in batches:
            if not self.columns:
                yield batch
                continue
            columns = {name: batch.column(name) for name in batch.schema.names}
            scalar: Any
            for name, scalar in self.columns.items():
                if name in {"headers", "tag"} and name in columns:
                    raise CommandFailed(
                        f"the records already have {name.rstrip('s')}s, which would be lost: omit --{name.rstrip('s')}"
                    )
                columns[name] = pa.repeat(scalar, batch.num_rows)
            yield pa.record_batch(columns)


def with_tombstones(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with a tombstone (null) instead of each empty value."""
    for batch in batches:
        at = batch.schema.get_field_index("value")
        values: Any = batch.column(at)
        is_empty = pc.equal(pc.binary_length(values), pa.scalar(0))
        yield batch.set_column(at, "value", pc.if_else(is_empty, pa.scalar(None, values.type), values))


def _header(text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CommandFailed(
            f"--header {text!r} is not NAME=VALUE; write for example --header source=import", EXIT_USAGE
        )
    return {"key": name, "value": value.encode()}


def checked_names(patterns: Sequence[str]) -> list[str]:
    """Check the values of the option --drop-header, and return them for `without_headers`.

    Raises:
        CommandFailed: a name is empty, or has a `*` before its end.
    """
    for pattern in patterns:
        if not pattern or "*" in pattern[:-1]:
            raise CommandFailed(
                f"--drop-header {pattern!r}: give a name, or the beginning of names and a *, as in 'tidelog-*'",
                EXIT_USAGE,
            )
    return list(patterns)


def without_headers(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the batches without the headers of these names; a name that ends in `*` is a prefix of names.

    Raises:
        CommandFailed: the columns of a batch are not those of records.
    """
    exact = pa.array([name for name in names if not name.endswith("*")], pa.string())
    starts = [name[:-1] for name in names if name.endswith("*")]
    for batch in batches:
        if "headers" not in batch.schema.names:
            yield batch
            continue
        try:
            yield _without(canonical(batch), exact, starts)
        except (TypeError, ValueError) as error:
            raise CommandFailed(str(error)) from error


def _without(batch: pa.RecordBatch, exact: pa.Array[Any], starts: Sequence[str]) -> pa.RecordBatch:
    at = batch.schema.get_field_index("headers")
    lists: Any = batch.column(at)
    headers = lists.flatten()
    keys = headers.field("key")
    is_dropped: Any = pc.is_in(keys, exact)
    for start in starts:
        is_dropped = pc.or_(is_dropped, pc.starts_with(keys, start))
    is_kept = pc.invert(is_dropped)
    kept = headers.filter(is_kept)
    if not len(kept):
        return batch.remove_column(at)
    ends = pc.take(_totals(is_kept), _totals(pc.list_value_length(lists)))
    return batch.set_column(at, "headers", pa.ListArray.from_arrays(ends, kept).cast(HEADERS_TYPE))


def _totals(counts: Any) -> Any:
    """Return the running total of counts, from 0 on."""
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts.cast(pa.int32()))])
