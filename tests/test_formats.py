"""The tables of `docs/formats.md` say what the code writes: bytes that it made are read by the tables alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from crc32c import crc32c

from tidelog_broker.core.incarnation import NONCE_BITS
from tidelog_broker.storage.commit_log import records, store_identity
from tidelog_broker.storage.commit_log import snapshot as tail_snapshots
from tidelog_broker.storage.engine.store import EpochStart
from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.node import journal, node_dir
from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.node_dir import open_node_dir
from tidelog_broker.storage.partition import snapshots
from tidelog_broker.storage.segment import hash_file, index, layout
from tidelog_broker.storage.segment.hash_entries import BatchEntries
from tidelog_broker.storage.segment.hash_runs import HashRuns
from tidelog_proto.batch.header import BatchHeader
from tidelog_proto.schema import fields
from tidelog_proto.schema.canonical_encoding import FIELD_HEADER, SCHEMA_HEADER
from tidelog_proto.schema.data_types import NAME_OF_KIND, DataType, Kind, decimal128
from tidelog_proto.schema.topic_schema import Schema

PAGE = (Path(__file__).parents[1] / "docs" / "formats.md").read_text()
ROW = re.compile(r"^\| (\d+) \| (\d+)? ?\| ([^|]+?) \|", re.MULTILINE)


class Field(NamedTuple):
    """A row of a table; the last one may go on to the end."""

    at: int
    size: int | None
    text: str


def section(heading: str) -> str:
    """Return a section's own text, without those below it."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def table(heading: str) -> list[Field]:
    """Return the rows of the table under a heading, which must leave no gap."""
    fields = [Field(int(at), int(size) if size else None, text) for at, size, text in ROW.findall(section(heading))]
    at = 0
    for field in fields:
        assert field.at == at, f"{heading}: {field.text} begins at {field.at}, the one before it ends at {at}"
        at += field.size or 0
    return fields


def read(heading: str, data: bytes) -> dict[str, int]:
    """Read bytes by the table: each field's first words and its number; magics, versions and CRCs are checked."""
    found: dict[str, int] = {}
    for field in table(heading):
        if field.size is None:
            continue
        raw = data[field.at : field.at + field.size]
        if field.text.startswith("magic"):
            assert raw.decode() in re.findall(r"`(\w+)`", field.text)
        elif field.text.startswith("reserved"):
            assert not any(raw), field.text
        elif field.text.startswith("version"):
            assert f"version, {int.from_bytes(raw, 'little')}" == field.text
        elif span := re.search(r"CRC32C of bytes (\d+) to (\d+)|CRC32C, over bytes (\d+) to (\d+)", field.text):
            first, last = (int(number) for number in span.groups() if number is not None)
            assert int.from_bytes(raw, "little") == crc32c(data[first : last + 1]), field.text
        else:
            found[re.split("[:;,]", field.text)[0]] = int.from_bytes(raw, "little")
    return found


def length_of(heading: str) -> int:
    return sum(field.size or 0 for field in table(heading))


def test_the_header_of_a_batch() -> None:
    header = BatchHeader(flags=4, body_length=11, uncompressed_length=11, record_count=3, body_crc=99)
    header = header._replace(producer_id=5, base_sequence=6, producer_epoch=7, last_offset_delta=2)
    header = header._replace(base_timestamp_us=8, max_timestamp_us=9, base_offset=10, append_timestamp_us=12)
    header = header._replace(epoch=13, owner_incarnation=14, sequence_span=16, digest=15)
    data = header.pack()
    assert length_of("Header") == len(data)
    fields = read("Header", data)
    told = {name.replace(" ", "_"): value for name, value in fields.items()}
    assert told.pop("body_kind") == 1
    assert told.pop("running_digest") == 15
    assert told.pop("body_CRC32C") == 99
    assert told.pop("uncompressed_body_length") == 11
    for name in ("base_timestamp", "max_timestamp", "append_timestamp"):
        assert told.pop(name) == getattr(header, f"{name}_us")
    assert told == {name: getattr(header, name) for name in told}
    assert len(told) == 13


