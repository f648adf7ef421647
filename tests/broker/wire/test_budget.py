"""The in-flight budget."""

from __future__ import annotations

import pytest

from tidelog_broker.wire.budget import Budget


def test_single_request_always_fits_an_empty_budget() -> None:
    budget = Budget(10)
    assert budget.has_room(50)
    budget.take(6)
    assert budget.has_room(4)
    assert not budget.has_room(5)
    budget.give_back(6)
    assert budget.in_flight_bytes == 0


def test_releasing_uncounted_bytes_fails() -> None:
    with pytest.raises(AssertionError):
        Budget(10).give_back(1)
