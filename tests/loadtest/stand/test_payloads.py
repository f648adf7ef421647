from __future__ import annotations

from tidelog_loadtest.stand.payloads import encoded, encoding_run, to_encode, value_batches
from tidelog_proto.batch.record_batch import RecordBatch


def test_batches_contain_distinct_values_of_the_requested_size() -> None:
    batches = value_batches(12, 100, count=3)
    values = [bytes(row["value"]) for batch in batches for row in batch.to_pylist()]
    assert {len(value) for value in values} == {12}
    assert len(set(values)) == 300


def test_payloads_are_encoded_like_the_product_with_one_length() -> None:
    batches = value_batches(100, 40, count=3)
    payloads = encoded(batches)
    assert len({payload.length_bytes for payload in payloads}) == 1
    for columns, payload in zip(batches, payloads, strict=True):
        batch = RecordBatch.parse(b"".join(payload.parts))
        assert batch.values() == columns.column("value").to_pylist()
        assert payload.records == 40


def test_payloads_serialized_when_sent_have_the_same_bodies() -> None:
    batches = value_batches(100, 40, count=2)
    for ready, fresh in zip(encoded(batches), to_encode(batches), strict=True):
        assert bytes(ready.wire()[2]) == bytes(fresh.wire()[2])
        assert sum(map(len, ready.wire())) == sum(map(len, fresh.wire()))


def test_encoding_is_timed_over_complete_passes() -> None:
    run = encoding_run(value_batches(10, 10, count=2), seconds=0.001)
    assert run.batches >= 2
    assert run.batches % 2 == 0
    assert len(run.latencies_ns) == run.batches
