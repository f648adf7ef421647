"""Comparison of the rows of an attempt with those that an earlier attempt of the same work has stored.

Rows are compared by content, and by partition and timestamp if the query sets them. Equal rows are counted. Order does
not matter, because Spark does not guarantee one after a shuffle.

A query may set the partition of some rows and leave that of others to their keys. Stored rows do not show which was the
case. So a row without a partition matches a stored row with its content in any partition, without a fixed assignment:
for each content at most as many rows match as are stored, and of rows with a partition at most as many as are stored in
that partition.

Rejected: comparing rows in order, which only works for queries without a shuffle.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.batch.content_hash import CONTENT_KEY_BYTES, ContentHasher
from tidelog_proto.batch.row_layout import RowLayout

_NUMBERS: Final = 4
"""Number of integers in a row's fingerprint: two for the content, one for the partition and one for the timestamp."""
_PARTITION: Final = 2
_MARK: Final = pa.binary(8 * _NUMBERS)


class StoredRows:
    """The rows that earlier attempts of a task have stored; all are added before rows are compared with them.

    Args:
        with_time: whether the query sets timestamps.
    """

    def __init__(self, *, with_time: bool) -> None:
        self._hasher = ContentHasher(secrets.token_bytes(CONTENT_KEY_BYTES))
        self._with_time = with_time
        self._added: list[pa.Array[Any]] = []
        self._added_anywhere: list[pa.Array[Any]] = []
        self._here: _Counted | None = None
        """Stored rows by fingerprint with partition."""
        self._anywhere: _Counted | None = None
        """Stored rows by fingerprint without partition."""
        self._anywhere_of: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        """For each fingerprint in `_here`, its index in `_anywhere`."""

    @property
    def left(self) -> int:
        """Number of stored rows without a match so far."""
        self._close()
        assert self._anywhere is not None
        return int(self._anywhere.left.sum())

    def add(self, columns: pa.RecordBatch, partition: int, layout: RowLayout | None = None) -> None:
        """Add canonical columns, or those of the schema of `layout`, that are stored in a partition."""
        assert self._here is None, "stored rows are added first"
        marks = self._marks(columns, layout)
        self._added_anywhere.append(_array_of(marks))
        self._added.append(_array_of(_placed(marks, partition)))

    def are_stored(
        self, columns: pa.RecordBatch, partition: int | None, layout: RowLayout | None = None
    ) -> npt.NDArray[np.bool_]:
        """Return which rows are stored; each stored row matches at most one.

        Args:
            columns: canonical columns, or those of the schema of `layout`, which need not be that of the stored rows.
            partition: the partition that the rows set; None if they set no partition.
            layout: of a schema of the topic; None if it is not typed.
        """
        self._close()
        assert self._here is not None
        assert self._anywhere is not None
        marks = self._marks(columns, layout)
        if partition is None:
            return self._anywhere.take(self._anywhere.find(_array_of(marks)))
        indexes = self._here.find(_array_of(_placed(marks, partition)))
        is_here = self._here.among(indexes)
        is_stored = self._anywhere.take(np.where(is_here, self._anywhere_of[indexes], -1))
        np.subtract.at(self._here.left, indexes[is_stored], 1)
        return is_stored

    def _close(self) -> None:
        if self._here is not None:
            return
        self._here, self._anywhere = _Counted(self._added), _Counted(self._added_anywhere)
        here = self._here.known
        numbers = np.frombuffer(memoryview(here.buffers()[1] or b""), np.uint64)
        marks = numbers[_NUMBERS * here.offset :][: _NUMBERS * len(here)].reshape(-1, _NUMBERS).copy()
        marks[:, _PARTITION] = 0
        self._anywhere_of = np.append(self._anywhere.find(_array_of(marks)), -1)
        self._added.clear()
        self._added_anywhere.clear()

    def _marks(self, columns: pa.RecordBatch, layout: RowLayout | None) -> npt.NDArray[np.uint64]:
        marks = np.zeros((columns.num_rows, _NUMBERS), np.uint64)
        marks[:, :2] = self._hasher.hashes_of(columns, layout)
        if self._with_time and "timestamp" in columns.schema.names:
            marks[:, 3] = columns.column("timestamp").cast(pa.int64()).to_numpy()
        return marks


class _Counted:
    """Distinct fingerprints, and how many stored rows of each are still unmatched."""

    def __init__(self, added: Sequence[pa.Array[Any]]) -> None:
        marks: Any = pa.chunked_array([*added, pa.array([], _MARK)])
        counts = marks.value_counts()
        self.known: pa.Array[Any] = counts.field("values")
        # One extra entry with 0, for fingerprints that are not found (index -1).
        self.left: npt.NDArray[np.int64] = np.append(counts.field("counts").to_numpy(), 0)

    def find(self, marks: pa.Array[Any]) -> npt.NDArray[np.int64]:
        """Return the index of each fingerprint; -1 for unknown ones."""
        indexes = pc.index_in(marks, value_set=self.known).fill_null(-1)
        return np.asarray(indexes.to_numpy(), np.int64)

    def among(self, indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which rows match stored ones: for each fingerprint at most as many as are left, in order."""
        order = np.argsort(indexes, kind="stable")
        sorted_ = indexes[order]
        ranks = np.empty(len(indexes), np.int64)
        ranks[order] = np.arange(len(indexes)) - np.searchsorted(sorted_, sorted_, side="left")
        is_known: npt.NDArray[np.bool_] = (indexes >= 0) & (ranks < self.left[indexes])
        return is_known

    def take(self, indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Match rows as `among`, and reduce the counts."""
        is_known = self.among(indexes)
        np.subtract.at(self.left, indexes[is_known], 1)
        return is_known


def _placed(marks: npt.NDArray[np.uint64], partition: int) -> npt.NDArray[np.uint64]:
    placed = marks.copy()
    placed[:, _PARTITION] = partition + 1
    return placed


def _array_of(marks: npt.NDArray[np.uint64]) -> pa.Array[Any]:
    return pa.FixedSizeBinaryArray.from_buffers(_MARK, len(marks), [None, pa.py_buffer(marks.tobytes())])
