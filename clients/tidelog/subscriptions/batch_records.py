"""The records of one batch, built from whole columns, from any index on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Final

from tidelog.errors import InvalidRequestError
from tidelog.model import ConsumedBatch, Record, RecordColumns, record_columns, records_from
from tidelog.subscriptions.deserializers import Decoder, Decoding, decoder_of
from tidelog.subscriptions.row_view import RowView

SCHEMA_HEADER: Final = "tidelog-schema"
"""Header of a row that is published as JSON: the number of the schema of its fields."""


class BatchRecords:
    """The records of a batch. The batch's columns are built once; starting at any index costs the same.

    Args:
        batch: a batch with at least one record.
        view: how rows of typed topics are shown; None: the topic is not typed.

    Attributes:
        offsets: offsets of the batch's records.
        values: encoded values; emptying this list ends all iterators over the records.

    Raises:
        InvalidRequestError: an option of the consumer does not fit the topic.
        ProtocolError: CORRUPT_BATCH when the body does not decode.
    """

    def __init__(self, batch: ConsumedBatch, decoding: Decoding, view: RowView | None = None) -> None:
        self.batch = batch
        self._is_typed = batch.batch.layout is not None
        self._view = view
        decode_value: Callable[[Any], Any] | None = decoding.value
        if self._is_typed:
            assert view is not None, "rows need a view"
            if decode_value is not None and view.values != "json":
                raise InvalidRequestError(
                    f"topic {batch.topic!r} is typed, so its values are rows and need no value_deserializer; leave it "
                    "out, or pass values='json'"
                )
            self.values: list[Any] = view.values_of(batch)
            decode_value = decode_value or view.build
        else:
            if view is not None:
                view.check_untyped(batch.topic)
            self.values = batch.batch.values()
        self._columns = columns = record_columns(batch.batch, self.values)
        self.offsets = batch.batch.offset_list()
        self._key_decoder: Decoder | None = None
        self._value_decoder: Decoder | None = None
        if decoding.key is not None and isinstance(columns.keys, list):
            self._key_decoder = decoder_of(columns.keys, decoding.key)
        if decode_value is not None:
            self._value_decoder = decoder_of(self.values, decode_value)

    def __len__(self) -> int:
        return len(self.offsets)

    def start(self, index: int) -> tuple[Iterator[int], Iterator[Record]]:
        """Return iterators over the offsets and the records from an index on; the records advance the offsets.

        For a record that does not decode, the deserializer's exception is raised after its offset was consumed.
        """
        offsets, columns = self._from(index)
        if self._key_decoder is not None:
            columns = columns._replace(keys=self._key_decoder(columns.keys))
        if self._value_decoder is not None:
            columns = columns._replace(values=self._value_decoder(columns.values))
        return offsets, records_from(self.batch.topic, self.batch.partition, offsets, columns)

    def as_sent(self, index: int) -> Record:
        """Return one record without decoding it; a row as JSON, with its schema in the header `tidelog-schema`."""
        record = next(records_from(self.batch.topic, self.batch.partition, *self._from(index)))
        layout = self.batch.batch.layout
        if layout is None or self._view is None:
            return record
        number = str((self.batch.schema or layout.schema).number).encode()
        headers = (*record.headers, (SCHEMA_HEADER, number))
        return record._replace(value=self._view.json_of(self.batch)[index], headers=headers)

    def _from(self, index: int) -> tuple[Iterator[int], RecordColumns]:
        return _iterator(self.offsets, index), RecordColumns(*(_iterator(each, index) for each in self._columns))


def _iterator(column: Iterable[Any], index: int) -> Any:
    iterator: Any = iter(column)
    if index and not isinstance(column, repeat):
        iterator.__setstate__(index)  # Lists and ranges are advanced, because a slice would copy the rest.
    return iterator
