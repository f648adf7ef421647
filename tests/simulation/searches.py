"""Clients that look for records by key at any node: the index finds the same records as a scan at that moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.payload import KEYS, is_sound, keys_of

from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.storage.partition.matching import NewestMatch, ReadResult, RecordFilter
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.errors import ProtocolError

if TYPE_CHECKING:
    from tests.simulation.copies import Copy
    from tests.simulation.process import Process
    from tests.simulation.world import World

SEARCH_US = 10_000
"""Mean time between two searches in a partition."""
READ_BYTES = 300
SCAN_BYTES = 1 << 20
IN_MEMORY = 0.3
"""How many searches may be answered out of memory, where nearly everything is in so small a world."""


class Found(NamedTuple):
    """Result of a search, and the stored records at that moment, as (offset, key)."""

    offsets: list[int]
    scanned: list[tuple[int, bytes]] | None
    """None if the stored records are unknown: they have rotted, or were deleted meanwhile."""
    offset: int
    next_offset: int
    newest: int | None


class Searcher:
    """Searches one partition, again and again."""

    def __init__(self, world: World, key: PartitionKey) -> None:
        self._world = world
        self._key = key
        self._random = world.clock.random

    def start(self) -> None:
        """Begin."""
        self._world.clock.after(self._random.randrange(2 * SEARCH_US), self._search)

    def _search(self) -> None:
        self._world.ask(self._random.choice(self._world.registered), self._arrive)
        self.start()

    def _arrive(self, process: Process) -> None:
        copy = process.partitions.get(self._key)
        if copy is None or not hasattr(copy, "partition"):
            return
        wanted = self._random.choice(KEYS)

        def ended(found: Found | None, error: BaseException | None) -> None:
            del error  # why it cannot be read there
            if found is not None:
                self._compare(copy, wanted, found)

        process.spawn(_look(copy, wanted, self._random.random()), ended)

    def _compare(self, copy: Copy, wanted: bytes, found: Found) -> None:
        require = self._world.checks.require
        where = f"{copy.name}: records of {wanted!r} from {found.offset} to {found.next_offset}"
        end = max(copy.partition.state.high_watermark, found.offset)  # no records exist if all are deleted
        require(found.next_offset <= end, "I25", f"{where} lie past the watermark")
        if found.scanned is None:
            return
        there = [offset for offset, key in found.scanned if key == wanted]
        require(found.offsets == there, "I25", f"{where}: found {found.offsets}, there are {there}")
        if found.newest is not None:
            require(
                found.newest == max(there, default=-1), "I25", f"{where}: the newest was reported as {found.newest}"
            )


async def _look(copy: Copy, wanted: bytes, share: float) -> Found:
    """Search like the handlers, and scan the searched range.

    Raises:
        ProtocolError: why nothing can be read here.
    """
    partition = copy.partition
    await partition.access.ensure_readable()
    state = partition.state
    begin, end = state.log_start, state.readable_end
    offset = begin + int(share**0.5 * (end - begin))  # mostly the newest part
    partition.reader.check_offset(offset)
    if share * 10 % 1 < IN_MEMORY:
        result = await partition.filtered.read(offset, READ_BYTES, RecordFilter(wanted))
    else:
        result = await copy.process.readers.call(copy.key[1], _read, copy, wanted, offset, end)
    offsets = [
        record_offset
        for batch in map(RecordBatch.parse, result.batches)
        for record_offset in batch.offset_list()
        if record_offset >= offset
    ]
    newest = None
    if result.next_offset == state.readable_end and not partition.replica.backfill.incomplete:
        found = await copy.process.readers.call(copy.key[1], _newest, copy, wanted, offset, result.next_offset)
        newest = found.offset if found.offset is not None and found.offset >= offset else -1
    scanned = await copy.process.readers.call(copy.key[1], _scan, copy, offset, result.next_offset)
    return Found(offsets, scanned, offset, result.next_offset, newest)


def _read(copy: Copy, wanted: bytes, offset: int, end: int) -> ReadResult:
    return copy.log.matching.read(
        offset, READ_BYTES, limit_offset=end, record_filter=RecordFilter(wanted), work_bytes=SCAN_BYTES
    )


def _newest(copy: Copy, wanted: bytes, offset: int, limit_offset: int) -> NewestMatch:
    limit = limit_offset
    while True:
        found = copy.log.matching.newest(limit_offset=limit, record_filter=RecordFilter(wanted), work_bytes=READ_BYTES)
        if found.offset is not None or found.from_offset <= offset or found.from_offset >= limit:
            return found
        limit = found.from_offset


def _scan(copy: Copy, offset: int, end_offset: int) -> list[tuple[int, bytes]] | None:
    """Return offset and key of every record, by reading every batch; None where that cannot be done."""
    found: list[tuple[int, bytes]] = []
    position = offset
    while position < end_offset:
        try:
            result = copy.log.reader.read(position, SCAN_BYTES, limit_offset=end_offset)
        except ProtocolError:
            return None
        if not result.batches:
            return None
        for data in map(bytes, result.batches):
            if not is_sound(data):
                return None
            header = unpack_header(data)
            keys = zip(range(header.base_offset, header.end_offset), keys_of(data, header.record_count), strict=True)
            found += [(at, key) for at, key in keys if at >= offset]
        position = result.next_offset
    return found
