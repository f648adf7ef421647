from __future__ import annotations

import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.json_texts import NOT_JSON

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.records import input_formats
from tidelog_cli.records.input_formats import (
    NO_FIELDS,
    Fields,
    Format,
    format_of,
    read_file,
    read_stream,
    rows_as_records,
)


class Trickle:
    """A pipe that gives a few bytes at a time."""

    def __init__(self, content: bytes, piece_bytes: int) -> None:
        self._stream = io.BytesIO(content)
        self._piece_bytes = piece_bytes

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, self._piece_bytes))


def rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@given(
    lines=st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"").removeprefix(b"\xef\xbb\xbf"))),
    piece=st.integers(1, 64),
)
def test_lines_come_back_as_written_whatever_the_pieces(lines: list[bytes], piece: int) -> None:
    content = b"".join(line + b"\n" for line in lines)
    assert [row["value"] for row in rows(read_stream(Trickle(content, piece), Format.LINES))] == lines


def test_the_last_line_needs_no_newline() -> None:
    assert rows(read_stream(io.BytesIO(b"a\n\nb"), Format.LINES)) == [{"value": v} for v in (b"a", b"", b"b")]


def test_a_line_is_published_before_the_next_arrives() -> None:
    pieces = iter([b"one\ntw", b"o\n", b""])

    class Pipe:
        def read(self, size: int, /) -> bytes:
            return next(pieces)

    batches = read_stream(Pipe(), Format.LINES)
    assert next(batches).to_pylist() == [{"value": b"one"}]
    assert next(batches).to_pylist() == [{"value": b"two"}]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_formats, "LINE_BYTES_MAX", 100)
    with pytest.raises(CommandFailed, match="line 1 is longer than 100 bytes"):
        rows(read_stream(Trickle(b"x" * 1000, 60), Format.LINES))


def test_ndjson_takes_its_key_from_a_field_and_skips_blank_lines() -> None:
    content = b'{"k":"a"}\n   \n{"k":7}\n{"k":null}\n'
    assert rows(read_stream(io.BytesIO(content), Format.NDJSON, Fields(key="k"))) == [
        {"key": b"a", "value": b'{"k":"a"}'},
        {"key": b"7", "value": b'{"k":7}'},
        {"key": None, "value": b'{"k":null}'},
    ]


@pytest.mark.parametrize(
    ("line", "complaint"), [(b"{", "not JSON"), (b"[1]", "not a JSON object"), (b'{"x":1}', "no field")]
)
def test_a_bad_line_is_named(line: bytes, complaint: str) -> None:
    with pytest.raises(CommandFailed, match=f"line 3 .*{complaint}"):
        rows(read_stream(Trickle(b'{"k":1}\n\n' + line, 8), Format.NDJSON, Fields(key="k")))


