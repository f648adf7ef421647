"""The rows of a response with records of a typed topic: their schema and fields.

A response names fields of the newest schema, and requests their ids of nodes. If it has fixed columns (`columns`, or an
Arrow stream), it ends before a batch of a later schema; the next request then has the later schema.
"""

from __future__ import annotations

from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem
from tidelog_gateway.requests.columns import check_columns
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_reader import RowReader, row_reader
from tidelog_proto.schema.topic_schema import Schema


class RowSelection:
    """The rows of one response.

    Args:
        schema: the newest schema of the topic.
        columns: the fields of a row, in order; None for all.
        is_pinned: whether all rows must have this schema.
    """

    def __init__(self, schema: Schema, columns: tuple[str, ...] | None, *, is_pinned: bool) -> None:
        self.schema = schema
        self.columns = columns
        self._is_pinned = is_pinned or columns is not None

    @property
    def fields(self) -> list[int] | None:
        """Ids of the fields to fetch; None for all."""
        if self.columns is None:
            return None
        ids = {field.name: field.id for field in self.schema.fields}
        return [ids[name] for name in self.columns]

    def reader(self, batch: RecordBatch) -> RowReader | None:
        """Return the reader of the rows of a batch; None if the response has to end before it."""
        assert batch.layout is not None
        source = batch.layout.schema
        if source.number <= self.schema.number:
            return row_reader(source, self.schema, self.columns)
        return None if self._is_pinned else row_reader(source, source, None)


async def row_selection(
    gateway: Gateway, topic: str, columns: str | None, *, is_pinned: bool = False
) -> RowSelection | None:
    """Return the selection for a topic; None if it is not typed.

    Args:
        columns: the parameter `columns`.
        is_pinned: see `RowSelection`.

    Raises:
        Problem: 422, a column does not exist or is repeated, or the topic is not typed.
        TidelogError: the topic does not exist, or its schema could not be read.
    """
    schema = await gateway.client.newest_schema(topic)
    names = None if columns is None else tuple(columns.split(","))
    if names is not None:
        check_columns(topic, schema, names, parameter="columns")
    return None if schema is None else RowSelection(schema, names, is_pinned=is_pinned)


def later_schema() -> Problem:
    """Return the error for a first batch of a later schema than that of the response."""
    detail = "the schema of the topic changed while it was read: send the request again"
    return Problem(503, "overloaded", detail, retryable=True)
