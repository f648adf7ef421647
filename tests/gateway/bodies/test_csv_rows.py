"""Rows end by the strict grammar of RFC 4180, wherever the body is divided into stretches."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_gateway.bodies import csv_rows
from tidelog_gateway.bodies.csv_rows import row_ends
from tidelog_gateway.problems import Problem


async def pace() -> None:
    pass


async def rows(body: bytes, rows_max: int = 1_000) -> list[bytes]:
    starts = [0, *(ends := await row_ends(body, rows_max=rows_max, pace=pace))]
    return [body[start:end] for start, end in zip(starts, ends, strict=False)]


async def fault(body: bytes, rows_max: int = 1_000) -> str:
    with pytest.raises(Problem) as caught:
        await row_ends(body, rows_max=rows_max, pace=pace)
    assert caught.value.status == 422
    return caught.value.detail


@pytest.fixture(params=[1, 2, 3, 1 << 18])
def stretch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "STRETCH_BYTES", request.param)


@pytest.mark.usefixtures("stretch")
async def test_line_ends_inside_quotes_do_not_end_a_row() -> None:
    assert await rows(b'a,b\r\n"x\n""y""",2\n3,4') == [b"a,b\r\n", b'"x\n""y""",2\n', b"3,4"]
    assert await rows(b'\xef\xbb\xbf"a",b\n') == [b'\xef\xbb\xbf"a",b\n']
    assert await rows(b"\n\n") == [b"\n", b"\n"]
    assert await rows(b"") == []


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'a\nb"c\n', "row 2: an unquoted field contains a quote"),
        (b'a\n"b"c\n', "row 2: a closing quote is followed by text"),
        (b'a\n"b" ,c\n', "row 2: a closing quote is followed by text"),
        (b'a\nb\n"c\n"d"', "row 3: a closing quote is followed by text"),
        (b'a\nb\n"c,\n', "row 3: a quote is not closed"),
        (b"a\nb\rc\n", "row 2: a carriage return is not followed by a line feed"),
        (b"a\nb\r", "row 2: a carriage return is not followed by a line feed"),
    ],
)
async def test_a_quoting_fault_names_the_row(body: bytes, told: str) -> None:
    assert told in await fault(body)


async def test_rows_are_counted_before_any_field_is_decoded() -> None:
    assert len(await rows(b"a\n" * 6, 5)) == 6
    assert "more than 5 records" in await fault(b"a\n" * 7, 5)
    assert "more than 5 records" in await fault(b"a\n" * 6 + b"a", 5)


@given(
    table=st.lists(st.lists(st.text('a,\n\r"ü', max_size=4), min_size=2, max_size=2), max_size=8),
    size=st.integers(1, 9),
)
async def test_rows_of_a_csv_writer_are_found(table: list[list[str]], size: int) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(table)
    before, csv_rows.STRETCH_BYTES = csv_rows.STRETCH_BYTES, size  # type: ignore[misc] # a fixture is shared by examples
    try:
        found = await rows(text.getvalue().encode())
    finally:
        csv_rows.STRETCH_BYTES = before  # type: ignore[misc]
    assert [next(csv.reader(io.StringIO(row.decode(), newline=""))) for row in found] == table
