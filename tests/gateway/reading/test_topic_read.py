"""All partitions of a topic: `GET /v1/topics/{topic}/records`."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.gateway.fake_log import FakeLog
from tests.gateway.reading.topics import COUNTS, EVERYTHING, PATH, fill, places
from tests.gateway.test_app import problem

from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.resume_tokens import Scope
from tidelog_gateway.reading.topic_cursor import HEADER_CHARS_MAX, cursor_in, cursor_text
from tidelog_gateway.reading.topic_read import FETCHES_MAX
from tidelog_proto.batch.record_batch import columns_of


@pytest.fixture(autouse=True)
async def filled(log: FakeLog) -> None:
    await fill(log)


async def read_all(api: httpx.AsyncClient, **params: Any) -> list[tuple[int, int]]:
    """Read from answer to answer, each of them twice, until all is read."""
    seen: list[tuple[int, int]] = []
    cursor: dict[str, str] = {}
    for _ in range(50):
        answers = [await api.get(PATH, params={**params, **cursor}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
        assert answers[0].content == answers[1].content, "the same request has the same answer"
        document = answers[0].json()
        seen += places(document)
        if document["caught_up"]:
            return seen
        cursor = {"cursor": document["next_cursor"]}
        params.pop("from", None)
        params.pop("timestamp", None)
    raise AssertionError("it does not end")


async def test_all_in_one_answer(api: httpx.AsyncClient) -> None:
    document = (await api.get(PATH)).json()
    assert places(document) == EVERYTHING
    assert document["caught_up"] is True
    assert document["records"][5] == {
        "partition": 2,
        "offset": 0,
        "timestamp_ms": 0,
        "key": "even",
        "value": "2:0",
        "value_encoding": "utf8",
    }


@pytest.mark.parametrize(
    "limit", [{"max_records": 1}, {"max_records": 2}, {"max_records": 4}, {"max_bytes": 9}, {"max_bytes": 1}]
)
async def test_from_answer_to_answer(api: httpx.AsyncClient, log: FakeLog, limit: dict[str, int]) -> None:
    log.batches_per_fetch = 2
    seen = await read_all(api, **limit)
    assert sorted(seen) == EVERYTHING
    for partition in range(len(COUNTS)):
        assert [place for place in seen if place[0] == partition] == [
            place for place in EVERYTHING if place[0] == partition
        ]


async def test_partitions_have_their_turns(api: httpx.AsyncClient) -> None:
    assert await read_all(api, max_records=1) == [
        (0, 0),
        (2, 0),
        (3, 0),
        (0, 1),
        (2, 1),
        (0, 2),
        (2, 2),
        (0, 3),
        (0, 4),
    ]


async def test_where_to_begin(api: httpx.AsyncClient) -> None:
    assert await read_all(api, timestamp="3") == [(0, 3), (0, 4)]
    assert await read_all(api, **{"from": "latest"}) == []
    assert sorted(await read_all(api, key="odd", max_records=1)) == [place for place in EVERYTHING if place[1] % 2]
    refused = await api.get(PATH, params={"from": "earliest", "timestamp": 1})
    problem(refused, 422, "invalid_request")


async def test_records_and_partitions_that_come_later(api: httpx.AsyncClient, log: FakeLog) -> None:
    end = (await api.get(PATH, params={"from": "latest"})).json()
    log.logs["t"].append([])
    await log.append("t", 4, columns_of([b"4:0"]))
    await log.append("t", 1, columns_of([b"1:0"]))
    later = (await api.get(PATH, params={"cursor": end["next_cursor"]})).json()
    assert places(later) == [(1, 0), (4, 0)]
    again = (await api.get(PATH, params={"cursor": later["next_cursor"]})).json()
    assert (places(again), again["caught_up"]) == ([], True)


async def test_cursors_that_cannot_be_used(api: httpx.AsyncClient, log: FakeLog) -> None:
    cursor = (await api.get(PATH)).json()["next_cursor"]
    token = cursor.partition(".")[0]
    assert (await api.get(PATH, params={"cursor": token})).status_code == 200, "a token of a stream"
    for wrong in ("", "x", token[:-2], f"{token}.", f"{token}.-1", f"{token}.x", f"{token}.100000", f"B{token[1:]}.0"):
        refused = await api.get(PATH, params={"cursor": wrong})
        problem(refused, 422, "invalid_cursor")
        assert refused.json()["errors"][0]["parameter"] == "cursor"
    problem(await api.get(PATH, params={"cursor": cursor, "key": "even"}), 422, "invalid_cursor")
    log.ids["t"] = bytes(16)
    problem(await api.get(PATH, params={"cursor": cursor}), 410, "topic_recreated")
    problem(await api.get("/v1/topics/none/records"), 404, "unknown_topic")
    problem(await api.get("/v1/topics/none/records", params={"cursor": cursor}), 404, "unknown_topic")


async def test_deleted_records_are_an_error_with_the_cursor_to_continue(api: httpx.AsyncClient, log: FakeLog) -> None:
    cursor = (await api.get(PATH, params={"max_records": 1})).json()["next_cursor"]
    log.starts["t", 0], log.starts["t", 2] = 3, 2
    gone = await api.get(PATH, params={"cursor": cursor})
    problem(gone, 410, "offset_out_of_range")
    assert gone.json()["gaps"] == [
        {"partition": 0, "offset": 1, "log_start_offset": 3},
        {"partition": 2, "offset": 0, "log_start_offset": 2},
    ]
    rest = (await api.get(PATH, params={"cursor": gone.json()["next_cursor"]})).json()
    assert sorted(places(rest)) == [(0, 3), (0, 4), (2, 2), (3, 0)]


async def test_positions_beyond_the_end_are_refused(api: httpx.AsyncClient, log: FakeLog) -> None:
    cursor = (await api.get(PATH)).json()["next_cursor"]
    del log.logs["t"][2][1:]
    refused = await api.get(PATH, params={"cursor": cursor})
    problem(refused, 422, "offset_out_of_range")
    assert refused.json()["partition"] == 2


async def test_a_value_that_does_not_fit_can_be_passed_over(api: httpx.AsyncClient, log: FakeLog) -> None:
    await log.append("t", 1, columns_of([b"\xff", b"1:1"]))
    params: dict[str, Any] = {"value_encoding": "utf8"}
    seen: list[tuple[int, int]] = []
    faults: list[tuple[int, int]] = []
    for _ in range(5):
        response = await api.get(PATH, params=params)
        document = response.json()
        if response.status_code == 422:
            assert document["code"] == "value_not_utf8"
            faults.append((document["partition"], document["offset"]))
        else:
            seen += places(document)
            if document["caught_up"]:
                break
        params["cursor"] = document["next_cursor"]
    assert faults == [(1, 0)]
    assert sorted(seen) == sorted([*EVERYTHING, (1, 1)])


async def test_a_topic_of_4096_partitions(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.logs["t"] = [[] for _ in range(4_096)]
    for partition in range(0, 4_096, 4):
        await log.append("t", partition, columns_of([b"x"] * 3))
    log.fetches = 0
    first = (await api.get(PATH, params={"max_records": 10_000})).json()
    assert log.fetches <= FETCHES_MAX, "empty partitions are not asked"
    assert first["caught_up"] is False
    seen, document = places(first), first
    while not document["caught_up"]:
        document = (await api.get(PATH, params={"cursor": document["next_cursor"], "max_records": 10_000})).json()
        seen += places(document)
    assert sorted(seen) == [(partition, at) for partition in range(0, 4_096, 4) for at in range(3)]


def test_a_cursor_that_does_not_fit_is_refused() -> None:
    scope, positions = Scope("t", bytes(16)), dict.fromkeys(range(4_096), 1_000_000)
    assert len(cursor_text(scope, positions, 7)) > HEADER_CHARS_MAX
    assert cursor_in(cursor_text(scope, positions, 7), scope) == (positions, 7)
    with pytest.raises(Problem, match="request application/json, or read its partitions one by one") as caught:
        cursor_text(scope, positions, 7, chars_max=HEADER_CHARS_MAX)
    assert (caught.value.status, caught.value.code) == (422, "too_many_partitions")
    with pytest.raises(Problem, match="here: read its partitions one by one"):
        cursor_text(scope, dict.fromkeys(range(100_000), 1 << 40), 7)
