"""The state machine of a group: held partitions, answers, and permitted commits."""

from __future__ import annotations

import pytest

from tidelog_broker.core.groups import consumer_group
from tidelog_broker.core.groups.consumer_group import ConsumerGroup
from tidelog_broker.core.groups.member_access import UNRESTRICTED, MemberAccess
from tidelog_broker.core.groups.partition_lists import keys_of, not_held, partitions_of
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

T = b"t" * 16
ADA, BOB, EVE = "ada0000000000000", "bob0000000000000", "eve0000000000000"


class Topics:
    """Available topics by id, with their partition counts."""

    def __init__(self, partitions: int = 4) -> None:
        self.all = {T: partitions}

    def __call__(self, wish: pb.GroupWish, reader: MemberAccess) -> dict[bytes, int]:
        return {topic_id: self.all[topic_id] for topic_id in self.all if topic_id.decode() in wish.topics}


@pytest.fixture
def topics() -> Topics:
    return Topics()


@pytest.fixture
def group(topics: Topics) -> ConsumerGroup:
    return ConsumerGroup("g", topics, lambda _: UNRESTRICTED)


def wish(
    *, instance_id: str = "", born_us: int = 0, topics: tuple[bytes, ...] = (T,), at_once: bool = False
) -> pb.GroupWish:
    return pb.GroupWish(
        topics=[one.decode() for one in topics], instance_id=instance_id, born_us=born_us, takes_over_at_once=at_once
    )


def join_as_one(group: ConsumerGroup, member_id: str, born_us: int, *, at_once: bool = False, ended: str = "") -> None:
    """Let a member of the instance "one" join, and make that durable."""
    group.join(member_id, wish(instance_id="one", born_us=born_us, at_once=at_once), ended=ended)
    write(group)


def write(group: ConsumerGroup) -> list[str]:
    """Make the decisions durable; return the members whose answer changed."""
    news: list[str] = []
    while (record := group.next_record()) is not None:
        news += group.written(pb.GroupRecord.FromString(record.SerializeToString()))
    return news


def join(group: ConsumerGroup, *member_ids: str) -> None:
    for member_id in member_ids:
        group.join(member_id, wish())
    write(group)


def has(group: ConsumerGroup, member_id: str) -> set[int]:
    told = group.assignment_of(member_id)
    assert told is not None
    return {partition for _, partition in told.assigned}


def report(group: ConsumerGroup, member_id: str, *held: int) -> None:
    """Let a member that has seen the newest answer report these partitions."""
    told = group.assignment_of(member_id)
    assert told is not None
    group.report(member_id, seen_revision=told.revision, held={(T, number) for number in held})
    write(group)


def code(group: ConsumerGroup, member_id: str, generation: int, key: PartitionKey) -> int:
    try:
        may_commit = group.may_commit(member_id, generation)
    except ProtocolError as error:
        return error.code
    return 0 if may_commit(key) else not_held(group.name, generation, key).code


def test_first_member_gets_all_partitions_once_its_join_is_durable(group: ConsumerGroup) -> None:
    group.join(ADA, wish())
    assert group.assignment_of(ADA) is None
    record = group.next_record()
    assert record is not None
    assert group.assignment_of(ADA) is None, "no assignment is sent before it is durable"
    assert group.next_record() is None
    assert group.written(record) == [ADA]
    assert has(group, ADA) == {0, 1, 2, 3}
    assert not group.is_empty


def test_second_member_gets_revoked_partitions(group: ConsumerGroup) -> None:
    join(group, ADA)
    join(group, BOB)
    assert len(has(group, ADA)) == 2
    assert has(group, BOB) == set()
    before = has(group, ADA)
    report(group, ADA, 0, 1, 2, 3)
    assert has(group, BOB) == set(), "it reads them still"
    report(group, ADA, *before)
    assert has(group, BOB) == {0, 1, 2, 3} - before


