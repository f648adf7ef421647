"""What becomes of a record, or of many, before a producer accepts them: serialised, checked, measured.

Whatever is wrong with a record is said at the call, and nothing of the call is accepted then: once it has joined
others, it would spoil their batch.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tidelog.produce.open_batch import record_size_bytes
from tidelog.produce.partitioners import chooser_of
from tidelog.produce.producer_options import ProducerOptions
from tidelog.produce.serializers import serializer_of
from tidelog_proto.batch.columns import TIMESTAMP_US_MAX, Headers
from tidelog_proto.limits import TAG_BYTES_MAX


class PreparedRecord(NamedTuple):
    """One record that may be accepted; `size_bytes` is about what it takes in memory."""

    value: bytes | None
    key: bytes | None
    headers: Headers | None
    tag: str | None
    partition: int | None
    timestamp_us: int | None
    size_bytes: int


class RecordPreparation:
    """Prepares records as a producer's options say.

    Attributes:
        chooses: records go through a partitioner that is not the default.
        plain: records come as bytes and are left to the default partitioner.
    """

    def __init__(self, options: ProducerOptions) -> None:
        self._key = serializer_of(options.key_serializer, "key")
        self._value = serializer_of(options.value_serializer, "value")
        self._choose = chooser_of(options.partitioner)
        self.has_partitioner = self._choose is not None
        self.plain = self._key is None and self._value is None and self._choose is None

    def prepare(  # noqa: PLR0917 - a record, as it is given
        self,
        value: Any,
        key: Any,
        headers: Headers | None,
        tag: str | None,
        partition: int | None,
        timestamp_us: int | None,
    ) -> PreparedRecord:
        """Return a record as it will be accepted, without what a partitioner makes of it.

        Raises:
            SerializationError: key or value does not serialise.
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
            # What is given may be used for the next record, too, before this one is sent, or be read only once.
            headers = tuple([_header_of(header) for header in headers])
        size_bytes = record_size_bytes(value, key, headers, tag)
        return PreparedRecord(value, key, headers, tag, partition, timestamp_us, size_bytes)

    def with_partition(self, record: PreparedRecord, partition_count: int) -> PreparedRecord:
        """Return the record with the partition that the partitioner chooses, unless it has one.

        Raises:
            Exception: what the partitioner raises.
        """
        if self._choose is None or record.partition is not None:
            return record
        return record._replace(partition=self._choose(record.key, partition_count))

    def values(self, values: Sequence[Any]) -> Sequence[bytes | None]:
        """Return the values of many records as bytes.

        Raises:
            SerializationError: one does not serialise.
            TypeError: they are text.
        """
        return _no_text(values, "value") if self._value is None else [self._value(value) for value in values]

    def keys(self, keys: Sequence[Any] | None) -> Sequence[bytes | None] | None:
        """Return the keys of many records as bytes.

        Raises:
            SerializationError: one does not serialise.
            TypeError: they are text.
        """
        if keys is None:
            return None
        return _no_text(keys, "key") if self._key is None else [self._key(key) for key in keys]

    def targets(self, keys: Sequence[bytes | None], partition_count: int) -> list[int | None]:
        """Return the partition that the partitioner chooses for each record; None leaves it to the default.

        Raises:
            Exception: what the partitioner raises.
        """
        choose = self._choose
        assert choose is not None
        return [choose(key, partition_count) for key in keys]


def _no_text(many: Sequence[Any], what: str) -> Sequence[bytes | None]:
    """Return values or keys of many records; text is refused, which Arrow would take for its UTF-8.

    All else that is no bytes Arrow refuses itself. The first one stands for all: to look at each would cost a tenth of
    what sending it does.

    Raises:
        TypeError: they are text.
    """
    given: Sequence[Any] = list(many) if isinstance(many, Iterator) else many
    if isinstance(given, str) or isinstance(next((each for each in given if each is not None), None), str):
        raise TypeError(f"a {what} is bytes or None, not str: encode it, or give the producer a {what}_serializer")
    return given


def checked_int(what: str, number: Any) -> int | None:
    """Return a number that was given, if one was, as an exact int: numbers of NumPy are welcome, True is none.

    Args:
        what: the parameter's name, for the error.
        number: what was given; None is none.

    Raises:
        TypeError: it is no whole number.
    """
    if number is None or type(number) is int:
        return number
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise TypeError(f"{what} is a whole number, not {number!r}")
    return operator.index(number)


def _header_of(header: object) -> tuple[str, bytes | None]:
    """Return a header as a pair of its own.

    Raises:
        TypeError: it is no (text, bytes or None) pair.
    """
    match header:
        case (str() as name, bytes() | None as content):
            name.encode()
            return name, content
        case _:
            raise TypeError(f"a header is (text, bytes or None), not {header!r}")


def _check_record(value: object, key: object, tag: object, timestamp_us: int | None) -> None:
    """Refuse a record that no batch could carry, before it can spoil its neighbours' batch.

    Raises:
        TypeError, ValueError: see `Producer.send`.
    """
    if not (value is None or isinstance(value, bytes)):
        raise TypeError(f"a value is bytes or None, not {type(value).__name__}")
    if not (key is None or isinstance(key, bytes)):
        raise TypeError(f"a key is bytes or None, not {type(key).__name__}")
    if tag is not None:
        if not isinstance(tag, str):
            raise TypeError(f"a tag is text or None, not {type(tag).__name__}")
        if len(tag.encode()) > TAG_BYTES_MAX:
            raise ValueError(f"a tag has at most {TAG_BYTES_MAX} bytes")
    if timestamp_us is not None and not 0 <= timestamp_us <= TIMESTAMP_US_MAX:
        raise ValueError(f"timestamp_us is µs since 1970, up to the year 9999, not {timestamp_us}")
