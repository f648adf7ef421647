"""Arrow streams are bounded by what their messages announce, before Arrow decodes anything."""

from __future__ import annotations

import contextlib
import io
import re
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.bodies.arrow_streams import MIB, batch, fault, read, stream

from tidelog_gateway.bodies import arrow_body
from tidelog_gateway.problems import Problem

VALUES = pa.array([b"a", None, b""], pa.binary())


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
async def test_columns_come_as_they_are(compression: str | None) -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None, []], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    given = batch(
        tag=pa.array(["t", None, ""]),
        value=VALUES,
        headers=headers,
        timestamp=pa.array([1, 2, 3], pa.int64()),
        key=pa.array(["k", None, ""], pa.large_string()),
    )
    found = await read(stream(given, given, compression=compression))
    assert found.row_count == 6
    (first, second) = found.batches
    assert first.schema.names == ["timestamp", "key", "value", "headers", "tag"]
    assert first.equals(second)
    assert first.column("value").to_pylist() == [b"a", None, b""]
    assert first.column("key").to_pylist() == [b"k", None, b""]
    assert first.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], [], []]
    assert first.column("timestamp").view(pa.int64()).to_pylist() == [1_000, 2_000, 3_000]


async def test_values_are_not_copied() -> None:
    body = stream(batch(value=pa.array([b"x" * 1_000] * 100, pa.binary())))
    allocated = pa.total_allocated_bytes()
    found = await read(body)
    assert pa.total_allocated_bytes() == allocated
    assert found.batches[0].nbytes > 100_000


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            batch(value=pa.array(["a", "a"]).dictionary_encode()),
            "column value: must be binary or string, got dictionary",
        ),
        (
            batch(value=pa.RunEndEncodedArray.from_arrays(pa.array([10_000], pa.int32()), pa.array([b"x"]))),
            "decode it before sending",
        ),
        (batch(value=pa.array([b"x"], pa.binary_view())), "column value: must be binary or string, got binary_view"),
        (batch(value=pa.array([1])), "column value: must be binary or string, got int64"),
        (batch(value=pa.nulls(3)), "column value: must be binary or string, got null"),
        (batch(value=pa.array([[b"x"]])), "column value: must be binary or string, got list"),
        (batch(value=pa.array([{"a": 1}])), "column value: must be binary or string, got struct"),
        (batch(value=pa.array(["1"], pa.json_(pa.string()))), "has the extension type arrow.json: send it as string"),
        (batch(value=VALUES, valeu=VALUES), "column 'valeu' is unknown: did you mean value?"),
        (batch(value=VALUES, partition=VALUES), "set the partition of all rows with the query parameter"),
        (batch(key=VALUES), "column value is missing"),
        (pa.RecordBatch.from_arrays([VALUES, VALUES], names=["value", "value"]), "column value is duplicate"),
        (batch(value=VALUES, timestamp=pa.array(["1"] * 3)), "column timestamp: must be a timestamp, or milliseconds"),
        (batch(value=VALUES, timestamp=pa.array([1, None, 2])), "record batch 0: column timestamp"),
        (batch(value=VALUES, timestamp=pa.array([1, -1, 2])), "record batch 0: column timestamp"),
        (batch(value=VALUES, headers=pa.array([["a"]] * 3)), "column headers: must be a list of structs"),
        (batch(value=VALUES, tag=pa.array(["x" * 4_097] * 3)), "a tag has 4097 bytes"),
        (batch(value=pa.array([], pa.binary())), "the stream has no records"),
    ],
)
async def test_other_columns_are_refused_with_their_names(given: Any, told: str) -> None:
    assert told in await fault(stream(given))


async def test_headers_as_a_map_and_a_key_of_nulls() -> None:
    maps = pa.array([[("a", b"1")], [], None], pa.map_(pa.string(), pa.binary()))
    found = await read(stream(batch(value=VALUES, headers=maps, key=pa.nulls(3))))
    assert found.batches[0].column("headers").to_pylist() == [[{"key": "a", "value": b"1"}], [], []]
    nested = pa.list_(pa.struct([("key", pa.string()), ("value", pa.null())]))
    lists = pa.array([[{"key": "a", "value": None}]] * 3, nested)
    assert "column headers" in await fault(stream(batch(value=VALUES, headers=lists)))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
