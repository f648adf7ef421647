from __future__ import annotations

import time

import pytest

from tidelog_broker.base import stall_probe as subject
from tidelog_broker.base.stall_probe import sleeps


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
