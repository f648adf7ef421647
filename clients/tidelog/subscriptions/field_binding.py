"""The fields that a consumer reads, bound to a schema of each topic while a subscription lasts.

The rows of a subscription are shown under the schema by which its fields were requested, so a name means the same field
in all of them, also if a field is renamed meanwhile. A batch of a later schema ends the subscription of its partition,
which is then subscribed again under the newest schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.cluster.routing import Router
from tidelog.errors import InvalidRequestError
from tidelog.requests.field_projection import add_fields, newest_schema
from tidelog.rows.row_filter import WhereFilter
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import COLUMN_FLAGS
from tidelog_proto.schema.topic_schema import Schema


class BoundFields(NamedTuple):
    """The fields of one topic.

    Attributes:
        schema: under which rows are shown.
        projection: for nodes; None if they send whole records.
    """

    schema: Schema
    projection: pb.Projection | None


class FieldBinding:
    """Binds the fields of a consumer to the newest known schemas.

    Args:
        columns: names of fields; None for all, which are not bound.
        where: the filter of the consumer, which applies it itself, too; None for all records.
        is_narrowing: whether nodes may omit other fields. A consumer with a dead-letter topic needs whole records.
    """

    def __init__(
        self,
        router: Router,
        columns: tuple[str, ...] | None,
        *,
        is_narrowing: bool,
        where: WhereFilter | None = None,
    ) -> None:
        self._router = router
        self._where = where
        self._columns = columns
        self._is_narrowing = is_narrowing

    async def bind(self, topics: Iterable[str]) -> Mapping[bytes, BoundFields]:
        """Return the fields of typed topics, by topic id; empty if the consumer reads all fields.

        A name that the schema does not have, and a filter that does not fit it, are reported when a batch is read.
        Until then the node sends all fields.

        Raises:
            TidelogError: a schema could not be read.
        """
        bound: dict[bytes, BoundFields] = {}
        if self._columns is None:
            return bound
        for topic in topics:
            topic_id, schema = await newest_schema(self._router, topic)
            if schema is None:
                continue
            ids = {field.name: field.id for field in schema.fields}
            projection = None
            tested = self._tested(schema)
            if self._is_narrowing and tested is not None and ids.keys() >= set(self._columns):
                projection = pb.Projection(columns=COLUMN_FLAGS)  # a record has its key, headers, tag and time
                add_fields(projection, schema, [*(ids[name] for name in self._columns), *tested])
            bound[topic_id] = BoundFields(schema, projection)
        return bound

    def _tested(self, schema: Schema) -> frozenset[int] | None:
        """Return the ids of the fields that the filter tests; None if it does not fit the schema."""
        if self._where is None:
            return frozenset()
        try:
            return self._where.tested(schema).fields
        except InvalidRequestError:
            return None
