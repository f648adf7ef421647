"""Options of the source for batch reads and streams, parsed and validated before any request to a broker.

Names, defaults and precedence are those of Spark's Kafka source, so that a job can move by changing `format` and
`bootstrap`: `…Timestamp` overrides `…OffsetsByTimestamp`, which overrides `…Offsets`; in offset JSON -2 is the earliest
and -1 the latest; timestamps are milliseconds since 1970. An unknown option is an error with a suggestion: a silently
ignored `startingOffset` would read the wrong records.

Rejected: pydantic (a dependency of the broker, but not of Spark readers).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pyspark_tidelog.access import ACCESS_FOREIGN, ACCESS_OPTION_NAMES, SECRETS, Access, access_of
from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.filters import KEY_BYTES_MAX
from pyspark_tidelog.from_kafka import POSITION_NAMES, Side, hint_of
from pyspark_tidelog.option_values import (
    NUMBER_MAX,
    comma_list,
    count,
    did_you_mean,
    duration_s,
    flag,
    is_int,
    json_object,
    numbers_per_partition,
    times_per_partition,
    timestamp_us,
)
from tidelog_proto.limits import SCHEMAS_PER_TOPIC_MAX, TAG_BYTES_MAX

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

COLUMN_NAMES: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "tag",
)
"""Every column of the source, in order."""

MAX_RECORDS_PER_BATCH_DEFAULT: Final = 100_000
MAX_RECORDS_PER_BATCH_MAX: Final = 1_000_000
MIN_PARTITIONS_MAX: Final = 100_000
MAX_TRIGGER_DELAY_S_DEFAULT: Final = 15 * 60.0
"""Maximum time that a stream waits for `minOffsetsPerTrigger` records; the default of Spark's Kafka source."""

