from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.reading.bodies import PARTITION, answer_alone, batch_of, fetched_of, records_body
from tests.proto.derived_batches import compacted_log

from tidelog_gateway.problems import Problem
from tidelog_gateway.reading.body import DECODED_APART_BYTES
from tidelog_gateway.reading.text_columns import SLICE_BYTES, SLICE_RECORDS
from tidelog_gateway.requests.content_negotiation import ARROW, JSON, NDJSON, RECORD_TYPES
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch, columns_of
from tidelog_proto.limits import MIB


def offsets(data: bytes, media_type: str) -> list[int]:
    if media_type == ARROW:
        found: list[Any] = pa.ipc.open_stream(data).read_all()["offset"].to_pylist()
        return found
    if media_type == JSON:
        return [record["offset"] for record in orjson.loads(data)["records"]]
    lines = data.decode().splitlines()
    return (
        [int(line.split(",")[1]) for line in lines[1:]]
        if media_type != NDJSON
        else [orjson.loads(line)["offset"] for line in lines]
    )


@pytest.mark.parametrize("media_type", RECORD_TYPES)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=3), st.data())
async def test_next_offset_is_exact(media_type: str, sizes: list[list[int]], data: st.DataObject) -> None:
    batches, base = list[RecordBatch](), 0
    for batch_sizes in sizes:
        batches.append(batch_of(columns_of([b"x" * size for size in batch_sizes]), base_offset=base))
        base += len(batch_sizes)
    seen, offset = list[int](), 0
    while offset < base:
        records_max, bytes_max = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 60))
        body = records_body(media_type, records_max=records_max, bytes_max=bytes_max)
        left = [batch.slice_from(offset) for batch in batches if batch.end_offset > offset]
        offset = await body.take(PARTITION, fetched_of(*left))
        found = offsets(await body.finish({"next_offset": offset}), media_type)
        flat = [size for each in sizes for size in each]
        assert 1 <= len(found) <= records_max
        assert len(found) == 1 or sum(flat[at] for at in found) <= bytes_max
        assert found[-1] == offset - 1
        seen += found
    assert seen == list(range(base))


@pytest.mark.parametrize("encoding", ["utf8", "json"])
@pytest.mark.parametrize("at", [0, 1, SLICE_RECORDS, 2 * SLICE_RECORDS + 7])
async def test_an_answer_ends_before_a_value_that_does_not_fit(encoding: str, at: int) -> None:
    values = [b"1"] * (3 * SLICE_RECORDS)
    values[at] = b"\xff" if encoding == "utf8" else b"[1"
    body = records_body(NDJSON, encoding)  # type: ignore[arg-type]
    assert await body.take(PARTITION, fetched_of(batch_of(columns_of(values), base_offset=100))) == 100 + at
    assert (body.records, body.is_full) == (at, True)
    assert body.fault is not None
    problem = body.fault.problem({"next_offset": 101 + at})
    assert (problem.status, problem.code) == (422, f"value_not_{encoding}")
    assert problem.extra == {"partition": PARTITION, "offset": 100 + at, "next_offset": 101 + at}
    assert f"partition {PARTITION}, offset {100 + at}: the value is not" in problem.detail


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("media_type", RECORD_TYPES)
async def test_large_records_and_batches(codec: Codec, media_type: str) -> None:
    values = [b'{"a":"' + b"x" * (3 * SLICE_BYTES) + b'"}', b"1", b"[" + b"1," * SLICE_BYTES + b"1]"] * 3
    assert sum(map(len, values)) > DECODED_APART_BYTES
    body = records_body(media_type, "json")
    batch = batch_of(columns_of(values), codec=codec)
    assert await body.take(PARTITION, fetched_of(batch)) == 9
    data = await body.finish({"next_offset": 9})
    assert offsets(data, media_type) == list(range(9)) if media_type != "text/csv" else data.count(b"\n") == 10


async def test_offsets_of_derived_batches_have_gaps() -> None:
    batches = [RecordBatch.parse(each) for each in compacted_log()]
    expected = [record.offset for batch in batches for record in batch]
    body = records_body(NDJSON)
    end = await body.take(PARTITION, fetched_of(*batches))
    assert end == batches[-1].end_offset
    assert offsets(await body.finish({}), NDJSON) == expected


async def test_written_bytes_are_counted() -> None:
    answer = answer_alone()
    body = records_body(NDJSON, bytes_max=MIB, answer=answer)
    await body.take(PARTITION, fetched_of(batch_of(columns_of([b"\x01" * 1000] * 500))))
    data = await body.finish({})
    assert len(data) > 6 * 500_000
    assert answer.reserved_bytes >= 2 * len(data)


async def test_a_client_that_has_gone_ends_the_work() -> None:
    body, pieces = records_body(NDJSON), 0

    async def pace() -> None:
        nonlocal pieces
        pieces += 1
        if pieces > 1:
            raise Problem(499, "client_gone", "gone")

    body.pace = pace
    with pytest.raises(Problem, match="gone"):
        await body.take(PARTITION, fetched_of(batch_of(columns_of([b"1"] * 20_000))))
    assert body.records == SLICE_RECORDS


async def test_escapes_make_an_answer_shorter_and_no_longer_than_it_may_be() -> None:
    body = records_body(NDJSON, written_max=MIB)
    end = await body.take(PARTITION, fetched_of(batch_of(columns_of([b"\x01" * 1000] * 5_000))))
    data = await body.finish({})
    assert body.is_full
    assert len(data) < 2 * MIB
    assert end == data.count(b"\n") < 5_000
