"""An epoch at its owner, without I/O: assignment of offsets, the high watermark, and what is sent to the followers.

Batches wait in the pipeline until the owner assigns offsets to a group. Each batch is checked against the producer
table and gets the next offsets and the owner's header fields. The group is then appended locally and sent to the
replicas. Every replica, including the owner, reports the contiguous end of its written records, which are durable as
far as the epoch's flush mode requires (see `replica_state`). The high watermark is the highest offset that an ack
quorum of replicas has reached; a publish that ends at or below it is complete. The interface of `OffsetAssigner`:

    assign(batches) -> Group       offsets assigned, headers stamped
    acknowledge(node, end)         a replica holds everything below `end`
    high_watermark                 end of the committed records

Assigned offsets are never returned: the caller reserves disk space before, and a write that fails afterwards
permanently ends the epoch on this node.

Every group is sent to all followers immediately (`PushWindow`); the fastest quorum commits it. Groups that a follower
has not acknowledged stay in memory, up to a limit for the whole partition. The owner stops pushing to a follower that
lacks records before this window: the follower learns from the next heartbeat that it lacks records, and catches up from
the log in large ranges until it has reached the window. So a slow follower costs the owner bounded memory, and does not
delay the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog_broker.core.replication.effects import Send
from tidelog_broker.core.replication.ports import Batch, Position, Timing
from tidelog_broker.core.replication.producers import PlacedBatch, ProducerTable
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, stamp_owner
from tidelog_proto.errors import ProtocolError


@dataclass(slots=True)
class Group:
    """Result of one `assign`, with one outcome per batch: assigned, assigned earlier, or refused.

    A batch with an outcome other than an error has offsets; that it is written and committed is known only later.
    """

    base_offset: int
    end_offset: int
    base_digest: int
    batches: list[memoryview] = field(default_factory=list)
    headers: list[BatchHeader] = field(default_factory=list)
    ends: list[Position] = field(default_factory=list)
    """The positions after each of `batches`."""
    outcomes: list[PlacedBatch | ProtocolError] = field(default_factory=list)
    duplicates: list[bool] = field(default_factory=list)


class OffsetAssigner:
    """Assigns the offsets of an epoch and computes its high watermark; does no I/O.

    All offsets are absolute; `next_offset` is the first unassigned one. The driver (`ReplicaDriver`) executes the
    writes of the assigned batches.

    Args:
        producers: the producer state at the start of the epoch.
        is_logged: whether the local log contains that state.
    """

    def __init__(
        self,
        descriptor: pb.EpochDescriptor,
        *,
        producers: ProducerTable,
        is_logged: bool = True,
    ) -> None:
        assert 1 <= descriptor.ack_quorum <= len(descriptor.placement)
        assert descriptor.owner in descriptor.placement
        self.epoch = descriptor.epoch
        self.node_id = descriptor.owner
        self.incarnation = descriptor.owner_incarnation
        self.ack_quorum = descriptor.ack_quorum
        self.producers = producers
        self.is_logged = is_logged
        self.next_offset = descriptor.start_offset
        self.digest = 0
        self.high_watermark = descriptor.start_offset
        self._last_append_timestamp_us = producers.last_append_timestamp_us
        self._start_offset = descriptor.start_offset
        self._durable_ends = dict.fromkeys(descriptor.placement, descriptor.start_offset)
        self.is_sole = len(descriptor.placement) == 1
        """Whether the epoch has no other copy."""

    def assign(self, batches: Sequence[Batch], *, now_us: int) -> Group:
        """Assign offsets to `batches` in order and stamp their headers in place; their bytes are writable.

        Retries and refused batches get no new offsets, and do not affect the other batches. Append timestamps never
        decrease, even if the clock does.
        """
        group = Group(self.next_offset, self.next_offset, self.digest)
        timestamp_us = max(now_us, self._last_append_timestamp_us)
        for header, data in batches:
            try:
                stored = self.producers.check(header)
            except ProtocolError as error:
                group.outcomes.append(error)
                group.duplicates.append(False)
                continue
            group.duplicates.append(stored is not None)
            if stored is not None:
                group.outcomes.append(stored)
                continue
            stamped, placed = self._place(header, data, timestamp_us)
            group.batches.append(data)
            group.headers.append(stamped)
            group.ends.append(Position(placed.end_offset, stamped.digest))
            group.outcomes.append(placed)
        group.end_offset = self.next_offset
        self._last_append_timestamp_us = timestamp_us
        return group

    def assign_one(
        self, header: BatchHeader, data: memoryview, *, now_us: int
    ) -> tuple[BatchHeader, PlacedBatch] | None:
        """Assign offsets to one batch as `assign` does; return its stamped header, and its place.

        None if it is a retry or refused, so that `assign` has to return its outcome.
        """
        try:
            if self.producers.check(header) is not None:
                return None
        except ProtocolError:
            return None
        timestamp_us = self._last_append_timestamp_us
        if now_us > timestamp_us:
            timestamp_us = self._last_append_timestamp_us = now_us
        return self._place(header, data, timestamp_us)

    def _place(self, header: BatchHeader, data: memoryview, timestamp_us: int) -> tuple[BatchHeader, PlacedBatch]:
        """Give a batch the next offsets, stamp its header in place, and add it to the producers' state."""
        base_offset = self.next_offset
        digest = self.digest = stamp_owner(
            data,
            base_offset=base_offset,
            append_timestamp_us=timestamp_us,
            epoch=self.epoch,
            owner_incarnation=self.incarnation,
            previous_digest=self.digest,
        )
        stamped = header.stamped(base_offset, timestamp_us, self.epoch, self.incarnation, digest)
        placed = self.producers.apply(stamped)
        self.next_offset = placed.end_offset
        return stamped, placed

    def continue_at(self, end: Position) -> None:
        """Assign offsets from a position on, because the batches before it are in the log already."""
        assert self.next_offset <= end.offset
        self.next_offset, self.digest = end

    def held_by(self, node_id: str) -> int:
        """Return the end of a replica's durable records; the start of the epoch for a node outside the placement."""
        return self._durable_ends.get(node_id, self._start_offset)

    @property
    def held_by_all(self) -> int:
        """The end of the records that are durable on every replica of the epoch."""
        return min(self._durable_ends.values())

    def acknowledge(self, node_id: str, end_offset: int) -> int:
        """Record that `node_id` holds everything below `end_offset`; return the high watermark.

        With `flush=always` a node reports what it has synced, otherwise what it has written, which a crash of its
        machine may lose. Reports of nodes outside the placement, and lower reports than before, are ignored.
        """
        ends = self._durable_ends
        held = ends.get(node_id)
        if held is not None and end_offset > held:
            assert end_offset <= self.next_offset, "acknowledged an offset that was never assigned"
            ends[node_id] = end_offset
            committed = sorted(ends.values())[-self.ack_quorum]
            assert committed >= self.high_watermark, "the high watermark must not decrease"
            self.high_watermark = committed
        return self.high_watermark


