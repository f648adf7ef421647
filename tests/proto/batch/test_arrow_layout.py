from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.proto.batches import EVERYTHING, Given, given_records

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.arrow_layout import check_layout
from tidelog_proto.batch.columns import flags_of, with_tight_headers
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.ipc_message import Message, buffer_lengths, parse_message
from tidelog_proto.errors import ProtocolError


def described(columns: pa.RecordBatch) -> tuple[Message, list[int]]:
    raw = bytes(memoryview(columns.serialize()))
    message = parse_message(raw)
    return message, buffer_lengths(raw, message)


@given(given_records(max_size=40))
@settings(max_examples=60)
def test_pyarrow_messages_have_the_layout(records: Given) -> None:
    columns = records.columns()
    message, lengths = described(columns)
    check_layout(message, lengths, flags=int(flags_of(columns.schema)), record_count=columns.num_rows)


def test_slices_have_the_layout() -> None:
    columns = pa.Table.from_batches([EVERYTHING.columns()] * 30).combine_chunks().to_batches()[0]
    for start in range(0, 90, 7):
        for count in (1, 2, 8, 9, 40):
            part = with_tight_headers(columns.slice(start, count))
            message, lengths = described(part)
            check_layout(message, lengths, flags=31, record_count=part.num_rows)


def refuse(message: Message, lengths: list[int], match: str, *, record_count: int = 3, flags: int = 31) -> None:
    with pytest.raises(ProtocolError, match=match) as refused:
        check_layout(message, lengths, flags=flags, record_count=record_count)
    assert refused.value.code == pb.CORRUPT_BATCH


MESSAGE, LENGTHS = described(EVERYTHING.columns())


def with_node(at: int, node: tuple[int, int]) -> Message:
    nodes = list(MESSAGE.nodes)
    nodes[at] = node
    return MESSAGE._replace(nodes=tuple(nodes))


def test_counts_of_rows_nodes_and_buffers() -> None:
    check_layout(MESSAGE, LENGTHS, flags=31, record_count=3)
    refuse(MESSAGE, LENGTHS, "3 rows", record_count=4)
    refuse(MESSAGE, LENGTHS[:-1], "19 buffers")
    refuse(MESSAGE, [*LENGTHS, 0], "21 buffers")
    refuse(MESSAGE._replace(nodes=MESSAGE.nodes[:-1]), LENGTHS, "7 arrays")
    refuse(MESSAGE, LENGTHS, "the columns that the header declares require 7", flags=31 - Flags.KEY)


# nodes: timestamp, key, value, headers, header, header key, header value, tag
@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("length", [-1, 0, 2, 4, 100, 2**62, -(2**62)])
def test_lengths_of_nodes(at: int, length: int) -> None:
    refuse(with_node(at, (length, MESSAGE.nodes[at][1])), LENGTHS, "entries|offsets|validity|data")


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("null_count", [-1, 4, 2**62])
def test_null_counts_out_of_range(at: int, null_count: int) -> None:
    refuse(with_node(at, (3, null_count)), LENGTHS, "nulls")


@pytest.mark.parametrize("at", [0, 3, 4, 5])
def test_nulls_where_none_may_be(at: int) -> None:
    refuse(with_node(at, (3, 1)), LENGTHS, "1 nulls")


def test_a_null_count_without_a_bitmap_and_a_bitmap_without_nulls() -> None:
    refuse(with_node(1, (3, 0)), LENGTHS, "key: 1 bytes of validity, expected 0")
    lengths = list(LENGTHS)
    lengths[2] = 0
    refuse(MESSAGE, lengths, "key: 0 bytes of validity, expected 1")


@pytest.mark.parametrize(
    ("at", "name"),
    [(1, "timestamp"), (3, "key"), (6, "value"), (9, "headers"), (12, "key"), (15, "value"), (18, "tag")],
)
def test_sizes_of_offsets_and_timestamps(at: int, name: str) -> None:
    changes = (-24, -8, -1, 41, 48, 2**40) if name == "timestamp" else (-16, -8, -1, 1, 8, 16)
    for change in changes:
        lengths = list(LENGTHS)
        lengths[at] += change
        refuse(MESSAGE, lengths, name)


def test_padding_may_be_counted_in() -> None:
    lengths = [-(-length // 8) * 8 for length in LENGTHS]
    check_layout(MESSAGE, lengths, flags=31, record_count=3)


def test_no_headers_at_all_may_go_without_offsets() -> None:
    empty: Any = Given(values=[b""], headers=[[]]).columns()
    message, lengths = described(empty)
    flags = int(Flags.VALUE | Flags.HEADERS)
    check_layout(message, lengths, flags=flags, record_count=1)
    for key_offsets in (0, 4, 8):
        lengths[7] = key_offsets
        check_layout(message, lengths, flags=flags, record_count=1)
    lengths[7] = 12
    refuse(message, lengths, "a header's key", flags=flags, record_count=1)