def test_report_older_than_the_target_frees_nothing(group: ConsumerGroup) -> None:
    join(group, ADA)
    old = group.assignment_of(ADA)
    assert old is not None
    join(group, BOB)
    group.report(ADA, seen_revision=old.revision, held=set())
    write(group)
    assert has(group, BOB) == set()
    group.report("nobody0000000000", seen_revision=99, held=set())
    assert group.next_record() is None


def test_report_before_a_pending_target_frees_nothing(group: ConsumerGroup) -> None:
    join(group, ADA, BOB)
    group.join(EVE, wish())
    told = group.assignment_of(ADA)
    assert told is not None
    group.report(ADA, seen_revision=told.revision, held=set())
    write(group)
    assert sum(len(keys_of(member.held)) for member in group.durable_record.members) == 4


def test_partitions_of_a_leaving_member_are_reassigned_at_once(group: ConsumerGroup) -> None:
    join(group, ADA, BOB)
    assert group.remove(ADA)
    assert not group.remove(ADA)
    assert write(group) == [BOB]
    assert has(group, BOB) == {0, 1, 2, 3}
    assert group.assignment_of(ADA) is None


def test_repeated_join_changes_nothing(group: ConsumerGroup) -> None:
    join(group, ADA)
    assert group.join(ADA, wish(topics=())) == []
    assert group.next_record() is None
    assert has(group, ADA) == {0, 1, 2, 3}


def test_immediate_takeover_gets_the_target_of_its_instance(group: ConsumerGroup) -> None:
    group.join(ADA, wish(instance_id="i", born_us=1))
    join(group, BOB)
    before = has(group, ADA)
    assert group.join(EVE, wish(instance_id="i", born_us=2, at_once=True)) == [ADA]
    write(group)
    assert has(group, EVE) == before
    assert group.assignment_of(ADA) is None
    with pytest.raises(ProtocolError) as refused:
        group.join("late000000000000", wish(instance_id="i", born_us=1))
    assert refused.value.code == pb.MEMBER_FENCED


@pytest.fixture
def succeeded(group: ConsumerGroup) -> ConsumerGroup:
    """Let EVE join while ADA, of the same instance, reads all partitions and is not reachable."""
    join_as_one(group, ADA, 1)
    assert has(group, ADA) == {0, 1, 2, 3}
    join_as_one(group, EVE, 2)
    return group


def test_successor_gets_partitions_as_its_predecessor_revokes_them(succeeded: ConsumerGroup) -> None:
    generation = succeeded.durable_record.generation
    assert (has(succeeded, ADA), has(succeeded, EVE)) == (set(), set())
    assert code(succeeded, ADA, generation, (T, 0)) == 0, "it may commit its own partitions"
    report(succeeded, ADA, 2, 3)
    assert has(succeeded, EVE) == {0, 1}
    assert code(succeeded, ADA, generation, (T, 0)) == pb.MEMBER_FENCED
    report(succeeded, ADA)
    assert has(succeeded, EVE) == {0, 1, 2, 3}
    assert succeeded.member(ADA) is None
    assert succeeded.durable_record.generation == generation, "the target is the same"


def test_successor_gets_all_partitions_when_its_predecessors_session_expires(succeeded: ConsumerGroup) -> None:
    assert succeeded.remove(ADA)
    write(succeeded)
    assert has(succeeded, EVE) == {0, 1, 2, 3}


def test_new_coordinator_knows_replaced_members(succeeded: ConsumerGroup, topics: Topics) -> None:
    other = ConsumerGroup("g", topics, lambda _: UNRESTRICTED)
    other.restart(succeeded.durable_record)
    write(other)
    assert has(other, EVE) == set()
    report(other, ADA)
    assert has(other, EVE) == {0, 1, 2, 3}


def test_replaced_member_gets_no_more_partitions(succeeded: ConsumerGroup, topics: Topics) -> None:
    topics.all[T] = 6
    succeeded.check_topics()
    write(succeeded)
    assert (has(succeeded, ADA), has(succeeded, EVE)) == (set(), {4, 5})
    succeeded.remove(EVE)
    write(succeeded)
    assert has(succeeded, ADA) == set()
    report(succeeded, ADA)
    assert succeeded.is_empty


