"""The newest entries of a topic, each encoded once, and the subscriptions that follow them.

An *entry* is the content of one message: records of one partition as JSON, from one position to the next. A *follower*
is in one of three states:

- **In step**: it has received every entry, so its positions and its resume token are those of the ring. A new entry is
  pushed to it at once, with the same bytes as to all other followers of its `FanOut`.
- **Behind**: it has positions of its own and takes entries one by one as its credit and its connection allow. After the
  last entry it is in step again if its positions are equal to those of the ring.
- **Lost**: the ring has evicted an entry that the follower needs, because the ring is bounded in bytes. The
  subscription reads from the log by itself.

A follower that cannot take an entry falls behind. Each entry is checked against the follower's position, so no record
is skipped or sent twice.

One call pushes an entry to at most `PUSHES_MAX` followers. `push_pending` pushes it to the others, which have the
positions before the entry until then.

A follower may be ahead of the ring in some partitions, because its subscription has read by itself before. It skips the
entries before its position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from tidelog_gateway.budget.connection_output import ConnectionOutput

AHEAD_RECORDS_MAX: Final = 1_000
"""Maximum number of offsets by which a new follower may be ahead of the ring in a partition; it receives nothing until
the ring catches up."""


PUSHES_MAX: Final = 1_000
"""Maximum number of followers to which one call pushes an entry; a write takes about 6 us."""

ENTRY_BYTES: Final = 256
"""Approximate memory of an entry besides its records."""


class RingEntry(NamedTuple):
    """Encoded records of one partition.

    Attributes:
        first_offset: position of a reader before the entry.
        next_offset: position of a reader after the entry.
        data: the records as a JSON array.
    """

    partition: int
    first_offset: int
    next_offset: int
    records: int
    payload_bytes: int
    data: bytes

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the entry."""
        return len(self.data) + ENTRY_BYTES


class Credit(Protocol):
    """The credit of a subscription, as `Ring` uses it.

    Attributes:
        credit_records: records that may still be sent.
        credit_bytes: bytes of payload that may still be sent; None: no limit.
        message_bytes_max: length of the longest message that the client accepts; None: no limit.
    """

    credit_records: int
    credit_bytes: int | None
    message_bytes_max: int | None


class Watch(Protocol):
    """Observes the pushes to a follower (`Follower.watch`), and may prevent them."""

    def may_push(self) -> bool:
        """Return whether an entry may be pushed; if not, the follower falls behind."""
        ...

    def pushed(self) -> None:
        """Called after an entry was pushed and its credit was spent."""
        ...


class EntryEncoder(Protocol):
    """Encodes entries for a connection, called by `FanOut`. Equal encoders produce equal bytes.

    Attributes:
        surface: label of the sent records in metrics.
        always_token: whether each entry has a resume token, regardless of its length.
    """

    @property
    def surface(self) -> str: ...  # noqa: D102 - see the class

    @property
    def always_token(self) -> bool: ...  # noqa: D102 - see the class

    def encode(self, entry: RingEntry, token: str | None) -> bytes:
        """Return the bytes to write to the transport, with the token that resumes after the entry."""
        ...


class Pusher(Protocol):
    """Pushes entries to followers in step that receive the same bytes, and spends their credit.

    Attributes:
        sent_records: records of all entries so far.
        credit_end: lower bound of the `sent_records` after which a follower in step has no credit.
    """

    @property
    def sent_records(self) -> int: ...  # noqa: D102 - see the class

    @property
    def credit_end(self) -> int: ...  # noqa: D102 - see the class

    def joined(self, follower: Follower) -> None:
        """Begin to charge a follower, which is in step."""
        ...

    def left(self, follower: Follower) -> None:
        """Settle with a follower, which is no longer in step."""
        ...

    def not_sent(self, follower: Follower) -> None:
        """Exclude the newest entry from a follower's charge, because the follower leaves before it."""
        ...

    def wants(self, follower: Follower) -> bool:
        """Return whether a follower in step has credit."""
        ...

    def begin(self, entry: RingEntry) -> None:
        """Begin an entry that several calls of `push` send; followers that join later are not charged for it."""
        ...

    def push(self, entry: RingEntry, followers: Sequence[Follower], *, has_begun: bool = False) -> list[Follower]:
        """Send the newest entry and spend the followers' credit; return the followers to which it could not be sent."""
        ...


