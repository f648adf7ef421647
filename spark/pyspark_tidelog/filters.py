"""Use of Spark's filters to read fewer records; they only narrow a read and never replace Spark's own filtering.

All filters are returned to Spark, which applies them to each row. So an unsupported filter, or a node that sends more
than requested, costs time but is not an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from tidelog.fetch_options import FetchOptions
from tidelog.requests.offset_ranges import OffsetRange
from tidelog.rows.value_checks import RowError
from tidelog_proto.limits import ENVELOPE_BYTES_MAX, TAG_BYTES_MAX
from tidelog_proto.process.epoch_units import EPOCH, wrong_unit

_US: Final = timedelta(microseconds=1)
_INT64_MAX: Final = 2**63 - 1
KEY_BYTES_MAX: Final = ENVELOPE_BYTES_MAX // 2
"""Maximum length of a key in a filter for nodes; longer keys may exist, but do not fit a request."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Bounds of a query; None for no bound.

    Attributes:
        topics, partitions: only these topics, and only partitions with these numbers.
        first, end: offsets from `first` up to but not including `end`.
        since_us, until_us: timestamps from `since_us` up to but not including `until_us`, µs since 1970.
        key, tag: only records with this key and this tag.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    end: int = _INT64_MAX
    since_us: int | None = None
    until_us: int | None = None
    key: bytes | None = None
    tag: str | None = None

    def of(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of ranges that are within these bounds, without empty ones."""
        left = [
            replace(each, start=max(each.start, self.first), end=min(each.end, self.end))
            for each in ranges
            if (self.topics is None or each.topic in self.topics)
            and (self.partitions is None or each.partition in self.partitions)
        ]
        return [each for each in left if each.start < each.end]

    def including(self, key: bytes | None, tag: str | None) -> Narrowed:
        """Return these bounds with another required key and tag; None keeps the current one."""
        return replace(self, key=self.key if key is None else key, tag=self.tag if tag is None else tag)

    @property
    def leaves_out_records(self) -> bool:
        """Whether a node that applies these bounds omits records inside a requested range."""
        return (self.key, self.tag, self.since_us, self.until_us) != (None, None, None, None)

    def options(self, plain: FetchOptions) -> FetchOptions:
        """Return the options of a fetch; a node that omits records replies at once, even with few records.

        `wait_ms` is kept, because it lets the node delay a reader with a quota.
        """
        options: FetchOptions = {**plain}
        if self.since_us is not None or self.until_us is not None:
            since_us, until_us = _unambiguous(self.since_us), _unambiguous(self.until_us)
            options |= FetchOptions(since_us=since_us, until_us=until_us, min_bytes=0)
        if self.key is not None or self.tag is not None:
            options |= FetchOptions(key=self.key, tag=self.tag, min_bytes=0)
        return options


def _unambiguous(bound_us: int | None) -> int | None:
    """Return a bound in µs, or None if it is so close to 1970 that the client refuses it as a time in another unit.

    Spark applies such a bound to the rows that it gets.
    """
    return None if bound_us is None or wrong_unit(bound_us, "microseconds") else bound_us


@dataclass(frozen=True, slots=True)
class Comparable:
    """A column of a DataFrame whose values nodes can compare.

    Attributes:
        column: the column of records: topic, partition, offset, timestamp, key or tag.
        stored: returns a value of the DataFrame as it is stored, or raises RowError; None if it is stored as it is.
    """

    column: str
    stored: Callable[[Any], Any] | None = None


PLAIN: Final = {name: Comparable(name) for name in ("topic", "partition", "offset", "timestamp", "key", "tag")}
"""The columns of a topic without a schema that nodes can compare."""


def narrowed(filters: Iterable[Any], columns: Mapping[str, Comparable] = PLAIN) -> Narrowed:
    """Return the bounds of filters, all of which must hold; unsupported filters are ignored.

    Args:
        filters: those of Spark.
        columns: the columns that nodes can compare, by their names in the DataFrame.
    """
    result = Narrowed()
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        known = columns.get(path[0]) if len(path) == 1 else None
        if known is not None:
            value = getattr(each, "value", None)
            if known.stored is not None:
                value = _stored(known.stored, value)
            result = _with(result, type(each).__name__, known.column, value)
    return result


def _stored(stored: Callable[[Any], Any], value: Any) -> Any:
    """Return a value as it is stored; None, which does not narrow, if it does not fit the field."""
    try:
        return stored(value)
    except RowError:
        return None


def _with(so_far: Narrowed, kind: str, column: str, value: Any) -> Narrowed:
    match column:
        case "offset":
            bounds = _bounds(kind, value) if _is_number(value) else None
            return so_far if bounds is None else _between(so_far, *bounds)
        case "timestamp":
            at_us = _time_us(value)
            bounds = None if at_us is None else _bounds(kind, at_us)
            return so_far if bounds is None else _timed(so_far, *bounds)
        case "partition":
            numbers = _one_of(kind, value, int)
            return so_far if numbers is None else replace(so_far, partitions=_both(so_far.partitions, numbers))
        case "topic":
            names = _one_of(kind, value, str)
            return so_far if names is None else replace(so_far, topics=_both(so_far.topics, names))
        case "key" if kind in _EQUAL and isinstance(value, bytes | bytearray) and len(value) <= KEY_BYTES_MAX:
            return replace(so_far, key=bytes(value))
        case "tag" if kind in _EQUAL and isinstance(value, str) and len(value.encode()) <= TAG_BYTES_MAX:
            return replace(so_far, tag=value)
        case _:
            return so_far


_EQUAL: Final = ("EqualTo", "EqualNullSafe")


def _bounds(kind: str, value: int) -> tuple[int | None, int | None] | None:
    """Return the bounds of a comparison, the first inclusive and the second exclusive; None for no bounds."""
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return value, value + 1
        case "GreaterThan":
            return value + 1, None
        case "GreaterThanOrEqual":
            return value, None
        case "LessThan":
            return None, value
        case "LessThanOrEqual":
            return None, value + 1
        case _:
            return None


def _between(so_far: Narrowed, first: int | None, end: int | None) -> Narrowed:
    return replace(
        so_far,
        first=so_far.first if first is None else max(so_far.first, first),
        end=so_far.end if end is None else min(so_far.end, end),
    )


def _timed(so_far: Narrowed, since_us: int | None, until_us: int | None) -> Narrowed:
    sinces = [each for each in (so_far.since_us, since_us) if each is not None]
    untils = [each for each in (so_far.until_us, until_us) if each is not None]
    return replace(so_far, since_us=max(sinces, default=None), until_us=min(untils, default=None))


def _one_of(kind: str, value: Any, of: type) -> frozenset[Any] | None:
    values = (value,) if kind in _EQUAL else value if kind == "In" else None
    if isinstance(values, tuple | list) and all(isinstance(each, of) for each in values):
        return frozenset(values)
    return None


def _both(before: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if before is None else before & more


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _time_us(value: Any) -> int | None:
    """Return a time as µs since 1970; None for other values and naive times."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - EPOCH) // _US
