from __future__ import annotations

import pytest
from tests.gateway.fake_log import FakeLog

from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.proto_records import FAULTS_MAX, proto_bytes_max, records_in_proto, take_proto
from tidelog_gateway.records.json_encoding import BatchReader
from tidelog_proto import websocket_pb2 as pb
from tidelog_proto.batch.record_batch import RecordBatch, columns_of


def test_records_to_publish_are_taken_as_they_are() -> None:
    records = [
        pb.PubRecord(value=b"\xff", key=b"k", tag="", partition=0, timestamp_ms=3, headers=[pb.Header(name="h")]),
        pb.PubRecord(headers=[pb.Header(name="h", value=b"")]),
    ]
    taken = records_in_proto(records, 7_000)
    assert (taken.values, taken.keys, taken.tags) == ([b"\xff", None], [b"k", None], ["", None])
    assert (taken.partitions, taken.timestamps_us) == ([0, None], [3_000, 7_000])
    assert taken.headers == [[("h", None)], [("h", b"")]]
    plain = records_in_proto([pb.PubRecord(value=b"v")], 7_000)
    assert (plain.keys, plain.headers, plain.tags, plain.timestamps_us, plain.partitions) == (None,) * 5


def test_faults_are_named_and_bounded() -> None:
    wrong = [
        pb.PubRecord(tag="x" * 5_000),
        pb.PubRecord(timestamp_ms=2**63),
        pb.PubRecord(headers=[pb.Header(name="h")] * 257),
    ]
    with pytest.raises(Problem) as caught:
        records_in_proto(wrong, 0)
    pointers = [error["pointer"] for error in caught.value.extra["errors"]]
    assert pointers == ["/pub/records/0/tag", "/pub/records/1/timestamp_ms", "/pub/records/2/headers"]
    with pytest.raises(Problem) as caught:
        records_in_proto([pb.PubRecord(partition=200_000)] * 10 * FAULTS_MAX, 0)
    assert f"and {FAULTS_MAX - 1} more" in caught.value.detail


async def batch_of(log: FakeLog) -> RecordBatch:
    log.logs["t"] = [[]]
    values = [b"x" * size for size in (10, 0, 300, 5, 5)]
    headers = [[("h", b"v"), ("n", None)], [], [], [], []]
    await log.append("t", 0, columns_of(values, keys=[b"k", None, None, None, None], headers=headers))
    return log.logs["t"][0][0]


async def test_records_are_cut_to_every_bound_and_each_is_sent_once(log: FakeLog) -> None:
    batch = await batch_of(log)
    for records_max, bytes_max, encoded_max in (
        (5, 10_000, 10_000),
        (2, 10_000, 10_000),
        (5, 20, 10_000),
        (5, 9_999, 60),
    ):
        reader = BatchReader(batch)
        found: list[pb.Record] = []
        while len(reader):
            bound = proto_bytes_max(reader, records_max, bytes_max)
            taken = take_proto(reader, records_max, bytes_max, encoded_max)
            assert len(taken.data) <= bound
            records = pb.Batch.FromString(taken.data).records
            assert taken.records == len(records) <= records_max
            assert len(records) == 1 or (taken.payload_bytes <= bytes_max and len(taken.data) <= encoded_max)
            assert reader.next_offset == records[-1].offset + 1
            found += records
        assert [record.offset for record in found] == [0, 1, 2, 3, 4]
        assert [len(record.value) for record in found] == [10, 0, 300, 5, 5]
        assert (found[0].key, found[1].HasField("key")) == (b"k", False)
        assert [(header.name, header.HasField("value")) for header in found[0].headers] == [("h", True), ("n", False)]