class Follower:
    """One subscription that receives the entries of a ring.

    Args:
        positions: partition -> next offset; owned by the follower while it is behind.
        credit: the subscription's credit. While the follower is in step, only its pusher spends it, perhaps later than
            it sends; others may add to it.
        outlet: output of the subscription's connection.
        encoder: encoder of entries for the connection.
        wake: called when an entry can be taken, and when the follower is lost.
        watch: observes each push; None: no observer.

    Attributes:
        pusher: pushes to the follower; set by the feed before `Ring.attach`.
        in_step: whether `positions` are those of the ring.
        lost: whether the ring can no longer serve the follower.
        at: number of the next entry to examine, while the follower is behind.
        records_at, bytes_at: counts of the pusher up to which it has charged the follower, while it is in step.
    """

    __slots__ = (
        *("at", "bytes_at", "credit", "encoder", "in_step", "lost", "outlet", "positions", "pusher", "records_at"),
        *("wake", "watch"),
    )

    pusher: Pusher

    def __init__(
        self,
        positions: dict[int, int],
        credit: Credit,
        outlet: ConnectionOutput,
        encoder: EntryEncoder,
        wake: Callable[[], None],
        *,
        watch: Watch | None = None,
    ) -> None:
        self.positions = positions
        self.credit = credit
        self.outlet = outlet
        self.encoder = encoder
        self.wake = wake
        self.watch = watch
        self.in_step = False
        self.lost = False
        self.at = self.records_at = self.bytes_at = 0

    def wants(self) -> bool:
        """Whether the subscription has credit; for a follower in step, ask `Pusher.wants`."""
        credit_bytes = self.credit.credit_bytes
        return self.credit.credit_records > 0 and (credit_bytes is None or credit_bytes > 0)


