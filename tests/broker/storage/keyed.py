"""Logs of batches with keys and tags, and what of them a filter should find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple

from tests.broker.storage.build import Readable, read_all

from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.partition.matching import NewestMatch, RecordFilter
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch

KEYS = (None, b"", b"a", b"b", b"key-1", b"key-2", b"k" * 300)
TAGS = (None, "", "red", "ä" * 2048)


class Found(NamedTuple):
    offset: int
    key: bytes | None
    tag: str | None


class ByHand(IoWorkers):
    """Work that waits until a test does it."""

    def __init__(self) -> None:
        super().__init__(1, name="by hand")
        self.works: list[Callable[[], None]] = []

    def offer(self, run: Callable[[], None], *, key: int = 0) -> bool:
        del key
        self.works.append(run)
        return True

    def run(self, steps: int = 1000) -> None:
        while self.works and steps:
            self.works.pop(0)()
            steps -= 1


def keyed(
    keys: Sequence[bytes | None] | None,
    tags: Sequence[str | None] | None = None,
    *,
    codec: Codec = Codec.NONE,
    control: bool = False,
    timestamps_us: Sequence[int] | None = None,
) -> bytearray:
    count = len(keys if keys is not None else tags or ())
    columns = columns_of([b"value"] * count, keys=keys, tags=tags, timestamps_us=timestamps_us)
    return bytearray(encode_batch(columns, now_us=5, codec=codec, control=control).to_bytes())


def random_batch(random: Random) -> bytearray:
    count = random.choice((1, 1, 2, 5, 40))
    return keyed(
        [random.choice(KEYS) for _ in range(count)] if random.random() < 0.8 else None,
        [random.choice(TAGS) for _ in range(count)] if random.random() < 0.6 else [None] * count,
        codec=random.choice((Codec.NONE, Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP)),
        control=random.random() < 0.05,
    )


def records_of(batches: Iterable[bytes | memoryview]) -> list[Found]:
    return [
        Found(record.offset, record.key, record.tag)
        for batch in map(RecordBatch.parse, batches)
        if not batch.control
        for record in batch
    ]


def truth(log: Readable) -> list[Found]:
    """Everything in the log, as who reads all of it finds it."""
    return records_of(read_all(log))


def matching(records: Iterable[Found], record_filter: RecordFilter) -> list[Found]:
    return [
        one
        for one in records
        if (record_filter.key is None or one.key == record_filter.key)
        and (record_filter.tag is None or one.tag == record_filter.tag)
    ]


def read_matching(
    log: PartitionLog, record_filter: RecordFilter, *, offset: int, limit_offset: int, max_bytes: int, work_bytes: int
) -> list[Found]:
    """Read on until the end, and see that each step gets on."""
    found: list[Found] = []
    while offset < limit_offset:
        result = log.matching.read(
            offset, max_bytes, limit_offset=limit_offset, record_filter=record_filter, work_bytes=work_bytes
        )
        records = [one for one in records_of(result.batches) if one.offset >= offset]
        assert all(offset <= one.offset < result.next_offset for one in records)
        found += records
        if result.next_offset == offset:
            break
        offset = result.next_offset
    return found


def newest_matching(
    log: PartitionLog, record_filter: RecordFilter, *, limit_offset: int, work_bytes: int
) -> NewestMatch | None:
    """Search down to the start of the log, and see that the search for the record itself finds the same."""
    newest, alone = (
        _searched_down(log, record_filter, limit_offset, work_bytes, with_record=with_record)
        for with_record in (False, True)
    )
    assert (newest or (None,))[:2] == (alone or (None,))[:2]
    if alone is not None:
        assert alone.alone is not None
        (record,) = records_of([memoryview(alone.alone)])
        assert record.offset == alone.offset
        assert matching([record], record_filter)
    return newest


def _searched_down(
    log: PartitionLog, record_filter: RecordFilter, limit_offset: int, work_bytes: int, *, with_record: bool
) -> NewestMatch | None:
    limit = limit_offset
    while True:
        newest = log.matching.newest(
            limit_offset=limit, record_filter=record_filter, work_bytes=work_bytes, with_record=with_record
        )
        if newest.offset is not None:
            return newest
        if newest.from_offset <= log.start_offset:
            return None
        assert newest.from_offset < limit
        limit = newest.from_offset