def test_a_schema() -> None:
    item = fields.Field(5, fields.ITEM, decimal128(9, 3), required=True)
    key = fields.Field(6, "k", DataType(Kind.STRING), role=fields.Role.KEY, doc="a doc")
    listed = fields.Field(4, "values", DataType(Kind.LIST), children=(item,))
    data = Schema(3, 7, (listed, key)).encoding
    assert list(read("Schema header", data).values()) == [3, 7, 2]
    assert length_of("Schema header") == table("Schema header")[-1].at == SCHEMA_HEADER.size
    assert length_of("Schema field") == table("Schema field")[-1].at == FIELD_HEADER.size
    expected = [(4, 14, 0, 0, 0, 0, 6, 0, 1), (5, 8, 0, 1, 9, 3, 4, 0, 0), (6, 9, 2, 0, 0, 0, 1, 5, 0)]
    at = SCHEMA_HEADER.size
    for values, text in zip(expected, (b"values", b"item", b"ka doc"), strict=True):
        assert tuple(read("Schema field", data[at:]).values()) == values
        at += FIELD_HEADER.size
        assert data[at : at + len(text)] == text
        at += len(text)
    assert at == len(data)


def test_types_of_a_schema() -> None:
    listed = dict(re.findall(r"\| (\d+) \| `([^`]+)`", section("Schema field")))
    assert {int(number) for number in listed} == set(Kind)
    assert {kind: listed[str(int(kind))] for kind in Kind} == NAME_OF_KIND


def test_a_segments_header_and_marks() -> None:
    header = layout.SegmentHeader(
        nonce=1, topic_id=bytes(15) + b"\x02", partition=3, epoch=4, base_offset=5, start_digest=6, synced_offset=7
    )
    fields = read("Segment header", header.pack())
    assert length_of("Segment header") == layout.SEGMENT_HEADER_BYTES
    assert fields.pop("topic id").to_bytes(16, "little") == header.topic_id
    assert fields == {name.replace("_", " "): getattr(header, name.replace(" ", "_")) for name in fields}
    assert len(fields) == 6
    mark = read("Sync mark", layout.pack_mark(nonce=1, position=128, synced_offset=9))
    assert mark == {"nonce of the file": 1, "position of the mark in the file": 128, "synced offset": 9}
    assert length_of("Sync mark") == layout.MARK_BYTES


