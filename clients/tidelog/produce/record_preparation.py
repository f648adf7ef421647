"""Preparation of records before a producer accepts them: serialization, validation, size.

An invalid record raises an error in the call, and no record of the call is accepted. If it were accepted, encoding its
batch would fail, and with it the other records of the batch.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from tidelog.produce.open_batch import record_size_bytes
from tidelog.produce.partitioners import chooser_of
from tidelog.produce.producer_options import ProducerOptions
from tidelog.produce.serializers import serializer_of
from tidelog_proto.batch.columns import TIMESTAMP_US_MAX, Headers
from tidelog_proto.limits import TAG_BYTES_MAX

_ENCODE: Final = "encode it, or pass {0}_serializer to the producer"


class PreparedRecord(NamedTuple):
    """A valid, serialized record.

    Attributes:
        size_bytes: the record's estimated size in memory.
    """

    value: bytes | None
    key: bytes | None
    headers: Headers | None
    tag: str | None
    partition: int | None
    timestamp_us: int | None
    size_bytes: int


class RecordPreparation:
    """Prepares records according to a producer's options.

    Attributes:
        has_partitioner: whether a partitioner other than the default chooses partitions.
        plain: whether there are neither serializers nor a partitioner.
    """

    def __init__(self, options: ProducerOptions) -> None:
        self._key = serializer_of(options.key_serializer, "key")
        self._value = serializer_of(options.value_serializer, "value")
        self._choose = chooser_of(options.partitioner)
        self.has_partitioner = self._choose is not None
        self.plain = self._key is None and self._value is None and self._choose is None

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
        if self._value is not None:
            value = self._value(value)
        if self._key is not None:
            key = self._key(key)
        if partition is not None:
            partition = checked_int("partition", partition)
        if timestamp_us is not None:
            timestamp_us = checked_int("timestamp_us", timestamp_us)
        _check_record(value, key, tag, timestamp_us)
        if headers is not None:
            # Copied, because the caller may change the list before the record is sent, or may have passed an iterator.
            headers = tuple([_header_of(header) for header in headers])
        size_bytes = record_size_bytes(value, key, headers, tag)
        return PreparedRecord(value, key, headers, tag, partition, timestamp_us, size_bytes)

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
