"""A topic in memory that answers like a node, for tests of the Spark source without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Self, Unpack

import pyarrow as pa

from tidelog.credentials import Credentials
from tidelog.errors import OffsetOutOfRangeError, UnknownTopicError
from tidelog.fetch_options import FetchOptions
from tidelog.model import Fetched, Offset, Partition, Topic
from tidelog.tls import Tls
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import Codec, stamp_owner
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.process.epoch_units import EPOCH

NOW_US = 1_700_000_000_000_000


def stored(
    values: Sequence[bytes | None],
    base_offset: int = 0,
    *,
    now_us: int = NOW_US,
    codec: Codec = Codec.NONE,
    **more: Any,
) -> RecordBatch:
    """Return a batch as a reader receives it, with its first record at `base_offset`."""
    encoded = encode_batch(columns_of(list(values), **more), now_us=now_us, codec=codec)
    buffer = bytearray(encoded.to_bytes())
    stamp_owner(
        buffer, base_offset=base_offset, append_timestamp_us=now_us, epoch=0, owner_incarnation=1, previous_digest=0
    )
    return RecordBatch.parse(buffer)


def numbered(count: int, base_offset: int = 0) -> RecordBatch:
    """Return a batch whose values are its offsets as text."""
    return stored([b"%d" % offset for offset in range(base_offset, base_offset + count)], base_offset)


def values_of(batches: Sequence[pa.RecordBatch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@dataclass
class FakeLog:
    """One partition. `deleted` moves the log start; `batches_per_fetch` limits an answer."""

    batches: list[RecordBatch] = field(default_factory=list)
    deleted: int = 0
    batches_per_fetch: int = 2
    fetched_at: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.deleted

    def fetch(self, offset: int) -> Fetched:
        self.fetched_at.append(offset)
        if not self.deleted <= offset <= self.end:
            error = OffsetOutOfRangeError(f"offset {offset} is not in {self.deleted}..{self.end}")
            error.log_start_offset, error.high_watermark = self.deleted, self.end
            raise error
        batches = [batch.slice_from(offset) for batch in self.batches if batch.end_offset > offset]
        batches = batches[: self.batches_per_fetch]
        next_offset = batches[-1].end_offset if batches else offset
        return Fetched([batch for batch in batches if len(batch)], next_offset, self.deleted, self.end, 0)


@dataclass
class FakeClient:
    """Topics of `FakeLog`s by name; counts requests. It also replaces the class: calling it returns it."""

    logs: dict[str, list[FakeLog]]
    made: dict[str, int] = field(default_factory=dict)
    """How often a topic was recreated."""
    asked: list[tuple[str, Any, tuple[int, ...]]] = field(default_factory=list)
    options: FetchOptions = field(default_factory=FetchOptions)
    """Options of the last fetch."""
    zone: str = ""

    def __call__(
        self,
        bootstrap: tuple[str, ...],
        *,
        client_id: str,
        credentials: Credentials | None,
        tls: Tls | Literal[False],
        zone: str = "",
    ) -> FakeClient:
        self.zone = zone
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        return None

    def topics(self, *, internal: bool = False) -> list[Topic]:
        return [self.topic(name) for name in self.logs]

    def topic(self, name: str) -> Topic:
        if name not in self.logs:
            raise UnknownTopicError(f"no topic {name!r}")
        partitions = tuple(Partition(p, "n", 0) for p in range(len(self.logs[name])))
        return Topic(name, name.encode().ljust(15, b".") + b"%d" % self.made.get(name, 0), partitions)

    def list_offsets(
        self, topic: str, at: Literal["earliest", "latest"] | datetime | int, partitions: Sequence[int] | None = None
    ) -> dict[int, Offset]:
        numbers = tuple(range(len(self.logs[topic])) if partitions is None else partitions)
        if isinstance(at, datetime):
            at = (at - EPOCH) // timedelta(microseconds=1)
        self.asked.append((topic, at, numbers))
        return {number: self._offset(self.logs[topic][number], at) for number in numbers}

    def fetch(self, topic: str, partition: int, offset: int, **options: Unpack[FetchOptions]) -> Fetched:
        self.options = options
        wanted = options.get("topic_id")
        if wanted and wanted != self.topic(topic).topic_id:
            raise UnknownTopicError(f"another topic {topic!r}")
        return self.logs[topic][partition].fetch(offset)

    def _offset(self, log: FakeLog, at: Literal["earliest", "latest"] | datetime | int) -> Offset:
        if isinstance(at, int):
            late = [batch.base_offset for batch in log.batches if batch.header.base_timestamp_us >= at]
            return Offset(late[0] if late else log.end, bool(late), at if late else 0, log.deleted, log.end)
        return Offset(log.deleted if at == "earliest" else log.end, True, 0, log.deleted, log.end)
