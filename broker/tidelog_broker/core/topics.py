"""The topics of the cluster, as defined by the records of `__meta`.

A topic is a name and a 128-bit id; a topic that is recreated under the same name is another topic. Of the records with
one id the highest revision wins, and a deletion is final. Ids are random, so serials give the order of creation.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.topic_settings import ALTERABLE, TOPIC_SETTINGS, fill_in_defaults

PartitionKey = tuple[bytes, int]
"""Topic id and partition number."""

META_TOPIC_ID: Final = bytes(15) + b"\x01"
OFFSETS_TOPIC_ID: Final = bytes(15) + b"\x02"
META_KEY: Final = (META_TOPIC_ID, 0)
OFFSETS_KEY: Final = (OFFSETS_TOPIC_ID, 0)
DELETING: Final = frozenset({pb.CLEANUP_UNSPECIFIED, pb.DELETE, pb.COMPACT_AND_DELETE})
"""Cleanup policies that apply `retention_ms` and `retention_bytes`."""
DENIED_MAX: Final = 8_192
"""Maximum number of cached ids of nonexistent topics: enough for two requests of maximum size, about 1 MB of memory."""


class Created(NamedTuple):
    """Numbers of existing topics and of their partitions."""

    topics: int
    partitions: int


_NONE_CREATED: Final = Created(0, 0)


class TopicRegistry:
    """Provides the topics by name and by id, up to the applied position of `__meta`."""

    def __init__(self) -> None:
        self._by_id: dict[bytes, pb.TopicRecord] = {}
        self._by_name: dict[str, pb.TopicRecord] = {}
        self._names: list[str] = []
        """The names in `_by_name`, sorted."""
        self.may_lag = False
        """Whether other nodes may know more: in a cluster, records of `__meta` reach the nodes at different times."""
        self.newest_serial = 0
        """Highest serial of any topic, deleted ones included; the next topic gets 1 more."""
        self.changes = 0
        """Number of changes applied."""
        self.partitions = 0
        """Number of partitions of all existing topics."""
        self._by_creator: dict[str, Created] = {}
        self._denied: dict[bytes, None] = {}
        """Ids that no topic has, in the order in which `deny` recorded them."""

    def apply(self, record: pb.TopicRecord) -> bool:
        """Apply a durable record; return whether it changed anything."""
        current = self._by_id.get(record.topic_id)
        if current is not None and (current.deleted or current.revision >= record.revision):
            return False
        if not record.config.cleanup:
            record = _with_defaults(record)
        self._by_id[record.topic_id] = record
        if current is not None:
            self._count(current, -1)
        if not record.deleted:
            self._count(record, 1)
        self.changes += 1
        self.newest_serial = max(self.newest_serial, record.serial)
        if record.deleted:
            named = self._by_name.get(record.name)
            if named is not None and named.topic_id == record.topic_id:
                del self._by_name[record.name]
                del self._names[bisect_left(self._names, record.name)]
        else:
            if record.name not in self._by_name:
                insort(self._names, record.name)
            self._by_name[record.name] = record
        return True

    def _count(self, record: pb.TopicRecord, topics: int) -> None:
        """Add a topic to the counts, or remove it if `topics` is -1."""
        partitions = topics * record.config.partitions
        self.partitions += partitions
        before = self.created_by(record.creator)
        after = Created(before.topics + topics, before.partitions + partitions)
        if after.topics:
            self._by_creator[record.creator] = after
        else:
            self._by_creator.pop(record.creator, None)

    def created_by(self, principal: str) -> Created:
        """Return how many existing topics and partitions a principal has created."""
        return self._by_creator.get(principal, _NONE_CREATED)

    def named(self, name: str) -> pb.TopicRecord:
        """Return the topic called `name`.

        Raises:
            ProtocolError: UNKNOWN_TOPIC.
        """
        record = self._by_name.get(name)
        if record is None:
            raise unknown_topic(name)
        return record

    def with_id(self, topic_id: bytes) -> pb.TopicRecord:
        """Return the topic with this id.

        Raises:
            ProtocolError: UNKNOWN_TOPIC, also if it was deleted; EPOCH_CHANGING if its record may not have arrived yet.
        """
        record = self._by_id.get(topic_id)
        if record is None and self.may_lag and topic_id not in self._denied:
            raise ProtocolError(
                pb.EPOCH_CHANGING, f"this node does not know the topic with id {topic_id.hex()} yet; retry"
            )
        if record is None or record.deleted:
            raise unknown_topic_id(topic_id, "does not exist" if record is None else "was deleted")
        return record

    def may_exist(self, topic_id: bytes, partition: int) -> bool:
        """Return whether an unknown partition may exist: its topic may have been created or extended just now."""
        if not self.may_lag or topic_id in self._denied:
            return False
        record = self._by_id.get(topic_id)
        return record is None or (not record.deleted and partition >= record.config.partitions)

    def deny(self, topic_id: bytes) -> None:
        """Record that no topic has this id; called after this node has applied `__meta` to its end.

        That remains true: an id is random, and known to no client before the topic's record is committed. The ids of
        internal topics are public, so they are never denied.
        """
        if topic_id in self._by_id or topic_id in {META_TOPIC_ID, OFFSETS_TOPIC_ID}:
            return
        self._denied[topic_id] = None
        if len(self._denied) > DENIED_MAX:
            del self._denied[next(iter(self._denied))]

    def config_of(self, topic_id: bytes) -> pb.TopicConfig | None:
        """Return the configuration of a topic; None if it is unknown or deleted."""
        record = self._by_id.get(topic_id)
        return None if record is None or record.deleted else record.config

    def first_epoch(self, topic_id: bytes, partition: int) -> pb.EpochDescriptor | None:
        """Return the descriptor of epoch 0 of a partition; None if the topic's record does not contain it."""
        record = self._by_id.get(topic_id)
        if record is None or partition >= len(record.first_epochs):
            return None
        return record.first_epochs[partition]

    def get(self, topic_id: bytes) -> pb.TopicRecord | None:
        """Return the record with this id, also of a deleted topic; None for an unknown id."""
        return self._by_id.get(topic_id)

    def exists(self, name: str) -> bool:
        """Return whether a topic has this name."""
        return name in self._by_name

    def is_deleted(self, topic_id: bytes) -> bool:
        """Return whether the topic with this id was deleted."""
        record = self._by_id.get(topic_id)
        return record is not None and record.deleted

    def deleted(self) -> list[pb.TopicRecord]:
        """Return the deleted topics."""
        return [record for record in self._by_id.values() if record.deleted]

    def live(self) -> list[pb.TopicRecord]:
        """Return the existing topics, by name."""
        return [self._by_name[name] for name in self._names]

    def live_from(self, name: str) -> Iterator[pb.TopicRecord]:
        """Yield the existing topics by name, from `name` on; the registry must not change during the iteration."""
        for at in range(bisect_left(self._names, name), len(self._names)):
            yield self._by_name[self._names[at]]

    def find(self, name: str) -> pb.TopicRecord | None:
        """Return the topic called `name`; None if it does not exist."""
        return self._by_name.get(name)

    def records(self) -> Iterator[pb.TopicRecord]:
        """Yield all records, deletions included, for a snapshot."""
        yield from self._by_id.values()


