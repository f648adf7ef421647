"""Preparation of records before a producer accepts them: serialization, validation, size.

An invalid record raises an error in the call, and no record of the call is accepted. If it were accepted, encoding its
batch would fail, and with it the other records of the batch.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidelog.errors import InvalidRequestError, SerializationError
from tidelog.produce.open_batch import record_size_bytes
from tidelog.produce.partitioners import chooser_of
from tidelog.produce.producer_options import ProducerOptions
from tidelog.produce.serializers import serializer_of
from tidelog.rows.arrow_rows import typed_columns
from tidelog.rows.json_rows import row_of_json
from tidelog.rows.row_writer import RowWriter, row_writer
from tidelog_proto.batch.columns import TIMESTAMP_US_MAX, Headers, canonical, columns_of
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.limits import TAG_BYTES_MAX
from tidelog_proto.schema.fields import Role
from tidelog_proto.schema.topic_schema import Schema

_ENCODE: Final = "encode it, or pass {0}_serializer to the producer"


class PreparedRecord(NamedTuple):
    """A valid, serialized record.

    Attributes:
        value: in a typed topic the values that `rows` has copied.
        size_bytes: the record's estimated size in memory.
        rows: the writer of the schema of a typed topic; None in others.
    """

    value: Any
    key: bytes | None
    headers: Headers | None
    tag: str | None
    partition: int | None
    timestamp_us: int | None
    size_bytes: int
    rows: RowWriter | None = None


class Columns(NamedTuple):
    """Records as columns.

    Attributes:
        batches: canonical columns, or those of `layout`.
        keys: the list that the key column of a single batch was made from; None otherwise.
        layout: of the schema of a typed topic; None in others.
    """

    batches: Sequence[pa.RecordBatch]
    keys: Sequence[bytes | None] | None
    layout: RowLayout | None


class RecordPreparation:
    """Prepares records according to a producer's options.

    Attributes:
        has_partitioner: whether a partitioner other than the default chooses partitions.
        plain: whether records are bytes that are stored as they are: there are neither serializers, nor a partitioner,
            nor a schema.
        rows: the writer of the schema of a typed topic; None in others, and before the topic is known.
    """

    def __init__(self, options: ProducerOptions) -> None:
        self._key = serializer_of(options.key_serializer, "key")
        self._value = serializer_of(options.value_serializer, "value")
        self._choose = chooser_of(options.partitioner)
        self.has_partitioner = self._choose is not None
        self.plain = self._key is None and self._value is None and self._choose is None
        self.rows: RowWriter | None = None

    def use_schema(self, schema: Schema) -> None:
        """Prepare rows of a schema from now on, unless it is older than the one in use.

        Raises:
            InvalidRequestError: the options do not fit a typed topic.
        """
        if self._value is not None:
            raise InvalidRequestError(
                "the topic is typed, so its values are rows and not serialized; leave value_serializer out"
            )
        if self._key is not None and schema.field_of(Role.KEY) is not None:
            raise InvalidRequestError("the key is a field of the topic's schema; leave key_serializer out")
        self.plain = False
        if self.rows is None or self.rows.schema.number < schema.number:
            self.rows = row_writer(schema)

    def prepare(  # noqa: PLR0917 - the fields of a record
        self,
        value: Any,
        key: Any,
        headers: Headers | None,
        tag: str | None,
        partition: int | None,
        timestamp_us: int | None,
    ) -> PreparedRecord:
        """Serialize and check a record; its partition is chosen later.

        Raises:
            SerializationError: key or value cannot be serialized.
            TypeError, ValueError: see `Producer.send`.
        """
        rows, row_bytes = self.rows, 0
        own_key = own_tag = own_time = None
        if rows is not None:
            fields = row_of_json(rows.schema, value) if isinstance(value, bytes | bytearray) else value
            _check_roles(rows, key, tag, timestamp_us)
            value, own_key, own_tag, own_time, row_bytes = rows.copy(fields)
        elif self._value is not None:
            value = self._value(value)
        if self._key is not None:
            key = self._key(key)
        if partition is not None:
            partition = checked_int("partition", partition)
        if timestamp_us is not None:
            timestamp_us = checked_int("timestamp_us", timestamp_us)
        _check_record(value if rows is None else None, key, tag, timestamp_us)
        if headers is not None:
            # Copied, because the caller may change the list before the record is sent, or may have passed an iterator.
            headers = tuple([_header_of(header) for header in headers])
        if rows is not None:
            key, tag = own_key if key is None else key, own_tag if tag is None else tag
            timestamp_us = own_time if timestamp_us is None else timestamp_us
        size_bytes = record_size_bytes(None if rows is not None else value, key, headers, tag) + row_bytes
        return PreparedRecord(value, key, headers, tag, partition, timestamp_us, size_bytes, rows)

    def tombstone(self, fields: Mapping[str, Any], now_us: int) -> PreparedRecord:
        """Return the tombstone of a key of a typed topic; see `RowWriter.tombstone`.

        Raises:
            InvalidRequestError: the topic is not typed.
            RowError: the fields are not those of a tombstone.
        """
        rows = self.rows
        if rows is None:
            raise InvalidRequestError("the topic is not typed; send a value of None with the key to delete it")
        value, key, tag, timestamp_us, row_bytes = rows.tombstone(fields, now_us)
        size_bytes = record_size_bytes(None, key, None, tag) + row_bytes
        return PreparedRecord(value, key, None, tag, None, timestamp_us, size_bytes, rows)

    def columns(self, values: Sequence[Any], keys: Sequence[Any] | None) -> Columns:
        """Return the columns of many records.

        Raises:
            SerializationError: a key or value cannot be serialized, or is not a row of the schema.
            TypeError, ValueError: values or keys are not bytes, or differ in length.
        """
        rows = self.rows
        if rows is None:
            values, keys = self.values(values), self.keys(keys)
            return Columns([columns_of(values, keys=keys)], keys, None)
        _check_roles(rows, keys, None, None)
        parse = partial(row_of_json, rows.schema)
        copied = [rows.copy(parse(each) if isinstance(each, bytes | bytearray) else each) for each in values]
        if not copied:
            return Columns([rows.columns([], timestamps_us=[] if rows.has_time else None)], None, rows.layout)
        stored, own_keys, tags, times, _ = map(list, zip(*copied, strict=True))
        keys = own_keys if rows.layout.key is not None else self.keys(keys)
        columns = rows.columns(
            stored,
            keys=keys,
            tags=tags if rows.layout.tag is not None else None,
            timestamps_us=times if rows.has_time else None,
        )
        return Columns([columns], keys, rows.layout)

    def arrow_columns(self, batches: Sequence[pa.RecordBatch]) -> Columns:
        """Return the columns of an application's Arrow data.

        Raises:
            TypeError, ValueError: the columns are not those of records.
            SerializationError: they are not those of the schema, or a value does not fit its field.
        """
        if self.rows is None:
            return Columns(list(map(canonical, batches)), None, None)
        layout = self.rows.layout
        return Columns([typed_columns(layout, each) for each in batches], None, layout)

    def with_partition(self, record: PreparedRecord, partition_count: int) -> PreparedRecord:
        """Return the record with the partition that the partitioner chooses, unless it has one.

        Raises:
            Exception: an error of the partitioner.
        """
        if self._choose is None or record.partition is not None:
            return record
        return record._replace(partition=self._choose(record.key, partition_count))

    def values(self, values: Sequence[Any]) -> Sequence[bytes | None]:
        """Return the values of many records as bytes.

        Raises:
            SerializationError: a value cannot be serialized.
            TypeError: the values are text.
        """
        return _no_text(values, "value") if self._value is None else [self._value(value) for value in values]

    def keys(self, keys: Sequence[Any] | None) -> Sequence[bytes | None] | None:
        """Return the keys of many records as bytes.

        Raises:
            SerializationError: a key cannot be serialized.
            TypeError: the keys are text.
        """
        if keys is None:
            return None
        return _no_text(keys, "key") if self._key is None else [self._key(key) for key in keys]

    def targets(self, keys: Sequence[bytes | None], partition_count: int) -> list[int | None]:
        """Return the partition that the partitioner chooses for each record; None means the default.

        Raises:
            Exception: an error of the partitioner.
        """
        choose = self._choose
        assert choose is not None
        return [choose(key, partition_count) for key in keys]


def _check_roles(rows: RowWriter, key: object, tag: object, timestamp_us: object) -> None:
    """Refuse arguments for which the schema has a field."""
    layout = rows.layout
    for name, given, field in (
        ("key", key, layout.key),
        ("tag", tag, layout.tag),
        ("timestamp_us", timestamp_us, layout.time),
    ):
        if given is not None and field is not None:
            raise SerializationError(
                f"{name}: the schema has a field for it, {field.name!r}; set that field of the row"
            )


def _no_text(many: Sequence[Any], what: str) -> Sequence[bytes | None]:
    """Return the values or keys of many records; refuse text, which Arrow would encode as UTF-8 without an error.

    Arrow itself refuses other types. Only the first item that is not None is checked: checking an item would cost a
    tenth of sending it.
    """
    items: Sequence[Any] = list(many) if isinstance(many, Iterator) else many
    if isinstance(items, str) or isinstance(next((each for each in items if each is not None), None), str):
        raise TypeError(f"a {what} must be bytes or None, got str; {_ENCODE.format(what)}")
    return items


def checked_int(what: str, number: Any) -> int | None:
    """Return an integer argument as an int, None for None; integers of NumPy are accepted, booleans are not.

    Args:
        what: the parameter's name, for the error.

    Raises:
        TypeError: the argument is not an integer.
    """
    if number is None or type(number) is int:
        return number
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise TypeError(f"{what} must be an integer, got {number!r}")
    return operator.index(number)


def _header_of(header: object) -> tuple[str, bytes | None]:
    """Check a header and return it as a tuple.

    Raises:
        TypeError: the header is not a pair of a str and bytes or None.
        ValueError: UTF-8 cannot encode the name.
    """
    match header:
        case (str() as name, bytes() | None as content):
            name.encode()
            return name, content
        case _:
            raise TypeError(f"a header must be a pair (str, bytes or None), got {header!r}")


def _check_record(value: object, key: object, tag: object, timestamp_us: int | None) -> None:
    """Refuse a record that cannot be encoded, because all records of its batch would fail with it."""
    if not (value is None or isinstance(value, bytes)):
        raise TypeError(f"a value must be bytes or None, got {type(value).__name__}; {_ENCODE.format('value')}")
    if not (key is None or isinstance(key, bytes)):
        raise TypeError(f"a key must be bytes or None, got {type(key).__name__}; {_ENCODE.format('key')}")
    if tag is not None:
        if not isinstance(tag, str):
            raise TypeError(f"a tag must be str or None, got {type(tag).__name__}")
        if len(tag.encode()) > TAG_BYTES_MAX:
            raise ValueError(f"a tag must have at most {TAG_BYTES_MAX} bytes, got {len(tag.encode())}")
    if timestamp_us is not None and not 0 <= timestamp_us <= TIMESTAMP_US_MAX:
        raise ValueError(f"timestamp_us must be µs since 1970, up to the year 9999, got {timestamp_us}")