_EWMA_WEIGHT = 0.2

KEEPS_UP_MS: Final = 1000
"""Maximum lag of a follower that keeps up: recent records are still on their way."""


class SentGroup(NamedTuple):
    """A group of batches as sent, with its start and end."""

    base: Position
    end: Position
    batches: Sequence[memoryview]
    size_bytes: int
    sent_ms: int


@dataclass(slots=True)
class Follower:
    """The progress of a follower, as the owner knows it."""

    node_id: str
    held_offset: int
    """The end offset that the follower last acknowledged as durable."""
    streaming: bool = True
    answered: bool = False
    """Whether the follower has acknowledged anything in this epoch, and since the last heartbeat."""
    sent_commit: int = -1
    sent_log_start: int = 0
    noted_below: int = 0
    """Delete offset that the follower has stored in this epoch."""
    sent_deleted_below: int = 0
    asks_again_ms: int | None = None
    """Time of the first request below the acknowledged offset since the last acknowledgement: the follower may have
    lost data. None before the first one."""
    next_heartbeat_ms: int = 0
    last_heard_ms: int = 0
    latency_ms: float = 0.0
    """EWMA of the time from sending a group to its acknowledgement."""
    goal_offset: int = 0
    goal_ms: int = 0
    """A past log end that the replica has not reached yet, and when the owner recorded it; when it is reached, the
    current log end is the next one."""

    def lag_ms(self, now_ms: int) -> int:
        """Return the age of the oldest known log end that this replica has not reached; 0 if it keeps up."""
        return now_ms - self.goal_ms if self.held_offset < self.goal_offset else 0

    def keeps_up(self, now_ms: int) -> bool:
        """Return whether this replica could own the next epoch immediately: it answers and lacks only recent records.

        Liveness is not sufficient, because the copy of a live node may be damaged or lag far behind.
        """
        return self.streaming and self.answered and self.lag_ms(now_ms) < KEEPS_UP_MS


