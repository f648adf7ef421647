"""State machine of one consumer group: members, target assignment, and held partitions. Sans-IO.

A partition is *held* by a member from the moment it is granted until the member reports that it has revoked it, or
leaves. The *target* is the assignment that the group converges to; it is recomputed when members, subscriptions or
topics change, and each new target increments the *generation*. Only partitions that no member holds are granted, so two
members never hold one partition, and at most one member is granted it within a generation.

The whole group is one record of `__offsets` (`GroupRecord`). Members are answered from the newest durable record
(`durable_record`), never from state that is not durable, so that a new coordinator knows every answer that a member has
received. Each change therefore takes the same path: decide, `next_record`, write it, `written`, answer. If the write
fails, the group restarts from the durable record.

A member is only assigned topics that its principal may read. The principal is not durable: the coordinator learns it
from the first request of each member. A member that has sent none to this coordinator keeps its topics and gets no
others.

A member with an instance id gets a *successor* when another member joins under that id, and the successor inherits its
target. Unless the earlier member has stopped reading, or the successor asks for an immediate takeover, the earlier one
remains a member, *replaced*, until it has revoked all partitions or its session has expired. A process that lost its
session and joins again names its earlier id: it is its own successor, with and without an instance id.

The expensive parts of a change are computed in steps (`decide_steps`, `record_steps`, `written_steps`), between which
heartbeats may be handled. Members may join and leave at any time except during `decide_steps`.

A report contains the revision of the record that the member has seen. Only a member that has seen the current target
can have revoked partitions because of it; partitions missing from an older report may still be on their way to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog_broker.core.groups.assignors import AssignmentInput, assign_steps
from tidelog_broker.core.groups.load_watch import LoadWatch
from tidelog_broker.core.groups.member_access import UNRESTRICTED, MemberAccess
from tidelog_broker.core.groups.partition_lists import grants_of, held_of, keys_of, partitions_of
from tidelog_broker.core.groups.steps import STEP, Steps, complete
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

MEMBERS_MAX: Final = 1_000
"""Maximum number of members of a group."""
PARTITIONS_MAX: Final = 20_000
"""Maximum number of partitions of all topics of a group."""
WISHES_BYTES_MAX: Final = 256 * 1024
"""Maximum size of the subscriptions of a group, which keeps its record below a megabyte."""
REPLACED_MAX: Final = MEMBERS_MAX
"""Maximum number of replaced members of a group."""


@dataclass(slots=True)
class ConsumerMember:
    """A member of a group, the partitions that it holds, and those that the target assigns to it.

    Attributes:
        wish: subscription and options of its join request.
        held: generation of the grant by partition.
        target: its part of the target.
        replaced: a successor has its instance id; it is removed once it holds nothing, and gets no partitions.
        stopped: it has stopped reading, and gets no partitions; its target is kept for its successor.
    """

    wish: pb.GroupWish
    held: dict[PartitionKey, int] = field(default_factory=dict[PartitionKey, int])
    target: set[PartitionKey] = field(default_factory=set[PartitionKey])
    replaced: bool = False
    stopped: bool = False
    first_revision: int = 0
    """Revision of the record that added the member; earlier records with the same id are of an earlier membership."""


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The answer for a member: generation, assigned partitions, and revision of the first record with both."""

    generation: int
    assigned: frozenset[PartitionKey]
    revision: int


SubscriptionResolver = Callable[[pb.GroupWish, MemberAccess], Mapping[bytes, int]]
"""Returns the partition counts, by topic id, of the topics that a subscription matches and its principal may read."""
AccessOf = Callable[[str], MemberAccess | None]
"""Returns the access of a member's principal; None until this coordinator has received a request from the member."""


