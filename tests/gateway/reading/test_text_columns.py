from __future__ import annotations

import base64

import orjson
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidelog_gateway.reading.text_columns import SLICE_BYTES, base64_of, escaped, is_not_utf8, quoted
from tidelog_gateway.reading.values import texts_of

NEAR = st.sampled_from(
    b"c3 a9 e09f e0a0 80 eda0 ed9f f08f f090 f490 f48f f5 c0 ff 61 00 e282ac f09f9880 eda080".split()
).map(lambda text: bytes.fromhex(text.decode()))
BYTES = st.one_of(st.binary(max_size=8), st.lists(NEAR, max_size=5).map(b"".join))


def is_bad(data: bytes | None) -> bool:
    try:
        (data or b"").decode()
    except UnicodeDecodeError:
        return True
    return False


@settings(max_examples=500, deadline=None)
@given(st.lists(st.one_of(st.none(), BYTES), max_size=6), st.integers(0, 2))
@example([b"\xf0", b"a"], 0)
@example([b"\xf0\x9f\x98", b"\x80"], 0)
def test_rows_that_are_not_utf8_are_found(rows: list[bytes | None], skipped: int) -> None:
    column = pa.array([b"\xff", None, *rows], pa.binary())[skipped:]
    assert list(is_not_utf8(column)) == [is_bad(data) for data in column.to_pylist()]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), BYTES), max_size=6), st.integers(0, 2))
def test_base64_of_each_row(rows: list[bytes | None], skipped: int) -> None:
    column = pa.array([b"xy", b"", *rows], pa.binary())[skipped:]
    expected = [None if data is None else base64.b64encode(data).decode() for data in column.to_pylist()]
    assert base64_of(column).to_pylist() == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), BYTES), max_size=6))
def test_each_row_is_text_or_base64(rows: list[bytes | None]) -> None:
    texts, in_base64 = texts_of(pa.array(rows, pa.binary()))
    flags = [False] * len(rows) if in_base64 is None else list(in_base64)
    assert flags == [is_bad(data) for data in rows]
    back = [
        None if text is None else base64.b64decode(text) if flag else text.encode()
        for text, flag in zip(texts.to_pylist(), flags, strict=True)
    ]
    assert back == rows


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=8), st.text('\\"\n\x01u\x7f/', max_size=8)), max_size=6))
def test_escapes_are_those_of_orjson(rows: list[str | None]) -> None:
    assert quoted(pa.array(rows, pa.string())).to_pylist() == [orjson.dumps(text).decode() for text in rows]


def test_a_single_large_record() -> None:
    data = bytes(range(128)) * (3 * SLICE_BYTES // 128)
    column = pa.array([data], pa.binary())
    assert escaped(column.cast(pa.string()))[0].as_py() == orjson.dumps(data.decode()).decode()[1:-1]
    assert base64_of(column)[0].as_py() == base64.b64encode(data).decode()
