"""Which losses of a consumer are reported, without a node."""

from __future__ import annotations

import pytest

from tidelog.errors import MemberFencedError
from tidelog.groups.losses import LOST_NAMED_MAX, Losses
from tidelog.model import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def reported(losses: Losses) -> str:
    with pytest.raises(MemberFencedError) as refused:
        losses.check()
    losses.check()  # reported once
    return str(refused.value)


def test_a_position_before_the_last_delivered_record_leaves_the_loss() -> None:
    losses = Losses("g")
    losses.add({A: 5})
    losses.committed({A: 4, B: 9})
    assert "it lost t/0. This call" in reported(losses)


@pytest.mark.parametrize("offset", [5, 6])
def test_a_position_after_the_last_delivered_record_removes_the_loss(offset: int) -> None:
    losses = Losses("g")
    losses.add({A: 5})
    losses.committed({A: offset})
    losses.check()


def test_losses_of_several_times_are_reported_together_with_the_newest_positions() -> None:
    losses = Losses("g")
    losses.add({A: 5})
    losses.add({B: 7})
    losses.add({A: 9})
    losses.committed({A: 5})
    assert "it lost t/0, t/1. This call" in reported(losses)


@pytest.mark.parametrize(("count", "more"), [(LOST_NAMED_MAX, ""), (LOST_NAMED_MAX + 1, " and 1 more")])
def test_the_number_of_named_partitions_is_bounded(count: int, more: str) -> None:
    losses = Losses("g")
    losses.add({TopicPartition("t", number): 1 for number in range(count)})
    assert f"t/{LOST_NAMED_MAX - 1}{more}. This call" in reported(losses)
