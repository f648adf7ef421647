"""Large bodies are limited before they are parsed, and parsed in pieces with the same result as small ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidelog_gateway.bodies import json_body as bodies
from tidelog_gateway.bodies.json_body import MEMBERS_MAX, VALUES_MAX, check_values, records_in
from tidelog_gateway.problems import ERRORS_SHOWN_MAX, Problem
from tidelog_gateway.records.json_decoding import Records, parse_body
from tidelog_gateway.requests import json_structure

NOW_US = 1_700_000_000_000_000


class Turns:
    """Counts turns."""

    def __init__(self) -> None:
        self.taken = 0

    async def pace(self) -> None:
        self.taken += 1


async def read(body: bytes, *, records_max: int = 10_000) -> Records:
    return await records_in(body, records_max=records_max, now_us=NOW_US, pace=Turns().pace)


async def refused(body: bytes, *, records_max: int = 10_000) -> list[dict[str, str]]:
    with pytest.raises(Problem) as caught:
        await read(body, records_max=records_max)
    assert caught.value.status == 422
    errors: list[dict[str, str]] = caught.value.extra["errors"]
    return errors


def body_of(records: list[dict[str, Any]]) -> bytes:
    return json.dumps({"records": records}).encode()


async def test_a_large_body_is_parsed_like_a_small_one() -> None:
    records: list[dict[str, Any]] = [
        {"value": 'text with ",]}{[ and \\"' * 3, "key": f"k{number}"} for number in range(2_000)
    ]
    records[7]["timestamp_ms"] = 5
    records[900] = {"value": {"a": [1, 2, {"b": "]"}]}, "value_encoding": "json", "headers": [["h", "v"]]}
    records[1_500] = {"value": None, "tag": "t", "partition": 3}
    body = body_of(records)
    assert len(body) > bodies.AT_ONCE_BYTES
    assert await read(body) == parse_body(body, records_max=10_000, now_us=NOW_US)


async def test_records_above_the_limit_are_refused_before_any_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "parse_body", None)
    (error,) = await refused(b'{"records":[' + b"{}," * 300_000 + b"{}]}")
    assert error["pointer"] == "/records"


async def test_the_first_faults_are_reported() -> None:
    empty: dict[str, Any] = {}
    errors = await refused(body_of([empty] * 9_000))
    assert [error["pointer"] for error in errors] == [f"/records/{number}/value" for number in range(ERRORS_SHOWN_MAX)]


async def test_a_fault_in_a_later_piece_has_the_pointer_of_the_body() -> None:
    records: list[dict[str, Any]] = [{"value": "x" * 20} for _ in range(3_000)]
    records[2_345]["value"] = 7
    assert [error["pointer"] for error in await refused(body_of(records))] == ["/records/2345/value"]


async def test_a_record_of_many_values_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "parse_body", None)
    records: list[dict[str, Any]] = [{"value": "x"}, {"value": [0] * (VALUES_MAX + 1), "value_encoding": "json"}]
    (error,) = await refused(body_of(records))
    assert error["pointer"] == "/records/1"


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[' + b'{"value":"x"},' * 5_000,
        b'{"records":[' + b'{"value":"x"},' * 5_000 + b"]}",
        b'{"records":[' + b'{"value":"x"},' * 5_000 + b'{"value":"x"}], "more": 1}',
        b'{"records":[' + b'{"value":"x"},' * 5_000 + b'{"value":"x"]}',
        b'{"records":[' + b'{"value":"x"},,' * 5_000 + b'{"value":"x"}]}',
        b"[" + b"1," * 20_000 + b"1]",
        b'{"records":[{"value":"' + b"x" * 20_000,
    ],
    ids=["no end", "comma at the end", "more members", "braces", "two commas", "a list", "no end of a string"],
)
async def test_malformed_large_bodies_are_refused(body: bytes) -> None:
    assert await refused(body)


async def test_a_large_body_takes_a_turn_for_each_piece() -> None:
    turns = Turns()
    body = body_of([{"value": "x"}] * 5_000)
    await records_in(body, records_max=10_000, now_us=NOW_US, pace=turns.pace)
    assert turns.taken >= 5_000 / bodies.PART_RECORDS


async def test_parsing_ends_when_the_client_disconnects() -> None:
    class GoneError(Exception):
        pass

    async def gone() -> None:
        raise GoneError

    with pytest.raises(GoneError):
        await records_in(body_of([{"value": "x"}] * 5_000), records_max=10_000, now_us=NOW_US, pace=gone)


async def test_values_are_counted_outside_of_strings() -> None:
    await check_values(json.dumps(["," * (2 * VALUES_MAX)]).encode(), Turns().pace)
    with pytest.raises(Problem):
        await check_values(json.dumps([0] * (VALUES_MAX + 1)).encode(), Turns().pace)


async def test_a_record_of_many_members_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "parse_body", None)
    records: list[dict[str, Any]] = [{"value": "x" * 50} for _ in range(400)]
    records[300] = {f"m{number}": 0 for number in range(MEMBERS_MAX + 1)}
    (error,) = await refused(body_of(records))
    assert error["pointer"] == "/records/300"
    assert f"more than {MEMBERS_MAX} members" in error["detail"]


@pytest.mark.parametrize("members", [MEMBERS_MAX, MEMBERS_MAX + 1])
async def test_members_are_counted_across_stretches(monkeypatch: pytest.MonkeyPatch, members: int) -> None:
    """The record begins in one stretch and ends in another; no stretch has too many of its members."""
    monkeypatch.setattr(json_structure, "STRETCH_BYTES", 600)
    monkeypatch.setattr(bodies, "parse_body", lambda *_, **__: Records([]))
    records: list[dict[str, Any]] = [{"value": "x" * 50} for _ in range(400)]
    records[300] = {f"m{number:03}": 0 for number in range(members)}
    if members > MEMBERS_MAX:
        assert [error["pointer"] for error in await refused(body_of(records))] == ["/records/300"]
    else:
        await read(body_of(records))


async def test_a_piece_that_is_not_json_is_reported_at_its_first_record() -> None:
    text = body_of([{"value": "x" * 20} for _ in range(3_000)])
    broken = text[:-2] + b', {"value": nonsense}]}'
    (error,) = await refused(broken)
    assert error["pointer"].startswith("/records/")
    assert 0 < int(error["pointer"].removeprefix("/records/")) <= 3_000


async def test_a_record_larger_than_a_piece_is_its_own_piece() -> None:
    records: list[dict[str, Any]] = [{"value": "x"}, {"value": "y" * 3 * bodies.PART_BYTES}, {"value": "z"}]
    assert [len(value or b"") for value in (await read(body_of(records))).values] == [1, 3 * bodies.PART_BYTES, 1]


async def test_scanning_the_structure_takes_a_turn_for_each_stretch() -> None:
    text = body_of([{"value": "y" * 10 * json_structure.STRETCH_BYTES}])
    turns = Turns()
    await records_in(text, records_max=1, now_us=NOW_US, pace=turns.pace)
    assert turns.taken >= 10
    turns = Turns()
    await check_values(text, turns.pace)
    assert turns.taken >= 10
