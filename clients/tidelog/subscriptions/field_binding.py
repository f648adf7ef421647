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
from tidelog_proto.filters.expression_messages import BoundFilter
from tidelog_proto.schema.topic_schema import Schema


class BoundFields(NamedTuple):
    """The fields of one topic.

    Attributes:
        schema: under which rows are shown.
        projection: for nodes; None if they send whole records.
        where: the filter of rows for nodes; None if they send all records.
    """

    schema: Schema
    projection: pb.Projection | None
    where: BoundFilter | None


class FieldBinding:
    """Binds the fields and the filter of a consumer to the newest known schemas.

    Args:
        columns: names of fields; None for all.
        where: the filter; None for all records. Without columns and filter, nothing is bound.
        is_narrowing: whether nodes may omit other fields. A consumer with a dead-letter topic needs whole records.
    """

    def __init__(
        self, router: Router, columns: tuple[str, ...] | None, where: WhereFilter | None, *, is_narrowing: bool
    ) -> None:
        self._router = router
        self._columns = columns
        self._where = where
        self._is_narrowing = is_narrowing

    async def bind(self, topics: Iterable[str]) -> Mapping[bytes, BoundFields]:
        """Return the fields of typed topics, by topic id; empty if the consumer reads all fields of all records.

        A name that the schema does not have, or a filter that does not fit it, is reported when a batch is read; until
        then the node sends all fields and records.

        Raises:
            TidelogError: a schema could not be read.
        """
        bound: dict[bytes, BoundFields] = {}
        if self._columns is None and self._where is None:
            return bound
        for topic in topics:
            topic_id, schema = await newest_schema(self._router, topic)
            if schema is None:
                continue
            try:
                bound[topic_id] = BoundFields(
                    schema, self._projection(schema), None if self._where is None else self._where.pushed(schema)
                )
            except InvalidRequestError:
                bound[topic_id] = BoundFields(schema, None, None)
        return bound

    def _projection(self, schema: Schema) -> pb.Projection | None:
        """Return the fields that the rows have and the filter tests; None if nodes send whole records.

        Raises:
            InvalidRequestError: the filter does not fit the schema.
        """
        ids = {field.name: field.id for field in schema.fields}
        if self._columns is None or not self._is_narrowing or not ids.keys() >= set(self._columns):
            return None
        projection = pb.Projection(columns=COLUMN_FLAGS)  # a record has its key, headers, tag and time
        tested = [] if self._where is None else self._where.tested(schema).fields
        add_fields(projection, schema, [*(ids[name] for name in self._columns), *tested])
        return projection