@dataclass(slots=True)
class PushWindow:
    """The followers of the active epoch, and the newest groups of batches, kept for followers that lack them."""

    key: PartitionKey
    descriptor: pb.EpochDescriptor
    timing: Timing
    followers: dict[str, Follower] = field(default_factory=dict)
    recent_bytes: int = 0
    window_bytes: int = 0
    """Limit of `recent_bytes`; see `bound`."""
    log_start: int = 0
    """Log start raised by retention in this epoch; sent in heartbeats, too, if nothing is published."""
    deleting_below: int = 0
    deleted_below: int = 0
    """Proposed and effective delete offset changed in this epoch; sent in heartbeats, too."""
    _end_offset: int = 0
    _recent: deque[SentGroup] = field(default_factory=deque)

    @classmethod
    def begin(cls, key: PartitionKey, descriptor: pb.EpochDescriptor, timing: Timing, now_ms: int) -> PushWindow:
        """Start an epoch: every follower will be sent an empty append."""
        others = [node for node in descriptor.placement if node != descriptor.owner]
        start = descriptor.start_offset
        followers = {node: Follower(node, start, next_heartbeat_ms=now_ms, last_heard_ms=now_ms) for node in others}
        return cls(key, descriptor, timing, followers, window_bytes=timing.window_bytes)

    def bound(self, window_bytes: int) -> None:
        """Change the limit of the push window; the newest group is always kept."""
        self.window_bytes = window_bytes
        self._trim()

    def add(
        self, base: Position, end: Position, batches: Sequence[memoryview], *, commit: int, log_start: int, now_ms: int
    ) -> Send | None:
        """Add a new group; return the message for the streaming followers, None if no follower streams."""
        if not self.followers:
            return None
        sent = SentGroup(base, end, batches, sum(map(len, batches)), now_ms)
        self._recent.append(sent)
        self.recent_bytes += sent.size_bytes
        self._end_offset, oldest_end = end.offset, self._recent[0].end.offset
        may_trim = self.recent_bytes > self.window_bytes
        if not may_trim:
            for follower in self.followers.values():
                if follower.held_offset < oldest_end:
                    break
            else:
                may_trim = True
        if may_trim:
            self._trim()
        to: list[str] = []
        streaming: list[Follower] = []
        for follower in self.followers.values():
            if follower.held_offset >= follower.goal_offset:
                follower.goal_offset, follower.goal_ms = end.offset, now_ms
            if follower.streaming:
                to.append(follower.node_id)
                streaming.append(follower)
        if not to:
            return None
        self._mark_sent(streaming, commit, log_start, now_ms)
        return Send(to, self._message(sent, commit=commit, log_start=log_start), batches)

    def acknowledged(self, node_id: str, end_offset: int, now_ms: int) -> None:
        """Record a follower's durable end offset; its next heartbeat is due after at most `Timing.heartbeat_ms`."""
        follower = self.followers.get(node_id)
        if follower is None:
            return
        follower.answered = True
        follower.last_heard_ms, follower.asks_again_ms = now_ms, None
        follower.next_heartbeat_ms = min(follower.next_heartbeat_ms, now_ms + self.timing.heartbeat_ms)
        if end_offset <= follower.held_offset:
            return
        follower.held_offset = end_offset
        if end_offset >= follower.goal_offset:
            follower.goal_offset, follower.goal_ms = self._end_offset, now_ms
        recent = self._recent
        for sent in recent:
            if sent.end.offset >= end_offset:
                if sent.end.offset == end_offset:
                    follower.latency_ms += _EWMA_WEIGHT * (now_ms - sent.sent_ms - follower.latency_ms)
                break
        # `add` and `bound` keep the limit, so no group can be dropped before all followers hold the oldest one.
        if recent and recent[0].end.offset <= end_offset:
            for other in self.followers.values():
                if other.held_offset < recent[0].end.offset:
                    break
            else:
                self._trim()

    def noted(self, node_id: str, below: int) -> None:
        """Record the delete offset that a replica has stored."""
        follower = self.followers[node_id]
        follower.noted_below = max(follower.noted_below, below)

    def resume(self, node_id: str, from_offset: int, *, commit: int, log_start: int, now_ms: int) -> list[Send] | None:
        """Resume pushing to a replica from the end of its log; return the messages, possibly none.

        None if pushing cannot resume: the records from there on are not all in memory, or the node is not a follower.
        """
        follower = self.followers.get(node_id)
        if follower is None or not self._recent or from_offset < self._recent[0].base.offset:
            return None
        follower.streaming = True
        sends = [
            Send((node_id,), self._message(sent, commit=commit, log_start=log_start), sent.batches)
            for sent in self._recent
            if sent.end.offset > from_offset
        ]
        self._mark_sent((follower,), commit, log_start, now_ms)
        return sends

    def heartbeats(
        self, end: Position, *, commit: int, log_start: int, alive: Iterable[str], now_ms: int
    ) -> list[Send]:
        """Return the due heartbeats.

        A follower needs one if it has not answered, lacks records, or does not know the current commit offset, log
        start or delete offset.
        """
        living = set(alive)
        sends: list[Send] = []
        for follower in self.followers.values():
            if follower.node_id not in living or not self._needs(follower, end.offset, commit):
                continue
            if now_ms < follower.next_heartbeat_ms:
                continue
            beat = SentGroup(end, end, (), 0, now_ms)
            message = self._message(beat, commit=commit, log_start=log_start)
            message.acknowledged_offset = follower.held_offset
            sends.append(Send((follower.node_id,), message))
            self._mark_sent((follower,), commit, log_start, now_ms)
            # Repeated until answered: if it is lost, the follower's readers wait for committed records.
            follower.answered = False
        return sends

    def deadline_ms(self, end_offset: int, *, commit: int, alive: Iterable[str]) -> int | None:
        """Return when the next heartbeat is due; None if no follower needs one."""
        living = set(alive)
        return min(
            (
                follower.next_heartbeat_ms
                for follower in self.followers.values()
                if follower.node_id in living and self._needs(follower, end_offset, commit)
            ),
            default=None,
        )

    def quiet(self, end_offset: int, commit: int) -> bool:
        """Return whether no follower needs a heartbeat, alive or not."""
        return not any(self._needs(follower, end_offset, commit) for follower in self.followers.values())

    def _needs(self, follower: Follower, end_offset: int, commit: int) -> bool:
        return (
            not follower.answered
            or follower.held_offset < end_offset
            or follower.sent_commit < commit
            or follower.sent_log_start < self.log_start
            or follower.noted_below < self.deleting_below
            or follower.sent_deleted_below < self.deleted_below
        )

    def _mark_sent(self, followers: Iterable[Follower], commit: int, log_start: int, now_ms: int) -> None:
        heartbeat_ms = self.timing.heartbeat_ms
        for follower in followers:
            follower.sent_commit = max(follower.sent_commit, commit)
            follower.sent_log_start = max(follower.sent_log_start, log_start)
            follower.sent_deleted_below = self.deleted_below
            # A follower that keeps up gets the commit offset soon; a silent one is contacted less often.
            wait_ms = heartbeat_ms if follower.streaming else 4 * heartbeat_ms
            silent_ms = now_ms - follower.last_heard_ms
            follower.next_heartbeat_ms = now_ms + max(wait_ms, min(silent_ms // 4, 20 * heartbeat_ms))

    def _message(self, sent: SentGroup, *, commit: int, log_start: int) -> pb.AppendBatch:
        return pb.AppendBatch(
            topic_id=self.key[0],
            partition=self.key[1],
            epoch=self.descriptor.epoch,
            owner=self.descriptor.owner,
            owner_incarnation=self.descriptor.owner_incarnation,
            base_offset=sent.base.offset,
            end_offset=sent.end.offset,
            previous_digest=sent.base.digest,
            end_digest=sent.end.digest,
            commit_offset=commit,
            log_start_offset=log_start,
            length=sent.size_bytes,
            deleting_below=self.deleting_below,
            deleted_below=self.deleted_below,
        )

    def _trim(self) -> None:
        """Drop groups that all followers hold; beyond the limit, drop the oldest and stop pushing to laggards."""
        recent, followers = self._recent, self.followers.values()
        everyone_streams, held_by_all = True, recent[-1].end.offset if recent else 0
        for follower in followers:
            everyone_streams = everyone_streams and follower.streaming
            held_by_all = min(held_by_all, follower.held_offset)
        while recent and (
            self.recent_bytes > self.window_bytes or (everyone_streams and recent[0].end.offset <= held_by_all)
        ):
            if len(recent) == 1 and recent[0].end.offset > held_by_all:
                break  # the newest group is kept, regardless of its size
            sent = recent.popleft()
            self.recent_bytes -= sent.size_bytes
            for follower in self.followers.values():
                if follower.held_offset < sent.end.offset:
                    follower.streaming = False
