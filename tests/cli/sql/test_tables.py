from __future__ import annotations

import pytest

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.offset_extents import Extent
from tidelog_cli.sql.tables import no_such_table, refuse_twins, sampled


def test_the_first_and_the_last_records_are_looked_at() -> None:
    extent = Extent("t", {0: 0, 1: 10, 2: 5}, {0: 1000, 1: 13, 2: 5})
    first, last = sampled(extent, 100)
    assert (first.starts, first.ends) == ({0: 0, 1: 10}, {0: 25, 1: 13})
    assert (last.starts, last.ends) == ({0: 975, 1: 13}, {0: 1000, 1: 13})
    assert extent.records == 1003
    assert sampled(Extent("t", {0: 7}, {0: 7}), 100) == []


def test_records_after_an_earlier_extent() -> None:
    """Of partition 1 some was deleted meanwhile, 2 is new, 3 was cut, and of 4 nothing is new."""
    earlier = Extent("t", {0: 0, 1: 0, 3: 0, 4: 0}, {0: 10, 1: 10, 3: 10, 4: 10})
    now = Extent("t", {0: 0, 1: 15, 2: 3, 3: 0, 4: 0}, {0: 12, 1: 20, 2: 5, 3: 7, 4: 10})
    assert now.after(earlier) == Extent("t", {0: 10, 1: 15, 2: 3, 3: 7, 4: 10}, now.ends)


def test_of_many_partitions_the_largest_are_looked_at() -> None:
    extent = Extent("t", dict.fromkeys(range(100), 0), {number: number for number in range(100)})
    first, last = sampled(extent, 10)
    assert sorted(first.starts) == list(range(92, 100))
    assert set(first.ends.values()) == {1}
    assert last.starts == {number: number - 1 for number in range(92, 100)}


def test_unknown_topic_has_suggestions() -> None:
    message = "topic 'x' does not exist, nor any other; create topics with `tidelog topic create TOPIC`"
    assert str(no_such_table("x", [])) == message
    said = str(no_such_table("orders", ["orders.eu", "b"]))
    assert said == 'topic \'orders\' does not exist. Did you mean "orders.eu"? Topics: b, "orders.eu"'
    said = str(no_such_table("orders", ["orders.eu", "b"], "`"))
    assert said == "topic 'orders' does not exist. Did you mean `orders.eu`? Topics: b, `orders.eu`"
    assert "Did you mean Flights?" in str(no_such_table("FLIGHTS", ["Flights"]))
    assert str(no_such_table("zz", [f"t{number:02}" for number in range(30)])).endswith("t19, …")


def test_topics_that_are_one_table_in_sql() -> None:
    refuse_twins(["orders", "orders.eu", "orders"])
    with pytest.raises(CommandFailed, match="topics 'Orders' and 'orders' differ only in case"):
        refuse_twins(["orders", "b", "Orders"])
