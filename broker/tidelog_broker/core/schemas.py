"""The schemas of typed topics, as defined by the records of `__meta`.

A schema is never replaced: of the records with one topic id and number the first wins. Its topic's schemas are removed
together with the topic. The schemas precede the topic's record in `__meta`, so a node that knows a typed topic knows
its first schema; it may not know the newest ones yet.

Records are kept as bytes, because Python objects of a schema take many times its space. Layouts are decoded on demand
and cached within a bound.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.schema_messages import schema_of_message
from tidelog_proto.schema.topic_schema import Schema

LAYOUT_BYTES: Final = 4 * MIB
"""Maximum size of the records whose layouts are cached; a layout takes some 20 times the space of its record."""


class StoredRecord(NamedTuple):
    """A record as the bytes of its `MetaRecord`."""

    data: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Return the message's bytes."""
        return self.data


class _LayoutCache:
    """The layouts of records that were used last. Batches are verified and derived on several threads."""

    def __init__(self, bytes_max: int, lock: AbstractContextManager[Any]) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._layouts: OrderedDict[bytes, RowLayout] = OrderedDict()
        self._lock = lock

    def layout(self, record: bytes) -> RowLayout:
        """Return the layout of a record's schema.

        Raises:
            SchemaError: this build does not understand the schema.
        """
        with self._lock:
            found = self._layouts.get(record)
            if found is not None:
                self._layouts.move_to_end(record)
                return found
        made = RowLayout(schema_of_message(pb.MetaRecord.FromString(record).schema.schema))
        with self._lock:
            if record not in self._layouts:
                self._layouts[record] = made
                self._size_bytes += len(record)
                while self._size_bytes > self._bytes_max and len(self._layouts) > 1:
                    self._size_bytes -= len(self._layouts.popitem(last=False)[0])
        return made


class TopicSchemas(Mapping[int, RowLayout]):
    """The schemas of one topic, as a mapping of numbers to the layouts of batches. Thread-safe for readers."""

    def __init__(self, cache: _LayoutCache) -> None:
        self._cache = cache
        self._records: dict[int, bytes] = {}
        self._digests: dict[int, int] = {}
        self.newest_number = 0
        """Number of the newest known schema; 0 before the first."""

    def add(self, number: int, digest: int, record: bytes) -> None:
        """Add a schema, with the bytes of its `MetaRecord`."""
        self._digests[number] = digest
        self._records[number] = record
        self.newest_number = max(self.newest_number, number)

    def __getitem__(self, number: int) -> RowLayout:
        """Return the layout of a schema's batches.

        Raises:
            ProtocolError: EPOCH_CHANGING if this node does not know the schema, which its copy of `__meta` may not have
                yet; UNSUPPORTED_BATCH if this build does not understand it.
        """
        record = self._records.get(number)
        if record is None:
            raise ProtocolError(pb.EPOCH_CHANGING, f"this node does not know schema {number} of the topic yet; retry")
        try:
            return self._cache.layout(record)
        except SchemaError as error:
            raise ProtocolError(pb.UNSUPPORTED_BATCH, str(error)) from error

    def __contains__(self, number: object) -> bool:
        return number in self._records

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def digest(self, number: int) -> int | None:
        """Return the digest of a schema; None if this node does not know the schema."""
        return self._digests.get(number)

    def schema(self, number: int) -> Schema:
        """Return a known schema.

        Raises:
            ProtocolError: UNSUPPORTED_BATCH if this build does not understand it.
        """
        return self[number].schema

    def record(self, number: int) -> pb.SchemaRecord:
        """Return the record of a known schema."""
        return pb.MetaRecord.FromString(self._records[number]).schema

    def stored(self) -> Iterator[StoredRecord]:
        """Yield the records by number."""
        for number in self:
            yield StoredRecord(self._records[number])

    @property
    def size_bytes(self) -> int:
        """Size of the records."""
        return sum(map(len, self._records.values()))


class SchemaRegistry:
    """Provides the schemas of all typed topics, up to the applied position of `__meta`.

    All methods are for one thread; the schemas of a topic can be read on any.

    Args:
        lock: held while the cache of layouts is used; needed if schemas are read on several threads.
        layout_bytes: maximum size of the records whose layouts are cached.
    """

    def __init__(self, lock: AbstractContextManager[Any] | None = None, *, layout_bytes: int = LAYOUT_BYTES) -> None:
        self._cache = _LayoutCache(layout_bytes, nullcontext() if lock is None else lock)
        self._by_topic: dict[bytes, TopicSchemas] = {}
        self.size_bytes = 0
        """Size of the records of all topics."""

    def apply(self, record: pb.SchemaRecord) -> bool:
        """Apply a durable record of a topic that is not deleted; return whether it is new."""
        schemas = self.of(record.topic_id)
        number = record.schema.number
        if number in schemas:
            return False
        data = wrapped_schema(record).SerializeToString()
        schemas.add(number, record.schema.digest, data)
        self.size_bytes += len(data)
        return True

    def of(self, topic_id: bytes) -> TopicSchemas:
        """Return the schemas of a typed topic, which may be none yet; the object follows further records."""
        schemas = self._by_topic.get(topic_id)
        if schemas is None:
            schemas = self._by_topic[topic_id] = TopicSchemas(self._cache)
        return schemas

    def newest_number(self, topic_id: bytes) -> int:
        """Return the number of a topic's newest known schema; 0 if no schema of the topic is known."""
        schemas = self._by_topic.get(topic_id)
        return 0 if schemas is None else schemas.newest_number

    def forget(self, topic_id: bytes) -> None:
        """Remove the schemas of a deleted topic; readers that hold them can still use them."""
        schemas = self._by_topic.pop(topic_id, None)
        if schemas is not None:
            self.size_bytes -= schemas.size_bytes

    def records(self) -> Iterator[StoredRecord]:
        """Yield all records for a snapshot, those of a topic by number."""
        for schemas in self._by_topic.values():
            yield from schemas.stored()


def wrapped_schema(record: pb.SchemaRecord) -> pb.MetaRecord:
    """Return a record as it is written to `__meta`."""
    return pb.MetaRecord(schema=record)