@pytest.mark.parametrize("key", [b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xed\xa0\x80"'])
def test_a_key_that_no_text_can_be_is_named_with_its_line(key: bytes) -> None:
    content = b'{"k":1}\n\n{"k":' + key + b"}\n"
    with pytest.raises(CommandFailed, match=r"line 3 is not JSON: .*(surrogates|can't decode)"):
        rows(read_stream(io.BytesIO(content), Format.NDJSON, Fields(key="k")))


@pytest.mark.parametrize("line", [b"plain", b"[1]", b"7", b'{"a": NaN}', b"\xff", b'{"a":1} {"b":2}'])
def test_ndjson_is_an_object_a_line_even_where_nothing_is_looked_for_in_it(line: bytes) -> None:
    with pytest.raises(CommandFailed, match=r"line 2 is not (JSON|a JSON object)"):
        rows(read_stream(io.BytesIO(b"{}\n" + line + b"\n{}\n"), Format.NDJSON))
    assert rows(read_stream(io.BytesIO(b"{}\n\n"), Format.NDJSON)) == [{"value": b"{}"}]


@pytest.mark.parametrize("content", NOT_JSON, ids=lambda content: repr(content[:12]))
def test_json_is_the_shared_definition(content: bytes) -> None:
    line = b'{"k":' + content.replace(b"\n", b"\x0b") + b"}"
    for fields in (NO_FIELDS, Fields(key="k")):
        with pytest.raises(CommandFailed, match="line 1 is not JSON"):
            rows(read_stream(io.BytesIO(line), Format.NDJSON, fields))


@pytest.mark.parametrize("key", ["1.10", "-0", "12345678901234567.89", "[1.0, 2]", "true"])
def test_a_key_that_is_not_text_keeps_its_exact_json(key: str) -> None:
    content = f'{{"k":0,"k": {key} }}'.encode()
    assert rows(read_stream(io.BytesIO(content), Format.NDJSON, Fields(key="k"))) == [
        {"value": content, "key": key.encode()}
    ]


@pytest.mark.parametrize("stamp", ["1.5", "1e3", "20130101T05"])
def test_fraction_of_a_millisecond_is_refused(stamp: str) -> None:
    with pytest.raises(CommandFailed, match="line 1"):
        rows(read_stream(io.BytesIO(f'{{"at":{stamp}}}'.encode()), Format.NDJSON, Fields(timestamp="at")))


@pytest.mark.parametrize("file_format", [Format.NDJSON, Format.LINES, Format.RECORDS])
@pytest.mark.parametrize("piece", [1, 100])
def test_byte_order_mark_is_removed_from_the_first_line(
    file_format: Format, piece: int, capsys: pytest.CaptureFixture[str]
) -> None:
    line = b'{"value":"a"}'
    plain = rows(read_stream(Trickle(line + b"\n" + line, piece), file_format))
    assert rows(read_stream(Trickle(b"\xef\xbb\xbf" + line + b"\n" + line, piece), file_format)) == plain
    assert "byte order mark" in capsys.readouterr().err


def test_seconds_in_a_field_of_times_are_refused() -> None:
    remedy = "1795964400 is 2026-11-29T15:00:00Z in seconds.* pass 1795964400000, or the ISO 8601 text 1970-01-21T18:52"
    with pytest.raises(CommandFailed, match=f"line 2, field 'at': {remedy}"):
        rows(read_stream(io.BytesIO(b'{"at":0}\n{"at":1795964400}'), Format.NDJSON, Fields(timestamp="at")))
    read = rows(read_stream(io.BytesIO(b'{"at":"1970-01-21T18:52:44.400000Z"}'), Format.NDJSON, Fields(timestamp="at")))
    assert read[0]["timestamp"] == datetime(1970, 1, 21, 18, 52, 44, 400_000, UTC)


def test_timestamp_comes_from_a_field(tmp_path: Path) -> None:
    content = b'{"at":"2013-01-01T05:00:00Z"}\n{"at":1000}\n'
    read = rows(read_stream(io.BytesIO(content), Format.NDJSON, Fields(timestamp="at")))
    moments = [datetime(2013, 1, 1, 5, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]
    assert [row["timestamp"] for row in read] == moments
    with pytest.raises(CommandFailed, match=r"line 2, field 'at': .*1970"):
        rows(read_stream(io.BytesIO(content.replace(b"1000", b"-1")), Format.NDJSON, Fields(timestamp="at")))
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"at": ["2013-01-01T05:00:00", "1970-01-01T00:00:01"], "value": [b"a", b"b"]}), path)
    read = rows(read_file(path, Format.PARQUET, Fields(timestamp="at")))
    assert read == [{"value": v, "timestamp": at} for v, at in zip([b"a", b"b"], moments, strict=True)]
    with pytest.raises(CommandFailed, match=r"column 'value': .*not a time"):
        rows(read_file(path, Format.PARQUET, Fields(timestamp="value")))


def test_a_delimiter_ends_the_key_of_a_line() -> None:
    fields = Fields(key_delimiter=b":")
    assert rows(read_stream(io.BytesIO(b"a:1\n:2:3\nb:\n"), Format.LINES, fields)) == [
        {"key": b"a", "value": b"1"},
        {"key": b"", "value": b"2:3"},
        {"key": b"b", "value": b""},
    ]
    with pytest.raises(CommandFailed, match="line 2 has no key delimiter ':'"):
        rows(read_stream(io.BytesIO(b"a:1\nb\n"), Format.LINES, fields))


def test_lines_that_are_records_say_all_of_them() -> None:
    content = b'{"key":"k","value":null,"headers":[["h","1"]],"tag":"t","timestamp_ms":1000}\n\n'
    assert rows(read_stream(io.BytesIO(content), Format.RECORDS)) == [
        {
            "timestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
            "key": b"k",
            "value": None,
            "headers": [{"key": "h", "value": b"1"}],
            "tag": "t",
        }
    ]


def test_a_number_that_json_cannot_say_becomes_null(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1.5, float("nan")], "b": [[float("inf")], []]}), path)
    assert [row["value"] for row in rows(read_file(path, Format.PARQUET))] == [
        b'{"a": 1.5, "b": [null]}',
        b'{"a": null, "b": []}',
    ]


