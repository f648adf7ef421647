"""Logs of keyed records, and what compaction is to leave of them, record by record."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from tests.broker.storage.build import append, read_all

from tidelog_broker.storage.partition.compaction_pass import CompactionPass, EpochRange, FinishedVersion, Terms
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch, iter_batches


class Kept(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


Row = tuple[bytes | None, bytes | None]


def keyed_batch(rows: list[Row], *, timestamp_us: int = 1, codec: Codec = Codec.NONE) -> bytearray:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    columns = columns_of(values, keys=keys if any(key is not None for key in keys) else None)
    return bytearray(encode_batch(columns, now_us=timestamp_us, codec=codec).to_bytes())


def some_rows(random: Random, *, keys: int, keyless: bool = True) -> list[Row]:
    def row() -> Row:
        key = None if keyless and random.random() < 0.1 else b"k%d" % random.randrange(keys)
        value = None if key is not None and random.random() < 0.2 else random.randbytes(random.randint(0, 60))
        return key, value

    return [row() for _ in range(random.randint(1, 12))]


def keyed_epochs(log: PartitionLog, random: Random, *, epochs: int, keys: int = 9) -> None:
    """Append epochs of keyed batches, some of them empty; the newest stays open."""
    for epoch in range(epochs):
        log.start_epoch(epoch, log.end_offset)
        for _ in range(random.randint(0, 8)):
            codec = random.choice([Codec.NONE, Codec.LZ4, Codec.GZIP])
            append(log, [keyed_batch(some_rows(random, keys=keys), codec=codec)], epoch=epoch)
        log.sync()


def records(buffers: Iterable[bytes | memoryview]) -> list[Kept]:
    """Return all records of batches, and see that these lie side by side without a hole."""
    found: list[Kept] = []
    end: int | None = None
    for buffer in buffers:
        for view in iter_batches(buffer):
            batch = RecordBatch.parse(view)
            assert end in {None, batch.base_offset}
            end = batch.end_offset
            found += [Kept(record.offset, record.key, record.value) for record in batch]
    return found


def all_records(log: PartitionLog) -> list[Kept]:
    return records(read_all(log))


def expected(before: list[Kept], below: int, terms: Terms) -> list[Kept]:
    """Return what a pass over the epochs below an offset is to leave."""
    newest = {record.key: record.offset for record in before if record.offset < terms.horizon}

    def survives(record: Kept) -> bool:
        if record.offset >= below:
            return True
        is_newest = record.key is None or newest[record.key] == record.offset
        is_gone = record.value is None and record.offset < terms.tombstones_below
        return is_newest and not is_gone and record.offset >= terms.floor

    return [record for record in before if survives(record)]


def sealed(log: PartitionLog) -> list[EpochRange]:
    return [EpochRange(one.epoch, one.start_offset, one.end_offset) for one in log.epochs[:-1]]


def compact(
    log: PartitionLog,
    terms: Terms,
    *,
    epochs: list[EpochRange] | None = None,
    memory_bytes: int = 1 << 20,
    decided: int = 99,
) -> list[FinishedVersion]:
    """Run a pass and put what it made in place."""
    ranges = sealed(log) if epochs is None else epochs
    ranges = [one for one in ranges if one.end_offset > one.start_offset]
    made = CompactionPass(
        log.reader,
        log.compacted,
        ranges,
        terms,
        begin=log.start_offset,
        memory_bytes=memory_bytes,
        pace=lambda _: None,
    ).run()
    for one in made:
        log.compacted.put_in_place(one.epoch, decided, one.end)
    return made