_PER_PARTITION = Mapping[str, Mapping[int, int]]
OPTION_NAMES: Final = (
    *ACCESS_OPTION_NAMES,
    "subscribe",
    "subscribePattern",
    "assign",
    "key",
    "keyHex",
    "tag",
    *POSITION_NAMES,
    "minPartitions",
    "maxRecordsPerPartition",
    "readFrom",
    "zone",
    "failOnDataLoss",
    "includeHeaders",
    "includeTags",
    "includeRecordColumns",
    "includeTombstones",
    "schemaNumber",
    "columns",
    "maxRecordsPerBatch",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

_FOREIGN: Final = {
    **ACCESS_FOREIGN,
    "topic": "subscribe",
    "topics": "subscribe",
    "path": "subscribe",
}
"""Option names of other sources and their equivalents; `.load("name")` sets `path`."""
_VERBATIM: Final = frozenset({"key", "tag"})
"""Options whose values keep leading and trailing whitespace, which may belong to the key or tag."""


class Edge(Enum):
    """The first or the end offset of a partition at the time of planning."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Offsets by topic and partition; -2 means the earliest, -1 the latest."""

    offsets: _PER_PARTITION


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """A time (µs since 1970) for every partition: the first record at or after it."""

    timestamp_us: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """Times (µs since 1970) by topic and partition."""

    timestamps_us: _PER_PARTITION


Position = Edge | AtOffsets | AtTimestamp | AtTimestamps


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches the regular expression."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Exactly these partitions of these topics."""

    partitions: Mapping[str, tuple[int, ...]]


Selection = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Parsed options of a batch read or a stream.

    Attributes:
        starting: start of the ranges (inclusive).
        ending: end of the ranges (exclusive); only for batch reads.
        start_late_timestamps_at_latest: whether a partition whose records are all older than the starting time is read
            from its end, instead of failing the read.
        min_partitions: minimum number of Spark tasks, if there are enough records; None for one per partition.
        max_records: maximum number of records per task; None for no limit.
        nearest: whether tasks read from replicas in their zone instead of owners in another zone.
        zone: the zone of the tasks; "" for the one in the environment of each task (`TIDELOG_ZONE`).
        fail_on_data_loss: whether missing records fail the read.
        columns: names of the columns of the default schema, in order; None for all that the other options include. They
            are checked against those of the topic later (`columns.py`, `typed_columns.py`).
        include_headers, include_tags: whether these columns are among the default ones.
        include_record_columns: of a typed topic, whether all columns of records are.
        include_tombstones: of a typed topic, whether tombstones are rows, too.
        schema_number: of a typed topic, the number of the schema of the rows; None for the newest.
        max_records_per_batch: maximum number of rows of an Arrow batch that is passed to Spark.
        max_offsets: maximum number of records per micro-batch over all partitions; None for no limit.
        min_offsets: number of records that a stream waits for before a micro-batch; None for one.
        max_delay_s: maximum time that a stream waits for `min_offsets` records.
        key, tag: only records with this key and this tag; None for any.
        key_is_text: whether the key was given as text, which is a value of the key field of a typed topic.
    """

    access: Access
    selection: Selection
    starting: Position
    ending: Position
    start_late_timestamps_at_latest: bool
    min_partitions: int | None
    fail_on_data_loss: bool
    columns: tuple[str, ...] | None
    max_records_per_batch: int
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = MAX_TRIGGER_DELAY_S_DEFAULT
    max_records: int | None = None
    nearest: bool = False
    zone: str = ""
    key: bytes | None = None
    tag: str | None = None
    key_is_text: bool = False
    include_headers: bool = False
    include_tags: bool = False
    include_record_columns: bool = False
    include_tombstones: bool = False
    schema_number: int | None = None

    @property
    def single_topic(self) -> str | None:
        """The topic whose name the options give, if it is one; None for several topics and for a pattern."""
        names: Sequence[str] = ()
        if isinstance(self.selection, Subscribe):
            names = self.selection.topics
        elif isinstance(self.selection, Assign):
            names = tuple(self.selection.partitions)
        return names[0] if len(names) == 1 else None


def parse_options(raw_options: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """Parse the reader's options (names in any case).

    Args:
        streaming: whether the options are those of a stream, which starts at the latest offsets by default and has no
            end.

    Raises:
        OptionError: an option is unknown, missing, contradictory or malformed.
    """
    options = known_only(raw_options, OPTION_NAMES, _FOREIGN, "reading")
    _refuse_other_kind(options, streaming=streaming)
    access = access_of(options)
    max_offsets = count(options, "maxOffsetsPerTrigger", NUMBER_MAX)
    min_offsets = count(options, "minOffsetsPerTrigger", NUMBER_MAX)
    if max_offsets and min_offsets and min_offsets > max_offsets:
        raise OptionError(
            f"option 'minOffsetsPerTrigger' ({min_offsets}) exceeds 'maxOffsetsPerTrigger' ({max_offsets}): no "
            "micro-batch could have that many records; lower the minimum, or raise the maximum."
        )
    return ReadOptions(
        access=access,
        selection=_selection(options),
        starting=_position(options, "starting", Edge.LATEST if streaming else Edge.EARLIEST, one_edge=not streaming),
        ending=_position(options, "ending", Edge.LATEST, one_edge=True),
        start_late_timestamps_at_latest=_late_strategy(options),
        min_partitions=count(options, "minPartitions", MIN_PARTITIONS_MAX),
        fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
        columns=_columns(options),
        max_records_per_batch=count(options, "maxRecordsPerBatch", MAX_RECORDS_PER_BATCH_MAX)
        or MAX_RECORDS_PER_BATCH_DEFAULT,
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_delay_s=duration_s(options, "maxTriggerDelay", MAX_TRIGGER_DELAY_S_DEFAULT),
        max_records=count(options, "maxRecordsPerPartition", NUMBER_MAX),
        nearest=_is_nearest(options),
        zone=options.get("zone", ""),
        key=_key(options),
        tag=_tag(options),
        key_is_text="key" in options,
        include_headers=flag(options, "includeHeaders", default=False),
        include_tags=flag(options, "includeTags", default=False),
        include_record_columns=flag(options, "includeRecordColumns", default=False),
        include_tombstones=flag(options, "includeTombstones", default=False),
        schema_number=count(options, "schemaNumber", SCHEMAS_PER_TOPIC_MAX),
    )


def parse_either(raw_options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch read or a stream; Spark requests the columns before it creates either.

    Raises:
        OptionError: the options are invalid for both. The error is that of a stream if an option is only for streams,
            otherwise that of a batch read.
    """
    names = {name.lower() for name in raw_options}
    streaming = any(name.lower() in names for name in STREAM_ONLY)
    try:
        return parse_options(raw_options, streaming=streaming)
    except OptionError:
        if streaming:
            raise
        try:
            return parse_options(raw_options, streaming=True)
        except OptionError:
            pass
        raise


def _refuse_other_kind(options: Mapping[str, str], *, streaming: bool) -> None:
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if name in options and streaming:
            raise OptionError(
                f"option {name!r} is for batch reads: a stream has no end. To read all current records and stop, "
                "write with .trigger(availableNow=True)."
            )
        if name in options:
            raise OptionError(f"option {name!r} is for streams (spark.readStream): a batch read has no triggers.")


def known_only(
    raw_options: Mapping[str, str], names: Sequence[str], foreign: Mapping[str, str], side: Side
) -> dict[str, str]:
    """Return the options with their canonical spelling.

    Args:
        raw_options: the options from Spark, in any case.
        names: the known options.
        foreign: names of other sources, in lower case, and their equivalents.
        side: reading or writing.

    Raises:
        OptionError: an option is unknown, with a suggestion; or the options are those of a table.
    """
    known = {name.lower(): name for name in names}
    options: dict[str, str] = {}
    if "provider" in raw_options:
        raise OptionError(
            "CREATE TABLE ... USING tidelog is not supported, because Spark does not pass a table's OPTIONS to the "
            "source when it reads the table. Create a view instead: CREATE TEMPORARY VIEW ... USING tidelog OPTIONS "
            "(...)."
        )
    for name, value in raw_options.items():
        lower = name.lower()
        if lower in SECRETS:
            raise OptionError(
                f"option {name!r} would expose a secret in plans and logs: write it to a file, and give its path in "
                f"{SECRETS[lower]!r}."
            )
        if lower not in known:
            meant = foreign.get(lower)
            hint = f" Did you mean {meant!r}?" if meant else hint_of(name, side) or did_you_mean(name, known)
            raise OptionError(f"unknown option {name!r}.{hint} The options are: {', '.join(names)}.")
        options[known[lower]] = value if lower in _VERBATIM else value.strip()
    return options


def _selection(options: Mapping[str, str]) -> Selection:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(chosen) != 1:
        raise OptionError(
            f"exactly one of the options 'subscribe', 'subscribePattern' and 'assign' must be given, got "
            f"{', '.join(map(repr, chosen)) if chosen else 'none'}."
        )
    text = options[chosen[0]]
    if chosen[0] == "subscribe":
        topics = comma_list(text)
        if not topics:
            raise OptionError("option 'subscribe' is empty: give one or more topics, separated by commas.")
        return Subscribe(tuple(dict.fromkeys(topics)))
    if chosen[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"option 'subscribePattern': {text!r} is not a regular expression ({error}).") from error
        return SubscribePattern(text)
    return Assign(_assignment(text))


def _assignment(text: str) -> dict[str, tuple[int, ...]]:
    example = 'JSON such as {"flights":[0,1]}'
    parsed = json_object("assign", text, example)
    assignment: dict[str, tuple[int, ...]] = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, list) or not partitions:
            raise OptionError(f"option 'assign': {topic!r} must have a non-empty list of partitions; give {example}.")
        for partition in partitions:
            if not is_int(partition) or not 0 <= partition <= NUMBER_MAX:
                raise OptionError(
                    f"option 'assign': the partitions of {topic!r} must be integers from 0 to {NUMBER_MAX}, "
                    f"got {partition!r}; give {example}."
                )
        assignment[topic] = tuple(sorted(set(partitions)))
    return assignment


