"""Keyed 128-bit hashes of the contents of records: key, value, headers and tag, without the timestamp.

A node uses them to drop records whose content is already in a partition (ADR 0087); a collision would lose an
acknowledged record, so collisions must be infeasible even for an attacker who chooses the contents. The hash is drawn
from a family by a secret key: for any two different contents, the probability over the keys that their hashes are equal
is 2^-128. This holds as long as hashes stay secret; they are only kept in memory, so the function may change with any
version.

A record is a row of 32-bit numbers x1, x2, ...: for each field its length plus 1 (0 for null; for a list of headers its
length), then its bytes, four per number. With random 64-bit numbers m derived from the key,

    h = (m0 + m1 · x1 + m2 · x2 + ...) mod 2^64, of which the upper 32 bits are used

is strongly universal (Lemire and Kaser, "Strongly universal string hashing is fast", 2014); four of them make 128 bits.
The sums are matrix products: a few numpy calls for thousands of records. A field longer than `LONG_BYTES` is first
hashed by keyed BLAKE2b. A header is hashed like a record, and a list of headers is the row of their hashes.

A typed record is hashed by its key and tag as any other record, and by all other fields, the time field among them,
with the random numbers of their ids. So equal rows have equal hashes under all schemas of their topic: an integer, date
or time is hashed as 64 bits, a float as a double, a decimal as its 128 bits, and a null adds nothing, as if the schema
did not have the field. A list is the row of the hashes of its items, a struct that of its fields.

Rejected: the hash of the key indexes (`key_hash.py`) with a seed, because two flipped bits give equal hashes under
every seed; SipHash in numpy, which is three times slower; `hash()` and the like, which need an object per record.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.batch.exact_rows import Mask
from tidelog_proto.batch.key_hash import LONG_BYTES, Slices, slices_of
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field

Contents = npt.NDArray[np.uint64]
"""Hashes of records: two numbers per record."""

CONTENT_KEY_BYTES: Final = 16
_SUMS: Final = 4
_DIGEST_BYTES: Final = 16
_WORD_BYTES: Final = 8
_ROWS: Final = 1024
"""Number of records that are hashed at once, so that their words fit the processor's cache."""
_UPPER: Final = np.uint64(0xFFFFFFFF00000000)
_32: Final = np.uint64(32)
_MASKS: Final = np.array([(1 << 8 * count) - 1 for count in range(_WORD_BYTES + 1)], np.uint64)
"""Masks for words with fewer than 8 bytes of a field, by number of bytes."""


class _Field(NamedTuple):
    """The random numbers of one field: for its length and its words, and the key for long fields."""

    length: npt.NDArray[np.uint64]
    words: npt.NDArray[np.uint64]
    key: bytes


