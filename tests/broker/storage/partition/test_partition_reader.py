"""Properties of a partition reader; reads across epochs are tested with `PartitionLog`."""

from __future__ import annotations

import pytest
from tests.broker.storage.build import append, batch
from tests.broker.storage.logs import new_disk, open_partition

from tidelog_broker.storage.io.errors import NotHeldError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header


def test_digests_are_returned_by_epoch() -> None:
    log = open_partition(new_disk())
    batches: list[bytes] = []
    for epoch in (2, 3):
        log.start_epoch(epoch, log.end_offset)
        batches += append(log, [batch(b"a", records=2), batch(b"b", records=2)], epoch=epoch)
    digests = [unpack_header(one).digest for one in batches]
    assert [log.reader.digest_at(2, offset) for offset in range(6)] == [0, None, digests[0], None, digests[1], None]
    assert [log.reader.digest_at(3, offset) for offset in range(3, 9)] == [None, 0, None, digests[2], None, digests[3]]
    assert log.reader.digest_at(1, 0) is None
    assert log.unreadable_epoch is None


def test_records_missing_in_this_copy_are_on_another_replica() -> None:
    log = open_partition(new_disk())
    log.start_epoch(1, 10)
    with pytest.raises(NotHeldError) as caught:
        log.reader.read(9, 100, limit_offset=10)
    assert caught.value.code == pb.NOT_OWNER
    assert "begins at 10" in caught.value.message
