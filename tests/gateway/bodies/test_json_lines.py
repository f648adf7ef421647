from __future__ import annotations

import gc
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_gateway.bodies import json_body, json_lines
from tidelog_gateway.bodies.json_lines import GROUP_LINES, Line, LineBuffer, parse_lines
from tidelog_gateway.records.json_decoding import Records

NOW_US = 5_000


async def pace() -> None:
    pass


async def parsed(*texts: bytes) -> tuple[Records | None, dict[int, str]]:
    lines = [Line(number, text) for number, text in enumerate(texts, 1)]
    found = await parse_lines(lines, now_us=lambda: NOW_US, pace=pace)
    assert found.numbers == list(range(1, len(texts) + 1))
    return found.records, {number: problem.detail for number, problem in found.faults.items()}


def cut(parts: list[bytes]) -> list[Line]:
    buffer = LineBuffer()
    found = [line for part in parts for lines in buffer.feed(part) for line in lines]
    return [*found, *buffer.end()]


@given(text=st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n")), size=st.integers(1, 7))
def test_lines_are_the_same_however_they_arrive(text: bytes, size: int) -> None:
    expected = [Line(number, line) for number, each in enumerate(text.split(b"\n"), 1) if (line := each.strip())]
    assert cut([text[at : at + size] for at in range(0, len(text), size)]) == expected


@pytest.mark.parametrize("text", [b"{}", b'{"value":{"a":1},"value_encoding":"json"}'])
async def test_lines_that_are_not_plain_are_parsed_in_slices(text: bytes) -> None:
    paces = 0

    async def counted() -> None:
        nonlocal paces
        paces += 1

    lines = [Line(number, text) for number in range(1, GROUP_LINES + 1)]
    await parse_lines(lines, now_us=lambda: NOW_US, pace=counted)
    assert paces >= GROUP_LINES // 50


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_fault_keeps_no_body_in_memory(size: int) -> None:
    text = b'{"value_encoding":"json","value":[%b0]}' % (b"0," * size)
    before = sys.getrefcount(text)
    lines = [Line(1, text), Line(2, b"[]")]
    gc.disable()
    try:
        found = await parse_lines(lines, now_us=lambda: NOW_US, pace=pace)
        del lines
        assert 2 in found.faults
        assert (1 in found.faults) == (size > json_body.VALUES_MAX)
        assert sys.getrefcount(text) == before, "it is freed without the garbage collector"
    finally:
        gc.enable()


def test_many_short_lines_are_returned_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "GROUP_BYTES", 100)
    groups = list(LineBuffer().feed(b"1\n" * 1_000 + b"rest"))
    assert max(map(len, groups)) <= GROUP_LINES
    assert [line.number for lines in groups for line in lines] == list(range(1, 1_001))
    assert not any(lines for lines in LineBuffer().feed(b"\n" * 1_000))


@pytest.mark.parametrize("line", [b"{}\n", b"\n", b"\n" * 99 + b"{}\n"], ids=["short", "blank", "mixed"])
def test_few_lines_are_read_between_two_groups(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of a body has tens of thousands of short lines: the work between two turns is bounded."""
    made = 0

    def line_made(number: int, text: bytes) -> Line:
        nonlocal made
        made += 1
        return Line(number, text)

    monkeypatch.setattr(json_lines, "Line", line_made)
    body = line * (128 * 1024 // len(line))
    found: list[Line] = []
    groups = 0
    for lines in LineBuffer().feed(body):
        groups += 1
        found += lines
        assert made - len(found) < GROUP_LINES
    assert found == [Line(number, text) for number, text in enumerate(body.split(b"\n"), 1) if text]
    if found:
        assert groups >= body.count(b"\n") // (json_lines.LOOKED_AT_ONCE + GROUP_LINES)
    assert groups <= len(found) // GROUP_LINES + body.count(b"\n") // json_lines.LOOKED_AT_ONCE + 3


def test_the_beginning_of_a_line_is_buffered() -> None:
    buffer = LineBuffer()
    list(buffer.feed(b"a\nbcd"))
    list(buffer.feed(b"ef"))
    assert (buffer.held_bytes, buffer.number) == (5, 2)
    assert list(buffer.feed(b"\n")) == [[Line(2, b"bcdef")]]
    assert (buffer.held_bytes, buffer.number) == (0, 3)


async def test_each_line_is_a_record() -> None:
    records, faults = await parsed(b'{"value":"a","key":"k"}', b'{"value":null,"timestamp_ms":1}')
    assert records is not None
    assert (records.values, records.keys, records.timestamps_us) == ([b"a", None], [b"k", None], [NOW_US, 1_000])
    assert not faults
    records, _ = await parsed(
        b'{"value": {"a" : 1.10}, "value_encoding":"json"}', b'{"value":"a","headers":[["h","v"]]}'
    )
    assert records is not None
    assert records.values == [b'{"a" : 1.10}', b"a"]
    assert records.headers == [[], [("h", b"v")]]


async def test_a_fault_affects_only_its_line() -> None:
    large = json.dumps({"value": "x" * 20_000, "tag": 1}).encode()
    records, faults = await parsed(b'{"value":"a"}', b'{"value":1}', b"{", b"\xff", large, b"[]", b'{"value":"b"}')
    assert records is not None
    assert records.values == [b"a", b"b"]
    assert set(faults) == {2, 3, 4, 5, 6}
    assert faults[2].startswith("/value: must be a string or null")
    assert faults[5].startswith("/tag: Input should be a valid string")


@pytest.mark.parametrize(
    "lines",
    [
        (b'{"value":"a"},{"value":"b"}',),
        (b'{"value":"a"},{"value":"b"', b'"key":"k"}'),
        (b'{"value":"a"}],"records":[{"value":"b"}',),
        (b'{"value":"a"} {"value":"b"}',),
        (b'{"value":"a","value_encoding":"json"},{"value":"b","value_encoding":"json"}',),
        (b'{"value":"' + b"x" * 20_000 + b'"},{"value":"b"}',),
        (b'{"value":"' + b"x" * 20_000 + b'"}],"records":[{"value":"b"}',),
        (b'{"value":"' + b"x" * 20_000 + b'"}],"a":[{"value":"b"}',),
    ],
)
async def test_the_text_of_a_line_cannot_make_other_records(lines: tuple[bytes, ...]) -> None:
    records, faults = await parsed(*lines)
    assert records is None
    assert len(faults) == len(lines)


async def test_a_line_is_limited_by_its_structure() -> None:
    _, faults = await parsed(b'{"value_encoding":"json","value":[' + b"0," * 70_000 + b"0]}")
    assert "more than 64000 JSON values" in faults[1]
