"""Replay of single records: the effect of each kind on the tail of its store."""

from __future__ import annotations

from array import array

from tests.broker.storage.build import TOPIC_ID, batch, stamp

from tidelog_broker.storage.commit_log.records import (
    FILE_HEADER_BYTES,
    Boundary,
    Kind,
    Mark,
    pack_boundary,
    pack_header,
    pack_mark,
    pack_record,
    pack_state,
    padding_of,
)
from tidelog_broker.storage.commit_log.replay import Replay
from tidelog_broker.storage.commit_log.tail import UNKNOWN_DIGEST, Tail
from tidelog_broker.storage.engine.store import EpochStart
from tidelog_proto.batch.header import unpack_header

NONCE = 77
START = EpochStart(TOPIC_ID, 0, 0, 0, 0)


class File:
    """A file that grows by records."""

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.data = bytes(FILE_HEADER_BYTES)

    @property
    def position(self) -> int:
        return self.base + len(self.data)

    def add(self, kind: Kind, store: int, payload: bytes) -> None:
        self.data += pack_record(kind, store, payload, nonce=NONCE, position=self.position)

    def add_batch(self, store: int, one: bytes, kind: Kind = Kind.BATCH) -> None:
        self.data += pack_header(kind, store, len(one), nonce=NONCE, position=self.position)
        self.data += one + padding_of(len(one))

    def add_state(self, store: int, offset: int = 0, digest: int = 0, kind: Kind = Kind.STATE) -> None:
        self.add(kind, store, pack_state(START._replace(offset=offset, digest=digest)))

    def add_mark(self, synced: int, ends: dict[int, int]) -> None:
        self.add(Kind.MARK, 0, pack_mark(Mark(synced, array("Q", ends), array("Q", ends.values()))))

    def replay(self, replay: Replay | None = None) -> Replay:
        replay = replay or Replay()
        replay.file(self.data, FILE_HEADER_BYTES, nonce=NONCE, base=self.base)
        replay.finish()
        return replay

    def tail(self, store: int = 1) -> Tail:
        return self.replay().tails[store]


def chain(count: int, *, body: bytes = b"body", after: bytes | None = None) -> list[bytes]:
    """Return batches that continue each other, and the batch before them if it is given."""
    header = unpack_header(after) if after is not None else None
    offset, digest = (header.end_offset, header.digest) if header is not None else (0, 0)
    return [bytes(one) for one in stamp([batch(body) for _ in range(count)], offset=offset, digest=digest)]


def digest_of(one: bytes) -> int:
    return unpack_header(one).digest


def test_gap_ends_a_tail_and_marks_tell_damage_from_a_torn_write() -> None:
    """Without a mark the tail ends before the gap; with a mark that covers more it is damaged."""
    for is_marked in (False, True):
        file, batches = File(), chain(4)
        file.add_state(1)
        for number in (0, 1, 3):
            file.add_batch(1, batches[number])
        if is_marked:
            file.add_mark(file.position, {1: 4})
        tail = file.tail()
        assert (tail.end.offset, tail.is_damaged) == (2, is_marked)


def test_state_begins_the_tail_again() -> None:
    """After its records were written to segments, a tail is empty and goes on."""
    file, batches = File(), chain(3)
    file.add_state(1)
    file.add_batch(1, batches[0])
    file.add_state(1, 1, digest_of(batches[0]))
    file.add_batch(1, batches[1])
    tail = file.tail()
    assert (tail.entries.base, list(tail.entries.offsets)) == ((1, digest_of(batches[0])), [1])


def test_tail_begins_with_its_first_batch_if_older_files_are_deleted() -> None:
    """The digest before it is unknown then."""
    file, batches = File(6400), chain(3)
    file.add_batch(1, batches[1])
    file.add_batch(1, batches[2])
    tail = file.tail()
    assert (tail.entries.base, tail.end.offset) == ((1, UNKNOWN_DIGEST), 3)


def test_copy_counts_only_with_its_end() -> None:
    """A copy replaces the tail when its end record follows and its batches are sound, and is ignored otherwise."""
    batches = chain(3)
    for ending in ("whole", "torn", "damaged"):
        file = File()
        file.add_state(1)
        for one in batches:
            file.add_batch(1, one)
        before = file.position
        file.add_state(1, kind=Kind.COPY_BEGIN)
        for one in batches:
            bad = bytearray(one)
            bad[-1] ^= ending == "damaged" and one is batches[1]
            file.add_batch(1, bytes(bad), Kind.COPIED)
        if ending != "torn":
            file.add(Kind.COPY_END, 1, pack_boundary(Boundary(3, digest_of(batches[2]))))
        tail = file.tail()
        assert list(tail.entries.offsets) == [0, 1, 2]
        assert (tail.entries.positions[0] > before) == (ending == "whole")


def test_cut_removes_records_and_a_damaged_one_does_not_bring_them_back() -> None:
    """A tail whose cut is damaged is in LIMBO: it is longer than a mark says, or has another batch at an offset."""
    old = chain(4)
    for is_damaged in (False, True):
        for follows in ("mark", "batch"):
            file = File()
            file.add_state(1)
            for one in old:
                file.add_batch(1, one)
            at = len(file.data)
            file.add_state(1, 1, digest_of(old[0]), kind=Kind.CUT)
            if is_damaged:
                file.data = file.data[:at] + bytes([file.data[at] ^ 1]) + file.data[at + 1 :]
            if follows == "mark":
                file.add_mark(file.position, {1: 1})
            else:
                file.add_batch(1, chain(1, body=b"new", after=old[0])[0])
            tail = file.tail()
            assert tail.is_damaged == is_damaged
            assert tail.end.offset == (2 if follows == "batch" and not is_damaged else 1)
            assert list(tail.entries.offsets[:1]) == [0]


def test_forgotten_store_is_unknown_also_to_later_marks() -> None:
    """A mark that was due when a store was forgotten does not bring it back."""
    file = File()
    file.add_state(1)
    file.add_batch(1, chain(1)[0])
    synced = file.position
    file.add(Kind.FORGET, 1, b"")
    file.add_mark(synced, {1: 1})
    replay = file.replay()
    assert (replay.tails, replay.forgotten, replay.synced) == ({}, {1}, synced)


def test_store_of_which_only_a_mark_is_left_begins_with_its_next_record() -> None:
    """Its older records were in files that are deleted; a batch or a cut says where the tail is."""
    batches = chain(5)
    for is_cut in (False, True):
        file = File(6400)
        file.add_mark(6400, {1: 4})
        if is_cut:
            file.add_state(1, 2, digest_of(batches[1]), kind=Kind.CUT)
        file.add_batch(1, batches[2 if is_cut else 4])
        tail = file.tail()
        assert (tail.entries.base.offset, tail.end.offset) == ((2, 3) if is_cut else (4, 5))
        assert (tail.is_damaged, tail.is_broken) == (False, False)


def test_store_of_which_a_mark_knows_more_than_the_log_is_damaged() -> None:
    """A mark for a store without records says that its records are lost."""
    file = File(6400)
    file.add_mark(6400, {1: 5})
    tail = file.tail()
    assert (tail.is_damaged, tail.end.offset) == (True, 0)
