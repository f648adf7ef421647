from __future__ import annotations

from typing import Any

import pytest

from tidelog_gateway.bodies import csv_body
from tidelog_gateway.bodies.csv_body import csv_records
from tidelog_gateway.problems import Problem
from tidelog_gateway.records.json_decoding import Records

NOW_US = 5_000


async def pace() -> None:
    pass


async def read(text: str | bytes, **changes: Any) -> Records:
    body = text if isinstance(text, bytes) else text.encode()
    given: dict[str, Any] = {"records_max": 100, "now_us": NOW_US, "empty_value": "error", "pace": pace} | changes
    return await csv_records(body, **given)


async def fault(text: str | bytes, **changes: Any) -> str:
    with pytest.raises(Problem) as caught:
        await read(text, **changes)
    assert caught.value.status == 422
    return caught.value.detail


async def test_columns_become_parts_of_records() -> None:
    records = await read(
        "\ufefftag,header:a,key,value,timestamp_ms,partition,header:b,header:a\r\n"
        't,1,k,"x, ""y""\n",7,0,2,3\r\n'
        ",,,z,,,,\r\n"
        '"","","","",,1,,""\r\n'
    )
    assert records.values == [b'x, "y"\n', b"z", b""]
    assert records.keys == [b"k", None, b""]
    assert records.tags == ["t", None, ""]
    assert records.timestamps_us == [7_000, NOW_US, NOW_US]
    assert records.partitions == [0, None, 1]
    assert records.headers == [[("a", b"1"), ("b", b"2"), ("a", b"3")], [], [("a", b""), ("a", b"")]]


async def test_an_unquoted_empty_value_is_an_error_unless_the_request_defines_it() -> None:
    text = 'key,value\nk,""\nk,\n'
    assert 'row 3: the value is missing; write "" for an empty one' in await fault(text)
    assert (await read(text, empty_value="empty")).values == [b"", b""]
    assert (await read(text, empty_value="tombstone")).values == [b"", None]
    assert "row 3" in await fault("value\na\n\nb\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "a row with the names of its columns"),
        ("value\n", "and a row for each record"),
        ("key\nk\n", "row 1: the header row has no column named value"),
        ("value,valeu\n1,2\n", "row 1: column 'valeu' is unknown: did you mean value?"),
        ("value,value\n1,2\n", "row 1: column value is given twice"),
        ("value,header:\n1,2\n", "row 1: a column of headers must be header:NAME"),
        ("value, key\n1,2\n", "row 1: column ' key' is unknown: did you mean key?"),
        (b"value\xff\n1\n", "row 1: the header row must name the columns in UTF-8"),
        ("value,key\n1,2\n3\n", "row 3: the header row has 2 columns, but this row has 1"),
        ("value,key\n1,2\n3,4,5\n", "row 3: the header row has 2 columns, but this row has 3"),
        (b"value,key\n1,2\n3,\xff\n", "row 3: the row is not UTF-8"),
        ("value,partition\n1,0\n1,x\n", "row 3: partition must be a whole number from 0 to 99999, got 'x'"),
        ("value,partition\n1,-1\n", "row 2: partition must be a whole number"),
        ("value,partition\n1,100000\n", "row 2: partition must be a whole number"),
        ("value,timestamp_ms\n1,1.5\n", "row 2: timestamp_ms must be a whole number"),
        ("value,timestamp_ms\n1,\u0661\n", "row 2: timestamp_ms must be a whole number"),
        ("value,tag\n1," + "ü" * 2_049 + "\n", "row 2: a tag has at most 4096 bytes, got 4098"),
        ('value,key\n1,"2\n', "row 2: a quote is not closed"),
    ],
)
async def test_a_fault_names_its_row(text: str | bytes, told: str) -> None:
    assert told in await fault(text)


async def test_rows_are_counted_over_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_body, "PART_FIELDS", 6)
    rows = [f'k{number},"v\n{number}"\n' for number in range(50)]
    records = await read("key,value\n" + "".join(rows))
    assert records.values == [b"v\n%d" % number for number in range(50)]
    assert records.keys == [b"k%d" % number for number in range(50)]
    assert "row 41:" in await fault("key,value\n" + "".join([*rows[:39], "one\n", *rows[40:]]))


async def test_only_a_byte_order_mark_at_the_beginning_of_the_body_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_body, "PART_FIELDS", 2)
    rows = "\ufeffa,\ufeffk\n" * 3
    records = await read("\ufeffvalue,key\n" + rows)
    assert records.values == ["\ufeffa".encode()] * 3
    assert records.keys == ["\ufeffk".encode()] * 3
    assert (await read('value\n\ufeff\n"\ufeff"\n')).values == ["\ufeff".encode()] * 2


async def test_headers_of_a_request_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_body, "HEADERS_PER_REQUEST_MAX", 5)
    head = "value,header:a,header:b\n"
    assert len(await read(head + "1,1,1\n" * 2)) == 2
    assert "more than 5 headers" in await fault(head + "1,1,1\n" * 3)
