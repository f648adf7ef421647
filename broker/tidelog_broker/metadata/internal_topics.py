"""The broker's own topics: what `__meta` and `__offsets` are before any record of `__meta` says so."""

from __future__ import annotations

from typing import Final

from tidelog_broker.base.config import REPLICATION_FACTOR_MAX
from tidelog_broker.core.topics import META_TOPIC_ID, complete_config
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB
from tidelog_proto.names import META_TOPIC

INTERNAL_SEGMENT_BYTES: Final = 4 * MIB

META_COPIES: Final = 5
"""Copies of `__meta`: with five, two may fail; more would only make every change of a topic slower."""


def internal_config(copies: int = 1) -> pb.TopicConfig:
    """Return the configuration of the broker's own topics."""
    asked = pb.TopicConfig(segment_bytes=INTERNAL_SEGMENT_BYTES, replication_factor=copies)
    return complete_config(asked, copies_max=1 if copies == 1 else REPLICATION_FACTOR_MAX)


def meta_record(genesis: pb.EpochDescriptor) -> pb.TopicRecord:
    """Return what `__meta` is on every node of a cluster; it stands in no log."""
    return pb.TopicRecord(
        name=META_TOPIC,
        topic_id=META_TOPIC_ID,
        config=internal_config(META_COPIES),
        first_epoch=genesis,
        first_epochs=[genesis],
    )
