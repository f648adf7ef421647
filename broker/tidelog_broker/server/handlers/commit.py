"""COMMIT and COMMITTED: offsets of consumer groups, durable before the reply, at the group's coordinator.

A commit is a record batch of `__offsets` and shares its partition's group commit with all commits that arrive together.
A commit that does not move a position forward is answered with the stored position, unless it requests a reset.

Both answers are bounded: COMMITTED is paginated, and a commit whose answer would not fit, because of the stored notes,
is refused before any of it is written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeVar

from tidelog_broker.broker import Broker
from tidelog_broker.core.groups.member_access import MemberAccess
from tidelog_broker.core.groups.partition_lists import not_held
from tidelog_broker.core.groups.positions import GroupOffsets, OffsetKey, Place
from tidelog_broker.core.request_costs import SLICE_US
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.topics import TopicRegistry, unknown_topic_id
from tidelog_broker.groups.shards import GroupShard
from tidelog_broker.metadata.meta_freshness import denial
from tidelog_broker.server.access import check_entries
from tidelog_broker.server.coordination import at_coordinator
from tidelog_broker.server.group_quota import group_made
from tidelog_broker.server.request_slices import RequestSlices, check_wanted, in_slices
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENVELOPE_BYTES_MAX, NOTE_BYTES_MAX, PAGE_BYTES
from tidelog_proto.names import check_group_name

T = TypeVar("T")

OWNER_S: Final = 2.0
"""Maximum time of waiting until the epochs of partitions with a single copy have begun, for all partitions together."""
_RESULT_BYTES: Final = 128
"""Upper bound of a position in an answer, without its note and topic name."""
_TELL_OF_TOPIC: Final = frozenset({pb.UNKNOWN_PARTITION, pb.OFFSET_OUT_OF_RANGE})
"""Errors that reveal a topic's name."""
LARGE_COMMIT: Final = 256
"""A commit with more positions lets other requests run before the write, and fills in its answer in slices."""
ANSWERED_AT_ONCE: Final = 500
"""Positions of a large commit's answer that are filled in without interruption, 3 us each."""
PAGE_POSITIONS: Final = 2_000
"""Maximum number of positions that are examined for a page, which takes a few milliseconds of the event loop."""


class _Committer(NamedTuple):
    """A commit's request, the principal that creates the group by it (or ""), and the epoch of the coordinator."""

    request: Request
    creator: str
    epoch: int


class _Commit(NamedTuple):
    """A position to commit: its key, its record without a revision, and its part of the answer."""

    key: OffsetKey
    record: pb.OffsetRecord
    result: pb.CommittedResult


@dataclass(slots=True)
class _Prepared:
    """The prepared records of a commit.

    Attributes:
        records: the records to write.
        kept: positions that are answered with the position that is stored after the write.
        refused: positions that may not be committed, with the error; None: the member does not hold the partition.
    """

    records: list[pb.OffsetRecord] = field(default_factory=list)
    kept: list[_Commit] = field(default_factory=list)
    refused: list[tuple[_Commit, ProtocolError | None]] = field(default_factory=list)


async def commit(broker: Broker, request: Request) -> None:
    """Handle COMMIT: write all entries in one batch, then answer the stored position of each.

    Raises:
        ProtocolError: an invalid name, QUOTA_EXCEEDED, MEMBER_FENCED for another caller's member, or the error of the
            write. Nothing was committed, unless the error leaves the outcome unknown.
    """
    message = request.envelope.commit
    check_group_name(message.group)
    check_entries(len(message.entries))

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        shard = broker.groups.of(message.group)
        epoch = await shard.coordinator.ready()
        shard.coordinator.check_caller(message.group, message.member_id, MemberAccess(request.session))
        async with group_made(broker, shard, message.group, request.session) as creator:
            return await _commit(broker, shard, envelope.commit, _Committer(request, creator, epoch))

    request.reply(await at_coordinator(broker, message.group, request, local))


