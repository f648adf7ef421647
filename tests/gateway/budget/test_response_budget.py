from __future__ import annotations

import asyncio

import pytest

from tidelog_gateway.budget.response_budget import SMALL_ANSWER_BYTES, ResponseBudget
from tidelog_gateway.budget.shedding_bounds import STALL_TIMEOUT_S
from tidelog_proto.limits import MIB


class Held:
    """A connection with waiting output."""

    def __init__(self, outgoing: ResponseBudget, held_bytes: int, idle_s: float) -> None:
        self.held_bytes = held_bytes
        self.idle = idle_s
        self.was_cut = False
        self._outgoing = outgoing
        assert outgoing.take(held_bytes)
        outgoing.holders.add(self)

    def idle_s(self) -> float:
        return self.idle

    def cut(self) -> None:
        self.was_cut = True
        self._outgoing.holders.discard(self)
        self._outgoing.give_back(self.held_bytes)


def test_the_limit_holds_and_a_single_answer_may_exceed_it() -> None:
    outgoing = ResponseBudget(10 * MIB, MIB)
    assert outgoing.take(11 * MIB), "it is the only answer"
    assert not outgoing.take(MIB)
    outgoing.give_back(11 * MIB)
    assert outgoing.take(9 * MIB)
    assert not outgoing.take(2 * MIB)
    assert outgoing.take(MIB)
    assert outgoing.take(SMALL_ANSWER_BYTES), "small answers may exceed the limit"
    while outgoing.take(SMALL_ANSWER_BYTES):
        assert outgoing.used_bytes < 11 * MIB, "but only by a sixteenth"


def test_records_read_ahead_are_limited_to_half_and_do_not_block_messages() -> None:
    outgoing = ResponseBudget(10 * MIB, MIB)
    assert outgoing.take_prefetch(5 * MIB)
    assert not outgoing.take_prefetch(1)
    assert outgoing.take(8 * MIB), "the only message may exceed the limit"
    assert not outgoing.take(MIB)
    outgoing.give_back(8 * MIB)
    outgoing.give_back_prefetch(5 * MIB)
    assert (outgoing.used_bytes, outgoing.prefetched_bytes) == (0, 0)
    assert outgoing.take(10 * MIB)
    assert not outgoing.take_prefetch(1)


def test_a_single_batch_read_ahead_may_exceed_its_half() -> None:
    outgoing = ResponseBudget(10 * MIB, MIB)
    assert outgoing.take_prefetch(6 * MIB), "otherwise its subscription would wait without end"
    assert not outgoing.take_prefetch(1)


async def test_returned_bytes_wake_waiting_connections() -> None:
    outgoing = ResponseBudget(MIB, MIB)
    assert outgoing.take(MIB)
    waiting = asyncio.create_task(outgoing.changed())
    await asyncio.sleep(0)
    outgoing.give_back(1)
    async with asyncio.timeout(10):
        await waiting
        await outgoing.changed()  # ends by its timeout


def test_load_shedding_drops_idle_prefetch_first_and_then_closes_slow_clients() -> None:
    outgoing = ResponseBudget(10 * MIB, MIB)
    told: list[str] = []

    def let_go(name: str, size_bytes: int) -> int:
        told.append(name)
        return size_bytes

    outgoing.idle["a"] = lambda: let_go("a", MIB)
    outgoing.idle["b"] = lambda: let_go("b", MIB)
    small, large = Held(outgoing, MIB, STALL_TIMEOUT_S), Held(outgoing, 3 * MIB, STALL_TIMEOUT_S)
    busy = Held(outgoing, 4 * MIB, STALL_TIMEOUT_S / 2)
    outgoing.shed_load(MIB)
    assert (told, large.was_cut) == (["a"], False)
    outgoing.shed_load(4 * MIB)
    assert (told, large.was_cut, small.was_cut) == (["a", "a", "b"], True, False)
    outgoing.idle.clear()
    outgoing.shed_load(100 * MIB)
    assert (small.was_cut, busy.was_cut) == (True, False)
    assert outgoing.used_bytes == 4 * MIB


@pytest.mark.parametrize(("total", "one", "expected"), [(MIB, 2 * MIB, MIB), (2 * MIB, MIB, MIB)])
def test_one_connection_has_at_most_the_whole_budget(total: int, one: int, expected: int) -> None:
    assert ResponseBudget(total, one).connection_limit_bytes == expected