def _position(options: Mapping[str, str], side: str, default: Edge, *, one_edge: bool) -> Position:
    """Parse the start or end position of a read.

    `{side}Timestamp` takes precedence over `{side}OffsetsByTimestamp`, and that over `{side}Offsets`, as in Spark's
    Kafka source.

    Args:
        side: "starting" or "ending".
        default: the position if no option of these is set.
        one_edge: refuse the opposite edge of `default`, which would read nothing.
    """
    by_time, by_times, by_offset = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if by_time in options:
        return AtTimestamp(timestamp_us(by_time, options[by_time]))
    if by_times in options:
        return AtTimestamps(times_per_partition(by_times, options[by_times], '{"flights":{"0":1700000000000}}'))
    if by_offset not in options:
        return default
    return _offsets(by_offset, options[by_offset], default, one_edge=one_edge)


def _offsets(name: str, text: str, default: Edge, *, one_edge: bool) -> Position:
    """Parse `earliest`, `latest` or JSON."""
    lower = text.lower()
    wrong_edge, wrong_offset = (
        (Edge.LATEST, LATEST_OFFSET) if default is Edge.EARLIEST else (Edge.EARLIEST, EARLIEST_OFFSET)
    )
    if lower in {edge.value for edge in Edge}:
        edge = Edge(lower)
        if edge is wrong_edge and one_edge:
            raise OptionError(f"option {name!r} cannot be {lower!r} in a batch read: nothing would be read.")
        return edge
    example = f"{default.value!r} or " + '{"flights":{"0":42}}'
    parsed = numbers_per_partition(name, text, example, lowest=EARLIEST_OFFSET)
    for topic, of in parsed.items():
        if wrong_offset in of.values() and one_edge:
            raise OptionError(
                f"option {name!r}: {wrong_offset} ({wrong_edge.value}) for topic {topic!r} would leave nothing to "
                "read; give another offset."
            )
    return AtOffsets(parsed)


