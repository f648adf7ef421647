"""A process that joins again under a new id ends its earlier membership, and no other one."""

from __future__ import annotations

import pytest
from tests.broker.core.groups.test_consumer_group import (
    ADA,
    BOB,
    EVE,
    Topics,
    has,
    join,
    join_as_one,
    report,
    wish,
    write,
)

from tidelog_broker.core.groups.consumer_group import ConsumerGroup
from tidelog_broker.core.groups.member_access import UNRESTRICTED


@pytest.fixture
def group() -> ConsumerGroup:
    return ConsumerGroup("g", Topics(), lambda _: UNRESTRICTED)


def test_process_without_an_instance_gets_the_partitions_of_its_earlier_id_at_once(group: ConsumerGroup) -> None:
    join(group, ADA)
    join(group, BOB)
    report(group, ADA, *has(group, ADA))
    before, others = has(group, ADA), has(group, BOB)
    assert len(before) == len(others) == 2
    assert group.join(EVE, wish(), ended=ADA) == [ADA]
    write(group)
    assert (has(group, EVE), has(group, BOB)) == (before, others), "no partition moves"
    assert group.member(ADA) is None


@pytest.mark.parametrize("ended", ["", BOB, "another00000000"])
def test_join_removes_only_the_member_that_it_names(group: ConsumerGroup, ended: str) -> None:
    join(group, ADA)
    group.join(EVE, wish(), ended=ended)
    assert group.member(ADA) is not None


def test_join_of_another_process_ends_no_member(group: ConsumerGroup) -> None:
    join(group, ADA)
    assert group.join(EVE, wish(born_us=1), ended=ADA) == []
    assert group.member(ADA) is not None


def test_static_member_is_not_ended_by_a_process_of_another_instance(group: ConsumerGroup) -> None:
    join_as_one(group, ADA, 1)
    for member_id, instance_id in ((BOB, ""), (EVE, "two")):
        assert group.join(member_id, wish(instance_id=instance_id), ended=ADA) == []
    write(group)
    assert group.member(ADA) is not None