def test_a_parquet_file_of_columns_becomes_json_objects(tmp_path: Path) -> None:
    path = tmp_path / "flights.parquet"
    moment = datetime(2013, 1, 1, 5, tzinfo=UTC)
    pq.write_table(pa.table({"carrier": ["UA", "B6"], "delay": [2.5, None], "at": [moment, moment]}), path)
    read = rows(read_file(path, format_of(path), Fields(key="carrier")))
    assert [row["key"] for row in read] == [b"UA", b"B6"]
    assert json.loads(read[0]["value"]) == {"carrier": "UA", "delay": 2.5, "at": "2013-01-01T05:00:00+00:00"}


def test_nanoseconds_of_a_parquet_file_are_kept(tmp_path: Path) -> None:
    stamps = [1_700_000_000_123_456_789, None, 1_700_000_000_000_000_000]
    table = pa.table(
        {
            "at": pa.array(stamps, pa.timestamp("ns")),
            "zoned": pa.array(stamps, pa.timestamp("ns", "Europe/Berlin")),
            "of_day": pa.array([1, None, 0], pa.time64("ns")),
            "list": pa.array([stamps, None, []], pa.list_(pa.timestamp("ns"))),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    first, second, third = (json.loads(row["value"]) for row in rows(read_file(tmp_path / "x.parquet", Format.PARQUET)))
    assert first == {
        "at": "2023-11-14T22:13:20.123456789",
        "zoned": "2023-11-14T23:13:20.123456789+01:00",
        "of_day": "00:00:00.000000001",
        "list": ["2023-11-14T22:13:20.123456789", None, "2023-11-14T22:13:20"],
    }
    assert second == dict.fromkeys(table.schema.names)
    assert third["at"] == "2023-11-14T22:13:20"


@pytest.mark.parametrize("suffix", [".arrow", ".arrows"])
def test_an_arrow_file_with_a_value_column_is_taken_as_it_is(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"records{suffix}"
    batch = pa.record_batch({"key": [b"k"] * 10_000, "value": [b"v"] * 10_000})
    opener = pa.ipc.new_file if suffix == ".arrow" else pa.ipc.new_stream
    with opener(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    read = list(read_file(path, format_of(path)))
    assert [piece.num_rows for piece in read] == [input_formats.ROWS_PER_BATCH, 10_000 - input_formats.ROWS_PER_BATCH]
    assert read[0].schema.names == ["key", "value"]


def test_the_key_column_may_be_another_one(tmp_path: Path) -> None:
    path = tmp_path / "records.parquet"
    pq.write_table(pa.table({"key": [b"old"], "id": [7], "value": [b"v"]}), path)
    assert rows(read_file(path, Format.PARQUET, Fields(key="id"))) == [{"value": b"v", "key": b"7"}]


def test_a_missing_column_and_a_broken_file_are_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(CommandFailed, match=r"x\.parquet: column 'b' does not exist; the columns are a"):
        rows(read_file(path, Format.PARQUET, Fields(key="b")))
    path.write_bytes(b"nonsense")
    with pytest.raises(CommandFailed, match=r"x\.parquet is not a valid parquet file"):
        rows(read_file(path, Format.PARQUET))


def test_numbers_that_json_has_no_form_for_are_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pa.record_batch({"a": pa.array([1.5, float("nan")]), "b": pa.array([[float("inf")], [2.0]])})
    (first, second) = rows_as_records([rows, rows])
    assert first.column("value").to_pylist() == [b'{"a": 1.5, "b": [null]}', b'{"a": null, "b": [2.0]}']
    assert second == first
    assert capsys.readouterr().err.count("NaN and infinities are published as null") == 1


def test_finite_numbers_are_published_without_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    (made,) = rows_as_records([pa.record_batch({"a": pa.array([1.5, None])})])
    assert made.column("value").to_pylist() == [b'{"a": 1.5}', b'{"a": null}']
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("stamp_ns", "told"), [(1_700_000_000_000_000_000, 0), (1_700_000_000_000_000_001, 1)])
def test_timestamps_that_are_cut_to_microseconds_are_announced(
    capsys: pytest.CaptureFixture[str], stamp_ns: int, told: int
) -> None:
    rows = pa.record_batch({"at": pa.array([stamp_ns], pa.timestamp("ns")), "value": pa.array([b"v"])})
    list(rows_as_records([rows, rows], Fields(timestamp="at")))
    assert capsys.readouterr().err.count("truncated to microseconds") == told
