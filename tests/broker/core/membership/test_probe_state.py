from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.membership.probe_state import Rotation, Slowness


@given(st.integers(1, 20), st.integers(0, 2**32))
def test_every_member_is_probed_in_each_round(size: int, seed: int) -> None:
    rotation = Rotation(random.Random(seed))
    members = [f"n{i}" for i in range(size)]
    for _ in range(3):
        assert sorted(str(rotation.next(members)) for _ in members) == sorted(members)


def test_order_differs_between_rounds() -> None:
    rotation = Rotation(random.Random(1))
    members = [f"n{i}" for i in range(10)]
    assert len({tuple(rotation.next(members) for _ in members) for _ in range(5)}) == 5


def test_gone_members_are_skipped_and_new_ones_enter_the_round() -> None:
    rotation = Rotation(random.Random(1))
    assert rotation.next([]) is None
    first = rotation.next(["a", "b", "c"])
    rotation.enter("d")
    rotation.enter("d")
    rest = [node_id for node_id in ("b", "c", "d", "a") if node_id != first]
    gone, left = rest[0], rest[1:]
    assert sorted(str(rotation.next(left)) for _ in left) == sorted(left)
    assert rotation.next([gone]) == gone


def test_slowness_scales_times_up_to_its_limit() -> None:
    slowness = Slowness(2)
    stretched = []
    for _ in range(3):
        slowness.worse()
        stretched.append(slowness.stretch(100))
    assert stretched == [200, 300, 300]
    for _ in range(3):
        slowness.better()
    assert slowness.stretch(100) == 100