def test_an_index() -> None:
    built = index.Index()
    built.append(0, 128, 300, 50)
    built.append(7, 640, 200, 40)
    data = index.pack_index(built, nonce=5, end=index.SegmentEnd(offset=9, position=896, digest=3))
    header = read("Index header", data)
    assert length_of("Index header") == index.INDEX_HEADER_BYTES
    assert header.pop("CRC32C of the entries") == crc32c(data[index.INDEX_HEADER_BYTES :])
    assert list(header.values()) == [5, 2, 9, 896, 3]
    entry = read("Index entry", data[-index.ENTRY_BYTES :])
    assert length_of("Index entry") == index.ENTRY_BYTES
    assert list(entry.values()) == [7, 200, 640 // 64, 50]


def test_an_index_of_keys_and_tags() -> None:
    entries = np.array([(7 << 25) | 1, (9 << 25) | 2], np.uint64)
    runs = HashRuns().with_more(BatchEntries(entries, [3]), 4)
    pieces = hash_file.pack_hashes(runs, "tag", nonce=5, end=index.SegmentEnd(offset=9, position=896, digest=3))
    data = b"".join(pieces)
    header = read("Index header of keys and tags", data)
    assert length_of("Index header of keys and tags") == hash_file.HASH_HEADER_BYTES
    directory = data[hash_file.HASH_HEADER_BYTES :][: 8 + 4 + 4]
    assert header.pop("CRC32C of the directory") == crc32c(directory)
    assert list(header.values()) == [5, 2, 1, 2, 4, 9, 3]
    assert directory == entries[:1].tobytes() + crc32c(entries.tobytes()).to_bytes(4, "little") + b"\3\0\0\0"
    assert data[hash_file.BLOCK_BYTES :] == entries.tobytes()
    entry = read("Index entry of keys and tags", data[-8:])
    assert list(entry.values()) == [(9 << 25) | 2]


def test_a_commit_log(tmp_path: Path) -> None:
    header = read("Commit log file header", records.pack_file_header(records.FileHeader(nonce=1, base=2, synced=3)))
    assert header == {"nonce": 1, "base": 2, "synced position": 3}
    assert length_of("Commit log file header") == records.FILE_HEADER_BYTES
    state = records.pack_state(EpochStart(bytes(16), 4, 5, 6, 7))
    data = records.pack_record(records.Kind.STATE, 8, state, nonce=1, position=640)
    fields = read("Commit log record header", data)
    assert length_of("Commit log record header") == records.RECORD_HEADER_BYTES
    assert fields.pop("checksum") == crc32c(state, crc32c(data[:28], crc32c((640).to_bytes(8, "little"))))
    assert fields == {"kind": 4, "nonce of the log": 1, "store": 8, "length of the payload": len(state)}
    names = re.findall(r"^\| (\d) \| ([a-z ]+?) \| ", section("Commit log record header"), re.MULTILINE)
    kinds = {
        int(kind): kind.name.lower().replace("_begin", " begins").replace("_end", " ends") for kind in records.Kind
    }
    assert {int(number): name for number, name in names} == kinds
    tails = tail_snapshots.pack_snapshot(1, 640, 3, b"tails")
    snapshot = read("Snapshot of tails", tails)
    assert snapshot.pop("checksum of the tails") == crc32c(b"tails")
    assert list(snapshot.values()) == [1, 640, 3, 5]
    assert length_of("Snapshot of tails") == tail_snapshots.SNAPSHOT_HEADER_BYTES
    start = EpochStart(bytes(15) + b"\x02", 4, 5, 6, 7)
    store_identity.write_identity(RealFileSystem(), tmp_path, store_identity.TailIdentity(9, start))
    identity = read("Identity of a shared store", (tmp_path / store_identity.FILE_NAME).read_bytes())
    assert list(identity.values()) == [9, 2 << 120, 4, 5, 6, 7]


@pytest.mark.parametrize("magic", [CHAINS.magic, FENCES.magic])
def test_a_journal(tmp_path: Path, magic: bytes) -> None:
    journal.Journal.make(RealFileSystem(), tmp_path / "journal", magic)
    opened, _ = journal.Journal.open(RealFileSystem(), tmp_path / "journal", magic)
    opened.append([b"first"])
    opened.append([b"second" * 20])
    opened.close()
    data = (tmp_path / "journal").read_bytes()
    assert length_of("Journal header") == journal.JOURNAL_HEADER_BYTES
    nonce = read("Journal header", data)["nonce"]
    assert data[:4] == magic
    head = journal.ENTRY_HEADER_BYTES
    assert table("Journal entry")[-1].at == head
    for at, payload in ((64, b"first"), (128, b"second" * 20)):
        entry = read("Journal entry", data[at:])
        assert list(entry.values()) == [len(payload), nonce, at, at, crc32c(payload)]
        assert data[at + head : at + head + len(payload)] == payload
    assert table("Journal mark")[-1].at == head
    mark = read("Journal mark", data[320:])
    assert list(mark.values()) == [nonce, 320, 320]
    assert data[320 + head : 388] == bytes(388 - 320 - head)
    assert f"at most {journal.PAYLOAD_BYTES_MAX >> 20} MiB" in section("Journal entry")


def test_a_snapshot(tmp_path: Path) -> None:
    snapshots.save_snapshot(RealFileSystem(), tmp_path, snapshots.ProducerSnapshot(2, 30, 4, b"payload"), committed=30)
    (path,) = tmp_path.iterdir()
    assert path.name == f"producers-{30:020d}.snap"
    data = path.read_bytes()
    fields = read("Snapshot header", data)
    assert list(fields.values()) == [2, 30, 4, 7, crc32c(b"payload")]
    assert data[table("Snapshot header")[-1].at :] == b"payload"
    assert f"at most {snapshots.SNAPSHOT_BYTES_MAX >> 20} MiB" in section("Snapshot header")


def test_node_json(tmp_path: Path) -> None:
    open_node_dir(tmp_path).close()
    keys = re.findall(r"^\| `(\w+)` \|", section("node.json"), re.MULTILINE)
    written = re.findall(r'"(\w+)":', (tmp_path / "node.json").read_text())
    assert keys == written
    assert f"| `format_version` | {node_dir.FORMAT_VERSION};" in PAGE
    assert f"`boot_counter << {NONCE_BITS}`" in PAGE
