"""Ways to get groups wrong: each breaks one thing in the shipped group, its sessions, its positions, or its member."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

from tests.simulation.groups import log
from tests.simulation.groups.world import World
from tests.simulation.hints import hint
from tests.simulation.truth import ViolationError

from tidelog.groups.membership import Change, Membership, PartitionId
from tidelog_broker.core.groups.consumer_group import ConsumerGroup, ConsumerMember, MemberAssignment
from tidelog_broker.core.groups.positions import GroupOffsets, OffsetKey
from tidelog_broker.core.groups.steps import Steps
from tidelog_broker.groups.sessions import MemberKey, Sessions
from tidelog_broker.partition.pipeline import QueuedBatch
from tidelog_proto import broker_pb2 as pb

Mutant = Callable[[], AbstractContextManager[object]]

_report, _answered, _restart, _told = (
    ConsumerGroup.report,
    Membership.answered,
    ConsumerGroup.restart,
    ConsumerGroup.assignment_of,
)
_join = ConsumerGroup.join
_may_commit, _decide_steps = ConsumerGroup.may_commit, ConsumerGroup.decide_steps
_prepare, _apply, _withdraw = GroupOffsets.prepare, GroupOffsets.apply, GroupOffsets.withdraw


def _grants_what_is_held(self: ConsumerGroup) -> None:
    for member in self._members.values():
        for key in sorted(member.target - member.held.keys()):
            member.held[key] = self._generation
            self._changed = True


def _has_no_doubt(self: ConsumerGroup, record: pb.GroupRecord | None, *, in_doubt: bool = False) -> None:
    del in_doubt
    _restart(self, record)


def _decides_doubt_by_a_later_failure(
    self: ConsumerGroup, record: pb.GroupRecord | None, *, in_doubt: bool = False
) -> None:
    _restart(self, record, in_doubt=in_doubt)
    if not in_doubt:
        self._changed = self.in_doubt = False


@contextmanager
def _with_many_unknown_outcomes(mutant: Callable[..., None]) -> Iterator[None]:
    """Replace `restart` while half of the writes have an unknown outcome; too few seeds detect the mutant otherwise."""
    with patch.object(log, "UNKNOWN_SHARE", 0.5), patch.object(ConsumerGroup, "restart", mutant):
        yield


def _waits_for_nobody(self: ConsumerGroup, members: Mapping[str, ConsumerMember], ended: str) -> set[str]:
    del self, members, ended
    return set()


def _frees_what_a_replaced_member_holds(
    self: ConsumerGroup, member_id: str, wish: pb.GroupWish, *, ended: str = ""
) -> list[str]:
    replaced = _join(self, member_id, wish, ended=ended)
    for member in self._members.values():
        if member.replaced:
            member.held = {}
    return replaced


def _ends_another_process(self: ConsumerGroup, member_id: str, wish: pb.GroupWish, *, ended: str = "") -> list[str]:
    """Take any member of the same instance, or of none, for an earlier id of the joining process."""
    for other, member in self._members.items():
        if other != member_id and member.held and member.wish.instance_id == wish.instance_id:
            ended, wish.born_us = other, member.wish.born_us
    return _join(self, member_id, wish, ended=ended)


def _forgets_who_is_replaced(self: ConsumerGroup, record: pb.GroupRecord | None, *, in_doubt: bool = False) -> None:
    _restart(self, record, in_doubt=in_doubt)
    for member_id in [each for each, member in self._members.items() if member.replaced]:
        self.remove(member_id)


def _believes_any_report(
    self: ConsumerGroup, member_id: str, *, seen_revision: int, held: Collection[PartitionId]
) -> None:
    _report(self, member_id, seen_revision=1 << 60, held=held)


def _takes_all_that_is_not_named(
    self: ConsumerGroup, member_id: str, *, seen_revision: int, held: Collection[PartitionId]
) -> None:
    del seen_revision
    member = self._members.get(member_id)
    if member is not None:
        for key in [key for key in member.held if key not in held]:
            del member.held[key]
            self._changed = True


def _tells_what_is_decided(self: ConsumerGroup, member_id: str) -> MemberAssignment | None:
    member, told = self._members.get(member_id), _told(self, member_id)
    if member is None or told is None:
        return None
    return MemberAssignment(self._generation, frozenset(member.held.keys() & member.target), self._revision)


def _tells_the_target(self: ConsumerGroup, member_id: str) -> MemberAssignment | None:
    told = _told(self, member_id)
    if told is None:
        return None
    return MemberAssignment(told.generation, frozenset(self._members[member_id].target), told.revision)


def _checks_no_commit(self: ConsumerGroup, member_id: str, generation: int) -> Callable[[PartitionId], bool]:
    del self, member_id, generation
    return lambda _: True


def _checks_members_only(self: ConsumerGroup, member_id: str, generation: int) -> Callable[[PartitionId], bool]:
    if member_id in self._members:
        return lambda _: True
    return _may_commit(self, member_id, generation)


def _checks_no_generation(self: ConsumerGroup, member_id: str, generation: int) -> Callable[[PartitionId], bool]:
    del generation
    return _may_commit(self, member_id, 1 << 60)


def _forgets_members(self: ConsumerGroup, record: pb.GroupRecord | None, *, in_doubt: bool = False) -> None:
    _restart(self, record, in_doubt=in_doubt)
    self._members = {}
    self._needs_target = True


def _goes_on_with_what_was_decided(
    self: ConsumerGroup, record: pb.GroupRecord | None, *, in_doubt: bool = False
) -> None:
    if not self._members:
        _restart(self, record, in_doubt=in_doubt)


def _is_silent_at_once(self: Sessions, now: float) -> list[MemberKey]:
    found = [who for who, deadline in self._deadlines.items() if deadline <= now + 1.0]
    self.forget(found)
    return found


def _is_never_silent(self: Sessions, now: float) -> list[MemberKey]:
    del self, now
    return []


def _goes_back(self: GroupOffsets, key: OffsetKey, record: pb.OffsetRecord, *, reset: bool) -> bool:
    del reset
    return _prepare(self, key, record, reset=True)


def _knows_only_what_is_durable(self: GroupOffsets, key: OffsetKey, record: pb.OffsetRecord, *, reset: bool) -> bool:
    self._pending.pop(key, None)
    return _prepare(self, key, record, reset=reset)


def _answers_what_is_overtaken_at_once(
    self: GroupOffsets, key: OffsetKey, record: pb.OffsetRecord, *, reset: bool
) -> bool:
    pending = self._pending.get(key)
    if pending and record.next_offset <= pending[-1].next_offset:
        return False
    return _prepare(self, key, record, reset=reset)


def _forgets_earlier_commits(self: GroupOffsets, record: pb.OffsetRecord) -> None:
    pending = self._pending.get(OffsetKey(record.group, record.topic_id, record.partition))
    while pending and len(pending) > 1 and pending[-1] is record:
        pending.pop(0)
    _withdraw(self, record)


def _takes_only_its_own(self: GroupOffsets, record: pb.OffsetRecord) -> None:
    if OffsetKey(record.group, record.topic_id, record.partition) in self._pending:
        _apply(self, record)


def _takes_the_last(self: GroupOffsets, record: pb.OffsetRecord) -> None:
    stored = self.get(OffsetKey(record.group, record.topic_id, record.partition))
    if stored is not None and stored.revision >= record.revision:
        stored.CopyFrom(record)
    else:
        _apply(self, record)


def _takes_the_first(self: GroupOffsets, record: pb.OffsetRecord) -> None:
    stored = self.get(OffsetKey(record.group, record.topic_id, record.partition))
    if stored is None:
        _apply(self, record)


def _begins_with_anything(self: Membership, places: Iterable[PartitionId], *, now: float) -> frozenset[PartitionId]:
    del now
    may = frozenset(places) - self.held
    self.held |= may
    return may


def _counts_from_the_answer(self: Membership, reply: pb.GroupHeartbeatReply, *, sent_at: float, now: float) -> Change:
    return _answered(self, reply, sent_at=sent_at + 1.0, now=now)


def _gives_up_at_once(self: Membership, reply: pb.GroupHeartbeatReply, *, sent_at: float, now: float) -> Change:
    change = _answered(self, reply, sent_at=sent_at, now=now)
    self.held -= change.revoked
    return change


def _takes_old_answers(self: Membership, reply: pb.GroupHeartbeatReply, *, sent_at: float, now: float) -> Change:
    if not reply.unchanged:
        self._revision = 0
    return _answered(self, reply, sent_at=sent_at, now=now)


def _keeps_the_generation(self: ConsumerGroup) -> Steps[None]:
    before = self._generation
    yield from _decide_steps(self)
    self._generation = max(before, 1)


MUTANTS: dict[str, Mutant] = {
    "partitions are granted that another member holds": lambda: patch.object(
        ConsumerGroup, "_grant", _grants_what_is_held
    ),
    "a report counts regardless of the member's knowledge": lambda: patch.object(
        ConsumerGroup, "report", _believes_any_report
    ),
    "partitions missing in a report are free": lambda: patch.object(
        ConsumerGroup, "report", _takes_all_that_is_not_named
    ),
    "members get an assignment that is not durable": lambda: patch.object(
        ConsumerGroup, "assignment_of", _tells_what_is_decided
    ),
    "members get their target assignment": lambda: patch.object(ConsumerGroup, "assignment_of", _tells_the_target),
    "commits are not checked": lambda: patch.object(ConsumerGroup, "may_commit", _checks_no_commit),
    "a member commits for any partition": lambda: patch.object(ConsumerGroup, "may_commit", _checks_members_only),
    "a member commits by an earlier generation": lambda: patch.object(
        ConsumerGroup, "may_commit", _checks_no_generation
    ),
    "a coordinator begins without members": lambda: patch.object(ConsumerGroup, "restart", _forgets_members),
    "an assignment that could not be written is valid": lambda: patch.object(
        ConsumerGroup, "restart", _goes_on_with_what_was_decided
    ),
    "members expire early": lambda: patch.object(Sessions, "expired", _is_silent_at_once),
    "members never expire": lambda: patch.object(Sessions, "expired", _is_never_silent),
    "positions go back": lambda: patch.object(GroupOffsets, "prepare", _goes_back),
    "a commit on its way does not count": lambda: patch.object(GroupOffsets, "prepare", _knows_only_what_is_durable),
    "an overtaken commit is answered before it is durable": lambda: patch.object(
        GroupOffsets, "prepare", _answers_what_is_overtaken_at_once
    ),
    "a refused commit takes along those before it": lambda: patch.object(
        GroupOffsets, "withdraw", _forgets_earlier_commits
    ),
    "positions of an earlier owner are not loaded": lambda: patch.object(GroupOffsets, "apply", _takes_only_its_own),
    "the position that was read last stands": lambda: patch.object(GroupOffsets, "apply", _takes_the_last),
    "the position that was read first stands": lambda: patch.object(GroupOffsets, "apply", _takes_the_first),
    "records of an epoch that is over appended": lambda: patch.object(
        QueuedBatch, "may_enter", lambda self, epoch: True
    ),
    "a member begins with what is not its own": lambda: patch.object(Membership, "begin", _begins_with_anything),
    "a session counts from the answer": lambda: patch.object(Membership, "answered", _counts_from_the_answer),
    "a member says that it gave up what it reads": lambda: patch.object(Membership, "answered", _gives_up_at_once),
    "an old answer is carried out": lambda: patch.object(Membership, "answered", _takes_old_answers),
    "members are answered by a record that may not hold": lambda: _with_many_unknown_outcomes(_has_no_doubt),
    "a later failure decides the doubt about a record": lambda: _with_many_unknown_outcomes(
        _decides_doubt_by_a_later_failure
    ),
    "a successor does not wait for the member that it replaces": lambda: patch.object(
        ConsumerGroup, "still_reading", _waits_for_nobody
    ),
    "partitions of a replaced member are free": lambda: patch.object(
        ConsumerGroup, "join", _frees_what_a_replaced_member_holds
    ),
    "a join ends the membership of another process": lambda: patch.object(ConsumerGroup, "join", _ends_another_process),
    "a coordinator begins without replaced members": lambda: patch.object(
        ConsumerGroup, "restart", _forgets_who_is_replaced
    ),
    "the generation does not grow": lambda: patch.object(ConsumerGroup, "decide_steps", _keeps_the_generation),
}


def notice(name: str, seeds: int) -> str:
    """Run a mutant until a seed detects it, and return the seed and the failed check; empty if none does."""
    told = hint("groups", name)
    first = () if told is None else (told[1],)
    with MUTANTS[name]():
        for seed in (*first, *range(seeds)):
            try:
                World(seed).run()
            except ViolationError as error:
                return f"seed {seed}: {error.invariant}"
    return ""
