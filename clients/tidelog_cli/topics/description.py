"""A topic's settings and partitions as text and as JSON."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Final

from tidelog import NextDeletion, Partition, Topic
from tidelog_cli.base.output import ABSENT, bytes_text, time_text
from tidelog_proto.limits import MIB
from tidelog_proto.topic_settings import DEFAULT_ENGINE, DESCRIBED, MEMORY_ASYNC, SHARED_FILES_ENGINE

UNINDEXED_BYTES_SHOWN: Final = 4 * MIB
"""Fewer unindexed bytes than these are not reported: an index usually lacks the newest records."""
_MEMBERS: Final = (
    *("partition", "owner", "epoch", "placement", "log_start_offset", "high_watermark", "size_bytes", "state"),
)
"""The fields of a partition that its JSON object always has."""
_UNITS_S: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def topic_document(topic: Topic, *, copies: bool = False) -> dict[str, Any]:
    """Return a topic as the JSON object that every command prints, optionally with the copies of each partition."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "schema_number": topic.schema_number or None,
        **{name: getattr(topic, name) for name in DESCRIBED},
        "partitions": [
            {name: getattr(partition, name) for name in _MEMBERS}
            | {"placement": list(partition.placement)}
            | (_details(partition) if copies else {})
            for partition in topic.partitions
        ],
    }


def _details(partition: Partition) -> dict[str, Any]:
    following = partition.next_deletion
    return {
        "oldest_append_ms": partition.oldest_append_us // 1000 or None,
        "newest_append_ms": partition.newest_append_us // 1000 or None,
        "next_deletion": following
        and {
            "below": following.below,
            "size_bytes": following.size_bytes,
            "at_ms": following.at_us and following.at_us // 1000,
            "bytes_more": following.bytes_more,
        },
        "unindexed_bytes": partition.unindexed_bytes,
        "stored": [asdict(one) for one in partition.stored],
        "unapplied": partition.unapplied or None,
        "replicas": [asdict(replica) for replica in partition.replicas],
    }


def settings_text(topic: Topic) -> str:
    """Return a topic's retention in one line; also its cleanup, indexes, deduplication, storage and hold, if set."""
    indexes = [name for name, has in (("key", topic.index_key), ("tag", topic.index_tag)) if has]
    parts = [
        f"retention {retention_text(topic)}",
        *([f"cleanup {topic.cleanup}"] if topic.cleanup != "delete" else []),
        *([f"index {','.join(indexes)}"] if indexes else []),
        *([f"deduplicate {deduplicate_text(topic)}"] if topic.deduplicate_s or topic.deduplicate_records else []),
        *([f"engine {topic.engine}"] if topic.engine != "segment" else []),
        *([f"files {topic.file_model}"] if topic.file_model != "per-partition" else []),
        *([f"schema {topic.schema_number}"] if topic.schema_number else []),
        *(["on hold"] if topic.hold else []),
    ]
    return "  ".join(parts)


def retention_text(topic: Topic) -> str:
    """Return a topic's retention by time and size; "everything" if neither is limited."""
    bounds = [duration_text(topic.retention_ms / 1000)] if topic.retention_ms else []
    bounds += [bytes_text(topic.retention_bytes)] if topic.retention_bytes else []
    return ", ".join(bounds) or "everything"


def deduplicate_text(topic: Topic) -> str:
    """Return the range of records that a topic searches for duplicates."""
    bounds = [duration_text(topic.deduplicate_s)] if topic.deduplicate_s else []
    bounds += [f"{topic.deduplicate_records:,} records"] if topic.deduplicate_records else []
    return ", ".join(bounds)


def append_text(timestamp_us: int) -> str:
    """Return the time of an append in UTC; a dash for 0, which means that the time is unknown."""
    return time_text(timestamp_us) if timestamp_us else ABSENT


def plan_text(topic: Topic, partition: Partition, now_s: float | None = None) -> str:
    """Return what retention will delete next in a partition, or that the topic is on hold; empty if nothing is planned.

    Args:
        now_s: seconds since 1970; None for the current time.
    """
    following = partition.next_deletion
    if topic.hold:
        return "deletes nothing: the topic is on hold"
    if following is None:
        return ""
    whens = list(_whens(following, time.time() if now_s is None else now_s))
    size = bytes_text(following.size_bytes)
    return f"deletes the oldest segment ({size}, offsets below {following.below:,}) {' or '.join(whens)}"


def index_text(topic: Topic, partition: Partition) -> str:
    """Return how much of a partition is not indexed; empty without indexes, or if they lack only the newest records."""
    missing_bytes = partition.unindexed_bytes
    if not (topic.index_key or topic.index_tag) or missing_bytes < UNINDEXED_BYTES_SHOWN:
        return ""
    return f"has {bytes_text(missing_bytes)} of records that are not indexed yet, so lookups scan them"


def stored_text(partition: Partition) -> str:
    """Return how the epochs of a partition are stored; empty if each of them has files of its own."""
    if all(one.engine == DEFAULT_ENGINE for one in partition.stored):
        return ""
    runs = [
        f"epoch {one.first} in {_storage_text(one.engine)}"
        if one.first == one.last
        else f"epochs {one.first} to {one.last} in {_storage_text(one.engine)}"
        for one in partition.stored
    ]
    return f"has {', '.join(runs)}"


def unapplied_text(partition: Partition) -> str:
    """Return which settings of before a change a partition still has, and why; empty if it has those of the topic."""
    return f"still has {partition.unapplied}" if partition.unapplied else ""


def _storage_text(engine: str) -> str:
    if engine == SHARED_FILES_ENGINE:
        return "shared files"
    if engine == MEMORY_ASYNC:
        return "memory, written later"
    return "files of its own" if engine == DEFAULT_ENGINE else engine


def _whens(following: NextDeletion, now_s: float) -> list[str]:
    whens: list[str] = []
    if following.at_us is not None:
        left_s = following.at_us / 1_000_000 - now_s
        whens.append(f"in {duration_text(left_s)}" if left_s >= 1 else "now")
    if following.bytes_more is not None:
        more = following.bytes_more
        whens.append(f"once {bytes_text(more)} more are stored" if more else "with the next segment")
    return whens


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units: `6 d 23 h`."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    left, parts = int(seconds), list[str]()
    for unit, unit_s in _UNITS_S:
        count, left = divmod(left, unit_s)
        if count:
            parts.append(f"{count} {unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts)
