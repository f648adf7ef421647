"""Changes of a group that are computed in steps, with heartbeats and joins between them."""

from __future__ import annotations

import time

import pytest
from tests.broker.core.groups.test_consumer_group import ADA, BOB, T, Topics, has, join, report, wish, write

from tidelog_broker.core.groups.consumer_group import ConsumerGroup
from tidelog_broker.core.groups.member_access import UNRESTRICTED
from tidelog_broker.core.groups.partition_lists import held_of
from tidelog_broker.core.groups.steps import STEP, Steps, complete
from tidelog_proto import broker_pb2 as pb


@pytest.fixture
def group() -> ConsumerGroup:
    return ConsumerGroup("g", Topics(), lambda _: UNRESTRICTED)


def longest_step_s(steps: Steps[object]) -> tuple[float, int]:
    """Return the processor time of the longest step of a computation, and the number of steps."""
    longest_s, count = 0.0, 0
    while True:
        began_s = time.thread_time()
        ends = next(steps, steps) is steps
        longest_s, count = max(longest_s, time.thread_time() - began_s), count + 1
        if ends:
            return longest_s, count


def longest_steps_s(assignor: pb.Assignor) -> list[float]:
    """Let four members join a group of 20,000 partitions; return the time of the longest step of each join."""
    group = ConsumerGroup("g", lambda _wish, _reader: {T: 20_000}, lambda _: UNRESTRICTED)
    found: list[float] = []
    for number in range(4):
        group.join(f"member{number:010}", pb.GroupWish(topics=["t"], assignor=assignor))
        decided = longest_step_s(group.decide_steps())
        record = group.next_record()
        assert record is not None
        written = longest_step_s(group.written_steps(record))
        assert decided[1] > 20_000 / STEP / 4
        assert written[1] > min(number, 1)
        found.append(max(decided[0], written[0]))
    return found


@pytest.mark.parametrize("assignor", [pb.STICKY, pb.RANGE, pb.ROUND_ROBIN, pb.BY_LOAD])
def test_changes_of_the_largest_group_are_computed_in_steps(assignor: pb.Assignor) -> None:
    least = longest_steps_s(assignor)
    for _ in range(4):
        if max(least) < 0.03:
            return
        least = [min(times_s) for times_s in zip(least, longest_steps_s(assignor), strict=True)]
    pytest.fail(f"a step takes a few milliseconds, but the longest of each join took {least} s in the best of 5 tries")


def test_changes_of_many_small_members_are_computed_in_steps() -> None:
    group = ConsumerGroup("g", lambda _wish, _reader: {T: 4_000}, lambda _: UNRESTRICTED)
    for number in range(900):
        group.join(f"member{number:010}", wish())
    group.decide()
    steps = group.record_steps()
    assert sum(1 for _ in steps) >= 8_000 // STEP, "each of 900 members holds 4 or 5 partitions of its target"
    group.join("one more", wish())
    record = group.next_record()
    assert record is not None
    assert sum(1 for _ in group.written_steps(record)) >= 4_000 // STEP


def test_heartbeats_between_steps_free_nothing(group: ConsumerGroup) -> None:
    join(group, ADA)
    group.join(BOB, wish())
    told = group.assignment_of(ADA)
    assert told is not None
    steps = group.decide_steps()
    next(steps)
    was_deciding = group.is_deciding
    group.report(ADA, seen_revision=99, held=())
    group.check_topics()
    complete(steps)
    assert [was_deciding, group.is_deciding] == [True, False]
    write(group)
    assert len(has(group, ADA)) == 2
    assert has(group, BOB) == set(), "the other one has not revoked them"
    report(group, ADA, *has(group, ADA))
    assert len(has(group, BOB)) == 2


def test_abandoned_computation_is_repeated(group: ConsumerGroup) -> None:
    join(group, ADA)
    group.join(BOB, wish())
    steps = group.decide_steps()
    next(steps)
    steps.close()
    assert not group.is_deciding
    write(group)
    assert len(has(group, ADA)) == 2


def test_change_between_steps_of_a_record_is_in_the_next_one(group: ConsumerGroup) -> None:
    group.join(ADA, wish())
    group.decide()
    steps = group.record_steps()
    next(steps)
    group.join(BOB, wish())
    record = complete(steps)
    assert record is not None
    assert [member.member_id for member in record.members] == [ADA]
    group.written(record)
    assert group.assignment_of(BOB) is None
    write(group)
    assert group.assignment_of(BOB) is not None
    assert len(has(group, ADA)) == 2


def test_report_between_steps_of_a_record_is_in_the_next_one(group: ConsumerGroup) -> None:
    join(group, ADA)
    group.join(BOB, wish())
    group.decide()
    steps = group.record_steps()
    next(steps)
    group.report(ADA, seen_revision=99, held=())
    record = complete(steps)
    assert record is not None
    assert [len(held_of(member)) for member in record.members] == [4, 0]
    group.written(record)
    write(group)
    assert (len(has(group, ADA)), len(has(group, BOB))) == (2, 2)
