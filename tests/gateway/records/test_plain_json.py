"""A plain batch becomes the same JSON without pyarrow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog_gateway.feed.whole_batch import whole_batch
from tidelog_gateway.records.plain_json import plain_json
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.limits import MIB

BYTES = st.binary(max_size=20) | st.text(max_size=20).map(str.encode) | st.just(b"plain text")


def batch_of(
    values: list[bytes], keys: list[bytes] | None, tags: list[str] | None, stamps: list[int] | None
) -> RecordBatch:
    columns = columns_of(values, keys=keys, tags=tags, timestamps_us=stamps)
    return RecordBatch.parse(encode_batch(columns, now_us=1_700_000_000_123_456).to_bytes())


@given(values=st.lists(BYTES, min_size=1, max_size=20), data=st.data())
def test_equal_to_the_json_of_pyarrow(values: list[bytes], data: st.DataObject) -> None:
    count = len(values)
    keys = data.draw(st.none() | st.lists(BYTES, min_size=count, max_size=count))
    tags = data.draw(st.none() | st.lists(st.text(max_size=9), min_size=count, max_size=count))
    stamps = data.draw(st.none() | st.lists(st.integers(-(2**50), 2**60), min_size=count, max_size=count))
    batch = batch_of(values, keys, tags, stamps)
    expected = whole_batch(batch_of(values, keys, tags, stamps), 16 * MIB)
    plain = plain_json(batch)
    if plain is None:  # only bytes that are not UTF-8 are left to pyarrow
        assert any(not is_utf8(each) for each in [*values, *(keys or [])])
    else:
        assert plain == expected


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_text_that_is_cut_between_records_is_not_taken_for_literal() -> None:
    whole = "é".encode()
    assert plain_json(batch_of([whole[:1], whole[1:]], None, None, None)) is None


def test_per_cent_signs_are_text() -> None:
    batch = batch_of([b"100 %d", b"%b%%"], [b"%s", b"%"], None, None)
    assert plain_json(batch) == whole_batch(batch, MIB)