def unknown_topic(name: str) -> ProtocolError:
    """Return the error for an unknown topic name."""
    return ProtocolError(
        pb.UNKNOWN_TOPIC, f"topic {name!r} does not exist; create it with: tidelog topic create {name}"
    )


def unknown_topic_id(topic_id: bytes, reason: str = "does not exist") -> ProtocolError:
    """Return the error for a topic id that is unknown, or hidden from the caller."""
    text = (
        f"the topic with id {topic_id.hex()} {reason}; create it again or use another topic, and open a new producer "
        "or consumer"
    )
    return ProtocolError(pb.UNKNOWN_TOPIC, text, topic_id=topic_id)


def complete_config(requested: pb.TopicConfig, *, copies_default: int = 1, copies_max: int = 1) -> pb.TopicConfig:
    """Fill in the unset fields of a new topic's configuration and validate it.

    Args:
        requested: the configuration in the request; unset fields get defaults.
        copies_default: replication factor of a request without one, limited to `copies_max`.
        copies_max: maximum of the replication factor; 1 on a standalone node.

    Raises:
        ProtocolError: INVALID_REQUEST, naming the field and its range.
    """
    config = pb.TopicConfig()
    config.CopyFrom(requested)
    config.replication_factor = config.replication_factor or min(copies_default, copies_max)
    fill_in_defaults(config)
    check_config(config, copies_max=copies_max)
    return config


def _with_defaults(record: pb.TopicRecord) -> pb.TopicRecord:
    """Return a copy of a record that was written before cleanup policies existed, with its unset settings filled in."""
    completed = pb.TopicRecord()
    completed.CopyFrom(record)
    fill_in_defaults(completed.config)
    return completed


def deduplicates(config: pb.TopicConfig) -> bool:
    """Return whether duplicate records are dropped by content."""
    return bool(config.deduplicate_s or config.deduplicate_records)


def check_config(config: pb.TopicConfig, *, copies_max: int = 1) -> None:
    """Refuse an invalid configuration.

    The replication factor may exceed the number of nodes: copies are added as nodes join.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    if copies_max == 1 and (config.replication_factor != 1 or config.ack_quorum > 1):
        raise ProtocolError(
            pb.INVALID_REQUEST,
            "this node is not part of a cluster: replication_factor must be 1 and ack_quorum 0 or 1, got "
            f"replication_factor {config.replication_factor} and ack_quorum {config.ack_quorum}",
        )
    maxima = {"replication_factor": copies_max, "ack_quorum": config.replication_factor}
    for name, setting in TOPIC_SETTINGS.items():
        try:
            setting.check_stored(getattr(config, name), maxima.get(name))
        except ValueError as error:
            raise ProtocolError(pb.INVALID_REQUEST, str(error)) from error
    if deduplicates(config) and config.cleanup != pb.DELETE:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            "a compacted topic cannot drop duplicates: if a key returned to an earlier value, that record would be "
            "dropped; set deduplicate_s and deduplicate_records to 0, or cleanup to delete",
        )


def altered(record: pb.TopicRecord, change: pb.TopicAlter, *, copies_max: int = 1) -> pb.TopicRecord:
    """Return the next revision of a topic with `change` applied; first epochs of new partitions are added later.

    Raises:
        ProtocolError: INVALID_REQUEST for a value out of range or a lower number of partitions.
    """
    result = pb.TopicRecord()
    result.CopyFrom(record)
    if change.HasField("partitions"):
        if change.partitions < record.config.partitions:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"topic {record.name!r} has {record.config.partitions} partitions, which cannot be reduced; got "
                f"{change.partitions}",
            )
        result.config.partitions = change.partitions
    fill_in_defaults(result.config)
    for name in ALTERABLE:
        if name != "partitions" and change.HasField(name):
            setattr(result.config, name, getattr(change, name))
    check_config(result.config, copies_max=copies_max)
    result.revision = record.revision + 1
    return result
