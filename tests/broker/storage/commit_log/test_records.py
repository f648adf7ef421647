"""Records of the commit log: a scan finds the packed records and no other bytes."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as some

from tidelog_broker.storage.commit_log.records import (
    FILE_HEADER_BYTES,
    Boundary,
    FileHeader,
    Kind,
    Mark,
    mark_bytes,
    nonce_in,
    pack_boundary,
    pack_file_header,
    pack_filler,
    pack_mark,
    pack_record,
    pack_state,
    parse_header,
    payload_of,
    record_bytes,
    records_in,
    unpack_boundary,
    unpack_file_header,
    unpack_mark,
    unpack_state,
)
from tidelog_broker.storage.engine.store import EpochStart
from tidelog_proto.batch.header import Buffer

NONCE = 0x1234_5678_9ABC_DEF0
BASE = 64 * 1000

u32 = some.integers(0, 2**32 - 1)
u63 = some.integers(0, 2**63 - 1)
payloads = some.lists(some.tuples(u63, some.binary(max_size=200)), min_size=1, max_size=12)


def written(records: list[tuple[int, bytes]]) -> bytes:
    """Return a file with these records, of stores and with payloads that are not batches."""
    data = pack_file_header(FileHeader(NONCE, BASE, BASE))
    for store, payload in records:
        data += pack_record(Kind.STATE, store, payload, nonce=NONCE, position=BASE + len(data))
    return data


def found_in(data: Buffer) -> list[tuple[int, bytes]]:
    return [
        (one.store, bytes(payload_of(data, one.at, one.length)))
        for one in records_in(data, FILE_HEADER_BYTES, nonce=NONCE, base=BASE)
        if one.kind == Kind.STATE
    ]


@given(payloads, some.integers(0, 5))
def test_records_are_found_as_they_were_packed(records: list[tuple[int, bytes]], zeros: int) -> None:
    """All records are found, each at a multiple of 64 bytes, with zeros after the last one."""
    data = written(records) + bytes(64 * zeros)
    assert found_in(data) == records
    assert unpack_file_header(data) == FileHeader(NONCE, BASE, BASE)
    assert nonce_in(data, base=BASE) == NONCE
    for one in records_in(data, FILE_HEADER_BYTES, nonce=NONCE, base=BASE):
        assert one.at % 64 == 0
        assert one.size_bytes == record_bytes(one.length)


@given(payloads, some.data())
def test_damage_in_a_record_costs_this_record(records: list[tuple[int, bytes]], draw: some.DataObject) -> None:
    """With any bytes of one record changed, the other records are found, and no record that was not written."""
    data = bytearray(written(records))
    places = list(records_in(data, FILE_HEADER_BYTES, nonce=NONCE, base=BASE))
    number = draw.draw(some.integers(0, len(places) - 1))
    at = places[number].at + draw.draw(some.integers(0, places[number].size_bytes - 1))
    data[at] ^= 1 << draw.draw(some.integers(0, 7))
    found = found_in(data)
    is_padding = at >= places[number].at + 32 + places[number].length
    assert found == (records if is_padding else records[:number] + records[number + 1 :])


@given(payloads, some.integers(1, 100))
def test_records_of_another_place_or_log_are_not_found(records: list[tuple[int, bytes]], shift: int) -> None:
    """The same bytes at another position, or with another nonce, contain no record."""
    data = written(records)
    for nonce, base in ((NONCE, BASE + 64 * shift), (NONCE ^ shift, BASE)):
        assert [one.kind for one in records_in(data, FILE_HEADER_BYTES, nonce=nonce, base=base)] in ([0], [])


@given(payloads)
def test_record_inside_a_payload_is_not_found(records: list[tuple[int, bytes]]) -> None:
    """A payload that contains a whole file of records is one record, even if the one before it is damaged."""
    inner = written(records)
    data = bytearray(written([(1, b"first"), (2, bytes(32) + inner), (3, b"last")]))
    data[FILE_HEADER_BYTES] ^= 1
    assert found_in(data) == [(2, bytes(32) + inner), (3, b"last")]


@given(u63, some.lists(some.tuples(u63, u63), max_size=20))
def test_marks_are_unpacked_as_they_were_packed(synced: int, pairs: list[tuple[int, int]]) -> None:
    """A mark has its position and each store with its end."""
    mark = Mark(synced, array("Q", [store for store, _ in pairs]), array("Q", [end for _, end in pairs]))
    payload = pack_mark(mark)
    assert unpack_mark(payload) == mark
    assert record_bytes(len(payload)) == mark_bytes(len(pairs))


@given(u63, u32, some.binary(min_size=16, max_size=16), u32, u63)
def test_boundaries_and_states_are_unpacked_as_they_were_packed(
    offset: int, digest: int, topic_id: bytes, partition: int, epoch: int
) -> None:
    """An offset has its digest, which may be unknown in a state."""
    assert unpack_boundary(pack_boundary(Boundary(offset, digest))) == (offset, digest)
    for known in (digest, -1):
        start = EpochStart(topic_id, partition, epoch, offset, known)
        assert unpack_state(pack_state(start)) == start


@given(some.integers(1, 1000))
def test_filler_covers_its_range(blocks: int) -> None:
    """A filler takes exactly the bytes that it replaces."""
    header = pack_filler(64 * blocks, nonce=NONCE, position=BASE)
    parsed = parse_header(header, 0, nonce=NONCE, position=BASE)
    assert parsed is not None
    assert (parsed.kind, record_bytes(parsed.length)) == (Kind.FILLER, 64 * blocks)
