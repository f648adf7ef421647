"""The bytes of keys that are fields, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_proto.batch.key_bytes import (
    DATE_DAYS_MAX,
    DATE_DAYS_MIN,
    STAMP_US_MAX,
    STAMP_US_MIN,
    is_ascii,
    key_column,
    key_values,
    number_range,
)
from tidelog_proto.errors import ProtocolError

UTC = pa.timestamp("us", "UTC")
NUMBERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us"), UTC]


def refusal(keys: list[bytes | None], kind: pa.DataType) -> str:
    with pytest.raises(ProtocolError) as refused:
        key_values(pa.array(keys, pa.binary()), kind)
    return refused.value.message


@pytest.mark.parametrize("kind", [*NUMBERS, pa.string(), pa.binary()], ids=str)
@given(data=st.data())
def test_round_trip_of_slices(kind: pa.DataType, data: st.DataObject) -> None:
    least, most = number_range(kind) or (0, 0)
    item: st.SearchStrategy[Any] = st.integers(least, most) | st.sampled_from([least, most])
    if kind in {pa.string(), pa.binary()}:
        item = st.text(max_size=9) if kind == pa.string() else st.binary(max_size=9)
    values = pa.array(data.draw(st.lists(st.none() | item, max_size=6)), kind)
    at = data.draw(st.integers(0, len(values)))
    keys = key_column(values)
    keys.validate(full=True)
    assert keys.type == pa.binary()
    assert key_column(values.slice(at)).equals(keys.slice(at))
    assert key_values(keys.slice(at), kind).equals(values.slice(at))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.date32(), UTC], ids=str)
@given(data=st.data())
def test_the_order_of_the_bytes_is_that_of_the_numbers(kind: pa.DataType, data: st.DataObject) -> None:
    least, most = number_range(kind) or (0, 0)
    numbers = sorted(data.draw(st.lists(st.integers(least, most), min_size=2, max_size=5)))
    keys: list[Any] = key_column(pa.array(numbers, kind)).to_pylist()
    assert keys == sorted(keys)
    assert all(len(key) == 8 for key in keys)


def test_the_bytes_do_not_depend_on_the_width() -> None:
    narrow = key_column(pa.array([-128, None, 5], pa.int8()))
    assert narrow.equals(key_column(pa.array([-128, None, 5], pa.int64())))
    assert narrow[2].as_py() == bytes.fromhex("8000000000000005")
    assert narrow[0].as_py() == bytes.fromhex("7fffffffffffff80")


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_keys_of_another_length_are_refused(kind: pa.DataType) -> None:
    good = bytes.fromhex("8000000000000005")
    for bad in (b"", b"1234567", b"123456789"):
        assert "expected 8" in refusal([good, None, bad], kind)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        *((pa.int8(), number) for number in (-129, 128)),
        *((pa.int32(), number) for number in (-(2**31) - 1, 2**31)),
        *((pa.date32(), number) for number in (DATE_DAYS_MIN - 1, DATE_DAYS_MAX + 1)),
        *((kind, number) for kind in (UTC, pa.timestamp("us")) for number in (STAMP_US_MIN - 1, STAMP_US_MAX + 1)),
    ],
    ids=str,
)
def test_numbers_outside_the_type_are_refused(kind: pa.DataType, number: int) -> None:
    key = (number + 2**63).to_bytes(8, "big")
    assert str(number) in refusal([None, key], kind)
    assert key_values(pa.array([key, None]), pa.int64()).to_pylist() == [number, None]


def test_text_must_be_utf_8_and_bytes_need_not() -> None:
    assert "not UTF-8" in refusal([b"ok", None, b"\xff"], pa.string())
    assert "not UTF-8" in refusal([b"\xed\xa0\x80"], pa.string())
    assert key_values(pa.array([b"\xff"]), pa.binary()).to_pylist() == [b"\xff"]


def test_ascii_is_recognised_by_all_data() -> None:
    assert is_ascii(pa.array([], pa.string()))
    assert is_ascii(pa.array([None, ""], pa.string()))
    assert is_ascii(pa.array(["a\x7f", None, "b"]))
    assert not is_ascii(pa.array(["a", "\x80"]))
    # One character in two values, of which neither is UTF-8.
    assert not is_ascii(pa.array([b"\xc3", b"\xa9"]))


def test_the_years_are_1_to_9999() -> None:
    assert pa.array([DATE_DAYS_MIN, DATE_DAYS_MAX], pa.date32()).cast(pa.string()).to_pylist() == [
        "0001-01-01",
        "9999-12-31",
    ]
    assert pa.array([STAMP_US_MIN, STAMP_US_MAX], pa.timestamp("us")).cast(pa.string()).to_pylist() == [
        "0001-01-01 00:00:00.000000",
        "9999-12-31 23:59:59.999999",
    ]
