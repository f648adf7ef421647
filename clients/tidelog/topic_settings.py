"""Conversion of topic settings between wire configuration and client values; no I/O.

One table lists all settings, so that creating, altering and describing use the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict

from tidelog.errors import InvalidRequestError
from tidelog.model import Cleanup, Flush
from tidelog_proto import broker_pb2 as pb

_FLUSH: Final[Mapping[str, pb.Flush]] = {"always": pb.ALWAYS, "interval": pb.INTERVAL, "never": pb.NEVER}
_FLUSH_NAME: Final[Mapping[int, Flush]] = {
    pb.FLUSH_UNSPECIFIED: "always",
    pb.ALWAYS: "always",
    pb.INTERVAL: "interval",
    pb.NEVER: "never",
}
_CLEANUP: Final[Mapping[str, pb.Cleanup]] = {
    "delete": pb.DELETE,
    "compact": pb.COMPACT,
    "compact,delete": pb.COMPACT_AND_DELETE,
}
_CLEANUP_NAME: Final[Mapping[int, Cleanup]] = {
    pb.CLEANUP_UNSPECIFIED: "delete",
    pb.DELETE: "delete",
    pb.COMPACT: "compact",
    pb.COMPACT_AND_DELETE: "compact,delete",
}


class TopicSettings(TypedDict, total=False):
    """Settings of a new topic; those that are missing or None get the node's defaults.

    Attributes:
        flush: when acknowledged records are synced to disk: "always" (before the acknowledgement), "interval" or
            "never" (by the operating system).
        flush_interval_ms: for "interval".
        retention_bytes: of one partition; older segments beyond it are deleted. 0 keeps everything.
        segment_bytes: size of one segment file.
        replication_factor: number of replicas.
        retention_ms: a segment is deleted when all its records were appended longer ago. 0 keeps everything.
        cleanup: "delete" by these two, "compact" to the newest record of each key, or "compact,delete".
        compaction_lag_ms: younger records are not compacted.
        tombstone_retention_ms: how long a tombstone is kept after the compaction that first encountered it.
        dirty_percent: compact when this percentage of the log has not been compacted, 1 to 100.
        index_key: keep an index of keys.
        index_tag: keep an index of tags.
        hold: delete and compact nothing, regardless of the other settings.
        deduplicate_s: drop a record whose content equals that of a record appended in the last so many seconds; 0: of
            any age.
        deduplicate_records: drop a record whose content equals that of one of the last so many records; 0: as many as a
            node searches. With both, both must hold; with neither, nothing is dropped.
    """

    flush: Flush | None
    flush_interval_ms: int | None
    retention_bytes: int | None
    segment_bytes: int | None
    replication_factor: int | None
    retention_ms: int | None
    cleanup: Cleanup | None
    compaction_lag_ms: int | None
    tombstone_retention_ms: int | None
    dirty_percent: int | None
    index_key: bool | None
    index_tag: bool | None
    hold: bool | None
    deduplicate_s: int | None
    deduplicate_records: int | None


def topic_create(name: str, settings: Mapping[str, object]) -> pb.TopicCreate:
    """Return the request to create a topic; settings that are None are left to the node.

    Args:
        name: of the topic, already checked.
        settings: by name.

    Raises:
        InvalidRequestError: a setting does not exist, or has an invalid value.
    """
    unknown = [setting for setting in settings if setting not in _ENCODE]
    if unknown:
        raise InvalidRequestError(f"unknown topic setting {unknown[0]!r}; known are: {', '.join(_ENCODE)}")
    config = pb.TopicConfig()
    for setting, value in settings.items():
        if value is not None:
            _put(config, setting, value)
    return pb.TopicCreate(name=name, config=config)


def topic_alter(name: str, changes: Mapping[str, object]) -> pb.TopicAlter:
    """Return the request to change the settings in `changes`.

    Raises:
        InvalidRequestError: a setting is unknown or cannot be changed, or has an invalid value.
    """
    request = pb.TopicAlter(name=name)
    for setting, value in changes.items():
        if setting not in ALTERABLE:
            raise InvalidRequestError(f"topic setting {setting!r} cannot be altered; these can: {', '.join(ALTERABLE)}")
        if value is not None:
            _put(request, setting, value)
    return request


def settings_of(config: pb.TopicConfig) -> dict[str, Any]:
    """Return a topic's settings, by the names of `model.Topic`."""
    return {
        "flush": _FLUSH_NAME.get(config.flush, "always"),
        "flush_interval_ms": config.flush_interval_ms,
        "retention_ms": config.retention_ms,
        "retention_bytes": config.retention_bytes,
        "segment_bytes": config.segment_bytes,
        "replication_factor": config.replication_factor,
        "ack_quorum": config.ack_quorum,
        "engine": config.engine,
        "cleanup": _CLEANUP_NAME.get(config.cleanup, "delete"),
        "compaction_lag_ms": config.compaction_lag_ms,
        "tombstone_retention_ms": config.tombstone_retention_ms,
        "dirty_percent": config.dirty_percent,
        "index_key": config.index_key,
        "index_tag": config.index_tag,
        "hold": config.hold,
        "deduplicate_s": config.deduplicate_s,
        "deduplicate_records": config.deduplicate_records,
    }


def _put(message: pb.TopicConfig | pb.TopicAlter, setting: str, value: object) -> None:
    try:
        setattr(message, setting, _ENCODE[setting](setting, value))
    except ValueError as error:
        raise InvalidRequestError(f"{setting} is too large: {value}") from error


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequestError(f"{name} must be an integer >= 0, got {value!r}")
    return value


def _at_least_one(name: str, value: object) -> int:
    if _count(name, value) == 0:  # in the protocol 0 means unset
        raise InvalidRequestError(f"{name} must be >= 1, got 0")
    return _count(name, value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be True or False, got {value!r}")
    return value


def _flush(name: str, value: object) -> pb.Flush:
    if not isinstance(value, str) or value not in _FLUSH:
        raise InvalidRequestError(f"{name} must be one of {', '.join(_FLUSH)}, got {value!r}")
    return _FLUSH[value]


def _cleanup(name: str, value: object) -> pb.Cleanup:
    if not isinstance(value, str) or value not in _CLEANUP:
        raise InvalidRequestError(f"{name} must be one of {'; '.join(_CLEANUP)}, got {value!r}")
    return _CLEANUP[value]


_ENCODE: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "partitions": _count,
    "flush": _flush,
    "flush_interval_ms": _count,
    "retention_ms": _count,
    "retention_bytes": _count,
    "segment_bytes": _count,
    "replication_factor": _count,
    "cleanup": _cleanup,
    "compaction_lag_ms": _count,
    "tombstone_retention_ms": _at_least_one,
    "dirty_percent": _at_least_one,
    "index_key": _flag,
    "index_tag": _flag,
    "hold": _flag,
    "deduplicate_s": _count,
    "deduplicate_records": _count,
}
ALTERABLE: Final = tuple(_ENCODE)
"""The topic settings that can be changed."""
