"""How a consumer shows the rows of typed topics: as dictionaries, instances of a class, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

from tidelog.errors import InvalidRequestError, error_of_local
from tidelog.model import ConsumedBatch
from tidelog.rows.row_filter import Where, WhereFilter
from tidelog.rows.row_models import Build, check_model, model_builder
from tidelog_proto.batch.json_view import json_values
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.topic_schema import Schema

Values = Literal["rows", "json"]
"""Whether the value of a record is a row, or bytes with its JSON."""


class RowView(NamedTuple):
    """The options of a consumer for typed topics.

    Attributes:
        columns: the fields of a row, in order; None for all. Its batches have them, too.
        values: the form of the value of a record.
        model: the class of rows; None for dictionaries.
        build: makes an instance of it.
        where: selects the records that are delivered; None for all.
    """

    columns: tuple[str, ...] | None = None
    values: Values = "rows"
    model: type | None = None
    build: Build | None = None
    where: WhereFilter | None = None

    @classmethod
    def of(
        cls, *, columns: Sequence[str] | None, values: str, rows: type | None, where: Where | None = None
    ) -> RowView:
        """Check the arguments of `Client.consumer` for rows.

        Raises:
            InvalidRequestError: an argument has an invalid value.
        """
        if values not in get_args(Values):
            raise InvalidRequestError(f"values must be one of {get_args(Values)}, got {values!r}")
        if rows is not None and values == "json":
            raise InvalidRequestError("rows= and values='json' exclude each other; pass one of them")
        if columns is not None and (
            isinstance(columns, str)
            or not columns
            or len(set(columns)) != len(columns)
            or not all(isinstance(name, str) for name in columns)
        ):
            raise InvalidRequestError(f"columns must be a list of different names of fields, got {columns!r}")
        names = None if columns is None else tuple(columns)
        return cls(
            names,
            "json" if values == "json" else "rows",
            rows,
            None if rows is None else model_builder(rows),
            None if where is None else WhereFilter(where),
        )

    def check_untyped(self, topic: str) -> None:
        """Check that the options can be used with a topic whose values are bytes.

        Raises:
            InvalidRequestError: an option needs a typed topic.
        """
        if self.columns is not None or self.model is not None or self.where is not None:
            raise InvalidRequestError(
                f"topic {topic!r} is not typed: its values are bytes without columns; leave columns=, rows= and where= "
                "out, and use value_deserializer"
            )

    def kept(self, batch: ConsumedBatch) -> ConsumedBatch:
        """Return a batch with the records that `where` selects.

        Raises:
            InvalidRequestError: the topic is not typed, or the filter does not fit its schema.
            CorruptBatchError: the body does not decode.
        """
        if self.where is None or not len(batch):
            return batch
        if batch.batch.layout is None:
            self.check_untyped(batch.topic)
        try:
            return replace(batch, batch=self.where.kept(batch.batch, _schema_of(batch), batch.partition))
        except ProtocolError as error:
            raise error_of_local(error) from error

    def values_of(self, batch: ConsumedBatch) -> list[Any]:
        """Return the value of each record of a batch of a typed topic, before `build`; None for a tombstone.

        Raises:
            InvalidRequestError: the schema lacks a column, or a field that the class requires.
            ProtocolError: CORRUPT_BATCH if the body does not decode.
        """
        if self.model is not None:
            check_model(self.model, _schema_of(batch))
        try:
            reader = batch.reader()
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        assert reader is not None
        return json_values(reader, batch.batch) if self.values == "json" else reader.rows(batch.batch)

    def json_of(self, batch: ConsumedBatch) -> list[bytes | None]:
        """Return the value of each record with all fields as JSON; see `json_view`."""
        reader = replace(batch, columns=None).reader()
        assert reader is not None
        return json_values(reader, batch.batch)


def _schema_of(batch: ConsumedBatch) -> Schema:
    assert batch.batch.layout is not None
    return batch.schema or batch.batch.layout.schema