def test_third_process_of_an_instance_waits_for_both_predecessors(succeeded: ConsumerGroup) -> None:
    report(succeeded, ADA, 2, 3)
    join_as_one(succeeded, BOB, 3)
    assert has(succeeded, BOB) == set()
    report(succeeded, EVE)
    assert has(succeeded, BOB) == {0, 1}
    report(succeeded, ADA)
    assert has(succeeded, BOB) == {0, 1, 2, 3}


def test_process_that_dies_without_partitions_is_not_waited_for(succeeded: ConsumerGroup) -> None:
    join_as_one(succeeded, BOB, 3)
    assert succeeded.member(EVE) is None


def test_successor_does_not_wait_for_a_stopped_member(group: ConsumerGroup) -> None:
    join_as_one(group, ADA, 1)
    join(group, BOB)
    report(group, ADA, *has(group, ADA))
    before, others = has(group, ADA), has(group, BOB)
    assert group.stop(ADA)
    write(group)
    assert (has(group, ADA), has(group, BOB)) == (set(), others), "its partitions wait for its successor"
    other = ConsumerGroup("g", Topics(), lambda _: UNRESTRICTED)
    other.restart(group.durable_record)
    for each in (group, other):
        join_as_one(each, EVE, 2)
        assert (has(each, EVE), has(each, BOB)) == (before, others)
        assert each.member(ADA) is None


def test_partitions_of_a_stopped_member_are_reassigned_after_its_session(group: ConsumerGroup) -> None:
    join_as_one(group, ADA, 1)
    join(group, BOB)
    group.stop(ADA)
    group.remove(ADA)
    write(group)
    assert has(group, BOB) == {0, 1, 2, 3}


def test_replaced_member_that_stops_is_removed(succeeded: ConsumerGroup) -> None:
    assert succeeded.stop(ADA)
    assert not succeeded.stop(ADA)
    write(succeeded)
    assert has(succeeded, EVE) == {0, 1, 2, 3}


def test_rejoining_process_does_not_wait_for_itself(group: ConsumerGroup) -> None:
    join_as_one(group, ADA, 1)
    join_as_one(group, EVE, 1, ended=ADA)
    assert has(group, EVE) == {0, 1, 2, 3}


def test_definite_failure_does_not_end_the_doubt_about_an_earlier_record(group: ConsumerGroup) -> None:
    join(group, ADA)
    durable = group.durable_record
    group.join(BOB, wish())
    assert group.next_record() is not None
    group.restart(durable, in_doubt=True)
    assert group.next_record() is not None, "the durable state is repeated"
    group.restart(durable)
    doubts = [group.in_doubt]
    write(group)
    doubts.append(group.in_doubt)
    assert doubts == [True, False], "the first record may become durable until a later one is"


