"""Requests with an idempotency key: a retry gets the first offsets, and keys evict no producer."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from tests.broker.core.replication.test_producers import header, refused

from tidelog_broker.core.replication.idempotency_keys import KEYED_MIN, KeyedRequest, KeyedRequests
from tidelog_broker.core.replication.producer_budget import ProducerBudget
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Flags
from tidelog_proto.limits import KEYED_ID_MIN

DIGEST = 2**62 - 1


def request(key: int, count: int = 1, *, split: int = 9, digest: int = DIGEST, offset: int = 0) -> BatchHeader:
    batch = header(digest, count, producer=KEYED_ID_MIN | key, epoch=split, offset=offset)
    return batch._replace(epoch=3, append_timestamp_us=5)


def claim(key: int, *, split: int = 9, digest: int = DIGEST) -> BatchHeader:
    return request(key, split=split, digest=digest)._replace(flags=int(Flags.CONTROL))


@pytest.fixture(params=[False, True], ids=["as it is", "restored"])
def table(request: pytest.FixtureRequest) -> ProducerTable:
    table = ProducerTable()
    assert table.check(request_7) is None
    table.apply(request_7)
    return ProducerTable.restore(table.snapshot()) if request.param else table


request_7 = request(7, 3, offset=100)


def test_retry_gets_the_first_offset_regardless_of_its_bytes(table: ProducerTable) -> None:
    found = table.check(request_7._replace(body_crc=77, base_timestamp_us=1, max_timestamp_us=1))
    assert found is not None
    assert (found.base_offset, found.end_offset, found.epoch, found.append_timestamp_us) == (100, 103, 3, 5)


def test_key_of_another_request_is_refused(table: ProducerTable) -> None:
    assert refused(table, request(7, 3, digest=5)) == pb.PRODUCER_ID_SHARED
    assert refused(table, request(7, 2)) == pb.PRODUCER_ID_SHARED
    assert refused(table, claim(7, digest=5)) == pb.PRODUCER_ID_SHARED


def test_retry_with_another_split_is_refused_with_the_first_one(table: ProducerTable) -> None:
    for split in (7, 11):
        assert refused(table, request(7, 3, split=split)) == pb.PRODUCER_FENCED
        assert refused(table, claim(7, split=split)) == pb.PRODUCER_FENCED
    assert table.epoch_of(KEYED_ID_MIN | 7) == 9
    assert table.epoch_of(KEYED_ID_MIN | 8) is None


def test_claim_matches_records_and_records_do_not_match_a_claim(table: ProducerTable) -> None:
    assert table.check(claim(7)) is not None
    table.apply(claim(8))
    assert table.check(claim(8)) is not None
    assert refused(table, request(8, 1)) == pb.PRODUCER_ID_SHARED


def test_retry_of_a_fully_deduplicated_batch_is_recognized() -> None:
    table = ProducerTable()
    table.apply(request(7, 1)._replace(flags=int(Flags.CONTROL), sequence_span=3))
    found = table.check(request(7, 3))
    assert found is not None
    assert found.duplicates == 3


def test_keys_evict_no_producers() -> None:
    table = ProducerTable(producers_max=2)
    for producer in (1, 2, 3):
        table.apply(header(0, producer=producer, offset=producer))
    for key in range(5_000):
        table.apply(request(key, offset=key))
    assert len(table) == 2
    known = table.check(header(0, producer=3))
    assert known is not None
    assert refused(table, header(0, producer=1)) == pb.DUPLICATE_OUT_OF_WINDOW
    found = table.check(request(0))
    assert found is not None
    assert found.base_offset == 0


def entry(offset: int) -> KeyedRequest:
    return KeyedRequest(9, DIGEST, 1, offset, 1, 3, 5, 0)


def test_oldest_run_is_dropped() -> None:
    requests = KeyedRequests(run_length=4, runs_max=3)
    for key in range(40):
        requests.note(KEYED_ID_MIN | key, entry(key))
        assert len(requests) <= 15
    kept = [key for key in range(40) if requests.find(KEYED_ID_MIN | key) is not None]
    assert kept == list(range(28, 40))


def test_exhausted_node_limit_drops_the_oldest_of_the_same_partition() -> None:
    budget = ProducerBudget(10, keyed_max=40)
    tables = [KeyedRequests(run_length=8), KeyedRequests(run_length=100)]
    for table in tables:
        table.share(budget.keyed)
    for key in range(100):
        tables[0].note(KEYED_ID_MIN | key, entry(key))
    assert len(tables[0]) <= 40
    assert tables[0].find(KEYED_ID_MIN | 99) == entry(99)
    quiet = len(tables[0])
    for key in range(100):
        tables[1].note(KEYED_ID_MIN | key, entry(key))
    assert len(tables[0]) == quiet, "a quiet partition keeps its entries"
    assert KEYED_MIN <= len(tables[1]) <= 40
    assert tables[1].find(KEYED_ID_MIN | 99) == entry(99)


@pytest.mark.parametrize("count", [0, 1, 5, 2048, 2049, 5000])
def test_snapshot_round_trips(count: int) -> None:
    requests = KeyedRequests()
    for key in range(count):
        requests.note(KEYED_ID_MIN | key * 7919 % 100_003, entry(key))
    restored = KeyedRequests.restore(requests.snapshot())
    assert len(restored) == len(requests) == count
    for key in range(count):
        assert restored.find(KEYED_ID_MIN | key * 7919 % 100_003) == entry(key)


@pytest.mark.parametrize("spoil", [lambda run: run.columns.pop(), lambda run: run.columns.append(b"")])
def test_snapshot_with_invalid_columns_is_refused(spoil: object) -> None:
    requests = KeyedRequests()
    requests.note(KEYED_ID_MIN, entry(1))
    (run,) = requests.snapshot()
    spoil(run)  # type: ignore[operator]
    with pytest.raises(DecodeError):
        KeyedRequests.restore([run])
    run = pb.KeyedRequests(producer_ids=bytes(8), columns=[bytes(3)] * 8)
    with pytest.raises(DecodeError):
        KeyedRequests.restore([run])
