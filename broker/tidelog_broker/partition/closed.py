"""The partitions that are stored here and are not open: a few numbers for each, and nothing that runs.

What is known of one without opening it is what the journals and its topic's record say: the owner of its newest epoch,
and whether anything of it may be on the disk. That is enough to find its owner, to notice that this one is gone, and to
remove it with its topic. Nothing else is ever answered for one: who must know more has it opened first.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog_broker.core.topics import PartitionKey


class ClosedPartitions:
    """topic id -> number -> owner of the newest epoch."""

    def __init__(self) -> None:
        self._by_topic: dict[bytes, dict[int, str]] = {}
        self._by_owner: dict[str, dict[PartitionKey, None]] = {}
        self._used: dict[PartitionKey, None] = {}

    def __contains__(self, key: PartitionKey) -> bool:
        return key[1] in self._by_topic.get(key[0], ())

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))

    def count(self, topic_id: bytes) -> int:
        """Return how many of a topic there are."""
        return len(self._by_topic.get(topic_id, ()))

    def topics(self) -> list[bytes]:
        """Return the ids of their topics."""
        return list(self._by_topic)

    def add(self, key: PartitionKey, owner: str, *, is_used: bool) -> None:
        """Note a partition; `is_used`: something of it may be on the disk, or was decided about it."""
        self.discard(key)
        self._by_topic.setdefault(key[0], {})[key[1]] = owner
        self._by_owner.setdefault(owner, {})[key] = None
        if is_used:
            self._used[key] = None

    def discard(self, key: PartitionKey) -> None:
        """Forget a partition: it is open now, or gone."""
        owner = self._by_topic.get(key[0], {}).pop(key[1], None)
        if owner is None:
            return
        if not self._by_topic[key[0]]:
            del self._by_topic[key[0]]
        del self._by_owner[owner][key]
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        self._used.pop(key, None)

    def forget_topic(self, topic_id: bytes) -> None:
        """Forget all partitions of a topic."""
        for index in list(self._by_topic.get(topic_id, ())):
            self.discard((topic_id, index))

    def owners(self) -> list[str]:
        """Return who owns any of them."""
        return list(self._by_owner)

    def owned_by(self, node_id: str) -> list[PartitionKey]:
        """Return those that a node owns."""
        return list(self._by_owner.get(node_id, ()))

    def is_used(self, key: PartitionKey) -> bool:
        """Whether something of a closed partition may be on the disk, or was decided about it."""
        return key in self._used

    def used(self) -> Iterator[PartitionKey]:
        """Yield those that were used; to be left before anything changes."""
        yield from self._used
