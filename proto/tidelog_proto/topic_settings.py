"""The settings of a topic, in one table.

The broker's checks and defaults, the client, the options of `tidelog topic create|alter`, the HTTP schema and
docs/configuration.md are made from this table. A new setting needs:

1. a field in `TopicConfig` and `TopicAlter` of broker.proto,
2. a row in `TOPIC_SETTINGS`,
3. an attribute of `tidelog.Topic` and of `TopicSettings` in clients/tidelog/model.py, for type checkers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import (
    DEDUPLICATE_RECORDS_MAX,
    DEDUPLICATE_S_MAX,
    DIRTY_PERCENT_DEFAULT,
    FLUSH_INTERVAL_MS_DEFAULT,
    FLUSH_INTERVAL_MS_MAX,
    PARTITIONS_MAX,
    REPLICATION_FACTOR_MAX,
    RETENTION_MS_MAX,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    TOMBSTONE_RETENTION_MS_DEFAULT,
)

Stored = int | bool | str
"""The stored value of a field in `TopicConfig`; for an enum its number."""


DEFAULT_ENGINE: Final = "segment"
FLUSH_ASYNC: Final = "topic.async"
MEMORY_ENGINE: Final = "memory"
"""The engine of topics in memory."""
TYPED: Final = "topic.typed"
"""The feature of topics with schemas. Clients do not set it: it comes with the schema of a new topic."""
MEMORY_ASYNC: Final = "memory-async"
"""The name, in epochs and directories, of the engine of topics with `engine` = memory and `flush` = async."""
SHARED_FILES_ENGINE: Final = "segment-shared"
"""The engine that descriptors of epochs have if the engine is the default and `file_model` is "shared"."""
OTHER_NAME_PATTERN: Final = "[a-z][a-z0-9_.-]{0,63}"
"""Regular expression of a value that is a name, such as that of an engine; at most 64 characters."""
_NAME: Final = re.compile(OTHER_NAME_PATTERN)


class Unit(StrEnum):
    """The unit of an integer setting."""

    MILLISECONDS = "ms"
    SECONDS = "s"
    BYTES = "bytes"
    PERCENT = "%"
    COUNT = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting:
    """A setting of a topic.

    Attributes:
        name: of the protobuf field, the keyword argument, and the member of a JSON object.
        help: one sentence for `--help`, the HTTP schema and docs/configuration.md.
        kind: `int`, `bool`, or `str` for one of `choices`.
        minimum, maximum: the range of an integer, both included. With a minimum of 1 or more, 0 in a stored
            configuration means the default.
        default: the value in a new topic.
        default_text: describes a default that depends on the node.
        choices: the values of a `str`, each with its stored value.
        others: describes further values, which are names and are stored as they are; the node checks them. Empty: only
            `choices` are values.
        unit: of an integer.
        option: the first name of the command-line option where it is not derived from `name`.
        examples: values for the help of the option.
        alterable: whether clients can set and change it.
        feature: the feature that a node needs to apply a value other than the default; empty: every node applies it.
        since: the first release with the setting.
        choice_features: the features that a node needs to apply some choices of a setting that is older than they are,
            by stored value.
    """

    name: str
    help: str
    kind: type[int | bool | str] = int
    minimum: int = 0
    maximum: int = 0
    default: Stored = 0
    default_text: str = ""
    choices: Mapping[str, Stored] = field(default_factory=dict)
    others: str = ""
    unit: Unit = Unit.COUNT
    option: str = ""
    examples: str = ""
    alterable: bool = True
    feature: str = ""
    since: str = "0.1.0"
    choice_features: Mapping[Stored, str] = field(default_factory=dict)

    def encode(self, value: object) -> Stored:
        """Return the value of the `TopicConfig` field for a value of this setting.

        The node checks the maximum, because a node of a later release may accept more.

        Raises:
            ValueError: the value has the wrong type, is below the minimum or not a choice.
        """
        if self.kind is str:
            if isinstance(value, str) and value in self.choices:
                return self.choices[value]
            if isinstance(value, str) and self._is_other(value):
                return value
            raise ValueError(f"{self.name} must be {self._values_text()}, got {value!r}")
        if self.kind is bool:
            if not isinstance(value, bool):
                raise ValueError(f"{self.name} must be True or False, got {value!r}")
            return value
        if not isinstance(value, int) or isinstance(value, bool) or value < self.minimum:
            raise ValueError(f"{self.name} must be an integer of at least {self.minimum}, got {value!r}")
        return value

    def decode(self, stored: Stored) -> Any:
        """Return the value for a stored `TopicConfig` field; the default for a choice of a later release."""
        if self.kind is not str or self._is_other(stored):
            return stored
        names = {number: name for name, number in self.choices.items()}
        return names.get(stored) or names[self.default]

    def check_stored(self, stored: Stored, maximum: int | None = None) -> None:
        """Refuse a stored value that is out of range or not a choice.

        Args:
            maximum: used instead of the maximum in the table.

        Raises:
            ValueError: with the range or the choices.
        """
        if self.kind is str and stored not in self.choices.values() and not self._is_other(stored):
            raise ValueError(f"{self.name} must be {self._values_text()}, got {stored!r}")
        highest = self.maximum if maximum is None else maximum
        if self.kind is int and not self.minimum <= int(stored) <= highest:
            raise ValueError(f"{self.name} must be {self.minimum} to {highest}, got {stored}")

    def _is_other(self, value: Stored) -> bool:
        """Return whether a value may be a name that the choices do not list."""
        return bool(self.others) and isinstance(value, str) and _NAME.fullmatch(value) is not None

    def _values_text(self) -> str:
        choices = ", ".join(map(repr, self.choices))
        return f"one of {choices}, or {self.others}" if self.others else f"one of {choices}"


TOPIC_SETTINGS: Final = {
    setting.name: setting
    for setting in (
        TopicSetting(
            name="partitions",
            help="Number of partitions; it can only be raised.",
            minimum=1,
            maximum=PARTITIONS_MAX,
            default=1,
        ),
        TopicSetting(
            name="replication_factor",
            help="Copies of each partition. If there are fewer nodes, the missing copies are created as nodes join.",
            minimum=1,
            maximum=REPLICATION_FACTOR_MAX,
            default=1,
            default_text="the node's `replication_factor_default`",
        ),
        TopicSetting(
            name="flush",
            help="When a record is on disk: before its acknowledgement, at intervals, or when the system writes it. "
            "`async` writes records of `engine` = memory in the background.",
            kind=str,
            choices={"always": pb.ALWAYS, "interval": pb.INTERVAL, "never": pb.NEVER, "async": pb.ASYNC},
            choice_features={pb.ASYNC: FLUSH_ASYNC},
            default=pb.ALWAYS,
        ),
        TopicSetting(
            name="flush_interval_ms",
            help="Time between two flushes with `flush` = interval.",
            minimum=1,
            maximum=FLUSH_INTERVAL_MS_MAX,
            default=FLUSH_INTERVAL_MS_DEFAULT,
            unit=Unit.MILLISECONDS,
            examples="200ms, 5s",
        ),
        TopicSetting(
            name="retention_ms",
            help="How long records are kept; a segment is deleted when all of its records are older. 0: for ever.",
            maximum=RETENTION_MS_MAX,
            unit=Unit.MILLISECONDS,
            option="--retention-time",
            examples="12h, 7d",
        ),
        TopicSetting(
            name="retention_bytes",
            help="Size that each partition keeps; the oldest segments beyond it are deleted. 0: no limit.",
            maximum=2**63 - 1,
            unit=Unit.BYTES,
            examples="512MiB, 20GB",
        ),
        TopicSetting(
            name="segment_bytes",
            help="Size of a segment file.",
            minimum=SEGMENT_BYTES_MIN,
            maximum=SEGMENT_BYTES_MAX,
            default=SEGMENT_BYTES_DEFAULT,
            unit=Unit.BYTES,
            examples="64MiB",
        ),
        TopicSetting(
            name="cleanup",
            help="Delete old segments by time and size, keep the newest record of each key, or both.",
            kind=str,
            choices={"delete": pb.DELETE, "compact": pb.COMPACT, "compact,delete": pb.COMPACT_AND_DELETE},
            default=pb.DELETE,
        ),
        TopicSetting(
            name="compaction_lag_ms",
            help="Records younger than this are not compacted. 0: records of any age are compacted.",
            maximum=RETENTION_MS_MAX,
            unit=Unit.MILLISECONDS,
            examples="1h",
        ),
        TopicSetting(
            name="tombstone_retention_ms",
            help="How long a tombstone is kept after the first compaction that has read it.",
            minimum=1,
            maximum=RETENTION_MS_MAX,
            default=TOMBSTONE_RETENTION_MS_DEFAULT,
            unit=Unit.MILLISECONDS,
            examples="1d",
        ),
        TopicSetting(
            name="dirty_percent",
            help="Compaction begins when this percentage of the log is not compacted.",
            minimum=1,
            maximum=100,
            default=DIRTY_PERCENT_DEFAULT,
            unit=Unit.PERCENT,
        ),
        TopicSetting(name="index_key", help="Keep an index of keys.", kind=bool, default=False),
        TopicSetting(name="index_tag", help="Keep an index of tags.", kind=bool, default=False),
        TopicSetting(
            name="hold", help="Delete and compact nothing, whatever the other settings are.", kind=bool, default=False
        ),
        TopicSetting(
            name="deduplicate_s",
            help="Drop a record if one of the same content was appended within this time. 0: at any time.",
            maximum=DEDUPLICATE_S_MAX,
            unit=Unit.SECONDS,
            examples="10m, 1h",
            feature="topic.deduplicate",
            since="0.2.0",
        ),
        TopicSetting(
            name="deduplicate_records",
            help="Drop a record if one of this many records before it has the same content. 0: as many as the node "
            "keeps.",
            maximum=DEDUPLICATE_RECORDS_MAX,
            feature="topic.deduplicate",
            since="0.2.0",
        ),
        TopicSetting(
            name="ack_quorum",
            help="Replicas that must store a record before it is acknowledged. 0: a majority.",
            maximum=REPLICATION_FACTOR_MAX,
            alterable=False,
        ),
        TopicSetting(
            name="engine",
            help="Storage of new records: files, memory, a RocksDB database, or another engine.",
            kind=str,
            choices={DEFAULT_ENGINE: DEFAULT_ENGINE, MEMORY_ENGINE: MEMORY_ENGINE, "rocksdb": "rocksdb"},
            others="the name of an installed engine",
            default=DEFAULT_ENGINE,
            default_text="the node's `engine_default`",
            feature="topic.engine",
            since="0.3.0",
        ),
        TopicSetting(
            name="file_model",
            help="Files of new records: each partition has its own, or the newest are in a log that all share.",
            kind=str,
            choices={"per-partition": pb.PER_PARTITION, "shared": pb.SHARED},
            default=pb.PER_PARTITION,
            default_text="the node's `file_model_default`",
            feature="topic.files",
            since="0.3.0",
        ),
    )
}
ALTERABLE: Final = tuple(name for name, setting in TOPIC_SETTINGS.items() if setting.alterable)
DESCRIBED: Final = tuple(name for name in TOPIC_SETTINGS if name != "partitions")
"""Settings that are attributes of a described topic; its attribute `partitions` is the list of partitions."""


def values_of(config: pb.TopicConfig) -> dict[str, Any]:
    """Return the settings in a configuration, `partitions` excluded."""
    return {name: TOPIC_SETTINGS[name].decode(getattr(config, name)) for name in DESCRIBED}


def fill_in_defaults(config: pb.TopicConfig) -> None:
    """Set each field that is 0 or empty to its default: a new topic does not set it, or the topic is older than it."""
    for name, setting in TOPIC_SETTINGS.items():
        if setting.default and not getattr(config, name):
            setattr(config, name, setting.default)


def needed_features(config: pb.TopicConfig) -> set[str]:
    """Return the features that a node needs to apply a configuration."""
    needed: set[str] = {TYPED} if config.typed or config.schema_floor else set()
    for name, setting in TOPIC_SETTINGS.items():
        stored = getattr(config, name)
        if setting.feature and stored not in {setting.default, type(setting.default)()}:
            needed.add(setting.feature)
        if stored in setting.choice_features:
            needed.add(setting.choice_features[stored])
    return needed
