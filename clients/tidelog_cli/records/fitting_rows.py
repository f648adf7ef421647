"""The check of rows from one source, such as a file, before they are published to a typed topic."""

from __future__ import annotations

import pyarrow as pa

from tidelog.rows.arrow_rows import typed_columns
from tidelog.rows.value_checks import RowError
from tidelog_cli.base.failures import CommandFailed
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.schema.topic_schema import Schema


class FittingRows:
    """Checks batches in their order, so that an error names the rows of the source.

    Args:
        schema: that of the topic.
        source: name of the source, for messages.

    Attributes:
        rows: number of rows that have been checked.
    """

    def __init__(self, schema: Schema, source: str) -> None:
        self._layout = row_layout(schema)
        self._source = source
        self.rows = 0

    def check(self, rows: pa.RecordBatch) -> None:
        """Check that each value of the next rows fits its field exactly.

        Raises:
            CommandFailed: a column is not a field, a field is missing, or a value does not fit.
        """
        try:
            typed_columns(self._layout, rows)
        except RowError as error:
            first, last = self.rows + 1, self.rows + rows.num_rows
            place = f"row {first}" if first == last else f"rows {first} to {last}"
            raise CommandFailed(f"{self._source}, {place}: {error}") from error
        self.rows += rows.num_rows

    def failure(self, error: RowError) -> CommandFailed:
        """Return the error for rows after those that have been checked, of which the number is not known."""
        return CommandFailed(f"{self._source}, from row {self.rows + 1} on: {error}")
