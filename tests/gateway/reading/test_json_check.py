from __future__ import annotations

import time
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.json_texts import EXAMPLES, NOT_JSON, values

from tidelog_gateway.reading.json_check import first_not_json
from tidelog_gateway.reading.values import first_fault
from tidelog_gateway.requests.json_structure import STRETCH_BYTES
from tidelog_proto.text.json_text import json_text


async def pace() -> None:
    pass


def is_json(text: str) -> bool:
    try:
        json_text(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("text", EXAMPLES)
async def test_json_is_taken(text: str) -> None:
    assert await first_not_json(pa.array([text, "1", text]), pace) is None


@pytest.mark.parametrize("data", [*NOT_JSON, b"", b" ", b"1,2", b"1],[2", b"[1", b"2]", b'"a', b"0]"])
async def test_a_row_that_is_not_json_is_found_alone_and_among_others(data: bytes) -> None:
    for before in ([], [b"1", b'{"a":[1,2]}', None]):
        for behind in ([], [b"2", b'"x"']):
            column = pa.array([*before, data, *behind], pa.binary())
            assert await first_fault(column, "json", pace) == len(before)


PARTS = st.sampled_from(["[", "]", "{", "}", ",", '"', "1", ":", "\\", "\\u", "d800", " ", "null", '"a"', "0"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(values, st.lists(PARTS, max_size=6).map("".join)), min_size=1, max_size=6))
async def test_rows_are_judged_as_they_are_one_by_one(texts: list[str]) -> None:
    expected = next((number for number, text in enumerate(texts) if not is_json(text)), None)
    assert await first_not_json(pa.array(texts), pace) == expected


async def test_long_runs_of_digits_in_strings_are_not_numbers() -> None:
    assert await first_not_json(pa.array(['"' + "1" * 5_000 + '"', "[" + "1," * 2_000 + "1]"]), pace) is None


LARGE = 3 * STRETCH_BYTES


@pytest.mark.parametrize(
    ("data", "is_taken"),
    [
        (b'"' + b"\\ud83d\\ude00" * LARGE + b'"', True),
        (b'"' + b"\\ud83d\\ude00" * LARGE + b'\\ude00"', False),
        (b'"' + b"\\ud83d\\ude00" * LARGE + b'\\ud83d"', False),
        (b'"\\ude00' + b"\\ud83d\\ude00" * LARGE + b'"', False),
        (b'"' + b'\\"' * LARGE + b"7" * 2_000 + b'"', True),
        (b'["' + b'\\"' * LARGE + b'", ' + b"7" * 1_000 + b"]", True),
        (b'["' + b'\\"' * LARGE + b'", ' + b"7" * 1_001 + b"]", False),
        (b"1" * LARGE, False),
        (b'"' + b"1" * LARGE + b'"', True),
        (b"[" + b"1," * LARGE + b"1]", True),
        (b"[" + b"1," * LARGE + b"]", False),
        (b"[" + b'"\\\\",' * LARGE + b"[[]]]", True),
    ],
)
async def test_a_large_value_is_judged_in_short_pieces(data: bytes, *, is_taken: bool) -> None:
    ends_s = [time.process_time()]

    async def timed() -> None:
        ends_s.append(time.process_time())

    column = pa.array([data.decode()])
    assert (await first_not_json(column, timed) is None) is is_taken
    ends_s.append(time.process_time())
    assert max(end - begin for begin, end in pairwise(ends_s)) < 0.1
