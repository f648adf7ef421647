"""The loop writes by itself only while that is quick."""

from __future__ import annotations

from tidelog_broker.core.replication.inline_writes import INLINE_BYTES_MAX, PAUSE_S, SLOW_S, InlineWrites


def test_only_groups_up_to_a_size() -> None:
    policy = InlineWrites()
    assert policy.allows(INLINE_BYTES_MAX, 0.0)
    assert not policy.allows(INLINE_BYTES_MAX + 1, 0.0)


def test_a_slow_write_pauses_them_and_then_one_more_is_tried() -> None:
    policy = InlineWrites()
    policy.took(SLOW_S, 10.0, slept=True)
    assert policy.allows(1, 10.0)
    policy.took(SLOW_S * 1.1, 10.0, slept=False)
    assert policy.allows(1, 10.0), "it only lost the processor"
    policy.took(SLOW_S * 1.1, 10.0, slept=True)
    verdicts = [policy.allows(1, 10.0), policy.allows(1, 10.0 + PAUSE_S * 0.99), policy.allows(1, 10.0 + PAUSE_S)]
    assert verdicts == [False, False, True]
