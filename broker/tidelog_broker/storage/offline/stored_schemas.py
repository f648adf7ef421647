"""Schemas of typed topics for offline tools: those of a file, and those of `__meta` in a data directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.partition.partition_dirs import parse_partition_dir_name
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.row_layout import Layouts, RowLayout, row_layout
from tidelog_proto.names import META_TOPIC
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.schema_messages import schema_of_message
from tidelog_proto.schema.topic_schema import Schema

PARTITIONS: Final = "partitions"

ReadValues = Callable[[Path], Iterable[bytes]]
"""Returns the values of the readable records of a partition's directory."""


class StoredSchemas:
    """Finds the schemas of topics; `__meta` is read when the first schema is needed that the file does not have.

    Args:
        given: topic id -> schemas of a file.
        read: reads the values of `__meta`.
    """

    def __init__(self, fs: FileSystem, given: Mapping[bytes, list[Schema]], read: ReadValues) -> None:
        self._fs = fs
        self._read = read
        self._layouts: dict[bytes, dict[int, RowLayout]] = {}
        self._searched: set[Path] = set()
        """Directories `partitions` whose `__meta` was read."""
        for topic_id, schemas in given.items():
            for schema in schemas:
                self._add(topic_id, schema)

    def layouts(self, topic_id: bytes, number: int, segment: Path) -> Layouts:
        """Return the layouts of a topic's known schemas, by number, with that of schema `number` if it is known.

        Args:
            segment: the segment with a batch of this schema, whose data directory is searched.

        Raises:
            OSError: the disk cannot be read.
        """
        if number not in self._layouts.get(topic_id, {}):
            for directory in self._meta_directories(segment.absolute()):
                for value in self._read(directory):
                    self._add_record(value)
        return self._layouts.get(topic_id, {})

    def _meta_directories(self, segment: Path) -> Iterator[Path]:
        partitions = next((above for above in segment.parents if above.name == PARTITIONS), None)
        if partitions is None or partitions in self._searched or not self._fs.is_dir(partitions):
            return
        self._searched.add(partitions)
        for name in self._fs.list_dir(partitions):
            found = parse_partition_dir_name(name)
            if found is not None and found.topic == META_TOPIC:
                yield partitions / name

    def _add_record(self, value: bytes) -> None:
        try:
            record = pb.MetaRecord.FromString(value)
            if record.HasField("schema"):
                self._add(record.schema.topic_id, schema_of_message(record.schema.schema))
        except (DecodeError, SchemaError):
            return  # of a newer build; the batches that need it are reported

    def _add(self, topic_id: bytes, schema: Schema) -> None:
        self._layouts.setdefault(topic_id, {}).setdefault(schema.number, row_layout(schema))