def test_number_of_replaced_members_is_limited(succeeded: ConsumerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    report(succeeded, ADA, 2, 3)
    monkeypatch.setattr(consumer_group, "REPLACED_MAX", 1)
    with pytest.raises(ProtocolError) as refused:
        join_as_one(succeeded, BOB, 3)
    assert refused.value.code == pb.MEMBER_FENCED, "a client tries that again"
    join_as_one(succeeded, BOB, 3, at_once=True)


def test_every_target_increments_the_generation(group: ConsumerGroup) -> None:
    seen = []
    for member_id in (ADA, BOB, EVE):
        join(group, member_id)
        seen.append(group.durable_record.generation)
    group.remove(EVE)
    write(group)
    assert [*seen, group.durable_record.generation] == [1, 2, 3, 4]


def test_growing_and_deleted_topics_are_followed(group: ConsumerGroup, topics: Topics) -> None:
    join(group, ADA)
    group.check_topics()
    assert group.next_record() is None
    topics.all[T] = 6
    group.check_topics()
    write(group)
    assert has(group, ADA) == set(range(6))
    del topics.all[T]
    group.check_topics()
    write(group)
    assert has(group, ADA) == set()
    report(group, ADA)
    assert not group.durable_record.members[0].held


def test_commit_is_accepted_from_the_holder_of_the_partition(group: ConsumerGroup) -> None:
    assert code(group, "", 0, (T, 0)) == 0
    join(group, ADA)
    assert code(group, "", 0, (T, 0)) == pb.GROUP_NOT_EMPTY
    assert code(group, ADA, 1, (T, 0)) == 0
    assert code(group, ADA, 0, (T, 0)) == pb.MEMBER_FENCED, "granted in a later generation than it knows"
    assert code(group, ADA, 1, (T, 4)) == pb.MEMBER_FENCED
    assert code(group, BOB, 1, (T, 0)) == pb.MEMBER_FENCED
    join(group, BOB)
    given_up = ({0, 1, 2, 3} - has(group, ADA)).pop()
    assert code(group, ADA, 1, (T, given_up)) == 0, "until it has given it up"
    report(group, ADA, *has(group, ADA))
    assert code(group, ADA, 2, (T, given_up)) == pb.MEMBER_FENCED
    assert code(group, BOB, 2, (T, given_up)) == 0
    group.remove(ADA)
    assert code(group, ADA, 9, (T, 0)) == pb.MEMBER_FENCED


def test_failed_write_is_discarded_and_its_revision_is_not_reused(group: ConsumerGroup) -> None:
    join(group, ADA)
    standing = group.durable_record
    group.join(BOB, wish())
    lost = group.next_record()
    assert lost is not None
    group.restart(standing)
    assert list(group.member_ids) == [ADA]
    assert group.assignment_of(BOB) is None
    join(group, BOB)
    assert group.durable_record.revision > lost.revision
    assert {member.member_id for member in group.durable_record.members} == {ADA, BOB}


def test_new_coordinator_continues_from_the_durable_record(group: ConsumerGroup, topics: Topics) -> None:
    join(group, ADA, BOB)
    held = {member_id: has(group, member_id) for member_id in (ADA, BOB)}
    following = ConsumerGroup("g", topics, lambda _: UNRESTRICTED)
    following.restart(pb.GroupRecord.FromString(group.durable_record.SerializeToString()))
    assert {member_id: has(following, member_id) for member_id in (ADA, BOB)} == held
    assert following.next_record() is None, "nothing has changed"
    topics.all[T] = 5
    following.restart(group.durable_record)
    write(following)
    assert len(has(following, ADA) | has(following, BOB)) == 5


def test_group_with_members_cannot_be_deleted(group: ConsumerGroup) -> None:
    join(group, ADA)
    with pytest.raises(ProtocolError) as refused:
        group.delete()
    assert refused.value.code == pb.GROUP_NOT_EMPTY
    group.remove(ADA)
    with pytest.raises(ProtocolError):
        group.delete()  # not durable yet
    write(group)
    assert group.is_empty
    revision = group.durable_record.revision
    record = group.delete()
    assert record.deleted
    assert record.revision > revision


def test_number_of_members_is_limited(group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_group, "MEMBERS_MAX", 2)
    group.join(ADA, wish(instance_id="i", born_us=1))
    group.join(BOB, wish())
    with pytest.raises(ProtocolError) as refused:
        group.join(EVE, wish())
    assert refused.value.code == pb.INVALID_REQUEST
    assert group.join(EVE, wish(instance_id="i", born_us=2)) == [ADA]


def test_number_of_partitions_is_limited(group: ConsumerGroup, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_group, "PARTITIONS_MAX", 10)
    topics.all[b"u" * 16] = 7
    join(group, ADA)
    with pytest.raises(ProtocolError, match="11 partitions"):
        group.join(BOB, wish(topics=(b"u" * 16,)))
    group.join(BOB, wish())


def test_subscription_size_is_limited_and_a_restarted_instance_counts_once(
    group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = wish(instance_id="i" * 100, born_us=1)
    monkeypatch.setattr(consumer_group, "WISHES_BYTES_MAX", first.ByteSize() + 10)
    group.join(ADA, first)
    with pytest.raises(ProtocolError, match="subscribe by pattern"):
        group.join(BOB, wish())
    assert group.join(EVE, wish(instance_id="i" * 100, born_us=2)) == [ADA]


def test_equal_subscriptions_are_resolved_once(topics: Topics) -> None:
    looks = 0

    def counted(asked: pb.GroupWish, reader: MemberAccess) -> dict[bytes, int]:
        nonlocal looks
        looks += 1
        return topics(asked, reader)

    group = ConsumerGroup("g", counted, lambda _: UNRESTRICTED)
    for number in range(50):
        group.join(f"member{number:010}", wish())
    looks = 0
    write(group)
    group.check_topics()
    assert looks <= 3


def test_loads_are_recorded_only_for_held_partitions(group: ConsumerGroup, topics: Topics) -> None:
    group.join(ADA, pb.GroupWish(topics=[T.decode()], assignor=pb.BY_LOAD))
    write(group)
    loads = {(T, number): 1000.0 if number == 0 else 10.0 for number in range(4)}
    group.note_loads(BOB, dict.fromkeys(loads, 1e9))
    group.note_loads(ADA, {**loads, (T, 77): 1e9, (b"other", 1): 1e9})
    join(group, BOB)
    assert has(group, ADA) in ({0}, {1, 2, 3})


@pytest.fixture
def shared_by_load(group: ConsumerGroup) -> ConsumerGroup:
    """Assign partitions 0 and 1, with all of the load, to ADA, and the rest to BOB, since 0 s."""
    by_load = pb.GroupWish(topics=[T.decode()], assignor=pb.BY_LOAD)
    group.join(ADA, by_load)
    group.join(BOB, by_load)
    write(group)
    for member_id in (ADA, BOB):
        group.note_loads(member_id, {(T, number): 1e6 if member_id == ADA else 0.0 for number in has(group, member_id)})
    group.check_loads(0.0)
    return group


def give_up(group: ConsumerGroup, member_id: str) -> None:
    """Let a member report that it has revoked partitions."""
    told = group.assignment_of(member_id)
    assert told is not None
    group.report(member_id, seen_revision=told.revision, held=told.assigned)
    write(group)


def test_unbalanced_loads_cause_a_new_target(shared_by_load: ConsumerGroup) -> None:
    group = shared_by_load
    busy = has(group, ADA)
    assert group.wants_loads
    assert not group.check_loads(5.0), "it is too early"
    assert group.check_loads(10.0)
    assert not group.check_loads(10.0), "it is to be made already"
    assert write(group)
    give_up(group, ADA)
    assert len(has(group, ADA) & busy) == len(has(group, BOB) & busy) == 1
    group.check_loads(11.0)
    assert not group.check_loads(100.0), "it is even"
    assert group.next_record() is None


def test_loads_cause_no_target_while_partitions_move(shared_by_load: ConsumerGroup) -> None:
    group = shared_by_load
    assert group.check_loads(10.0)
    write(group)
    group.check_loads(11.0)
    giving = group.member(ADA)
    assert giving is not None
    assert giving.held.keys() != giving.target
    group.note_loads(ADA, dict.fromkeys(giving.held, 1e3))
    group.note_loads(BOB, {(T, number): 1e9 for number in has(group, BOB)})
    assert not group.check_loads(200.0)
    give_up(group, ADA)
    assert group.check_loads(202.0)


def test_loads_cause_no_target_without_load_assignor_or_second_member(group: ConsumerGroup) -> None:
    join(group, ADA, BOB)
    loads = {(T, number): 1e6 * number for number in range(4)}
    for member_id in (ADA, BOB):
        group.note_loads(member_id, loads)
    wants = [group.wants_loads]
    assert not any(group.check_loads(now) for now in (0.0, 50.0, 100.0))
    group.remove(BOB)
    group.remove(ADA)
    group.join(EVE, pb.GroupWish(topics=[T.decode()], assignor=pb.BY_LOAD))
    write(group)
    wants.append(group.wants_loads)
    assert wants == [False, True]
    assert not any(group.check_loads(now) for now in (101.0, 150.0, 200.0))


def test_loads_outlast_the_member_that_reported_them(shared_by_load: ConsumerGroup) -> None:
    """The load of a partition stays known when it moves."""
    group = shared_by_load
    busy = has(group, ADA)
    group.remove(ADA)
    write(group)
    group.join(EVE, pb.GroupWish(topics=[T.decode()]))
    write(group)
    give_up(group, BOB)
    assert len(has(group, EVE) & busy) == len(has(group, BOB) & busy) == 1


def test_new_coordinator_learns_loads_from_reports(shared_by_load: ConsumerGroup, topics: Topics) -> None:
    said = {each: {(T, number) for number in has(shared_by_load, each)} for each in (ADA, BOB)}
    successor = ConsumerGroup("g", topics, lambda _: UNRESTRICTED)
    successor.restart(shared_by_load.durable_record)
    assert successor.wants_loads
    assert not any(successor.check_loads(now) for now in (0.0, 50.0, 100.0))
    successor.note_loads(ADA, dict.fromkeys(said[ADA], 1e6))
    assert not successor.check_loads(110.0), "BOB has not reported loads yet"
    successor.note_loads(BOB, dict.fromkeys(said[BOB], 0.0))
    assert successor.check_loads(120.0)


def test_partitions_are_encoded_by_topic_in_order() -> None:
    keys = {(b"b", 1), (b"a", 2), (b"b", 0)}
    travelling = partitions_of(keys)
    assert [(one.topic_id, list(one.partitions)) for one in travelling] == [(b"a", [2]), (b"b", [0, 1])]
    assert keys_of(travelling) == keys


def test_later_join_wins_between_processes_with_equal_start_times(group: ConsumerGroup) -> None:
    group.join(ADA, wish(instance_id="i", born_us=5))
    write(group)
    assert group.join(BOB, wish(instance_id="i", born_us=5, at_once=True)) == [ADA]
    write(group)
    assert has(group, BOB) == {0, 1, 2, 3}


def test_rejoined_member_gets_no_assignment_of_its_earlier_membership(group: ConsumerGroup) -> None:
    join(group, ADA)
    group.remove(ADA)
    group.join(ADA, wish())
    record = group.next_record()
    assert record is not None
    assert group.assignment_of(ADA) is None, "its joining is not durable"
    group.written(record)
    assert has(group, ADA) == {0, 1, 2, 3}


def test_commit_without_a_member_is_refused_until_the_last_leave_is_durable(group: ConsumerGroup) -> None:
    join(group, ADA)
    group.remove(ADA)
    assert code(group, "", 0, (T, 0)) == pb.GROUP_NOT_EMPTY
    write(group)
    assert code(group, "", 0, (T, 0)) == 0


def test_member_silent_since_a_takeover_gets_no_new_topic(group: ConsumerGroup, topics: Topics) -> None:
    other = b"u" * 16
    group.join(ADA, wish(topics=(T, other)))
    write(group)
    topics.all[other] = 2
    successor = ConsumerGroup("g", topics, lambda _: None)
    successor.restart(group.durable_record)
    successor.join(BOB, wish())
    write(successor)
    assert {key[0] for key in keys_of(successor.durable_record.members[0].target)} == {T}


def test_partitions_and_subscriptions_up_to_their_limits_are_accepted(
    group: ConsumerGroup, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_group, "PARTITIONS_MAX", topics.all[T])
    monkeypatch.setattr(consumer_group, "WISHES_BYTES_MAX", wish().ByteSize())
    group.join(ADA, wish())
    monkeypatch.setattr(consumer_group, "PARTITIONS_MAX", topics.all[T] - 1)
    monkeypatch.setattr(consumer_group, "WISHES_BYTES_MAX", 2 * wish().ByteSize())
    with pytest.raises(ProtocolError, match="4 partitions"):
        group.join(BOB, wish())
