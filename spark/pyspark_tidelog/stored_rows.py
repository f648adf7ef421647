"""Which rows an earlier try of the same work has stored, and which of those that come now are left to be written.

A row is known by what it says: content, and the partition and the time if the query names them. Two that say the same
are two rows, and are counted. Order does not matter, since Spark promises none behind a shuffle.

Rejected: comparing in the order in which rows come, which is enough for a query without a shuffle alone.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.content_hash import CONTENT_KEY_BYTES, ContentHasher

_NUMBERS: Final = 4
"""Of a row's mark: two of its content, its partition and its time."""
_MARK: Final = pa.binary(8 * _NUMBERS)


class StoredRows:
    """See the module. First all that is stored is added, then rows come.

    Args:
        with_time: whether the query gives each row its time.
    """

    def __init__(self, *, with_time: bool) -> None:
        self._hasher = ContentHasher(secrets.token_bytes(CONTENT_KEY_BYTES))
        self._with_time = with_time
        self._added: list[pa.Array[Any]] = []
        self._known: pa.Array[Any] | None = None
        self._left: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        """Of each known mark, how many stored rows have not come yet."""

    @property
    def left(self) -> int:
        """How many stored rows have not come yet."""
        self._close()
        return int(self._left.sum())

    def add(self, columns: pa.RecordBatch, partition: int | None) -> None:
        """Take canonical columns that are stored; the partition only where the query names it."""
        assert self._known is None, "all that is stored is added first"
        self._added.append(self._marks(columns, partition))

    def without_stored(self, columns: pa.RecordBatch, partition: int | None) -> pa.RecordBatch:
        """Return of canonical columns the rows that are not stored; each stored one stands for one that comes."""
        self._close()
        assert self._known is not None
        found = pc.index_in(self._marks(columns, partition), value_set=self._known).fill_null(-1).to_numpy()
        order = np.argsort(found, kind="stable")
        sorted_ = found[order]
        # The rank of each row among those of its mark, in the order in which they come.
        ranks = np.empty(len(found), np.int64)
        ranks[order] = np.arange(len(found)) - np.searchsorted(sorted_, sorted_, side="left")
        is_stored = (found >= 0) & (ranks < self._left[found])
        np.subtract.at(self._left, found[is_stored], 1)
        return columns.filter(pa.array(~is_stored)) if is_stored.any() else columns

    def _close(self) -> None:
        if self._known is not None:
            return
        added: Any = pa.chunked_array([*self._added, pa.array([], _MARK)])
        counted = added.value_counts()
        self._known = counted.field("values")
        # One more, of none: what is not found is looked up there.
        self._left = np.append(counted.field("counts").to_numpy(), 0)
        self._added.clear()

    def _marks(self, columns: pa.RecordBatch, partition: int | None) -> pa.Array[Any]:
        marks = np.zeros((columns.num_rows, _NUMBERS), np.uint64)
        marks[:, :2] = self._hasher.hashes_of(columns)
        if partition is not None:
            marks[:, 2] = partition + 1
        if self._with_time and "timestamp" in columns.schema.names:
            marks[:, 3] = columns.column("timestamp").cast(pa.int64()).to_numpy()
        return pa.FixedSizeBinaryArray.from_buffers(_MARK, len(marks), [None, pa.py_buffer(marks.tobytes())])
