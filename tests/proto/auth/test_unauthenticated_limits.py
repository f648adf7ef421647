"""Closing of connections beyond the limit of unauthenticated connections."""

from __future__ import annotations

from tidelog_proto.auth.unauthenticated_limits import UnauthenticatedConnections


class FakeStranger:
    def __init__(self, name: str) -> None:
        self.name = name
        self.gave_way = False

    def give_way(self) -> None:
        self.gave_way = True


def test_oldest_connection_of_the_most_frequent_address_is_closed() -> None:
    strangers = UnauthenticatedConnections(4)
    crowd = [FakeStranger(f"crowd {number}") for number in range(6)]
    single = FakeStranger("single")
    assert strangers.came(single, "10.0.0.1") == 0
    assert sum(strangers.came(one, "10.0.0.2") for one in crowd) == 3
    assert [one.gave_way for one in crowd] == [True, True, True, False, False, False]
    assert not single.gave_way
    assert len(strangers) == 4


def test_authenticated_connection_is_not_counted() -> None:
    strangers = UnauthenticatedConnections(1)
    first, second = FakeStranger("first"), FakeStranger("second")
    strangers.came(first, "a")
    strangers.left(first)
    strangers.left(first)
    assert strangers.came(second, "a") == 0
    assert not first.gave_way
    assert strangers.close_oldest() == 0, "the last to come is never sent away for itself"
    assert len(strangers) == 1
