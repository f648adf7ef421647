"""Node-wide limits over the tables of all partitions."""

from __future__ import annotations

import gc

from tidelog_broker.core.replication.producer_budget import ProducerBudget


class Table:
    """A table with a number of producers."""

    def __init__(self, producers: int) -> None:
        self.producers = producers

    def __len__(self) -> int:
        return self.producers


def test_limit_is_shared_by_tables() -> None:
    budget = ProducerBudget(3)
    budget.join(Table(1))
    table = Table(2)
    budget.join(table)
    gc.collect()
    table.producers = 3
    assert budget.take(), "a table that is gone counts no more"
    table.producers = 4
    assert not budget.take()
    table.producers = 2
    budget.give_back(2)
    assert budget.take()
    assert not budget.take()