async def _commit(broker: Broker, shard: GroupShard, message: pb.Commit, committer: _Committer) -> pb.Envelope:
    coordinator, request = shard.coordinator, committer.request
    current = await broker.meta_freshness.refresh_for((entry.topic_id, entry.partition) for entry in message.entries)
    await _known_ends(broker, request, message.entries)
    now_us = broker.clock.now_us()
    reply = pb.CommitReply()

    def refuse(result: pb.CommittedResult, error: ProtocolError) -> None:
        # A caller may commit for a topic that it cannot see; the answer must not contain that topic's name.
        if error.code in _TELL_OF_TOPIC and _hides(broker.topics, request.session, result.topic_id):
            error = unknown_topic_id(result.topic_id)
        result.error.CopyFrom(denial(error, current=current).to_message())

    commits: list[_Commit] = []
    answer = _AnswerSize(shard.positions, message)
    async for entry in in_slices(broker, request, message.entries):
        result = reply.results.add(topic_id=entry.topic_id, partition=entry.partition)
        commit = _Commit(
            OffsetKey(message.group, entry.topic_id, entry.partition), _record(message, entry, now_us), result
        )
        answer.add(commit)
        try:
            _check_entry(broker, entry)
        except ProtocolError as error:
            refuse(result, error)
        else:
            commits.append(commit)
    is_large = len(message.entries) > LARGE_COMMIT
    if is_large:
        await broker.bounds.turns.next_slice(request.connection, request.payer)
        check_wanted(broker, request)
    prepared = _prepare(shard, message, commits)  # No await from here to the write, see `may_commit`.
    made = None
    if committer.creator and coordinator.is_new(message.group):  # concurrent records of the group take precedence
        made = pb.GroupRecord(group=message.group, creator=committer.creator, changed_us=now_us)
    await shard.log.write_offsets(prepared.records, made=made, epoch=committer.epoch)
    if prepared.kept and not prepared.records and await coordinator.ready(confirmed=True) != committer.epoch:
        raise ProtocolError(pb.EPOCH_CHANGING, f"the coordinator of group {message.group!r} has changed; retry")
    # Read in one go, so that what happens between the slices below cannot change the answer.
    stored = [(result, _stored(broker, shard, key)) for key, _, result in prepared.kept]
    async for result, record in _unhurried(broker, request, stored):
        if record is None:  # The positions of a deleted topic are being removed.
            refuse(result, ProtocolError(pb.UNKNOWN_TOPIC, f"the topic with id {result.topic_id.hex()} was deleted"))
        else:
            _fill(result, record)
    async for (key, _, result), refusal in _unhurried(broker, request, prepared.refused):
        refuse(result, refusal or not_held(message.group, message.generation, key[1:]))
    return pb.Envelope(commit_reply=reply)


def _stored(broker: Broker, shard: GroupShard, key: OffsetKey) -> pb.OffsetRecord | None:
    return None if broker.topics.is_deleted(key.topic_id) else shard.positions.get(key)


def _record(message: pb.Commit, entry: pb.CommitEntry, now_us: int) -> pb.OffsetRecord:
    """Return the record of a position, complete except for its revision."""
    record = pb.OffsetRecord(
        group=message.group,
        topic_id=entry.topic_id,
        partition=entry.partition,
        next_offset=entry.next_offset,
        note=entry.note,
        commit_timestamp_us=now_us,
        epoch=entry.epoch,
    )
    if entry.HasField("record_epoch"):
        record.record_epoch = entry.record_epoch
    return record


def _prepare(shard: GroupShard, message: pb.Commit, commits: Sequence[_Commit]) -> _Prepared:
    """Check the commits and prepare their records, without interruption: 2 us each.

    Errors are made afterwards, in slices, where there may be one for each position.
    """
    prepared = _Prepared()
    try:
        may_commit = shard.coordinator.may_commit(message.group, message.member_id, message.generation)
    except ProtocolError as error:
        prepared.refused = [(commit, error) for commit in commits]
        return prepared
    prepare, reset = shard.positions.prepare, message.reset
    for commit in commits:
        key, record, _ = commit
        if not may_commit(key[1:]):
            prepared.refused.append((commit, None))
            continue
        try:
            if prepare(key, record, reset=reset):
                prepared.records.append(record)
        except ProtocolError as error:
            prepared.refused.append((commit, error))
        else:
            prepared.kept.append(commit)
    return prepared


async def _unhurried(broker: Broker, request: Request, items: Sequence[T]) -> AsyncIterator[T]:
    """Yield the parts of the answer to a commit in slices, without ending early, because the commit is written."""
    for at, item in enumerate(items):
        if at % ANSWERED_AT_ONCE == 0 and len(items) > LARGE_COMMIT:
            await broker.bounds.turns.next_slice(request.connection, request.payer, SLICE_US / 1e6)
        yield item


