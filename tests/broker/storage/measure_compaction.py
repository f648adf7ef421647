"""Measures a compaction pass alone, without a node: bytes of the log per second of processor time.

    python -m tests.broker.storage.measure_compaction DIRECTORY [--records 5000000] [--keys 0] [--codec none|lz4]

DIRECTORY must not exist; it needs twice the size of the log. `--keys 0` gives each record a key of its own, so the pass
writes everything again; otherwise keys repeat after this number. Each round runs a pass over the same log and removes
its result. `--again` compacts the result of a pass, as a later pass does.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.broker.storage.build import needed, stamp

from tidelog_broker.storage.partition import compaction_pass
from tidelog_broker.storage.partition.compaction_pass import CompactionPass, EpochRange, Terms
from tidelog_broker.storage.partition.newest_search import Newest, NewestSearch
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import canonical, encode_batch

BATCH_RECORDS = 4000
VALUE_BYTES = 100
KEY_BYTES = 16
MB = 1_000_000


def keys_of(first: int, count: int, modulus: int) -> pa.Array[Any]:
    numbers = np.arange(first, first + count, dtype=np.uint64)
    if modulus:
        numbers %= np.uint64(modulus)
    data = np.column_stack([numbers * np.uint64(0x9E3779B97F4A7C15), numbers]).tobytes()
    offsets = np.arange(count + 1, dtype=np.int32) * KEY_BYTES
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)])


def values_of(random: np.random.Generator, *, compressible: bool) -> pa.Array[Any]:
    raw = random.bytes(VALUE_BYTES * BATCH_RECORDS)
    data = (raw[:2000] * BATCH_RECORDS)[: len(raw)] if compressible else raw
    offsets = np.arange(BATCH_RECORDS + 1, dtype=np.int32) * VALUE_BYTES
    return pa.Array.from_buffers(
        pa.binary(), BATCH_RECORDS, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
    )


def fill(log: PartitionLog, records: int, keys: int, codec: Codec) -> None:
    random = np.random.default_rng(1)
    values = [values_of(random, compressible=codec is not Codec.NONE) for _ in range(16)]
    log.start_epoch(0, 0)
    for number in range(records // BATCH_RECORDS):
        first = number * BATCH_RECORDS
        columns = pa.record_batch({"key": keys_of(first, BATCH_RECORDS, keys), "value": values[number % 16]})
        batch = bytearray(encode_batch(canonical(columns), now_us=7, codec=codec).to_bytes())
        stamp([batch], offset=log.end_offset, digest=log.end_digest)
        log.ensure_space(needed([batch]))
        log.append([batch])
    log.sync()
    log.start_epoch(1, log.end_offset)


class TimedSearch(NewestSearch):
    """Adds up the processor time of searches."""

    cpu_s = 0.0

    def newest(self, start: int, part: int) -> Newest:
        begun_s = time.process_time()
        try:
            return super().newest(start, part)
        finally:
            TimedSearch.cpu_s += time.process_time() - begun_s


def one_pass(log: PartitionLog, memory_bytes: int, *, keep: bool) -> str:
    epoch = log.epochs[0]
    size_bytes, end = epoch.size_bytes, epoch.end_offset
    read: list[int] = []
    TimedSearch.cpu_s = 0.0
    one = CompactionPass(
        log.reader,
        log.compacted,
        [EpochRange(0, 0, end)],
        Terms(end, 0, 0),
        begin=0,
        memory_bytes=memory_bytes,
        pace=read.append,
    )
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    (made,) = one.run()
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    if keep:
        log.compacted.put_in_place(0, 1, made.end)
    else:
        log.compacted.abandon(0)
    return (
        f"{size_bytes / MB:.0f} -> {made.size_bytes / MB:.0f} MB: {size_bytes / MB / cpu_s:.1f} MB/s a core, "
        f"{size_bytes / MB / wall_s:.1f} MB/s; {cpu_s:.2f} s of a processor, {TimedSearch.cpu_s:.2f} s for the "
        f"search, read {sum(read) / size_bytes:.2f} times, digest {made.end.digest:#010x}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--codec", choices=["none", "lz4"], default="none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, default=64 << 20)
    parser.add_argument("--again", action="store_true")
    arguments = parser.parse_args()
    arguments.directory.mkdir()
    compaction_pass.NewestSearch = TimedSearch  # type: ignore[attr-defined]
    log = PartitionLog.open(
        Disk(), arguments.directory, topic="t", topic_id=bytes(16), partition=0, segment_bytes=256 << 20
    )
    fill(log, arguments.records, arguments.keys, Codec[arguments.codec.upper()])
    if arguments.again:
        sys.stdout.write(f"first pass: {one_pass(log, arguments.memory, keep=True)}\n")
    for _ in range(arguments.rounds):
        sys.stdout.write(f"{one_pass(log, arguments.memory, keep=False)}\n")
        sys.stdout.flush()
    log.close()


if __name__ == "__main__":
    main()
