"""Commits as the handler of COMMIT prepares them."""

from __future__ import annotations

from typing import Any

from tidelog_broker.core.groups.positions import GroupOffsets, OffsetKey
from tidelog_proto import broker_pb2 as pb


def prepared(offsets: GroupOffsets, key: OffsetKey, *, reset: bool = False, **fields: Any) -> pb.OffsetRecord | None:
    """Return the prepared record of a commit; None if an equal or newer position is durable."""
    record = pb.OffsetRecord(group=key.group, topic_id=key.topic_id, partition=key.partition, **fields)
    return record if offsets.prepare(key, record, reset=reset) else None
