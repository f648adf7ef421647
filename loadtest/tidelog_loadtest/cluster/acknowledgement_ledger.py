"""The ledger of acknowledged records, and the check that none of them is lost or duplicated.

Each record carries a unique number in its first eight bytes. An acknowledgement gives the offsets of a run of numbers,
so reading the log shows whether each acknowledged record is at its acknowledged offset. A record that is not
acknowledged may or may not be in the log; no record may be in it twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog import Client
from tidelog.produce.receipts import ReceiptRange
from tidelog_loadtest.measure.product import WrongCountError

NUMBER_BYTES: Final = 8
PROGRESS_S: Final = 30.0
"""Maximum time without a batch while acknowledged records of a partition are missing, which then count as lost."""
_WAIT_MS: Final = 200

Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Acked:
    """Records `first` to `first + count - 1`, acknowledged at offsets `base_offset` and following."""

    partition: int
    base_offset: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts of an audit: records acknowledged, read, missing at their acknowledged offset, and duplicated."""

    acked: int = 0
    read: int = 0
    lost: int = 0
    twice: int = 0

    def __add__(self, other: Audit) -> Audit:
        return Audit(self.acked + other.acked, self.read + other.read, self.lost + other.lost, self.twice + other.twice)


class Ledger:
    """Creates numbered records and stores their acknowledgements."""

    def __init__(self, size_bytes: int) -> None:
        assert size_bytes >= NUMBER_BYTES, "a value has room for its number"
        self._size_bytes = size_bytes
        self._next = 0
        self._acked: list[Acked] = []

    def records(self, count: int) -> tuple[int, pa.RecordBatch]:
        """Create `count` records; return the number of the first one, and the records."""
        first = self._next
        self._next += count
        values = np.zeros((count, self._size_bytes), np.uint8)
        values[:, :NUMBER_BYTES] = np.arange(first, first + count, dtype=">u8").view(np.uint8).reshape(count, -1)
        offsets = np.arange(count + 1, dtype=np.int32) * self._size_bytes
        buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(values.tobytes())]
        return first, pa.record_batch({"value": pa.Array.from_buffers(pa.binary(), count, buffers)})

    def acknowledged(self, first: int, ranges: Iterable[ReceiptRange]) -> None:
        """Store the acknowledged offsets of records from number `first` on."""
        for partition, base_offset, count in ranges:
            self._acked.append(Acked(partition, base_offset, first, count))
            first += count

    def of(self, partition: int, from_offset: int) -> list[Acked]:
        """Return the acknowledgements at `from_offset` or above."""
        return [each for each in self._acked if each.partition == partition and each.base_offset >= from_offset]


async def audit(client: Client, topic: str, ledger: Ledger, starts: Mapping[int, int]) -> tuple[Audit, dict[int, int]]:
    """Read partitions to their ends and compare them with the ledger; nothing may be published meanwhile.

    Args:
        client: connected to the cluster.
        topic: the topic's name.
        ledger: the acknowledged records.
        starts: partition -> the offset from which it is read.

    Returns:
        The counts over all partitions, and the end offset of each partition.

    Raises:
        WrongCountError: offsets are missing between two batches.
        TidelogError: the cluster rejected a fetch.
    """
    counts, ends = Audit(), dict(starts)
    for partition, start in starts.items():
        acked = ledger.of(partition, start)
        end = max((each.base_offset + each.count for each in acked), default=start)
        numbers = await _read(client, topic, partition, start, end)
        counts += compare(acked, numbers, start)
        ends[partition] = start + len(numbers)
    return counts, ends


def compare(acked: Iterable[Acked], numbers: Numbers, start: int) -> Audit:
    """Compare the record numbers of a partition, from offset `start` on, with its acknowledgements."""
    total = lost = 0
    for each in acked:
        at = each.base_offset - start
        there = numbers[at : at + each.count]
        expected = np.arange(each.first, each.first + len(there), dtype=np.uint64)
        total += each.count
        lost += each.count - int(np.count_nonzero(there == expected))
    return Audit(total, len(numbers), lost, len(numbers) - len(np.unique(numbers)))


async def _read(client: Client, topic: str, partition: int, start: int, end: int) -> Numbers:
    """Return the record numbers of a partition from `start` to its end, which is at least `end` if nothing is lost."""
    numbers: list[Numbers] = []
    at = start
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PROGRESS_S
    while True:
        wait_ms = _WAIT_MS if at < end else 0
        fetched = await client.fetch(topic, partition, at, min_bytes=min(wait_ms, 1), wait_ms=wait_ms)
        for batch in fetched.batches:
            if batch.base_offset != at:
                raise WrongCountError(
                    f"topic {topic!r}, partition {partition}: expected a batch at offset {at}, got one at "
                    f"{batch.base_offset}: the records between them are missing"
                )
            numbers.append(numbers_of(batch.columns().column("value")))
            at = batch.end_offset
            deadline = loop.time() + PROGRESS_S
        if not fetched.batches and (at >= end or loop.time() > deadline):
            return np.concatenate([np.empty(0, np.uint64), *numbers])


def numbers_of(values: pa.Array[Any]) -> Numbers:
    """Return the numbers in the first bytes of the values."""
    heads = pc.binary_slice(values.cast(pa.binary()), 0, NUMBER_BYTES)
    data = heads.buffers()[2]
    assert data is not None, "values are not null"
    return np.frombuffer(memoryview(data), dtype=">u8", count=len(values)).astype(np.uint64)