async def _known_ends(broker: Broker, request: Request, entries: Sequence[pb.CommitEntry]) -> None:
    """Begin the epochs of partitions whose only copy is on this node; the end of such a log is unknown before that.

    A damaged log ends with its valid records. Ends that are not known within `OWNER_S` refuse nothing, see
    `_check_entry`.
    """
    if broker.cluster.is_alone:
        await broker.partitions.awake((entry.topic_id, entry.partition) for entry in entries)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(OWNER_S):
            async for entry in in_slices(broker, request, entries):
                partition = broker.partitions.find((entry.topic_id, entry.partition))
                if partition is None:
                    continue
                if partition.state.is_alone and entry.next_offset > partition.state.high_watermark:
                    with contextlib.suppress(ProtocolError):
                        await partition.access.ensure_active()


class _AnswerSize:
    """Refuses a commit whose answer might exceed an envelope, since an answer contains the stored notes."""

    def __init__(self, positions: GroupOffsets, message: pb.Commit) -> None:
        self._positions = positions
        self._count = len(message.entries)
        self._size_bytes = 0

    def add(self, commit: _Commit) -> None:
        """Count the answer to a position.

        Raises:
            ProtocolError: INVALID_REQUEST: the answer might exceed an envelope.
        """
        stored = self._positions.get(commit.key)
        stored_bytes = 0 if stored is None else len(stored.note.encode())
        self._size_bytes += _RESULT_BYTES + max(len(commit.record.note.encode()), stored_bytes)
        if self._size_bytes > ENVELOPE_BYTES_MAX - PAGE_BYTES:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"the answer to {self._count} positions with notes would exceed {ENVELOPE_BYTES_MAX - PAGE_BYTES} "
                "bytes; commit fewer positions at a time",
            )


def _check_entry(broker: Broker, entry: pb.CommitEntry) -> None:
    record = broker.topics.with_id(entry.topic_id)
    if len(entry.note.encode()) > NOTE_BYTES_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"{record.name}/{entry.partition}: the note of a position must have at most {NOTE_BYTES_MAX} bytes, got "
            f"{len(entry.note.encode())}",
        )
    if entry.partition >= record.config.partitions:
        raise ProtocolError(
            pb.UNKNOWN_PARTITION,
            f"topic {record.name!r} has partitions 0 to {record.config.partitions - 1}, got {entry.partition}",
        )
    if broker.routes.owner((entry.topic_id, entry.partition)) != broker.node_id:
        return  # Not checked here: only the owner knows the end of the log.
    partition = broker.partitions.find((entry.topic_id, entry.partition))
    if partition is None:
        return  # Not checked: the topic was just created, and its log is being opened.
    state = partition.state
    is_known = state.assigner is not None or state.replica.state.halted is not None
    # With several copies a new owner may have more records; the end of a single copy is unknown until its epoch begins.
    if state.is_alone and is_known and entry.next_offset > state.high_watermark:
        raise ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"{partition.name}: offset {entry.next_offset} is beyond the end of the log; commit at most "
            f"{state.high_watermark}",
            log_start_offset=state.log_start,
            high_watermark=state.high_watermark,
        )


async def committed(broker: Broker, request: Request) -> None:
    """Handle COMMITTED: return a page of the named positions, or of all positions of the group or in one topic.

    Raises:
        ProtocolError: INVALID_REQUEST for an invalid group name or too many entries, UNKNOWN_TOPIC.
    """
    message = request.envelope.committed
    check_group_name(message.group)
    if message.entries:
        check_entries(len(message.entries))
    request.reply(
        await at_coordinator(
            broker, message.group, request, lambda envelope: _committed(broker, envelope.committed, request)
        )
    )


