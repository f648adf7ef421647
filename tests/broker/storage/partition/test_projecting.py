"""A projection of columns or of a time range returns all that a full read returns of them."""

from __future__ import annotations

from random import Random

import pytest
from tests.broker.storage.build import append, read_all
from tests.broker.storage.keyed import keyed, random_batch
from tests.broker.storage.logs import new_disk, open_partition
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.partition.projecting import LOOK_BYTES, SMALL_BATCH_BYTES, project_all
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import COLUMN_FLAGS, Codec, Flags
from tidelog_proto.batch.projection import Projection
from tidelog_proto.batch.record import Record
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES, MIB

PLENTY = 1 << 30


def large(random: Random, size_bytes: int = 3 * SMALL_BATCH_BYTES, now_us: int = 5) -> bytearray:
    values = [random.randbytes(size_bytes), None, b"x"]
    columns = columns_of(values, keys=[b"a", None, b"c"], tags=["red", "blue", None])
    codec = random.choice((Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY))
    return bytearray(encode_batch(columns, now_us=now_us, codec=codec).to_bytes())


def read(
    log: PartitionLog, projection: Projection, *, offset: int = 0, limit_offset: int | None = None, max_bytes: int
) -> list[Record]:
    """Read on until the end, and see that each step gets on."""
    limit_offset = log.end_offset if limit_offset is None else limit_offset
    found: list[Record] = []
    while offset < limit_offset:
        result = log.projecting.read(offset, max_bytes, limit_offset=limit_offset, projection=projection)
        batches = [RecordBatch.parse(batch).slice_from(offset) for batch in result.batches]
        records = [record for batch in batches for record in batch]
        assert all(offset <= one.offset < result.next_offset for one in records)
        found += records
        if result.next_offset == offset:
            break
        offset = result.next_offset
    return found


def wanted_of(record: Record, columns: int) -> tuple[object, ...]:
    flags = (Flags.TIMESTAMP, Flags.KEY, Flags.VALUE, Flags.HEADERS, Flags.TAG)
    parts = (record.timestamp_us, record.key, record.value, record.headers, record.tag)
    return (record.offset, *(part for flag, part in zip(flags, parts, strict=True) if flag & columns))


@pytest.mark.parametrize("seed", range(6))
def test_reads_return_the_projected_records(seed: int) -> None:
    random = Random(seed)
    log = open_partition(new_disk(), segment_bytes=MIB)
    log.start_epoch(0, 0)
    for _ in range(40):
        match random.randint(0, 6):
            case 0 if log.end_offset:
                log.start_epoch(log.epochs[-1].epoch + 1, log.end_offset)
            case 1:
                log.delete_before(random.randint(0, log.end_offset))
            case 2 | 3:
                append(log, [large(random)], epoch=log.epochs[-1].epoch)
            case _:
                append(log, [random_batch(random) for _ in range(random.randint(1, 90))], epoch=log.epochs[-1].epoch)
    truth = [record for batch in map(RecordBatch.parse, read_all(log)) for record in batch]
    for _ in range(12):
        projection = Projection(random.randint(0, COLUMN_FLAGS))
        offset = random.randint(log.start_offset, log.end_offset)
        found = read(log, projection, offset=offset, max_bytes=random.choice((1, 20_000, PLENTY)))
        expected = [one for one in truth if one.offset >= offset]
        columns = projection.columns
        assert [wanted_of(one, columns) for one in found] == [wanted_of(one, columns) for one in expected]
    log.close()


def filled(times: range, sim: SimDisk | None = None) -> PartitionLog:
    """A log of large batches of three records, each at one time."""
    log = open_partition(sim or new_disk(), segment_bytes=MIB)
    log.start_epoch(0, 0)
    for now_us in times:
        append(log, [large(Random(now_us), now_us=now_us)])
    return log


def test_batches_outside_the_time_range_are_skipped() -> None:
    log = filled(range(10))
    found = read(log, Projection(from_us=3, until_us=7), max_bytes=PLENTY)
    assert [one.offset for one in found] == list(range(9, 21))
    result = log.projecting.read(0, PLENTY, limit_offset=30, projection=Projection(from_us=99))
    assert result == ([], 30), "nothing matches, and that is how far was looked"
    batches = [memoryview(batch) for batch in read_all(log)]
    assert project_all(batches, Projection(from_us=99)) == []
    assert len(project_all(batches, Projection(0, until_us=4))) == 4


def test_batches_beyond_the_end_offset_are_not_sent() -> None:
    log = filled(range(10))
    for columns in (0, Flags.KEY, COLUMN_FLAGS):
        for end, next_offset in ((3, 3), (4, 6), (29, 30), (99, 30)):
            result = log.projecting.read(0, PLENTY, limit_offset=30, projection=Projection(columns, end_offset=end))
            assert result.next_offset == next_offset
            assert sum(len(RecordBatch.parse(batch)) for batch in result.batches) == next_offset


def test_read_is_bounded_by_examined_bytes() -> None:
    log = filled(range(10))
    headers = log.projecting.read(0, 4 * LOOK_BYTES, limit_offset=30, projection=Projection(0))
    assert [len(batch) for batch in headers.batches] == [HEADER_BYTES] * 4
    assert headers.next_offset == 12
    keys = log.projecting.read(4, 1, limit_offset=30, projection=Projection(Flags.KEY))
    assert keys.next_offset == 6, "one batch in any case, from the one that holds the offset"
    assert log.projecting.read(30, 1, limit_offset=30, projection=Projection(0)) == ([], 30)
    limited = log.projecting.read(0, PLENTY, limit_offset=7, projection=Projection(0))
    assert limited.next_offset == 6, "uncommitted records are not read"


def test_small_batches_are_sent_unchanged() -> None:
    log = open_partition(new_disk(), segment_bytes=MIB)
    log.start_epoch(0, 0)
    small = [keyed([b"a"]) for _ in range(600)]
    stored = append(log, small)
    result = log.projecting.read(0, PLENTY, limit_offset=600, projection=Projection(0))
    assert [bytes(batch) for batch in result.batches] == stored
    assert result.next_offset == 600


def test_deleted_offset_is_an_error() -> None:
    log = filled(range(200))
    log.delete_before(400)
    assert log.start_offset
    with pytest.raises(ProtocolError) as refused:
        log.projecting.read(0, 1, limit_offset=600, projection=Projection(0))
    assert refused.value.code == pb.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("columns", [0, Flags.KEY])
def test_damage_error_has_file_and_position(columns: int) -> None:
    sim = new_disk()
    log = filled(range(3), sim)
    (path,) = sim.files(log.epochs[0].directory, ".seg")
    position = sim.node(path).current.index(b"TLRB") + (60 if not columns else HEADER_BYTES + 900)
    sim.node(path).current[position] ^= 1
    with pytest.raises(DamagedError, match=r"\.seg"):
        log.projecting.read(0, 1, limit_offset=9, projection=Projection(columns))