class ContentHasher:
    """Computes the keyed hashes of records' contents. Thread-safe: the only mutable state is a cache.

    Args:
        key: `CONTENT_KEY_BYTES` secret random bytes.
    """

    def __init__(self, key: bytes) -> None:
        assert len(key) == CONTENT_KEY_BYTES
        self._start = _numbers(key, "start", 1)[0]
        self._key = key
        self._fields = {name: _field(key, name) for name in ("key", "value", "headers", "tag", "name", "content")}

    def hashes(self, batch: RecordBatch) -> Contents:
        """Return the hash of each record of a batch or of a slice of one.

        Raises:
            ProtocolError: CORRUPT_BATCH if the body does not decode.
        """
        return self.hashes_of(batch.columns(), batch.layout)

    def hashes_of(self, columns: pa.RecordBatch, layout: RowLayout | None = None) -> Contents:
        """Return the hash of each record of canonical columns, or of those of the schema of `layout`."""
        names, count = columns.schema.names, columns.num_rows
        sums = self._begin(count)
        for name in ("key", "value", "tag") if layout is None else ("key", "tag"):
            if name in names and count:
                self._add(sums, name, columns.column(name))
        if layout is not None and count:
            self._add_row(sums, layout, columns)
        if "headers" in names and count:
            self._add_headers(sums, columns.column("headers"))
        return _ends(sums)

    def _begin(self, count: int) -> npt.NDArray[np.uint64]:
        return np.tile(self._start, (count, 1))

    def _add(self, sums: npt.NDArray[np.uint64], name: str, column: Any) -> None:
        """Add a column of bytes or text."""
        slices = slices_of(column)
        marks = slices.lengths + 1
        if column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            slices = slices._replace(lengths=np.where(valid, slices.lengths, 0))
            marks = np.where(valid, marks, 0)
        _add_slices(sums, self._fields[name], slices, marks)

    def _add_row(self, sums: npt.NDArray[np.uint64], layout: RowLayout, columns: pa.RecordBatch) -> None:
        """Add the time field and the fields of `value`; a tombstone adds nothing but the time."""
        if layout.time is not None:
            self._add_field(sums, layout.time, columns.column("timestamp"), None)
        value: Any = columns.column("value")
        live = value.is_valid().to_numpy(zero_copy_only=False) if value.null_count else None
        _add_marks(sums, self._fields["value"], live)
        for at, field in enumerate(layout.value_fields):
            self._add_field(sums, field, value.field(at), live)

    def _add_field(self, sums: npt.NDArray[np.uint64], field: Field, array: Any, live: Mask | None) -> None:
        """Add the values of a field, where `live` is True; None for everywhere."""
        numbers = self._numbers_of(field)
        if array.null_count:
            valid = array.is_valid().to_numpy(zero_copy_only=False)
            live = valid if live is None else valid & live
        if field.type.kind is Kind.STRUCT:
            _add_marks(sums, numbers, live)
            for at, child in enumerate(field.children):
                self._add_field(sums, child, array.field(at), live)
        elif field.type.kind is Kind.LIST:
            self._add_list(sums, field, array, live)
        elif field.type.kind in {Kind.STRING, Kind.BINARY}:
            slices = slices_of(array)
            marks = slices.lengths + 1
            if live is not None:
                slices = slices._replace(lengths=np.where(live, slices.lengths, 0))
                marks = np.where(live, marks, 0)
            _add_slices(sums, numbers, slices, marks)
        else:
            words = _words(array)
            if live is not None:
                words[~live] = 0
            _add_marks(sums, numbers, live)
            sums += words.astype(np.uint64) @ numbers.words[: words.shape[1]]

    def _add_list(self, sums: npt.NDArray[np.uint64], field: Field, lists: Any, live: Mask | None) -> None:
        """Add a field of lists: to each record the concatenated hashes of the items."""
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        if live is not None:
            lengths = np.where(live, lengths, 0)
            lists = lists.filter(pa.array(live))
        items = lists.flatten()
        each = self._begin(len(items))
        if len(items):
            self._add_field(each, field.children[0], items, None)
        digests = np.frombuffer(_ends(each).tobytes(), np.uint8)
        lengths *= _DIGEST_BYTES
        slices = Slices(digests, np.cumsum(lengths) - lengths, lengths)
        marks = lengths + 1 if live is None else np.where(live, lengths + 1, 0)
        _add_slices(sums, self._numbers_of(field), slices, marks)

    def _numbers_of(self, field: Field) -> _Field:
        """Return the random numbers of a field of a schema, by its id."""
        name = f"field {field.id}"
        numbers = self._fields.get(name)
        if numbers is None:
            numbers = self._fields[name] = _field(self._key, name)
        return numbers

    def _add_headers(self, sums: npt.NDArray[np.uint64], lists: Any) -> None:
        """Add a column of header lists: to each record the concatenated hashes of its headers."""
        pairs = lists.flatten()
        each = self._begin(len(pairs))
        if len(pairs):
            self._add(each, "name", pairs.field("key"))
            self._add(each, "content", pairs.field("value"))
        digests = np.frombuffer(_ends(each).tobytes(), np.uint8)
        lengths = pc.list_value_length(lists).to_numpy().astype(np.int64) * _DIGEST_BYTES
        slices = Slices(digests, np.cumsum(lengths) - lengths, lengths)
        _add_slices(sums, self._fields["headers"], slices, lengths)


def first_of_each(contents: Contents) -> npt.NDArray[np.bool_]:
    """Return for each record whether no earlier record has the same hash."""
    first = np.ones(len(contents), np.bool_)
    ordered = np.sort(contents[:, 0])
    if not (ordered[1:] == ordered[:-1]).any():
        return first  # the common case
    order = np.lexsort((contents[:, 1], contents[:, 0]))  # A stable sort keeps the order of equal hashes.
    same = (contents[order[1:]] == contents[order[:-1]]).all(axis=1)
    first[order[1:][same]] = False
    return first


