"""What `produce` adds to every record: a key, a time, headers, a tag; and tombstones for empty values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_proto.batch.columns import HEADERS_TYPE, TIMESTAMP_TYPE


@dataclass(frozen=True, slots=True)
class Additions:
    """Columns with one value for all records; made by `of`."""

    columns: dict[str, pa.Scalar[Any]]

    @classmethod
    def of(cls, *, key: str | None, timestamp: int | None, headers: Sequence[str] | None, tag: str | None) -> Self:
        """Return what the options ask for; `timestamp` is µs since 1970, each header NAME=VALUE.

        Raises:
            CommandFailed: a header has no name or no value.
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
        """Yield the batches with the columns; a key and a time stand instead of the records' own.

        Raises:
            CommandFailed: the records have headers or tags of their own, which would be lost.
        """
        for batch in batches:
            if not self.columns:
                yield batch
                continue
            given = {name: batch.column(name) for name in batch.schema.names}
            scalar: Any
            for name, scalar in self.columns.items():
                if name in {"headers", "tag"} and name in given:
                    raise CommandFailed(f"these records have {name} of their own: leave --{name.rstrip('s')} out")
                given[name] = pa.repeat(scalar, batch.num_rows)
            yield pa.record_batch(given)


def with_tombstones(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with null for each empty value."""
    for batch in batches:
        at = batch.schema.get_field_index("value")
        values: Any = batch.column(at)
        is_empty = pc.equal(pc.binary_length(values), pa.scalar(0))
        yield batch.set_column(at, "value", pc.if_else(is_empty, pa.scalar(None, values.type), values))


def _header(text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CommandFailed(f"--header {text!r} is not NAME=VALUE", EXIT_USAGE)
    return {"key": name, "value": value.encode()}
