"""The argument `where` of readers of typed topics."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import pyarrow.compute as pc

from tidelog.errors import InvalidRequestError
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.filters.arrow_expression import condition_of_arrow
from tidelog_proto.filters.binding import bound
from tidelog_proto.filters.conditions import Condition
from tidelog_proto.filters.expression import EVERY_ROW, Expression, leaves_of
from tidelog_proto.filters.expression_messages import BoundFilter, message_of_filter
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.filters.filter_text import condition_of_text
from tidelog_proto.filters.matching_rows import matching_rows
from tidelog_proto.filters.record_columns import RECORD_COLUMN_NAMES, of_fields
from tidelog_proto.schema.topic_schema import Schema

Where: TypeAlias = str | pc.Expression
"""A filter of rows: a text such as `arr_delay > 190 and carrier in ('UA', 'AA')`, or a pyarrow expression."""


class TestedColumns(NamedTuple):
    """The fields and columns that a filter tests.

    Attributes:
        fields: ids of fields.
        columns: names of the columns of records, as `columns` of a fetch has them.
    """

    fields: frozenset[int]
    columns: frozenset[str]


class WhereFilter:
    """Filters rows by a condition, exactly, whatever nodes send.

    Args:
        where: the condition.

    Raises:
        InvalidRequestError: it is not a condition that filters can have.
    """

    def __init__(self, where: Where) -> None:
        self._where = where
        self._condition = _condition_of(where)
        self._bound = lru_cache(maxsize=16)(self._bind)

    def __str__(self) -> str:
        return str(self._where)

    def expression(self, schema: Schema) -> Expression:
        """Return the condition under a schema.

        Raises:
            InvalidRequestError: a field does not exist, or a value does not fit it.
        """
        return self._bound(schema)

    def tested(self, schema: Schema) -> TestedColumns:
        """Return the fields and columns that the condition tests.

        Raises:
            InvalidRequestError: as `expression`.
        """
        ids = {leaf.field_id for leaf in leaves_of(self._bound(schema))}
        columns = {name.removeprefix("_") for number, name in RECORD_COLUMN_NAMES.items() if number in ids}
        return TestedColumns(frozenset(each for each in ids if each > 0), frozenset(columns))

    def pushed(self, schema: Schema) -> BoundFilter | None:
        """Return the filter that nodes apply, which matches at least the same rows; None if nodes cannot narrow them.

        Raises:
            InvalidRequestError: as `expression`.
        """
        narrowing = BoundFilter(schema.number, of_fields(self._bound(schema)))
        if narrowing.expression == EVERY_ROW:
            return None
        try:
            message_of_filter(narrowing)
        except FilterError:  # its literals are too long: the reader filters alone
            return None
        return narrowing

    def kept(self, batch: RecordBatch, schema: Schema, partition: int) -> RecordBatch:
        """Return a batch with the records that match, read under a schema that is not older than the batch's.

        Raises:
            InvalidRequestError: as `expression`.
            ProtocolError: CORRUPT_BATCH if the body does not decode.
        """
        mask = matching_rows(batch, self._bound(schema), partition)
        return batch if mask is None or mask.all() else batch.keeping(mask)

    def _bind(self, schema: Schema) -> Expression:
        try:
            return bound(self._condition, schema)
        except FilterError as error:
            raise InvalidRequestError(f"where: {error}") from None


def _condition_of(where: Any) -> Condition:
    try:
        if isinstance(where, str):
            return condition_of_text(where)
        if isinstance(where, pc.Expression):
            return condition_of_arrow(where)
    except FilterError as error:
        raise InvalidRequestError(f"where: {error}") from None
    raise InvalidRequestError(
        f"where must be a text or a pyarrow.compute expression, got {type(where).__name__}: {where!r}"
    )