class ConsumerGroup:
    """The state machine of one consumer group; see the module.

    Args:
        name: name of the group.
        subscribed: resolves subscriptions.
        access_of: returns the access of members' principals.
    """

    def __init__(self, name: str, subscribed: SubscriptionResolver, access_of: AccessOf) -> None:
        self.name = name
        self.creator = ""
        """Principal that created the group, set before the first record; empty if unknown."""
        self._subscribed = subscribed
        self._access_of = access_of
        self._members: dict[str, ConsumerMember] = {}
        self._generation = 0
        self._revision = 0
        """Revision of the newest record made, written or not."""
        self._target_revision = 0
        """Revision of the first record that contains the current target assignment."""
        self._assignor = pb.ASSIGNOR_UNSPECIFIED
        self._target_counts: Mapping[bytes, int] | None = None
        """Number of partitions by topic of the current target; None if it comes from a record."""
        self._target_topics: dict[str, frozenset[bytes]] = {}
        """Topics available to each member when the target was computed. Empty after a record is loaded; then
        `check_topics` adds the current topics of each member whose principal is known."""
        self._needs_target = False
        self._target_is_new = False
        self._changed = False
        self.is_deciding = False
        """Whether `decide_steps` is in progress; members must neither join nor leave then."""
        self.in_doubt = False
        """Whether the outcome of a record is unknown, so that it may still replace the durable record.

        Members are answered only after a later record is durable, so that no session is extended by a superseded one.
        """
        self._doubted_revision = 0
        """Revision of the newest record whose outcome was unknown; the failure of a later record does not decide it."""
        self._durable_record = pb.GroupRecord(group=name)
        self._assignments: dict[str, MemberAssignment] = {}
        self._load_watch = LoadWatch()

    # ------------------------------------------------------------------------------------------ state

    @property
    def member_ids(self) -> Collection[str]:
        """Ids of the members, including those whose join is not durable yet."""
        return self._members.keys()

    @property
    def durable_record(self) -> pb.GroupRecord:
        """The newest durable record."""
        return self._durable_record

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members, neither in memory nor in the durable record."""
        return not self._members and not self._durable_record.members

    def member(self, member_id: str) -> ConsumerMember | None:
        """Return a member, None if it does not exist."""
        return self._members.get(member_id)

    def assignment_of(self, member_id: str) -> MemberAssignment | None:
        """Return the answer for a member; None if its join is not durable, or it is not a member."""
        member = self._members.get(member_id)
        is_durable = member is not None and member.first_revision <= self._durable_record.revision
        return self._assignments.get(member_id) if is_durable else None

    def restart(self, record: pb.GroupRecord | None, *, in_doubt: bool = False) -> None:
        """Restart from a durable record, discarding later decisions.

        A record of this node whose outcome is unknown may still be written, so later records get higher revisions.

        Args:
            record: the newest durable record; None for a new group.
            in_doubt: whether the outcome of a later record is unknown; the next record then repeats the durable state.
        """
        record = record if record is not None else pb.GroupRecord(group=self.name, creator=self.creator)
        self.creator = record.creator
        self._members = {
            member.member_id: ConsumerMember(
                member.wish, held_of(member), keys_of(member.target), replaced=member.replaced, stopped=member.stopped
            )
            for member in record.members
        }
        self._generation = record.generation
        self._revision = max(self._revision, record.revision)
        self._target_revision = record.target_revision
        self._assignor = record.assignor
        self._target_counts, self._target_topics = None, {}
        self._needs_target = self._target_is_new = self._changed = False
        self._assignments = {}
        complete(self._adopt(record))
        self.check_topics()
        if in_doubt:
            self._doubted_revision = self._revision
        self._changed = self.in_doubt = self._doubted_revision > record.revision

    # -------------------------------------------------------------------------------------------- decisions

    def join(self, member_id: str, wish: pb.GroupWish, *, ended: str = "") -> list[str]:
        """Add a member without partitions, and return the members that are removed in consequence.

        A member with an instance id inherits the target of earlier members of that instance. Partitions that they hold
        are granted to it immediately if they have stopped or it asks for an immediate takeover; otherwise when they
        have revoked them, or their sessions have expired. A process that joins again inherits the target of its earlier
        id, also without an instance id, and is granted the partitions immediately. A join of an existing member is a
        duplicate and has no effect; a member joins under a new id to change its subscription.

        Args:
            member_id: id of the new member.
            wish: its subscription and options.
            ended: earlier member id of the same process, which no longer reads under that id.

        Raises:
            ProtocolError: INVALID_REQUEST if there are too many members or partitions; MEMBER_FENCED if a process that
                started later has the instance id, or too many replaced members are still reading.
        """
        if member_id in self._members:
            return []
        assert not self.is_deciding, "a member may not join while the target is computed"
        earlier = {
            other: member
            for other, member in self._members.items()
            if member.wish.instance_id == wish.instance_id
            and (wish.instance_id or (other == ended and member.wish.born_us == wish.born_us))
        }
        if any(member.wish.born_us > wish.born_us for member in earlier.values()):
            raise ProtocolError(
                pb.MEMBER_FENCED,
                f"instance id {wish.instance_id!r} in group {self.name!r} was taken by a process that started later: "
                "give each process its own instance id",
            )
        stay = {other: member.wish for other, member in self._current().items() if other not in earlier}
        if len(stay) >= MEMBERS_MAX:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"group {self.name!r} has the maximum of {MEMBERS_MAX} members: stop a member before another joins",
            )
        self._check_size({**stay, member_id: wish})
        reads_on = set[str]() if wish.takes_over_at_once else self.still_reading(earlier, ended)
        if len(self._members) - len(self._current()) + len(reads_on) > REPLACED_MAX:
            raise ProtocolError(
                pb.MEMBER_FENCED,
                f"group {self.name!r} has the maximum of {REPLACED_MAX} replaced members that still read; retry later",
            )
        joined = ConsumerMember(wish, first_revision=self._revision + 1)
        for other, member in earlier.items():
            joined.target |= member.target
            if other in reads_on:
                member.replaced, member.target, member.wish = True, set(), _wish_of_replaced(member.wish)
            else:
                del self._members[other]
        self._members[member_id] = joined
        self._assignor = wish.assignor or self._assignor
        self._needs_target = True
        return sorted(earlier.keys() - reads_on)

    def still_reading(self, members: Mapping[str, ConsumerMember], ended: str) -> set[str]:
        """Return the members that may still process records; for `ended` see `join`."""
        return {each for each, member in members.items() if member.held and not member.stopped and each != ended}

    def stop(self, member_id: str) -> bool:
        """Mark a member as stopped, free its partitions, and keep its target for its successor.

        A replaced member is removed instead. Return whether it was a member.
        """
        member = self._members.get(member_id)
        if member is None:
            return False
        if member.replaced:
            return self.remove(member_id)
        member.held, member.stopped, self._changed = {}, True, True
        return True

    def remove(self, member_id: str) -> bool:
        """Remove a member and its grants. Return whether it was a member."""
        assert not self.is_deciding, "a member may not leave while the target is computed"
        member = self._members.pop(member_id, None)
        if member is None:
            return False
        if member.replaced:
            self._changed = True
        else:
            self._needs_target = True
        return True

    def report(self, member_id: str, *, seen_revision: int, held: Collection[PartitionKey]) -> None:
        """Free the partitions outside a member's target that are not in `held`, because the member has revoked them.

        A replaced member that holds nothing is removed. Reports of records before the current target are ignored.
        """
        member = self._members.get(member_id)
        if member is None:
            return
        if seen_revision < self._target_revision or self._needs_target or self.is_deciding:
            return
        for key in [key for key in member.held if key not in member.target and key not in held]:
            del member.held[key]
            self._changed = True
        if member.replaced and not member.held:
            self.remove(member_id)

    @property
    def wants_loads(self) -> bool:
        """Whether members should report loads."""
        return self._assignor == pb.BY_LOAD

    def note_loads(self, member_id: str, loads: Mapping[PartitionKey, float]) -> None:
        """Record the rates in bytes per second that a member reports for the partitions it holds."""
        member = self._members.get(member_id)
        if member is not None:
            self._load_watch.note(loads, member.held)

    def check_loads(self, now: float) -> bool:
        """Return whether to recompute the target, because balancing by load is worth its moves, see `LoadWatch`.

        Args:
            now: monotonic time in seconds.
        """
        if not self.wants_loads or self._needs_target or self.is_deciding or len(self._members) < 2:
            return False
        if not self._load_watch.is_due(now, self._generation):
            return False
        if any(member.held.keys() != member.target for member in self._members.values()):
            return False
        if not self._load_watch.is_unbalanced([member.target for member in self._members.values()]):
            return False
        self._needs_target = self._load_watch.should_rebalance(
            complete(self._assignment_input(self._available_topics())), now
        )
        return self._needs_target

    def check_topics(self) -> None:
        """Schedule a new target if the available topics or partitions have changed."""
        available = self._available_topics()
        if self._members and not self._needs_target and not self._has_target_for(_topics_in(available)):
            self._needs_target = True
        topic_sets = _topic_sets(available)
        for member_id, member in self._current().items():
            topics, known = topic_sets[member_id], self._target_topics.get(member_id)
            if any(key[0] not in topics for key in member.target) if known is None else topics != known:
                self._needs_target = True
            elif self._access_of(member_id) is not None:
                self._target_topics[member_id] = topics

    def _has_target_for(self, counts: Mapping[bytes, int]) -> bool:
        """Return whether the target has these topics with these numbers of partitions."""
        if self._target_counts is None:
            partitions = frozenset().union(*(member.target for member in self._members.values()))
            if partitions == {(topic_id, number) for topic_id, count in counts.items() for number in range(count)}:
                self._target_counts = counts
        return counts == self._target_counts

    def delete(self) -> pb.GroupRecord:
        """Return the record that deletes the group and its positions.

        Raises:
            ProtocolError: GROUP_NOT_EMPTY if it has members.
        """
        if not self.is_empty:
            count = len(self._members) or len(self._durable_record.members)
            raise ProtocolError(pb.GROUP_NOT_EMPTY, f"group {self.name!r} has {count} members: stop the members first")
        self._revision += 1
        return pb.GroupRecord(group=self.name, revision=self._revision, generation=self._generation, deleted=True)

    # ---------------------------------------------------------------------------------------------- records

    def decide(self) -> None:
        """Recompute the target if necessary."""
        complete(self.decide_steps())

    def decide_steps(self) -> Steps[None]:
        """Recompute the target if necessary, in steps. If that is abandoned, the target is unchanged."""
        if not self._needs_target:
            return
        self._needs_target, self.is_deciding = False, True
        is_done = False
        try:
            yield from self._make_target()
            is_done = True
        finally:
            self.is_deciding = False
            self._needs_target |= not is_done

    def next_record(self) -> pb.GroupRecord | None:
        """Return the record with all changes since the previous one; None if nothing changed."""
        self.decide()
        return complete(self.record_steps())

    def record_steps(self) -> Steps[pb.GroupRecord | None]:
        """Make the record of `next_record` in steps, after `decide_steps`; changes between steps are not in it."""
        self._grant()
        if not self._changed:
            return None
        self._changed = False
        self._revision += 1
        if self._target_is_new:
            self._target_is_new = False
            self._target_revision = self._revision
        record = pb.GroupRecord(
            group=self.name,
            revision=self._revision,
            generation=self._generation,
            target_revision=self._target_revision,
            assignor=self._assignor,
            creator=self.creator,
        )
        members = [
            (
                pb.GroupMember(member_id=member_id, wish=member.wish, replaced=member.replaced, stopped=member.stopped),
                member.held.copy(),
                member.target,  # not copied: a new target is a new set
            )
            for member_id, member in self._members.items()
        ]
        yield
        done = 0
        for each, held, target in members:
            each.held.extend(grants_of(held))
            if len(held) > STEP:
                yield
            each.target.extend(partitions_of(target))
            record.members.append(each)
            done += 1 + len(held) + len(target)
            if done > STEP:
                done = 0
                yield
        return record

    def written(self, record: pb.GroupRecord) -> list[str]:
        """Apply a durable record of the group; return the members whose assignment or generation it changes."""
        return complete(self.written_steps(record))

    def written_steps(self, record: pb.GroupRecord) -> Steps[list[str]]:
        """Do the work of `written` in steps; the record is applied in the last one."""
        news = yield from self._adopt(record)
        self.in_doubt = False
        return news

    def may_commit(self, member_id: str, generation: int) -> Callable[[PartitionKey], bool]:
        """Return a function that returns whether a member may commit a position of a partition.

        The function is valid until the group changes. For a partition that it refuses, the caller raises `not_held`.

        Args:
            member_id: the committing member; empty for a client that is not a member.
            generation: generation of the member's last answer.

        Raises:
            ProtocolError: MEMBER_FENCED if it is not a member; GROUP_NOT_EMPTY if a client that is not a member commits
                to a group with members.
        """
        if not member_id:
            if not self.is_empty:
                raise ProtocolError(
                    pb.GROUP_NOT_EMPTY,
                    f"group {self.name!r} has members, so only its members may commit; stop the members, or use "
                    "another group",
                )
            return lambda _: True
        member = self._members.get(member_id)
        if member is None:
            raise fenced(self.name)
        held = member.held

        def holds(key: PartitionKey) -> bool:
            since = held.get(key)
            return since is not None and since <= generation

        return holds

    # -------------------------------------------------------------------------------------------- internals

    def _current(self) -> dict[str, ConsumerMember]:
        """Return the members that are not replaced, by id."""
        return {member_id: member for member_id, member in self._members.items() if not member.replaced}

    def _available_topics(self) -> dict[str, Mapping[bytes, int]]:
        """Return the available topics of each member, restricted to those that its principal may read."""
        return self._resolve_all({member_id: member.wish for member_id, member in self._current().items()})

    def _resolve_all(self, wishes: Mapping[str, pb.GroupWish]) -> dict[str, Mapping[bytes, int]]:
        """Return the topics that the subscriptions of members match; equal subscriptions share one result."""
        answers: dict[tuple[object, ...], Mapping[bytes, int]] = {}
        found: dict[str, Mapping[bytes, int]] = {}
        for member_id, wish in wishes.items():
            reader = self._access_of(member_id)
            who = UNRESTRICTED if reader is None else reader
            cache_key = (who.key, wish.pattern, *wish.topics)
            if cache_key not in answers:
                answers[cache_key] = self._subscribed(wish, who)
            found[member_id] = (
                answers[cache_key] if reader is not None else self._retained_part(member_id, answers[cache_key])
            )
        return found

    def _retained_part(self, member_id: str, answer: Mapping[bytes, int]) -> Mapping[bytes, int]:
        """Return those topics of an unrestricted result of which the member's target already has partitions."""
        member = self._members.get(member_id)
        has = set[bytes]() if member is None else {topic_id for topic_id, _ in member.target}
        return {topic_id: answer[topic_id] for topic_id in has if topic_id in answer}

    def _check_size(self, wishes: Mapping[str, pb.GroupWish]) -> None:
        size_bytes = sum(wish.ByteSize() for wish in wishes.values())
        if size_bytes > WISHES_BYTES_MAX:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"the subscriptions of the members of group {self.name!r} would have {size_bytes} bytes, the limit is "
                f"{WISHES_BYTES_MAX}: subscribe by pattern",
            )
        topics = _topics_in(self._resolve_all(wishes))
        if sum(topics.values()) > PARTITIONS_MAX:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"the topics of group {self.name!r} have {sum(topics.values())} partitions in total; a group may have "
                f"at most {PARTITIONS_MAX}: split the topics between groups",
            )

    def _make_target(self) -> Steps[None]:
        """Recompute the target assignment."""
        available = self._available_topics()
        inputs = yield from self._assignment_input(available)
        assignment = yield from assign_steps(self._assignor, inputs)
        yield
        self._generation += 1
        self._changed = self._target_is_new = True
        self._target_counts = _topics_in(available)
        self._target_topics = _topic_sets(available)
        self._load_watch.keep(inputs.partitions)
        for each, keys in assignment.items():
            self._members[each].target = keys

    def _assignment_input(self, available: Mapping[str, Mapping[bytes, int]]) -> Steps[AssignmentInput]:
        """Return the input of the assignor. Instance ids determine the order, so that a restart changes nothing."""
        ordered = sorted(self._current(), key=lambda each: (self._members[each].wish.instance_id or each, each))
        topics = _topic_sets(available)
        by_member = {each: topics[each] for each in ordered}
        counts = _topics_in(available)
        partitions = [(topic_id, number) for topic_id in sorted(counts) for number in range(counts[topic_id])]
        yield
        has = {key: each for each, member in self._members.items() for key in member.target}
        yield
        return AssignmentInput(by_member, partitions, has, self._load_watch.rates.copy())

    def _grant(self) -> None:
        """Grant partitions of the target that no member holds."""
        held = {key for member in self._members.values() for key in member.held}
        for member in self._members.values():
            for key in sorted(member.target - held) if not member.stopped else ():
                member.held[key] = self._generation
                self._changed = True

    def _adopt(self, record: pb.GroupRecord) -> Steps[list[str]]:
        """Derive the members' answers from a new durable record; return the members whose answer changed."""
        before, assignments = self._assignments, dict[str, MemberAssignment]()
        news: list[str] = []
        done = 0
        for member in record.members:
            held = held_of(member).keys()
            if len(held) > STEP:
                yield
            assigned = frozenset(held & keys_of(member.target))
            old = before.get(member.member_id)
            assignment = MemberAssignment(record.generation, assigned, record.revision)
            if old is not None and (old.generation, old.assigned) == (assignment.generation, assignment.assigned):
                assignment = old
            else:
                news.append(member.member_id)
            assignments[member.member_id] = assignment
            done += 1 + len(held)
            if done > STEP:
                done = 0
                yield
        self._durable_record, self._assignments = record, assignments
        return news


