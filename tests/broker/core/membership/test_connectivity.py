from __future__ import annotations

import pytest

from tidelog_broker.core.membership.connectivity import UNREACHABLE_MS, ConnectivityMonitor

BOTH = frozenset("ab")


@pytest.mark.parametrize(("outgoing", "incoming"), [("a", "ab"), ("ab", "a"), ("a", "a")])
def test_node_without_a_connection_for_long_is_unreachable(outgoing: str, incoming: str) -> None:
    reach = ConnectivityMonitor()

    def cut(now_ms: int, out: str = outgoing, into: str = incoming) -> frozenset[str]:
        return reach.unreachable(BOTH, outgoing=out, incoming=into, now_ms=now_ms)

    assert cut(7) == frozenset()
    assert cut(7 + UNREACHABLE_MS - 1) == frozenset()
    assert cut(7 + UNREACHABLE_MS) == {"b"}
    assert cut(8 + UNREACHABLE_MS, "ab", "ab") == frozenset()
    assert cut(9 + UNREACHABLE_MS) == frozenset(), "the timer restarts"
    assert cut(9 + 2 * UNREACHABLE_MS) == {"b"}


def test_dead_node_is_ignored_and_timed_from_its_return() -> None:
    reach = ConnectivityMonitor()
    for now_ms in (0, UNREACHABLE_MS, 2 * UNREACHABLE_MS):
        assert reach.unreachable("", outgoing="", incoming="", now_ms=now_ms) == frozenset()
    assert reach.unreachable("b", outgoing="", incoming="", now_ms=2 * UNREACHABLE_MS) == frozenset()
    assert reach.unreachable("b", outgoing="", incoming="", now_ms=3 * UNREACHABLE_MS) == {"b"}