def _add_slices(sums: npt.NDArray[np.uint64], field: _Field, slices: Slices, marks: npt.NDArray[np.int64]) -> None:
    sums += marks.astype(np.uint64)[:, None] * field.length
    data, starts, lengths = slices
    longest = int(lengths.max(initial=0))
    if not longest:
        return
    if longest <= LONG_BYTES and longest == lengths.min():
        _add_words(sums, field, slices)
        return
    # Rows of similar length share a block. 16-bit numbers are radix-sorted in linear time.
    order = np.argsort(np.minimum(lengths, LONG_BYTES + 1).astype(np.int16), kind="stable")
    short_count = int(np.count_nonzero(lengths <= LONG_BYTES))
    short, long = order[:short_count], order[short_count:]
    part = np.zeros((short_count, _SUMS), np.uint64)
    _add_words(part, field, Slices(data, starts[short], lengths[short]))
    sums[short] += part
    if len(long):
        view = data.data
        digests = np.empty((len(long), _DIGEST_BYTES), np.uint8)
        bounds = zip(starts[long].tolist(), lengths[long].tolist(), strict=True)
        for at, (start, length) in enumerate(bounds):
            digest = hashlib.blake2b(view[start : start + length], digest_size=_DIGEST_BYTES, key=field.key)
            digests[at] = np.frombuffer(digest.digest(), np.uint8)
        sums[long] += digests.view("<u4").astype(np.uint64) @ field.words[: _DIGEST_BYTES // 4]


def _add_words(sums: npt.NDArray[np.uint64], field: _Field, slices: Slices) -> None:
    """Add fields of at most `LONG_BYTES`, preferably sorted by length."""
    data, starts, lengths = slices
    low, high = int(starts.min(initial=0)), int((starts + lengths).max(initial=0))
    # Overlapping words, one at every byte position; the last word of the last field needs padding.
    padded = np.concatenate((data[low:high], np.zeros(_WORD_BYTES, np.uint8)))
    words = np.ndarray((len(padded) - _WORD_BYTES + 1,), "<u8", padded, strides=(1,))
    starts = starts - low
    for begin in range(0, len(starts), _ROWS):
        rows = slice(begin, begin + _ROWS)
        some, sizes = starts[rows], lengths[rows]
        count = -(-int(sizes.max()) // _WORD_BYTES)
        whole = int(sizes.min()) // _WORD_BYTES
        at = np.arange(count) * _WORD_BYTES
        positions = some[:, None] + at
        if whole < count:
            np.minimum(positions, len(words) - 1, out=positions)
        block = words[positions]  # `take` would copy all words first
        if whole < count:
            left = np.clip(sizes[:, None] - at[whole:], 0, _WORD_BYTES)
            block[:, whole:] &= _MASKS.take(left)
        numbers = block.view("<u4").astype(np.uint64)
        sums[rows] += numbers @ field.words[: 2 * count]


def _add_marks(sums: npt.NDArray[np.uint64], field: _Field, live: Mask | None) -> None:
    """Mark a field of a fixed size as not null, where `live` is True; None for everywhere."""
    sums += field.length if live is None else live.astype(np.uint64)[:, None] * field.length


def _words(array: Any) -> npt.NDArray[np.uint32]:
    """Return the 32-bit words of each value of a fixed size, in the form that does not depend on its width."""
    count, kind = len(array), array.type
    if pa.types.is_decimal(kind):
        size_bytes = kind.bit_width // 8
        raw = np.frombuffer(array.buffers()[1], np.uint8, count * size_bytes, array.offset * size_bytes)
        return raw.view("<u4").reshape(count, size_bytes // 4).copy()
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(0, kind) if not pa.types.is_boolean(kind) else pa.scalar(False))
    if pa.types.is_date32(kind):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        array = array.view(pa.int64())
    wide = np.float64 if pa.types.is_floating(kind) else np.int64
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False).astype(wide)
    return np.ascontiguousarray(values).view("<u4").reshape(count, 2).copy()


def _ends(sums: npt.NDArray[np.uint64]) -> Contents:
    """Return the upper halves of the four sums as two numbers."""
    return (sums[:, 0::2] & _UPPER) | (sums[:, 1::2] >> _32)


def _field(key: bytes, name: str) -> _Field:
    numbers = _numbers(key, name, 1 + LONG_BYTES // 4)
    return _Field(numbers[0], numbers[1:], hashlib.blake2b(name.encode(), key=key, digest_size=32).digest())


def _numbers(key: bytes, name: str, count: int) -> npt.NDArray[np.uint64]:
    """Return `count` rows of numbers that are unpredictable without the key."""
    drawn = hashlib.shake_256(key + name.encode()).digest(count * _SUMS * 8)
    return np.frombuffer(drawn, "<u8").reshape(count, _SUMS)
