"""Snapshots of tails: packed tails are unpacked unchanged, and damage is detected."""

from __future__ import annotations

from random import Random

import pytest

from tidelog_broker.storage.commit_log.records import Boundary
from tidelog_broker.storage.commit_log.snapshot import pack_snapshot, pack_tails, unpack_snapshot
from tidelog_broker.storage.commit_log.tail import UNKNOWN_DIGEST, Tail, TailEntries
from tidelog_broker.storage.engine.store import EpochStart
from tidelog_broker.storage.io.errors import LayoutError


def random_tail(random: Random) -> Tail:
    start = EpochStart(random.randbytes(16), random.randrange(100), random.randrange(9), random.randrange(1000), 7)
    tail = Tail(random.getrandbits(63), start, position=64 * random.randrange(1000))
    offset = start.offset
    tail.entries = TailEntries(Boundary(offset, random.choice([UNKNOWN_DIGEST, 5])))
    for number in range(random.randrange(20)):
        tail.entries.append(offset, 64 * number + 32, random.randint(128, 5000), random.randint(-9, 9))
        offset += random.randint(1, 5)
    tail.end = Boundary(offset, random.getrandbits(32))
    tail.is_broken, tail.is_cut = random.random() < 0.3, random.random() < 0.3
    tail.is_damaged = tail.is_broken
    tail.marked_offset = offset + 3 if tail.is_damaged else offset
    return tail


def fields_of(tail: Tail) -> tuple[object, ...]:
    entries = tail.entries
    return (
        *(tail.store, tail.start, tail.end, tail.marked_offset, tail.position, tail.is_broken, tail.is_cut),
        *(entries.base, entries.offsets, entries.positions, entries.lengths, entries.times_us),
    )


def packed(tails: list[Tail]) -> bytes:
    count, body = pack_tails(tails)
    return pack_snapshot(99, 6400, count, body) + body


@pytest.mark.parametrize("seed", range(10))
def test_tails_are_unpacked_as_they_were_packed(seed: int) -> None:
    random = Random(f"snapshot {seed}")
    tails = [random_tail(random) for _ in range(random.randrange(8))]
    snapshot = unpack_snapshot(packed(tails))
    assert (snapshot.nonce, snapshot.position) == (99, 6400)
    assert list(map(fields_of, snapshot.tails)) == list(map(fields_of, tails))
    assert all(tail.size_bytes == tail.entries.log_bytes for tail in snapshot.tails)


def test_damage_is_detected() -> None:
    random = Random("damaged snapshot")
    data = packed([random_tail(random) for _ in range(4)])
    for _ in range(300):
        changed = bytearray(data)
        changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
        with pytest.raises(LayoutError):
            unpack_snapshot(changed)
    for length in range(0, len(data), 7):
        with pytest.raises(LayoutError):
            unpack_snapshot(data[:length])
