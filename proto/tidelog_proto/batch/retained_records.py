"""Surviving records of stored batches as columns, with everything that determines their derived batch.

A derivation preserves each record's offset and content, its control flag, and the append timestamp of its
batch rounded up (rounding is idempotent).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.batch.canonical_columns import Int64s
from tidelog_proto.batch.columns import HEADERS_TYPE, no_headers
from tidelog_proto.batch.exact_rows import row_weights
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import RowLayout

Keep = npt.NDArray[np.bool_]
"""Boolean array with an entry per record of a batch: whether the record survives."""

APPEND_QUANTUM_US: Final = 60_000_000
"""Append timestamps are rounded up to a multiple of this, so that retention does not delete records early and many
records share a timestamp."""

_APPEND_US_MAX: Final = (2**63 - 1) // APPEND_QUANTUM_US * APPEND_QUANTUM_US
_RECORD_WEIGHT_BYTES: Final = 28
"""Weight of each record: delta, timestamp, and the four offsets of key, value, headers and tag."""
_HEADER_WEIGHT_BYTES: Final = 8
"""Weight of each header: the offsets of its key and value."""
_TYPES: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS_TYPE,
    "tag": pa.string(),
}


@dataclass(frozen=True, slots=True)
class Survivors:
    """Survivors of one source batch, or a slice of them.

    Attributes:
        offsets, stamps_us: the offset and the timestamp of each record.
        columns: those of `key`, `value`, `headers` and `tag` that are present.
        weights_to: for each record the sum of the weights up to it.
        control, append_us: control flag and append timestamp of the source batch; the timestamp is rounded up.
        layout: of the schema of the source batch, None for canonical columns.
    """

    offsets: Int64s
    stamps_us: Int64s
    columns: dict[str, Any]
    weights_to: Int64s
    control: bool
    append_us: int
    layout: RowLayout | None = None

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.offsets)

    def slice(self, at: int, count: int) -> Survivors:
        """Return `count` survivors from index `at` on; shares the memory."""
        part = slice(at, at + count)
        columns = {name: column.slice(at, count) for name, column in self.columns.items()}
        return Survivors(
            self.offsets[part],
            self.stamps_us[part],
            columns,
            self.weights_to[part] - (self.weights_to[at - 1] if at else 0),
            self.control,
            self.append_us,
            self.layout,
        )


def survivors_of(batch: RecordBatch, keep: Keep | None, *, weighed: bool = True) -> Survivors | None:
    """Return the survivors of a batch; None, without decoding it, if no record survives.

    Args:
        batch: a stored batch.
        keep: which of its records survive; None for all.
        weighed: whether the weights are computed; they are 0 otherwise.

    Raises:
        ValueError: `keep` does not have one bool per record.
        ProtocolError: CORRUPT_BATCH if the body does not decode.
    """
    header = batch.header
    if keep is not None and (keep.dtype != np.bool_ or keep.shape != (header.record_count,)):
        raise ValueError(
            f"`keep` must be one bool per record, that is {header.record_count}, got shape {keep.shape} of {keep.dtype}"
        )
    if not (header.record_count if keep is None else keep.any()):
        return None
    columns = batch.columns()
    offsets = batch.offsets().to_numpy()
    if keep is not None and not keep.all():
        columns = columns.filter(pa.array(keep))
        offsets = offsets[keep]
    return _survivors(batch, columns, offsets, weighed=weighed)


def survivor_of(batch: RecordBatch, row: int) -> Survivors:
    """Return the record at index `row` of a stored batch as `survivors_of` does, without a weight.

    Raises:
        ProtocolError: CORRUPT_BATCH if the body does not decode.
    """
    offsets = np.array([batch.offset_list()[row]], np.int64)
    return _survivors(batch, batch.columns().slice(row, 1), offsets, weighed=False)


def _survivors(batch: RecordBatch, columns: pa.RecordBatch, offsets: Int64s, *, weighed: bool) -> Survivors:
    """Return the records of `columns`, which survive of a batch."""
    header = batch.header
    by_name: dict[str, Any] = dict(zip(columns.schema.names, columns.columns, strict=True))
    stamps = by_name.pop("timestamp", None)
    return Survivors(
        offsets,
        np.full(len(offsets), header.base_timestamp_us) if stamps is None else stamps.view(pa.int64()).to_numpy(),
        by_name,
        np.cumsum(_weights(by_name)) if weighed else np.zeros(len(offsets), np.int64),
        batch.control,
        min(-(-header.append_timestamp_us // APPEND_QUANTUM_US) * APPEND_QUANTUM_US, _APPEND_US_MAX),
        batch.layout,
    )


def _weights(columns: dict[str, Any]) -> Int64s:
    """Return each record's contribution to the weight of a batch, which does not depend on other columns present."""
    weights = np.full(len(columns["value"]), _RECORD_WEIGHT_BYTES, np.int64)
    for name, column in columns.items():
        if name == "headers":
            weights += _header_weights(column)
        elif pa.types.is_struct(column.type):
            weights += row_weights(column)
        else:
            weights += _byte_lengths(column)
    return weights


def _byte_lengths(column: Any) -> Int64s:
    lengths: Any = pc.binary_length(column).fill_null(0)
    return lengths.to_numpy().astype(np.int64)  # type: ignore[no-any-return]  # pyarrow's arrays are untyped here


def _header_weights(lists: Any) -> Int64s:
    pairs = lists.flatten()
    each = _byte_lengths(pairs.field("key")) + _byte_lengths(pairs.field("value")) + _HEADER_WEIGHT_BYTES
    weights_to = np.concatenate((np.zeros(1, np.int64), np.cumsum(each)))
    ends = np.cumsum(pc.list_value_length(lists).to_numpy(), dtype=np.int64)
    return np.diff(weights_to[ends], prepend=0)


def joined(survivors: list[Survivors], name: str) -> Any:
    """Return one column of all survivors, with nulls (or no headers) for sources that lack it."""
    if len(survivors) == 1 and name in survivors[0].columns:
        return survivors[0].columns[name]

    def absent(count: int) -> Any:
        return no_headers(count) if name == "headers" else pa.nulls(count, _TYPES[name])

    parts: list[Any] = [one.columns[name] if name in one.columns else absent(one.count) for one in survivors]
    return pa.concat_arrays(parts)
