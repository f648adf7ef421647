"""The records of one batch, built from whole columns, from any index on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

from tidelog.model import ConsumedBatch, Record, RecordColumns, record_columns, records_from
from tidelog.subscriptions.deserializers import Decoder, Decoding, decoder_of


class BatchRecords:
    """The records of a batch. The batch's columns are built once; starting at any index costs the same.

    Args:
        batch: a batch with at least one record.

    Attributes:
        offsets: offsets of the batch's records.
        values: encoded values; emptying this list ends all iterators over the records.

    Raises:
        ProtocolError: CORRUPT_BATCH when the body does not decode.
    """

    def __init__(self, batch: ConsumedBatch, decoding: Decoding) -> None:
        self.batch = batch
        self._columns = columns = record_columns(batch.batch)
        assert isinstance(columns.values, list)
        self.values: list[Any] = columns.values
        self.offsets = batch.batch.offset_list()
        self._key_decoder: Decoder | None = None
        self._value_decoder: Decoder | None = None
        if decoding.key is not None and isinstance(columns.keys, list):
            self._key_decoder = decoder_of(columns.keys, decoding.key)
        if decoding.value is not None:
            self._value_decoder = decoder_of(self.values, decoding.value)

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
        """Return one record without decoding it."""
        return next(records_from(self.batch.topic, self.batch.partition, *self._from(index)))

    def _from(self, index: int) -> tuple[Iterator[int], RecordColumns]:
        return _iterator(self.offsets, index), RecordColumns(*(_iterator(each, index) for each in self._columns))


def _iterator(column: Iterable[Any], index: int) -> Any:
    iterator: Any = iter(column)
    if index and not isinstance(column, repeat):
        iterator.__setstate__(index)  # Lists and ranges are advanced, because a slice would copy the rest.
    return iterator
