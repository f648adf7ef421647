"""Budget accounting of incomplete frames."""

from __future__ import annotations

import pytest

from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.frame_admission import FrameAdmission
from tidelog_broker.wire.slow_senders import SlowSenders

BYTES_MAX = 1600


class Stand:
    """One connection, and how much others have in flight."""

    def __init__(self, *, of_others: int = 0) -> None:
        self.budget = Budget(BYTES_MAX)
        self.budget.take(of_others)
        self.told: list[tuple[int, int]] = []
        self.arrived_bytes = 0
        self.coming = FrameAdmission(
            self.budget, SlowSenders(self.budget), lambda: self.arrived_bytes, lambda *told: self.told.append(told)
        )


async def test_incomplete_frame_is_counted_until_complete_or_dropped() -> None:
    stand = Stand()
    assert stand.coming.has_room_for(700)
    stand.coming.size_bytes = 700
    stand.coming.watch()
    stand.arrived_bytes = 30
    assert stand.coming.announced() == (700, 30)
    stand.coming.close_slow()
    assert stand.told == [(700, 30)]
    assert stand.coming.whole() == 700
    assert stand.coming.forget() is None, "it is a request's now"
    assert stand.budget.in_flight_bytes == 700
    stand.coming.size_bytes = 0
    assert stand.coming.forget() == 0, "a request without bytes counts as one"


async def test_large_envelope_is_counted_while_it_arrives() -> None:
    stand = Stand()
    assert stand.coming.gather(500)
    assert stand.coming.announced() == (500, 0)
    assert stand.coming.gather(800), "it is another one's turn"
    assert stand.budget.in_flight_bytes == 800
    stand.coming.gathered()
    assert stand.budget.in_flight_bytes == 0
    assert stand.coming.gather(500)
    assert stand.coming.forget() is None
    assert stand.budget.in_flight_bytes == 0


@pytest.mark.parametrize(("size_bytes", "may"), [(100, True), (101, False)])
async def test_few_envelopes_may_exceed_the_budget(size_bytes: int, may: bool) -> None:
    stand = Stand(of_others=BYTES_MAX)
    assert not stand.coming.has_room_for(size_bytes)
    assert stand.coming.gather(size_bytes) is may
    assert stand.budget.in_flight_bytes == BYTES_MAX + (size_bytes if may else 0)
