"""The rate at which one process stores synced batches of one record in many epochs, without network and replication.

`python -m tidelog_broker.cli.storage_rate --data DIRECTORY --model shared --partitions 2000` creates the stores of so
many epochs in an empty directory, appends to them in turn as a node does, and prints a JSON object. For
`tidelog bench engines`, which compares the file models.

With a file for each epoch, each batch is appended and synced on the I/O worker of its partition, of which there are as
many as in a node. With shared files, the event loop writes the batches of a request together, and one thread syncs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.threads import Threads
from tidelog_broker.replication.grouped_syncs import GroupedSyncs
from tidelog_broker.storage.engine.store import SEGMENT, SHARED, STAGED_BYTES, EpochStart, EpochStore, padded
from tidelog_broker.storage.engines.stores import create_store
from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.segment.hash_memory import HashMemory
from tidelog_proto.batch.header import stamp_owner, unpack_header
from tidelog_proto.batch.single_record import encode_single

REQUEST_BATCHES: Final = 26
"""Number of batches that a node writes together: those of a slice of a request to many partitions."""
_SEGMENT_BYTES: Final = 64 * 1024 * 1024
_ENGINES: Final = {"per-partition": SEGMENT, "shared": SHARED}


class _Writer:
    """One epoch, and the batch that is appended to it again and again."""

    def __init__(self, store: EpochStore, value: bytes) -> None:
        self.store = store
        self.data = bytearray(encode_single(value, None, now_us=0).to_bytes())
        self.header = unpack_header(self.data)
        self.needed_bytes = padded(len(self.data))

    def stamp(self) -> None:
        """Give the batch the next offset, as an owner does."""
        store = self.store
        base_offset = store.end_offset
        digest = stamp_owner(
            self.data,
            base_offset=base_offset,
            append_timestamp_us=0,
            epoch=0,
            owner_incarnation=1,
            previous_digest=store.end_digest,
        )
        self.header = self.header.stamped(base_offset, 0, 0, 1, digest)

    def write(self) -> None:
        """Append and sync one batch, on an I/O worker."""
        self.stamp()
        self.store.ensure_space(self.needed_bytes)
        self.store.append([memoryview(self.data)])
        self.store.sync()


class _Run:
    """Appends to the stores in turn until the time is over, with a bounded number of unsynced batches."""

    def __init__(self, threads: Threads, writers: list[_Writer], pending_max: int) -> None:
        self._threads = threads
        self._syncs = GroupedSyncs(threads.shared_syncs)
        self._idle = deque(writers)
        """The writers without an unsynced batch."""
        self._is_shared = writers[0].store.sync_group is not None
        self._turn = 0
        self._ends_s = 0.0
        self._in_flight = 0
        self._in_flight_max = min(pending_max, len(writers))
        self.records = 0
        self._ended = asyncio.get_running_loop().create_future()

    async def run(self, seconds: float) -> None:
        """Append for so many seconds."""
        self._ends_s = time.perf_counter() + seconds
        self._go_on()
        await self._ended

    def _go_on(self) -> None:
        size = min(REQUEST_BATCHES, self._in_flight_max) if self._is_shared else 1
        while self._in_flight + size <= self._in_flight_max and time.perf_counter() < self._ends_s:
            taken = [self._idle.popleft() for _ in range(size)]
            self._in_flight += size
            self._turn += 1
            if self._is_shared:
                self._write_jointly(taken)
            else:
                self._threads.io.start(self._turn, taken[0].write, partial(self._written, taken))
        if not self._in_flight and not self._ended.done():
            self._ended.set_result(None)

    def _write_jointly(self, taken: list[_Writer]) -> None:
        group = taken[0].store.sync_group
        assert group is not None
        if not all(writer.store.may_stage(writer.needed_bytes) for writer in taken) or not group.has_room(
            sum(writer.needed_bytes + STAGED_BYTES for writer in taken)
        ):

            def write_all() -> None:
                for writer in taken:
                    writer.write()

            self._threads.io.start(0, write_all, partial(self._written, taken))
            return
        for writer in taken:
            writer.stamp()
        group.append_staged([writer.store.stage(memoryview(writer.data), writer.header) for writer in taken])

        def synced(error: BaseException | None) -> None:
            if error is None:
                for writer in taken:
                    writer.store.note_synced()
            self._written(taken, None, error)

        self._syncs.request(group, synced)

    def _written(self, taken: list[_Writer], _: object, error: BaseException | None) -> None:
        self._in_flight -= len(taken)
        self._idle.extend(taken)
        if error is not None:
            self._ends_s = 0.0
            if not self._ended.done():
                self._ended.set_exception(error)
            return
        self.records += len(taken)
        self._go_on()


async def measure(
    directory: Path, *, model: str, partitions: int, seconds: float, size_bytes: int, pending_max: int
) -> dict[str, Any]:
    """Return `records_per_s` and `cpu_us`, the processor time for each record in µs.

    Args:
        directory: an existing, empty directory.
        model: per-partition or shared.
        partitions: number of epochs, each of a partition of its own.
        size_bytes: size of a value.
        pending_max: number of batches that are not synced yet; at most one for each epoch.
    """
    threads = Threads(NodeSettings.model_fields["io_workers"].default)
    try:
        disk = threads.disk(RealFileSystem(), HashMemory())
        disk.commit_log_dir = directory / "commit-log"
        make = partial(create_store, disk, engine=_ENGINES[model], segment_bytes=_SEGMENT_BYTES)
        writers = [
            _Writer(
                await threads.io.call(0, _created, make, directory / f"epoch-{number:08d}", number), bytes(size_bytes)
            )
            for number in range(partitions)
        ]
        run = _Run(threads, writers, pending_max)
        await run.run(seconds / 4)  # not measured: each store begins its file
        measured = _Run(threads, writers, pending_max)
        before_s, began_s = _cpu_s(), time.perf_counter()
        await measured.run(seconds)
        took_s, used_s = time.perf_counter() - began_s, _cpu_s() - before_s
        for writer in writers:
            writer.store.close(sync=False)
    finally:
        threads.close()
    return {"records_per_s": measured.records / took_s, "cpu_us": used_s / max(1, measured.records) * 1_000_000}


def _created(make: Callable[[Path, EpochStart], EpochStore], directory: Path, number: int) -> EpochStore:
    return make(directory, EpochStart(bytes(16), number, 0, 0))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure with the arguments of the command line, and print the result."""
    parser = argparse.ArgumentParser(description="Measure the rate of synced appends to many epochs.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", choices=tuple(_ENGINES), required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--pending", type=int, default=1_000)
    chosen = parser.parse_args()
    result = uvloop.run(
        measure(
            chosen.data,
            model=chosen.model,
            partitions=chosen.partitions,
            seconds=chosen.seconds,
            size_bytes=chosen.size,
            pending_max=chosen.pending,
        )
    )
    print(json.dumps(result))  # noqa: T201 - the result of the program


if __name__ == "__main__":
    main()