async def test_a_bomb_is_refused_before_it_is_decompressed(compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = stream(batch(value=pa.array([bytes(64 * MIB)])), compression=compression)
    assert len(bomb) < MIB
    monkeypatch.setattr(arrow_body, "canonical", None)
    assert "decoded stream has more than 8388608 bytes" in await fault(bomb, 413)


async def test_an_announced_length_of_a_buffer_is_not_believed() -> None:
    """A decoder allocates the length in front of a compressed buffer."""
    honest = stream(batch(value=pa.array([bytes(1_000)])), compression="zstd")
    at = honest.rindex(struct.pack("<q", 1_000))

    def claiming(size_bytes: int) -> bytes:
        return honest[:at] + struct.pack("<q", size_bytes) + honest[at + 8 :]

    assert "decoded stream has more than" in await fault(claiming(1 << 40), 413)
    assert "must be >= -1, got -7" in await fault(claiming(-7))
    for wrong in (999, 1_001, 0, -1):
        assert "record batch 0" in await fault(claiming(wrong))


async def test_memory_of_decoded_columns_is_reserved() -> None:
    held: list[int] = []
    given = batch(value=pa.array([bytes(1_000)]))
    await read(stream(given, given, compression="lz4"), hold=held.append)
    assert held[-1] >= 2_000
    held.clear()
    await read(stream(given), hold=held.append)
    assert not held, "the columns lie in the body"


async def test_rows_and_messages_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = batch(value=VALUES)
    assert (await read(stream(given, given), records_max=6)).row_count == 6
    assert "more than 5 records" in await fault(stream(given, given), records_max=5)
    monkeypatch.setattr(arrow_body, "MESSAGES_MAX", 2)
    assert (await read(stream(given, given))).row_count == 6
    assert "more than 2 record batches" in await fault(stream(given, given, given))


async def test_wrong_offsets_are_refused() -> None:
    body = stream(batch(value=pa.array([b"abc", b"defg"], pa.binary())))
    offsets = struct.pack("<3i", 0, 3, 7)
    assert body.count(offsets) == 1
    for wrong in ((0, 3, 8), (0, 3, 1 << 30), (0, -3, 7), (5, 3, 7), (-1, 3, 7), (0, 9, 7)):
        assert "record batch 0" in await fault(body.replace(offsets, struct.pack("<3i", *wrong)))


async def test_text_that_is_not_utf8_is_refused() -> None:
    body = stream(batch(value=VALUES, tag=pa.array(["abc", "d", "e"])))
    assert "record batch 0" in await fault(body.replace(b"abcde", b"ab\xffde"))


async def test_names_in_a_schema_that_are_not_utf8_are_refused() -> None:
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    body = stream(batch(value=VALUES, headers=pa.array([[], None, []], pa.list_(pair))))
    for name in (b"headers", b"key", b"value"):
        for place in [found.start() for found in re.finditer(re.escape(name), body)]:
            damaged = body[:place] + b"\xff" + body[place + 1 :]
            assert "not an Arrow IPC stream" in await fault(damaged), name
    unknown = stream(batch(value=pa.array([1, 2, 3], pa.timestamp("us", tz="Europe/Berlin"))))
    assert "column value: must be binary or string" in await fault(unknown.replace(b"Europe", b"\xfferope"))


async def test_a_body_that_is_not_a_stream_is_refused() -> None:
    body = stream(batch(value=VALUES))
    assert "not an Arrow IPC stream" in await fault(b"")
    assert "not an Arrow IPC stream" in await fault(b'{"records":[]}' * 10)
    assert "not an Arrow IPC stream" in await fault(body[:-30])
    assert "bytes after the end" in await fault(body + b"x" * 8)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, batch(value=VALUES).schema) as writer:
        writer.write_batch(batch(value=VALUES))
    assert "not an Arrow IPC stream" in await fault(sink.getvalue())
    assert "bytes of metadata, at most 65536 are allowed" in await fault(
        stream(batch(value=VALUES).replace_schema_metadata({"x": "y" * 70_000}))
    )
    many = batch(**{f"c{number}": VALUES for number in range(50)})
    assert "50 columns" in await fault(stream(many))


GOOD = stream(
    batch(value=pa.array([b"abc", None, b""]), key=pa.array(["k", "l", None]), tag=pa.array(["t", None, "u"])),
    compression="lz4",
)


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
async def test_damaged_streams_are_read_or_refused(changes: list[tuple[int, int]]) -> None:
    body = bytearray(GOOD)
    for at, byte in changes:
        body[at] = byte
    with contextlib.suppress(Problem):
        for each in (await read(bytes(body))).batches:
            each.validate(full=True)
