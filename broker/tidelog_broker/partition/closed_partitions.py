"""The stored partitions of this node that are not open: a few numbers for each, and no running tasks.

For a closed partition the journals and the topic's record have the owner of its newest epoch, and whether it may have
data on the disk. That suffices to find its owner, to notice that the owner has failed, and to remove the partition with
its topic. Everything else opens the partition first.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog_broker.core.topics import PartitionKey


class ClosedPartitions:
    """Finds the closed partitions of a node by topic, by the owner of their newest epoch, and by use."""

    def __init__(self) -> None:
        self._by_topic: dict[bytes, dict[int, str]] = {}
        self._by_owner: dict[str, dict[PartitionKey, None]] = {}
        self._count = 0
        self._recently_used: dict[PartitionKey, None] = {}

    def __contains__(self, key: PartitionKey) -> bool:
        return key[1] in self._by_topic.get(key[0], ())

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def __len__(self) -> int:
        return self._count

    def count(self, topic_id: bytes) -> int:
        """Return how many partitions of a topic are closed."""
        return len(self._by_topic.get(topic_id, ()))

    def add(self, key: PartitionKey, owner: str, *, is_used: bool) -> None:
        """Add a partition; `is_used`: it may have data on the disk, or a decision or promise in the journals."""
        self.discard(key)
        self._by_topic.setdefault(key[0], {})[key[1]] = owner
        self._count += 1
        self._by_owner.setdefault(owner, {})[key] = None
        if is_used:
            self._recently_used[key] = None

    def discard(self, key: PartitionKey) -> None:
        """Remove a partition: it is open now, or deleted."""
        owner = self._by_topic.get(key[0], {}).pop(key[1], None)
        if owner is None:
            return
        self._count -= 1
        if not self._by_topic[key[0]]:
            del self._by_topic[key[0]]
        del self._by_owner[owner][key]
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        self._recently_used.pop(key, None)

    def forget_topic(self, topic_id: bytes) -> None:
        """Remove all partitions of a topic."""
        for index in list(self._by_topic.get(topic_id, ())):
            self.discard((topic_id, index))

    def owners(self) -> list[str]:
        """Return the owners of closed partitions, including "" if a partition has no owner."""
        return list(self._by_owner)

    def owned_by(self, node_id: str) -> list[PartitionKey]:
        """Return the closed partitions that a node owns."""
        return list(self._by_owner.get(node_id, ()))

    def is_used(self, key: PartitionKey) -> bool:
        """Return whether a closed partition may have data on the disk, or a decision or promise in the journals."""
        return key in self._recently_used

    def used(self) -> Iterator[PartitionKey]:
        """Yield the used partitions; the caller must stop iterating before the set changes."""
        yield from self._recently_used
