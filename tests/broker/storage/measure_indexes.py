"""Measures the indexes of keys against RocksDB, for the decision record: 10 million different keys.

    python -m tests.broker.storage.measure_indexes DIRECTORY [--keys 10000000] [--only tidelog|rocksdb]

DIRECTORY must not exist; it needs about 3 GB. RocksDB is measured if the package `rocksdict` is installed. Compared
are storing the offset of its batch for each key, column-wise here, key by key in RocksDB (with write batches and
without its own log, which is the fastest that its Python binding offers); the offsets of existing and of missing keys;
and, here only, the whole read of a record by its key.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.broker.storage.build import needed, stamp
from tests.broker.storage.logs import epoch_logs

from tidelog_broker.storage.partition.matching import RecordFilter
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.key_hash import hash_one
from tidelog_proto.batch.record_batch import encode_batch

BATCH_RECORDS = 1000
VALUE = bytes(100)
LOOKUPS = 5000


def key_of(number: int) -> bytes:
    """Keys in a scattered order: consecutive numbers are far apart."""
    return b"user-%011d" % (number * 7_368_787 % 99_999_989)


def keys_of_batches(count: int) -> Iterator[list[bytes]]:
    for first in range(0, count, BATCH_RECORDS):
        yield [key_of(number) for number in range(first, first + BATCH_RECORDS)]


def tell(what: str, value: str) -> None:
    sys.stdout.write(f"{what:52} {value}\n")
    sys.stdout.flush()


def percentiles(times: Sequence[float]) -> str:
    ordered = sorted(times)
    return f"p50 {ordered[len(ordered) // 2] * 1e6:.0f} us, p99 {ordered[len(ordered) * 99 // 100] * 1e6:.0f} us"


def timed(do: Callable[[bytes], object], keys: Sequence[bytes]) -> list[float]:
    times: list[float] = []
    for key in keys:
        begun = time.perf_counter()
        do(key)
        times.append(time.perf_counter() - begun)
    return times


def sample(count: int) -> tuple[list[bytes], list[bytes]]:
    generator = random.Random(1)
    there = [key_of(generator.randrange(count)) for _ in range(LOOKUPS)]
    return there, [b"nobody-%d" % number for number in range(LOOKUPS)]


def measure_tidelog(directory: Path, count: int) -> None:
    directory.mkdir()
    log = PartitionLog.open(
        Disk(), directory, topic="t", topic_id=bytes(16), partition=0, segment_bytes=256 * 1024 * 1024
    )
    log.start_epoch(0, 0)
    append_s = 0.0
    for keys in keys_of_batches(count):
        batch = bytearray(encode_batch(columns_of([VALUE] * len(keys), keys=keys), now_us=0).to_bytes())
        stamp([batch], offset=log.end_offset, digest=log.end_digest)
        begun = time.perf_counter()
        log.ensure_space(needed([batch]))
        log.append([batch])
        append_s += time.perf_counter() - begun
    tell("appends to the page cache, without an index", f"{append_s / count * 1e9:.0f} ns a record")
    log.indexes.switch(frozenset({"key"}))
    begun = time.perf_counter()
    log.matching.newest(limit_offset=log.end_offset, record_filter=RecordFilter(b"nobody"), work_bytes=1 << 40)
    took = time.perf_counter() - begun
    tell("index of all of it, read back from the log", f"{took:.1f} s, {took / count * 1e9:.0f} ns a key")
    files = list(directory.rglob("*.key"))
    size = sum(path.stat().st_size for path in files)
    memory = log.indexes.size_bytes
    tell(
        "it takes",
        f"{size >> 20} MiB in {len(files)} files and {memory >> 20} MiB in memory, "
        f"{(size + memory) / count:.1f} bytes a key",
    )
    there, absent = sample(count)
    (epoch,) = epoch_logs(log)

    def find(key: bytes) -> None:
        key_hash = hash_one(key)
        for segment in epoch.segments:
            with epoch.segment_reader.lease(segment) as opened:
                opened.hashes.find("key", key_hash, 0, len(opened.index), 16, newest=True)

    for name, keys in (("existing", there), ("missing", absent)):
        tell(f"batches of {name} keys, all segments", percentiles(timed(find, keys)))
    newest = lambda key: log.matching.newest(limit_offset=log.end_offset, record_filter=RecordFilter(key))  # noqa: E731
    tell("newest record of existing keys", percentiles(timed(newest, there)))
    everything = lambda key: log.matching.read(0, 1 << 20, limit_offset=log.end_offset, record_filter=RecordFilter(key))  # noqa: E731
    tell("all records of existing keys", percentiles(timed(everything, there)))
    log.close()


def measure_rocksdb(directory: Path, count: int) -> None:
    try:
        rocks: Any = importlib.import_module("rocksdict")
    except ImportError:
        tell("RocksDB", "rocksdict is not installed")
        return
    options = rocks.Options(raw_mode=True)
    options.create_if_missing(True)
    table = rocks.BlockBasedOptions()
    table.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(table)
    database = rocks.Rdict(str(directory), options)
    no_log = rocks.WriteOptions()
    no_log.disable_wal = True
    database.set_write_options(no_log)
    took, offset = 0.0, 0
    for keys in keys_of_batches(count):
        column = pa.array(keys, pa.binary())
        begun = time.perf_counter()
        writes = rocks.WriteBatch(raw_mode=True)
        value = offset.to_bytes(8, "little")
        for key in column.to_pylist():
            writes.put(key, value)
        database.write(writes)
        took += time.perf_counter() - begun
        offset += len(keys)
    begun = time.perf_counter()
    database.flush()
    took += time.perf_counter() - begun
    tell("RocksDB: puts in batches, no log of its own", f"{took:.1f} s, {took / count * 1e9:.0f} ns a key")
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    tell("RocksDB: it takes", f"{size >> 20} MiB, {size / count:.1f} bytes a key")
    there, absent = sample(count)
    for name, keys in (("existing", there), ("missing", absent)):
        tell(f"RocksDB: gets of {name} keys", percentiles(timed(database.get, keys)))
    database.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--only", choices=("tidelog", "rocksdb"))
    arguments = parser.parse_args()
    arguments.directory.mkdir()
    count = arguments.keys // BATCH_RECORDS * BATCH_RECORDS
    assert np.gcd(7_368_787, 99_999_989) == 1, "all keys differ"
    if arguments.only != "rocksdb":
        measure_tidelog(arguments.directory / "tidelog", count)
    if arguments.only != "tidelog":
        measure_rocksdb(arguments.directory / "rocksdb", count)


if __name__ == "__main__":
    main()
