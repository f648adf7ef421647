from __future__ import annotations

from typing import Any

import pytest

from tidelog_gateway.bodies import protobuf_body
from tidelog_gateway.bodies.protobuf_body import protobuf_records
from tidelog_gateway.problems import Problem
from tidelog_gateway.records.json_decoding import Records
from tidelog_proto.publish_pb2 import PublishRecord, PublishRecords, RecordHeader

NOW_US = 5_000


async def pace() -> None:
    pass


async def read(body: bytes, records_max: int = 10_000) -> Records:
    return await protobuf_records(body, records_max=records_max, now_us=NOW_US, pace=pace)


async def fault(body: bytes, records_max: int = 10_000) -> dict[str, str]:
    with pytest.raises(Problem) as caught:
        await read(body, records_max)
    assert caught.value.status == 422
    found: dict[str, str] = caught.value.extra["errors"][0]
    return found


def of(*records: Any) -> bytes:
    return PublishRecords(records=records).SerializeToString()


async def test_fields_become_parts_of_records() -> None:
    headers = [RecordHeader(name="a", value=b""), RecordHeader(name="a")]
    first = PublishRecord(value=b"\xff", key=b"", tag="t", partition=3, timestamp_ms=7, headers=headers)
    records = await read(of(first, PublishRecord(tombstone=True, key=b"k"), PublishRecord(value=b"")))
    assert records.values == [b"\xff", None, b""]
    assert records.keys == [b"", b"k", None]
    assert records.tags == ["t", None, None]
    assert records.partitions == [3, None, None]
    assert records.timestamps_us == [7_000, NOW_US, NOW_US]
    assert records.headers == [[("a", b""), ("a", None)], [], []]


async def test_a_missing_value_is_not_a_tombstone() -> None:
    for record in (PublishRecord(key=b"k"), PublishRecord(tombstone=False)):
        found = await fault(of(PublishRecord(value=b""), record))
        assert found["pointer"] == "/records/1/value"
        assert "set value, which may be empty, or tombstone" in found["detail"]


@pytest.mark.parametrize(
    ("body", "where", "told"),
    [
        (b"", "/records", "there are no records"),
        (b'{"records":[]}', "", "byte 0 does not begin a record"),
        (b"\x0a\x05abc", "/records/0", "has 5 bytes, of which only 3 were sent"),
        (b"\x0a" + b"\xff" * 20, "", "the varint at byte 1 does not end within"),
        (b"\x0a\x02\x0a\x09", "/records/0", "is not protobuf"),
        (b"\x0a\x05\x0a\x00\x22\x01\xff", "/records/0", "is not protobuf"),  # UTF-8 of a tag
        (b"\x0a\x04\x0a\x00\x78\x01", "/records/0", "has fields that publish.proto does not define"),
        (b"\x0a\x02\x0a\x00\x12\x00", "", "byte 4 does not begin a record"),
        (of(PublishRecord(value=b"", tag="ü" * 2_049)), "/records/0/tag", "at most 4096 bytes"),
        (of(PublishRecord(value=b"", partition=100_000)), "/records/0/partition", "must be less than 100000"),
        (of(PublishRecord(value=b"", timestamp_ms=2**63)), "/records/0/timestamp_ms", "must be at most"),
        (
            of(PublishRecord(value=b"", headers=[RecordHeader()] * 257)),
            "/records/0/headers",
            "has 257 headers, the maximum is 256",
        ),
    ],
)
async def test_a_fault_names_its_record(body: bytes, where: str, told: str) -> None:
    found = await fault(body)
    assert found["pointer"] == where
    assert told in found["detail"]


async def test_records_are_counted_over_pieces() -> None:
    records = [PublishRecord(value=b"%d" % number * 50) for number in range(2_000)]
    assert (await read(of(*records))).values == [record.value for record in records]
    assert (await fault(of(*records), 1_999))["pointer"] == "/records"
    records[1_777].ClearField("value")
    assert (await fault(of(*records)))["pointer"] == "/records/1777/value"


async def test_a_large_record_is_checked_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    large = PublishRecord(value=b"x" * 200_000, key=b"k", headers=[RecordHeader(name="n", value=b"v")] * 256)
    assert (await read(of(PublishRecord(value=b"a"), large))).values == [b"a", large.value]
    bomb = b"\x0a" + b"\xc0\x84\x3d" + b"\x3a\x00" * 500_000
    monkeypatch.setattr(protobuf_body, "PublishRecords", None)
    assert "has more than 272 fields; a record has at most 256 headers" in (await fault(bomb))["detail"]


async def test_headers_of_a_request_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_body, "HEADERS_PER_REQUEST_MAX", 5)
    record = PublishRecord(value=b"", headers=[RecordHeader()] * 3)
    assert len(await read(of(record))) == 1
    assert "more than 5 headers" in (await fault(of(record, record)))["detail"]
