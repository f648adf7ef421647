"""The loop writes by itself only while that is quick."""

from __future__ import annotations

import time

import pytest

from tidelog_broker.replication import inline_writes as subject
from tidelog_broker.replication.inline_writes import INLINE_BYTES_MAX, PAUSE_S, SLOW_S, InlineWrites, sleeps


def test_only_groups_up_to_a_size() -> None:
    policy = InlineWrites()
    assert policy.allows(INLINE_BYTES_MAX, 0.0)
    assert not policy.allows(INLINE_BYTES_MAX + 1, 0.0)


def test_a_slow_write_pauses_them_and_then_one_more_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "sleeps", lambda: 7)
    policy = InlineWrites()
    policy.took(SLOW_S, 10.0, sleeps_before=6)
    assert policy.allows(1, 10.0)
    policy.took(SLOW_S * 1.1, 10.0, sleeps_before=7)
    assert policy.allows(1, 10.0), "it only lost the processor"
    policy.took(SLOW_S * 1.1, 10.0, sleeps_before=6)
    verdicts = [policy.allows(1, 10.0), policy.allows(1, 10.0 + PAUSE_S * 0.99), policy.allows(1, 10.0 + PAUSE_S)]
    assert verdicts == [False, False, True]


def test_waiting_counts_and_working_does_not() -> None:
    before = sleeps()
    time.sleep(0.001)
    assert sleeps() != before
    unchanged = 0
    for _ in range(100):
        before = sleeps()
        sum(range(1000))
        unchanged += sleeps() == before
    assert unchanged > 90, "even if another thread takes the interpreter now and then"


def test_where_the_system_does_not_tell_everything_may_have_been_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_THREAD", None)
    before = sleeps()
    time.sleep(0.001)
    assert sleeps() != before
