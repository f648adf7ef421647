from __future__ import annotations

import pytest

from tidelog_broker.core.membership.reach import CUT_MS, Reach

BOTH = frozenset("ab")


@pytest.mark.parametrize(("outgoing", "incoming"), [("a", "ab"), ("ab", "a"), ("a", "a")])
def test_node_without_a_connection_for_long_is_unreachable(outgoing: str, incoming: str) -> None:
    reach = Reach()

    def cut(now_ms: int, out: str = outgoing, into: str = incoming) -> frozenset[str]:
        return reach.cut_off(BOTH, outgoing=out, incoming=into, now_ms=now_ms)

    assert cut(7) == frozenset()
    assert cut(7 + CUT_MS - 1) == frozenset()
    assert cut(7 + CUT_MS) == {"b"}
    assert cut(8 + CUT_MS, "ab", "ab") == frozenset()
    assert cut(9 + CUT_MS) == frozenset(), "it begins anew"
    assert cut(9 + 2 * CUT_MS) == {"b"}


def test_dead_node_is_ignored_and_timed_from_its_return() -> None:
    reach = Reach()
    for now_ms in (0, CUT_MS, 2 * CUT_MS):
        assert reach.cut_off("", outgoing="", incoming="", now_ms=now_ms) == frozenset()
    assert reach.cut_off("b", outgoing="", incoming="", now_ms=2 * CUT_MS) == frozenset()
    assert reach.cut_off("b", outgoing="", incoming="", now_ms=3 * CUT_MS) == {"b"}
