"""Ways to get typed topics wrong: in the worlds with a typed topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulation.mutants import Replacement

from tidelog_broker.core import schema_rules
from tidelog_broker.core.schemas import SchemaRegistry, StoredRecord, TopicSchemas
from tidelog_broker.server.handlers import publish
from tidelog_broker.server.typed_batches import check_schema
from tidelog_proto.batch.header import BatchHeader, unpack_header
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.schema.evolution_rules import Change, changes_between
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema

Replacements = Sequence[Replacement]


def digest_ignored() -> Replacements:
    """The owner compares the number of a schema only."""

    class Any(TopicSchemas):
        def __init__(self, header: BatchHeader, schemas: TopicSchemas) -> None:
            self._header, self.newest_number = header, schemas.newest_number

        def digest(self, number: int) -> int | None:
            return self._header.schema_digest

    def check(data: memoryview, topic: str, schemas: TopicSchemas, floor: int) -> None:
        check_schema(data, topic, Any(unpack_header(data, typed=True), schemas), floor)

    return [(publish, "check_schema", check), (RowLayout, "check_header", lambda self, header: None)]


def floor_ignored() -> Replacements:
    """The owner stores batches of all schemas."""

    def check(data: memoryview, topic: str, schemas: TopicSchemas, floor: int) -> None:
        check_schema(data, topic, schemas, 0)

    return [(publish, "check_schema", check)]


def _allowing(text: str) -> Replacements:
    def compared(old: Schema, new: Schema) -> tuple[Change, ...]:
        try:
            return changes_between(old, new)
        except SchemaError as error:
            if text in str(error):
                return ()
            raise

    return [(schema_rules, "changes_between", compared)]


def id_reused() -> Replacements:
    """A new field may have the id of a dropped one."""
    return _allowing("belonged to a dropped field")


def narrowing_allowed() -> Replacements:
    """A type may change to a narrower one."""
    return _allowing("its type changes")


def left_out_of_snapshots() -> Replacements:
    """A snapshot of `__meta` has no schemas."""

    def nothing(self: SchemaRegistry) -> Iterator[StoredRecord]:
        return iter(())

    return [(SchemaRegistry, "records", nothing)]