def _is_nearest(options: Mapping[str, str]) -> bool:
    place = options.get("readFrom", "owner").lower()
    if place not in {"owner", "nearest"}:
        raise OptionError(f"option 'readFrom' must be 'owner' or 'nearest', got {place[:60]!r}.")
    if "zone" in options and place == "owner":
        raise OptionError("option 'zone' has no effect without 'readFrom' = 'nearest': set 'readFrom', or omit 'zone'.")
    return place == "nearest"


def _key(options: Mapping[str, str]) -> bytes | None:
    if "key" in options and "keyHex" in options:
        raise OptionError("options 'key' and 'keyHex' are mutually exclusive: give one of them.")
    if "keyHex" in options:
        try:
            key = bytes.fromhex(options["keyHex"])
        except ValueError as error:
            digits = options["keyHex"][:60]
            raise OptionError(
                f"option 'keyHex' must be pairs of hexadecimal digits such as '00ff', got {digits!r}."
            ) from error
        return _bounded("keyHex", key, KEY_BYTES_MAX)
    return _bounded("key", _utf8("key", options["key"]), KEY_BYTES_MAX) if "key" in options else None


def _tag(options: Mapping[str, str]) -> str | None:
    if "tag" in options:
        _bounded("tag", _utf8("tag", options["tag"]), TAG_BYTES_MAX)
    return options.get("tag")


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"option {name!r} must be text that UTF-8 can encode, got {text[:60]!r}.") from error


def _bounded(name: str, value: bytes, most: int) -> bytes:
    if len(value) > most:
        raise OptionError(f"option {name!r} has {len(value)} bytes; at most {most} are supported.")
    return value


def _late_strategy(options: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    strategy = options.get(name, "error").lower()
    if strategy not in {"error", "latest"}:
        raise OptionError(f"option {name!r} must be 'error' or 'latest', got {strategy[:60]!r}.")
    return strategy == "latest"


def _columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    if "columns" not in options:
        return None
    columns = comma_list(options["columns"])
    if not columns or len(set(columns)) != len(columns):
        raise OptionError(
            f"option 'columns' must be one or more different columns, separated by commas, got "
            f"{options['columns'][:60]!r}."
        )
    return columns
