"""Rows in a partition queue that a node refuses for their schema."""

from __future__ import annotations

from tests.clients.produce.test_partition_queue import FAR, chunk_of, queue_of, send

from tidelog.errors import ConnectionLostError, OutcomeUnknownError, SchemaMismatchError, SequenceGapError
from tidelog.produce.batches import ListChunk, OutgoingBatch
from tidelog.produce.partition_queue import PartitionQueue
from tidelog.rows.row_writer import row_writer
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.schema.data_types import INT64
from tidelog_proto.schema.next_schema import Edits, edited_schema, first_schema
from tidelog_proto.schema.type_text import field_of_text

FIRST = first_schema([field_of_text("a int8"), field_of_text("b string")])
SECOND = edited_schema(FIRST, Edits(widen={"a": INT64}))[0]
THIRD = edited_schema(SECOND, Edits(drop=["b"]))[0]


def typed_chunk(*rows: dict[str, object]) -> ListChunk:
    writer = row_writer(FIRST)
    values = [writer.copy(row)[0] for row in rows]
    return ListChunk(values, partition=0, deadline=FAR, size_bytes=10, rows=writer)


def refused() -> tuple[PartitionQueue, list[ListChunk], list[OutgoingBatch]]:
    """Return a queue with two typed batches in flight, of which the first was refused for its schema."""
    queue = queue_of()
    chunks = [typed_chunk({"a": 1}), typed_chunk({"a": 2, "b": "x"})]
    for chunk in chunks:
        queue.add(chunk)
    batches = [send(queue), send(queue)]
    queue.failed(batches[0], SchemaMismatchError("old", definite=True), 0.0)
    queue.failed(batches[1], SequenceGapError("gap", definite=True), 0.0)
    return queue, chunks, batches


def test_refused_rows_wait_for_the_newest_schema_and_keep_their_numbers() -> None:
    queue, _, batches = refused()
    assert queue.awaits_schema
    assert queue.next_to_send(9.0, 0) is None
    assert queue.wake_at() is None
    queue.use_schema(row_layout(SECOND))
    again = send(queue, 9.0)
    header = unpack_header(again.encoded.header, typed=True)
    assert (again, header.schema_id, header.base_sequence, header.record_count) == (batches[0], 2, 0, 1)
    # The second batch was refused for the gap only: it is encoded again when it is refused for its schema.
    later = send(queue, 9.0)
    assert unpack_header(later.encoded.header, typed=True).schema_id == 1
    queue.acknowledged(again, 0, 0)
    queue.failed(later, SchemaMismatchError("old", definite=True), 9.0)
    queue.use_schema(row_layout(SECOND))
    header = unpack_header(send(queue, 9.0).encoded.header, typed=True)
    assert (header.schema_id, header.base_sequence) == (2, 1)
    queue.add(typed_chunk({"a": 3}))
    queue.acknowledged(later, 1, 0)
    assert unpack_header(send(queue, 9.0).encoded.header, typed=True).schema_id == 2


def test_rows_with_values_in_a_dropped_field_fail_and_others_take_their_numbers() -> None:
    queue, chunks, batches = refused()
    queue.use_schema(row_layout(THIRD))
    assert send(queue, 9.0) is batches[0]
    assert send(queue, 9.0) is batches[1]
    queue.acknowledged(batches[0], 0, 0)
    queue.failed(batches[1], SchemaMismatchError("old", definite=True), 9.0)
    queue.add(typed_chunk({"a": 4}))
    queue.use_schema(row_layout(THIRD))
    header = unpack_header(send(queue, 9.0).encoded.header, typed=True)
    assert isinstance(chunks[1].error, SchemaMismatchError)
    assert "'b' was dropped" in str(chunks[1].error)
    assert (header.schema_id, header.base_sequence) == (3, 1)


def test_refused_rows_fail_without_a_newer_schema_or_if_they_may_be_stored() -> None:
    for newest in (None, row_layout(FIRST)):
        queue, chunks, _ = refused()
        queue.use_schema(newest)
        queue.next_to_send(9.0, 0)
        assert isinstance(chunks[0].error, SchemaMismatchError)
    queue = queue_of()
    chunk = typed_chunk({"a": 1})
    queue.add(chunk)
    batch = send(queue)
    queue.failed(batch, ConnectionLostError("lost"), 0.0)
    queue.failed(send(queue, 9.0), SchemaMismatchError("old", definite=True), 9.0)
    assert not queue.awaits_schema
    assert isinstance(chunk.error, OutcomeUnknownError)


def test_batches_end_where_the_schema_changes() -> None:
    queue = queue_of(batch_bytes=1000)
    second = row_writer(SECOND)
    queue.add(typed_chunk({"a": 1}))
    queue.add(ListChunk([second.copy({"a": 2})[0]], partition=0, deadline=FAR, size_bytes=10, rows=second))
    queue.add(chunk_of(b"v"))
    assert [unpack_header(send(queue).encoded.header, typed=True).schema_id] == [1]
