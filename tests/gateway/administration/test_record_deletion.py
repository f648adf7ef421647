from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.gateway.fake_log import FakeClient, FakeLog
from tests.gateway.test_app import problem

from tidelog.errors import ForbiddenError, OffsetOutOfRangeError

RECORDS = "/v1/topics/t/partitions/1/records"
Asked = list[tuple[str, int | datetime, list[int]]]


@pytest.fixture(autouse=True)
def asked(log: FakeLog, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Record the client's requests, and answer them from the log."""
    log.logs["t"] = [[], []]
    found: Asked = []

    async def delete_records(
        self: FakeClient, topic: str, before: int | datetime, partitions: Iterable[int]
    ) -> dict[int, int]:
        del self
        wanted = list(partitions)
        found.append((topic, before, wanted))
        for partition in wanted:
            log.partition(topic, partition)
        return dict.fromkeys(wanted, 7)

    monkeypatch.setattr(FakeClient, "delete_records", delete_records, raising=False)
    return found


async def test_records_before_an_offset_or_a_time_are_deleted(api: httpx.AsyncClient, asked: Asked) -> None:
    response = await api.delete(RECORDS, params={"before_offset": 7})
    assert (response.status_code, response.json()) == (200, {"partition": 1, "log_start_offset": 7})
    for stamp in ("1767225600000", "2026-01-01T00:00:00Z", "2026-01-01T05:00:00+05:00"):
        assert (await api.delete(RECORDS, params={"before_timestamp": stamp})).status_code == 200
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert asked == [("t", 7, [1]), *[("t", moment, [1])] * 3]


async def test_the_smallest_and_largest_times_and_offsets_are_accepted(api: httpx.AsyncClient, asked: Asked) -> None:
    for stamp in ("0", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "253402300799999"):
        assert (await api.delete(RECORDS, params={"before_timestamp": stamp})).status_code == 200, stamp
    assert (await api.delete(RECORDS, params={"before_offset": 2**63 - 1})).status_code == 200
    epoch, last = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    ms = timedelta(microseconds=999)
    assert [before for _, before, _ in asked] == [epoch, epoch, last, last - ms, 2**63 - 1]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"before_offset": 1, "before_timestamp": "2026-01-01T00:00:00Z"},
        {"before_offset": -1},
        {"before_offset": 2**63},
        {"before_offset": "x"},
        {"before_offset": "1.5"},
        {"before_offset": ""},
        {"before_timestamp": ""},
        {"before_timestamp": "7d"},
        {"before_timestamp": "-1"},
        {"before_timestamp": "2026-01-01"},
        {"before_timestamp": "2026-01-01T00:00:00"},
        {"before_timestamp": "1969-12-31T23:59:59Z"},
        {"before_timestamp": "0001-01-01T00:00:00+14:00"},
        {"before_timestamp": "9999-12-31T23:59:59-12:00"},
        {"before_timestamp": "10000-01-01T00:00:00Z"},
        {"before_timestamp": "253402300800000"},
        {"before_timestamp": "9" * 40},
        {"before_timestamp": "9" * 5000},
    ],
)
async def test_invalid_times_and_offsets_are_refused_without_asking_a_node(
    api: httpx.AsyncClient, asked: Asked, params: dict[str, Any]
) -> None:
    problem(await api.delete(RECORDS, params=params), 422, "invalid_request")
    assert asked == []


@pytest.mark.parametrize("partition", ["-1", "x", str(2**32)])
async def test_an_invalid_partition_is_refused_without_asking_a_node(
    api: httpx.AsyncClient, asked: Asked, partition: str
) -> None:
    url = f"/v1/topics/t/partitions/{partition}/records"
    response = await api.delete(url, params={"before_offset": 1})
    assert response.status_code in {404, 422}, response.text
    assert asked == []


async def test_missing_and_internal_topics_are_refused(api: httpx.AsyncClient, asked: Asked) -> None:
    before = {"before_offset": 1}
    problem(await api.delete("/v1/topics/nowhere/partitions/0/records", params=before), 404, "unknown_topic")
    problem(await api.delete("/v1/topics/t/partitions/2/records", params=before), 404, "unknown_partition")
    assert len(asked) == 2
    problem(await api.delete("/v1/topics/__meta/partitions/0/records", params=before), 422, "invalid_topic")
    assert len(asked) == 2


async def test_an_offset_above_the_end_is_refused_with_the_bounds(api: httpx.AsyncClient, log: FakeLog) -> None:
    error = OffsetOutOfRangeError("the log ends at 9")
    error.log_start_offset, error.high_watermark = 3, 9
    log.fault = error
    response = await api.delete(RECORDS, params={"before_offset": 10})
    problem(response, 422, "offset_out_of_range")
    assert (response.json()["log_start_offset"], response.json()["high_watermark"]) == (3, 9)


async def test_a_topic_on_hold_is_refused(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.fault = ForbiddenError("t is on hold; end the hold first: tidelog topic alter --no-hold")
    response = await api.delete(RECORDS, params={"before_offset": 10})
    problem(response, 403, "forbidden")
    assert "on hold" in response.json()["detail"]