def _topics_in(available: Mapping[str, Mapping[bytes, int]]) -> dict[bytes, int]:
    """Return all topics available to members, with their partition counts."""
    topics: dict[bytes, int] = {}
    for answer in {id(answer): answer for answer in available.values()}.values():
        topics |= answer
    return topics


def _topic_sets(available: Mapping[str, Mapping[bytes, int]]) -> dict[str, frozenset[bytes]]:
    """Return the topics available to each member; members that share a result share the set."""
    topics = {id(answer): frozenset(answer) for answer in available.values()}
    return {member_id: topics[id(answer)] for member_id, answer in available.items()}


def fenced(group: str) -> ProtocolError:
    """Return the error for a client that is not, or no longer, a member."""
    return ProtocolError(
        pb.MEMBER_FENCED,
        f"this member is no longer in group {group!r}: it has left, its session timed out, another process joined with "
        "its instance id, or its member id belongs to another principal; other members read the records after its last "
        "commit again. Join again",
    )


def _wish_of_replaced(wish: pb.GroupWish) -> pb.GroupWish:
    """Return the part of a subscription that is kept for a replaced member."""
    subscription = pb.GroupWish()
    subscription.CopyFrom(wish)
    subscription.ClearField("topics")
    subscription.ClearField("pattern")
    return subscription
