"""The in-flight budget."""

from __future__ import annotations

from tidelog_broker.wire.budget import Budget


def test_single_request_always_fits_an_empty_budget() -> None:
    budget = Budget(10)
    assert budget.has_room(50)
    assert budget.take(50)
    budget.give_back(50)
    assert budget.take(6)
    assert (budget.has_room(4), budget.has_room(5)) == (True, False)
    assert not budget.take(5)
    assert budget.take(4)
    assert budget.take(0), "a request without bytes is always admitted"
    budget.give_back(10)
    assert budget.used_bytes == 0
