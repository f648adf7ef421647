"""Batches of a peer are taken whole, sound and in order, or refused."""

from __future__ import annotations

from random import Random

import pytest
from tests.broker.storage.build import batch, stamp
from tests.broker.storage.decided import decided
from tests.proto.batches import Given
from tests.proto.derived_batches import END_OFFSET, compacted_log, derived

from tidelog_broker.storage.partition.copied_batches import LogPosition, check_copied
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError

EPOCH = decided(Random(3), epochs=2, batches_min=6)[1]
START = LogPosition(EPOCH.start_offset, 0)


def test_valid_batches_return_their_end() -> None:
    assert check_copied([], epoch=1, position=START) == START
    assert check_copied(EPOCH.batches, epoch=1, position=START) == (EPOCH.end_offset, EPOCH.end_digest)
    first = unpack_header(EPOCH.batches[0])
    middle = LogPosition(first.end_offset, first.digest)
    assert check_copied(EPOCH.batches[1:], epoch=1, position=middle).offset == EPOCH.end_offset


def test_every_flipped_byte_is_detected() -> None:
    for at in range(len(EPOCH.batches[1])):
        wrong = bytearray(EPOCH.batches[1])
        wrong[at] ^= 0x20
        with pytest.raises(ProtocolError):
            check_copied([EPOCH.batches[0], wrong], epoch=1, position=START)


def test_discontinuous_batches_are_refused() -> None:
    one, two = EPOCH.batches[:2]
    (other,) = stamp([batch(b"other")], offset=EPOCH.start_offset, digest=5, epoch=1)
    (later,) = stamp([batch(b"other")], offset=EPOCH.start_offset, digest=0, epoch=2)
    for run in ([two], [one, one], [other], [later], [one + b"x"], [one[:-1]], [one[:100]], [b""]):
        with pytest.raises(ProtocolError) as caught:
            check_copied(run, epoch=1, position=START)
        assert caught.value.code == pb.CORRUPT_BATCH


def test_derived_batches_are_verified() -> None:
    log = compacted_log()
    assert check_copied(log, epoch=0, position=LogPosition(0, 0)).offset == END_OFFSET
    after = LogPosition(2, unpack_header(log[0]).digest)
    made = [bytearray(derived(Given([b"a", b"b"]), offsets, base=2, end=20)) for offsets in ([6, 9], [9, 6])]
    rising, falling = (stamp([one], offset=2, digest=after.digest) for one in made)
    assert check_copied(rising, epoch=0, position=after).offset == 20
    with pytest.raises(ProtocolError, match="ascend"):
        check_copied(falling, epoch=0, position=after)