class Ring:
    """The newest entries of a topic and their followers.

    Args:
        positions: partition -> next offset to read; updated by the ring.
        bytes_max: memory of the kept entries; the newest entry is always kept.

    Attributes:
        held_bytes: memory of the kept entries.
        follower_count: number of followers, in step or behind.
        closed: whether the feed has stopped reading.
    """

    def __init__(self, positions: dict[int, int], *, bytes_max: int) -> None:
        self.positions = positions
        self.follower_count = 0
        self.closed = False
        self.held_bytes = 0
        self._bytes_max = bytes_max
        self._begins: dict[int, int] = {}
        """First offsets of the partitions that were added to the topic after the ring was made."""
        self._entries: deque[RingEntry] = deque()
        self._first = 0
        """Number of the oldest kept entry."""
        self._in_step: dict[Pusher, dict[Follower, None]] = {}
        self._pending: deque[tuple[Pusher, list[Follower]]] = deque()
        """Followers in step to which the newest entry was not pushed yet."""
        self._before: int | None = None
        """Position of the newest entry's partition before that entry; None if the partition had no position."""
        self._newest: RingEntry
        self._behind: dict[Follower, None] = {}

    @property
    def end(self) -> int:
        """Number of the next entry."""
        return self._first + len(self._entries)

    @property
    def is_wanted(self) -> bool:
        """Return whether a follower has taken all entries and has credit for more."""
        for pusher, followers in self._in_step.items():
            if pusher.sent_records < pusher.credit_end:
                return True
            for follower in followers:
                if pusher.wants(follower):
                    return True
        if not self._behind:
            return False
        end = self.end
        return any(follower.at >= end and follower.wants() for follower in self._behind)

    def append(self, entry: RingEntry) -> bool:
        """Add an entry and push it to the followers in step; True if `push_pending` has to push to some of them.

        Args:
            entry: begins at the ring's position in its partition.
        """
        assert not self._pending, "the previous entry was pushed to all followers"
        before = self._before = self.positions.get(entry.partition)
        assert before is None or before == entry.first_offset, "entries are contiguous"
        assert entry.next_offset > entry.first_offset, "positions only move forward"
        if before is None:
            self._begins[entry.partition] = entry.first_offset
        self._entries.append(entry)
        self.held_bytes += len(entry.data) + ENTRY_BYTES
        self.positions[entry.partition] = entry.next_offset
        if self.held_bytes > self._bytes_max:
            self._evict()
        self._newest = entry
        waiting = [follower for follower in self._behind if follower.at == self.end - 1] if self._behind else ()
        if self.follower_count <= PUSHES_MAX:
            for pusher, followers in list(self._in_step.items()):
                for refused in pusher.push(entry, list(followers)):
                    self._falls_behind(refused)
                    refused.wake()
            is_more = False
        else:
            for pusher, followers in self._in_step.items():
                pusher.begin(entry)
                self._pending.append((pusher, list(followers)))
            is_more = self.push_pending()
        for follower in waiting:
            follower.wake()
        return is_more

    def push_pending(self) -> bool:
        """Push the newest entry to up to `PUSHES_MAX` more followers; True while others remain."""
        left, pending = PUSHES_MAX, self._pending
        while pending and left > 0:
            pusher, followers = pending.popleft()
            if len(followers) > left:
                pending.appendleft((pusher, followers[left:]))
                followers = followers[:left]
            left -= len(followers)
            for refused in pusher.push(self._newest, followers, has_begun=True):
                self._falls_behind(refused)
                refused.wake()
        return bool(pending)

    def attach(self, follower: Follower) -> bool:
        """Add a follower if the ring can serve it, and return whether it can.

        The ring must have all entries after the follower's positions, which may be ahead of the ring by at most
        `AHEAD_RECORDS_MAX`. The follower is behind at first, unless the ring has no entries and equal positions.
        """
        if self.closed or not self._reaches(follower.positions):
            return False
        follower.at = self._first
        self._behind[follower] = None
        self.follower_count += 1
        self._settle(follower)
        return True

    def next_for(self, follower: Follower) -> RingEntry | None:
        """Return the next entry to send to a follower.

        None if the follower is in step or lost, or waits for the ring to reach its position.
        """
        while not follower.in_step and not follower.lost:
            follower.at = max(follower.at, self._first)
            if follower.at >= self.end:
                self._settle(follower)
                return None
            entry = self._entries[follower.at - self._first]
            if not self._fits(follower.positions, entry):
                self._lose(follower)
                return None
            if entry.next_offset > self._expected(follower.positions, entry.partition, entry.next_offset):
                return entry
            follower.at += 1
        return None

    def taken(self, follower: Follower, entry: RingEntry) -> None:
        """Record that the entry of `next_for` was sent to a follower, whose position has advanced."""
        assert follower.positions.get(entry.partition) == entry.next_offset
        follower.at += 1

    def leave(self, follower: Follower) -> None:
        """Remove a follower. A follower in step keeps a copy of its current positions."""
        if follower.in_step:
            is_pending = False
            for _, followers in self._pending:
                if follower in followers:
                    followers.remove(follower)
                    follower.pusher.not_sent(follower)
                    is_pending = True
            follower.positions = self._positions_before() if is_pending else dict(self.positions)
            self._out_of_step(follower)
        elif follower in self._behind:
            del self._behind[follower]
        else:
            return
        self.follower_count -= 1

    def drop_entries(self) -> int:
        """Drop all entries and return the freed bytes."""
        freed_bytes, self.held_bytes = self.held_bytes, 0
        self._first = self.end
        self._entries.clear()
        return freed_bytes

    def close(self) -> None:
        """Mark all followers as lost, because the feed has stopped reading."""
        self.closed = True
        for follower in [*(each for followers in self._in_step.values() for each in followers), *self._behind]:
            self._lose(follower)

    def reaches(self, positions: Mapping[int, int]) -> bool:
        """Return whether a follower with these positions could attach."""
        return not self.closed and self._reaches(positions)

    def _reaches(self, positions: Mapping[int, int]) -> bool:
        reached = dict(positions)
        for entry in self._entries:
            if not self._fits(reached, entry):
                return False
            reached[entry.partition] = max(reached.get(entry.partition, 0), entry.next_offset)
        return all(own <= reached.get(number, -1) <= own + AHEAD_RECORDS_MAX for number, own in self.positions.items())

    def _fits(self, positions: Mapping[int, int], entry: RingEntry) -> bool:
        """Return whether an entry ends at or before the position in its partition, or begins at it."""
        expected = self._expected(positions, entry.partition, -1)
        return entry.next_offset <= expected or entry.first_offset == expected

    def _expected(self, positions: Mapping[int, int], partition: int, default: int) -> int:
        return positions.get(partition, self._begins.get(partition, default))

    def _settle(self, follower: Follower) -> None:
        """Put a follower that has taken all entries in step; mark it as lost if its positions are before the ring's."""
        if follower.at < self.end:
            return
        if follower.positions == self.positions:
            self._behind.pop(follower, None)
            self._in_step.setdefault(follower.pusher, {})[follower] = None
            follower.in_step = True
            follower.positions = self.positions
            follower.pusher.joined(follower)
        elif any(own > follower.positions.get(number, -1) for number, own in self.positions.items()):
            self._lose(follower)

    def _falls_behind(self, follower: Follower) -> None:
        """Move a follower from in step to behind; the newest entry is the next one that it takes."""
        self._out_of_step(follower)
        self._behind[follower] = None
        follower.positions = self._positions_before()
        follower.at = self.end - 1

    def _out_of_step(self, follower: Follower) -> None:
        follower.in_step = False
        followers = self._in_step[follower.pusher]
        del followers[follower]
        if not followers:
            del self._in_step[follower.pusher]
        follower.pusher.left(follower)

    def _positions_before(self) -> dict[int, int]:
        """Return the positions before the newest entry."""
        positions = dict(self.positions)
        if self._before is None:
            del positions[self._newest.partition]
        else:
            positions[self._newest.partition] = self._before
        return positions

    def _lose(self, follower: Follower) -> None:
        self.leave(follower)
        follower.lost = True
        follower.wake()

    def _evict(self) -> None:
        while self.held_bytes > self._bytes_max and len(self._entries) > 1:
            self.held_bytes -= self._entries.popleft().size_bytes
            self._first += 1
