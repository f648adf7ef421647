"""The loop writes by itself only while that is quick."""

from __future__ import annotations

import time

import pytest

from tidelog_broker.replication import log_writer as subject
from tidelog_broker.replication.log_writer import (
    INLINE_BYTES_MAX,
    LARGE_BYTES,
    PAUSE_S,
    SLOW_S,
    SLOW_S_PER_BYTE,
    TRIED_S,
    TRIED_SHARE,
    WORTH_S,
    InlineWrites,
    sleeps,
)


def test_large_groups_go_to_workers() -> None:
    policy = InlineWrites()
    assert policy.allows(INLINE_BYTES_MAX, 0.0)
    assert not policy.allows(INLINE_BYTES_MAX + 1, 0.0)


def test_slow_write_pauses_inline_writes_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "sleeps", lambda: 7)
    policy = InlineWrites()
    policy.took(1, SLOW_S, 10.0, sleeps_before=6)
    assert policy.allows(1, 10.0)
    policy.took(1, SLOW_S * 1.1, 10.0, sleeps_before=7)
    assert policy.allows(1, 10.0), "it only lost the processor"
    policy.took(1, SLOW_S * 1.1, 10.0, sleeps_before=6)
    verdicts = [policy.allows(1, 10.0), policy.allows(1, 10.0 + PAUSE_S * 0.99), policy.allows(1, 10.0 + PAUSE_S)]
    assert verdicts == [False, False, True]


def test_large_writes_into_slow_memory_go_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "sleeps", lambda: 7)
    policy, now_s = InlineWrites(), 10.0
    for _ in range(60):
        policy.took(LARGE_BYTES, 2 * WORTH_S, now_s, sleeps_before=7)
    assert not policy.allows(LARGE_BYTES, now_s)
    assert policy.allows(LARGE_BYTES - 1, now_s), "a small one costs a worker more than itself"
    assert policy.allows(LARGE_BYTES, now_s + TRIED_S)
    assert not policy.allows(INLINE_BYTES_MAX, now_s + TRIED_S), "that would hold up the loop too often"
    assert policy.allows(INLINE_BYTES_MAX, now_s + 2 * WORTH_S / LARGE_BYTES * INLINE_BYTES_MAX / TRIED_SHARE)
    policy.took(LARGE_BYTES, LARGE_BYTES * SLOW_S_PER_BYTE, now_s, sleeps_before=7)
    assert policy.allows(INLINE_BYTES_MAX, now_s), "a fast one counts at once"
    policy.took(LARGE_BYTES, LARGE_BYTES * SLOW_S_PER_BYTE / 2, now_s, sleeps_before=7)
    policy.took(LARGE_BYTES, 2 * WORTH_S, now_s, sleeps_before=7)
    assert not policy.allows(INLINE_BYTES_MAX, now_s)
    assert policy.allows(LARGE_BYTES, now_s), "a slow one may have lost the processor"


def test_sleeps_counts_waits_only() -> None:
    before = sleeps()
    time.sleep(0.001)
    assert sleeps() != before
    unchanged = 0
    for _ in range(100):
        before = sleeps()
        sum(range(1000))
        unchanged += sleeps() == before
    assert unchanged > 90, "even if another thread takes the interpreter now and then"


def test_sleeps_always_changes_without_per_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_THREAD", None)
    before = sleeps()
    time.sleep(0.001)
    assert sleeps() != before
