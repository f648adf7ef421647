"""Internal topics: the configuration of `__meta` and `__offsets` before any record of `__meta` describes them."""

from __future__ import annotations

from typing import Final

from tidelog_broker.core.topics import META_TOPIC_ID, complete_config
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB, REPLICATION_FACTOR_MAX
from tidelog_proto.names import META_TOPIC

INTERNAL_SEGMENT_BYTES: Final = 4 * MIB

META_COPIES: Final = 5
"""Copies of `__meta`: five tolerate two failures; more would slow down every change."""


def internal_config(copies: int = 1) -> pb.TopicConfig:
    """Return the configuration of an internal topic."""
    config = pb.TopicConfig(segment_bytes=INTERNAL_SEGMENT_BYTES, replication_factor=copies)
    return complete_config(config, copies_max=1 if copies == 1 else REPLICATION_FACTOR_MAX)


def meta_record(genesis: pb.EpochDescriptor) -> pb.TopicRecord:
    """Return the record of `__meta`, equal on every node of a cluster and not part of any log."""
    return pb.TopicRecord(
        name=META_TOPIC,
        topic_id=META_TOPIC_ID,
        config=internal_config(META_COPIES),
        first_epoch=genesis,
        first_epochs=[genesis],
    )
