"""What a topic is set to, between the wire's configuration and the client's values; no I/O.

One table says which settings there are, so that creating, altering and describing cannot come to differ.
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
    """What a topic may be set to when it is made; what is not given, or None, is the node's default.

    Attributes:
        flush: when an acknowledged record is on disk: "always", "interval" or "never" by the node's doing.
        flush_interval_ms: for "interval".
        retention_bytes: of one partition; old segments past it go. 0 keeps everything.
        segment_bytes: size of one segment file.
        replication_factor: copies.
        retention_ms: segments go when all of their records were appended longer ago. 0 keeps everything.
        cleanup: "delete" by these two, "compact" to the newest record of each key, or "compact,delete".
        compaction_lag_ms: younger records are not compacted.
        tombstone_retention_ms: how long a tombstone stays after the compaction that has first seen it.
        dirty_percent: compact when so much of the log has not been compacted, 1 to 100.
        index_key: keep an index of keys.
        index_tag: keep an index of tags.
        hold: delete and compact nothing, whatever the rest says.
        deduplicate_s: drop a record whose content one that was appended in so many seconds before has; 0: of any age.
        deduplicate_records: drop one whose content one of so many before it has; 0: as many as a node looks through.
            With both, one for which both hold. With neither nothing is dropped.
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
    """Return the request to make a topic; what is None is left to the node.

    Args:
        name: of the topic, checked before.
        settings: what it is to be set to.

    Raises:
        InvalidRequestError: there is no such setting, or it has no such value.
    """
    unknown = [setting for setting in settings if setting not in _ENCODE]
    if unknown:
        raise InvalidRequestError(f"a topic has no setting {unknown[0]!r}; it has: {', '.join(_ENCODE)}")
    config = pb.TopicConfig()
    for setting, value in settings.items():
        if value is not None:
            _put(config, setting, value)
    return pb.TopicCreate(name=name, config=config)


def topic_alter(name: str, changes: Mapping[str, object]) -> pb.TopicAlter:
    """Return the request for the settings in `changes` (those of `create_topic` that can change).

    Raises:
        InvalidRequestError: a setting is unknown, cannot change, or has no such value.
    """
    request = pb.TopicAlter(name=name)
    for setting, value in changes.items():
        if setting not in ALTERABLE:
            raise InvalidRequestError(f"{setting!r} cannot be altered; these can: {', '.join(ALTERABLE)}")
        if value is not None:
            _put(request, setting, value)
    return request


def settings_of(config: pb.TopicConfig) -> dict[str, Any]:
    """Return what a topic is set to, by the names of `model.Topic`."""
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
        raise InvalidRequestError(f"{setting} cannot be as large as {value}") from error


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequestError(f"{name} is a whole number and not negative, not {value!r}")
    return value


def _at_least_one(name: str, value: object) -> int:
    if _count(name, value) == 0:  # in the protocol it means that nothing was said
        raise InvalidRequestError(f"{name} is at least 1")
    return _count(name, value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} is True or False, not {value!r}")
    return value


def _flush(name: str, value: object) -> pb.Flush:
    if not isinstance(value, str) or value not in _FLUSH:
        raise InvalidRequestError(f"{name} is one of {', '.join(_FLUSH)}, not {value!r}")
    return _FLUSH[value]


def _cleanup(name: str, value: object) -> pb.Cleanup:
    if not isinstance(value, str) or value not in _CLEANUP:
        raise InvalidRequestError(f"{name} is one of {'; '.join(_CLEANUP)}, not {value!r}")
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
"""The settings of a topic that can change."""