async def _committed(broker: Broker, message: pb.Committed, request: Request) -> pb.Envelope:
    session = request.session
    if message.topic_id:
        await broker.meta_freshness.refresh_for([(message.topic_id, 0)])
        broker.topics.with_id(message.topic_id)  # A deleted topic is an error; it does not mean "never committed".
    shard = broker.groups.of(message.group)
    await shard.coordinator.ready(confirmed=True)
    after = (message.after.topic_id, message.after.partition) if message.HasField("after") else None
    if message.entries:
        slices = RequestSlices(broker, request, len(message.entries))
        reply = await _of_entries(partial(_hides, broker.topics, session), shard.positions, message, after, slices)
    else:
        async with broker.bounds.turns.turn(request.connection, request.payer):
            reply = _of_group(partial(_name_for, broker.topics, session), shard.positions, message, after)
    return pb.Envelope(committed_reply=reply)


async def _of_entries(
    hides: Callable[[bytes], bool],
    positions: GroupOffsets,
    message: pb.Committed,
    after: Place | None,
    slices: RequestSlices,
) -> pb.CommittedReply:
    """Return a page of the named positions, in the order of the request.

    A position of a topic that the caller may not see is reported as not committed.

    Raises:
        ProtocolError: see `check_wanted`.
    """
    reply = pb.CommittedReply()
    size_bytes = 0
    hidden = {topic_id for topic_id in {entry.topic_id for entry in message.entries} if hides(topic_id)}
    for entry in _after_place(message.entries, after):
        await slices.step()
        if size_bytes >= PAGE_BYTES:
            last = reply.results[-1]
            reply.last.CopyFrom(pb.CommittedEntry(topic_id=last.topic_id, partition=last.partition))
            break
        result = reply.results.add(topic_id=entry.topic_id, partition=entry.partition)
        stored = positions.get(OffsetKey(message.group, entry.topic_id, entry.partition))
        if stored is not None and entry.topic_id not in hidden:
            _fill(result, stored)
        size_bytes += result.ByteSize()
    return reply


def _after_place(entries: Sequence[pb.CommittedEntry], after: Place | None) -> Iterable[pb.CommittedEntry]:
    """Return the entries after `after`, the last one of the previous page; all if it is None.

    If the request does not name `after`, there are no entries.
    """
    places = iter(entries)
    if after is not None:
        for entry in places:
            if (entry.topic_id, entry.partition) == after:
                break
    return places


def _hides(topics: TopicRegistry, session: Session | None, topic_id: bytes) -> bool:
    """Return whether a topic is hidden from a caller; False for a topic that this node does not know yet."""
    topic = topics.get(topic_id)
    return session is not None and topic is not None and not session.may_see(topic.name)


def _name_for(topics: TopicRegistry, session: Session | None, topic_id: bytes) -> str | None:
    """Return a topic's name, "" for a deleted topic, None for one that the caller may not see."""
    topic = topics.get(topic_id)
    name = "" if topic is None or topic.deleted else topic.name
    return name if session is None or session.may_see(name) else None


def _of_group(
    name_for: Callable[[bytes], str | None], positions: GroupOffsets, message: pb.Committed, after: Place | None
) -> pb.CommittedReply:
    """Return a page of a group's positions, optionally of one topic, ordered by topic id and partition.

    Hidden topics are omitted, so a page may be short or empty although another one follows.
    """
    reply = pb.CommittedReply()
    size_bytes = 0
    last = pb.CommittedEntry()
    names: dict[bytes, str | None] = {}
    if message.topic_id:
        after = max(after, (message.topic_id, -1)) if after is not None else (message.topic_id, -1)
    for count, stored in enumerate(positions.of_group(message.group, after)):
        if message.topic_id and stored.topic_id != message.topic_id:
            break
        if size_bytes >= PAGE_BYTES or count >= PAGE_POSITIONS:
            reply.last.CopyFrom(last)
            break
        last = pb.CommittedEntry(topic_id=stored.topic_id, partition=stored.partition)
        if stored.topic_id not in names:
            names[stored.topic_id] = name_for(stored.topic_id)
        name = names[stored.topic_id]
        if name is None:
            continue
        result = reply.results.add(topic_id=stored.topic_id, partition=stored.partition, topic=name)
        _fill(result, stored)
        size_bytes += result.ByteSize()
    return reply


def _fill(result: pb.CommittedResult, record: pb.OffsetRecord) -> None:
    result.found = True
    result.next_offset = record.next_offset
    result.note = record.note
    result.epoch = record.epoch
    if record.HasField("record_epoch"):
        result.record_epoch = record.record_epoch
    result.commit_timestamp_us = record.commit_timestamp_us
