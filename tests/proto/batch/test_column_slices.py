from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.deriving import derive_batches
from tests.proto.schemas import schemas
from tests.proto.typed_batches import encoded, layouts_of, parsed, rows_of_schema

from tidelog_proto.batch.column_slices import TextColumn, column_slices
from tidelog_proto.batch.header import Codec, Flags, unpack_header
from tidelog_proto.batch.record_batch import columns_of, encode_batch
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.topic_schema import Schema

FRONT = b"what lies in front of it, of any length"
KEYS = st.none() | st.binary(max_size=20)
TAGS = st.none() | st.text(max_size=8)


def cut(
    data: bytes | bytearray, column: TextColumn, layout: RowLayout | None = None, *, typed: bool = False
) -> tuple[list[bytes], bool]:
    """Return the values of a batch that lies between others, and whether they were taken out of its own bytes."""
    window = np.frombuffer(FRONT + data + b"behind", np.uint8)
    slices = column_slices(window, len(FRONT), unpack_header(data, typed=typed), column, layout)
    flat = slices.data.tobytes()
    values = [
        flat[start : start + length]
        for start, length in zip(slices.starts.tolist(), slices.lengths.tolist(), strict=True)
    ]
    return values, slices.data is window


@given(
    rows=st.lists(st.tuples(KEYS, TAGS), min_size=1, max_size=20),
    codec=st.sampled_from(Codec),
    extra=st.sets(st.sampled_from(["headers", "timestamps_us"])),
    left_out=st.sampled_from([None, "keys", "tags"]),
)
def test_slices_are_the_columns(
    rows: list[tuple[bytes | None, str | None]], codec: Codec, extra: set[str], left_out: str | None
) -> None:
    given_columns: dict[str, Any] = {"keys": [key for key, _ in rows], "tags": [tag for _, tag in rows]}
    given_columns |= {"headers": [[("h", b"x" * number)] for number in range(len(rows))]} if "headers" in extra else {}
    given_columns |= {"timestamps_us": list(range(len(rows)))} if "timestamps_us" in extra else {}
    given_columns.pop(left_out or "", None)
    data = encode_batch(columns_of([b"v"] * len(rows), **given_columns), now_us=0, codec=codec).to_bytes()
    keys, are_inside = cut(data, "key")
    assert keys == ([key for key, _ in rows if key is not None] if left_out != "keys" else [])
    assert are_inside == (codec is Codec.NONE or left_out == "keys")
    tags, _ = cut(data, "tag")
    assert tags == ([tag.encode() for _, tag in rows if tag is not None] if left_out != "tags" else [])


@given(schema=schemas(), codec=st.sampled_from(Codec), data=st.data())
@settings(max_examples=60)
def test_keys_and_tags_of_typed_batches(schema: Schema, codec: Codec, data: st.DataObject) -> None:
    layouts = layouts_of(schema)
    raw = encoded(layouts[1], data.draw(rows_of_schema(schema)), codec)
    batch = parsed(raw, layouts)
    found = batch.keys()
    keys = [key for key in found if key is not None]
    tags = [tag.encode() for tag in batch.tags() if tag is not None]
    layout = layouts[1] if codec else None
    assert cut(raw, "key", layout, typed=True)[0] == keys
    assert cut(raw, "tag", layout, typed=True)[0] == tags
    if codec and batch.header.flags & Flags.KEY:
        with pytest.raises(ProtocolError, match="can only be read with this schema"):
            cut(raw, "key", typed=True)


def test_derived_batches_have_their_columns_further_back() -> None:
    data = encode_batch(columns_of([b"v"] * 4, keys=[b"a", b"b", None, b"d"], tags=["1", "2", "3", "4"]), now_us=0)
    (derived,) = derive_batches([data.to_bytes()], [np.array([False, True, True, True])], epoch=0)
    assert cut(derived, "key")[0] == [b"b", b"d"]
    assert cut(derived, "tag")[0] == [b"2", b"3", b"4"]
    (nothing,) = derive_batches([data.to_bytes()], [np.zeros(4, np.bool_)], epoch=0)
    assert cut(nothing, "key") == ([], True)


def test_invalid_message_is_refused() -> None:
    data = bytearray(encode_batch(columns_of([b"v"], keys=[b"k"]), now_us=0).to_bytes())
    data[128:136] = b"no batch"
    with pytest.raises(ProtocolError):
        cut(data, "key")
