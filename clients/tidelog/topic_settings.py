"""What a topic is set to, between the wire's configuration and the client's values; no I/O.

One table says which settings there are, so that creating, altering and describing cannot come to differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

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


def topic_create(name: str, settings: Mapping[str, object]) -> pb.TopicCreate:
    """Return the request to make a topic; what is None is left to the node.

    Args:
        name: of the topic, checked before.
        settings: what it is to be set to.

    Raises:
        InvalidRequestError: a setting has no such value.
    """
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
}
ALTERABLE: Final = tuple(_ENCODE)
"""The settings of a topic that can change."""
