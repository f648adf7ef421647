"""The queue of throttled connections: order, new debts and failures."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.stand import settled

from tidelog_broker.wire.throttle_queue import NEVER, ThrottleQueue


class One:
    """A connection."""

    def __init__(self, name: str) -> None:
        self.name = name

    def end_if_gone(self) -> None:
        """The connection is open."""


class World:
    """A gate whose wait the test sets."""

    def __init__(self) -> None:
        self.wait_s = NEVER
        self.passed: list[str] = []
        self.gate: ThrottleQueue[One] = ThrottleQueue(lambda: self.wait_s, self._passes)

    def _passes(self, one: One, waited_s: float) -> None:
        assert waited_s >= 0
        self.passed.append(one.name)
        if one.name == "b":
            self.wait_s = NEVER  # it has made the next debt


async def test_queue_is_fifo_and_stops_at_a_new_debt() -> None:
    world = World()
    ones = [One(name) for name in "abcd"]
    for one in (*ones, ones[0]):
        world.gate.wait(one)
    world.gate.leave(ones[3])
    assert (len(world.gate), world.passed) == (3, [])
    world.wait_s = 0.0
    world.gate.look()
    assert world.passed == [], "not within the caller's turn"
    await settled(lambda: world.passed == ["a", "b"], "the next was not let through")
    world.gate.look()
    await asyncio.sleep(0.01)
    assert len(world.gate) == 1
    world.gate.open()
    assert world.passed == ["a", "b", "c"]


async def test_connection_that_waits_again_is_queued_last() -> None:
    world = World()
    world.wait_s = 0.0
    again = One("a")

    def passes(one: One, waited_s: float) -> None:
        world.passed.append(one.name)
        if len(world.passed) < 3:
            gate.wait(one)

    gate: ThrottleQueue[One] = ThrottleQueue(lambda: world.wait_s, passes)
    gate.wait(again)
    gate.wait(One("x"))
    await settled(lambda: len(gate) == 0, "a connection was never resumed")
    assert world.passed == ["a", "x", "a", "x"][: len(world.passed)]


async def test_each_finished_request_resumes_one_connection_without_recursion() -> None:
    passed: list[str] = []
    depth = 0

    def passes(one: One, waited_s: float) -> None:
        nonlocal depth
        depth += 1
        assert depth == 1
        passed.append(one.name)
        gate.look()
        depth -= 1

    began: list[bool] = []
    gate: ThrottleQueue[One] = ThrottleQueue(lambda: 0.0 if began else NEVER, passes)
    for number in range(2_000):
        gate.wait(One(str(number)))
    began.append(True)
    for _ in range(3):
        gate.look()
    await asyncio.sleep(0)
    await settled(lambda: len(gate) == 0, "a connection was never resumed")
    assert passed == [str(number) for number in range(2_000)]


async def test_failing_connection_does_not_block_the_queue(caplog: pytest.LogCaptureFixture) -> None:
    passed: list[str] = []

    def passes(one: One, waited_s: float) -> None:
        passed.append(one.name)
        if one.name == "a":
            raise ZeroDivisionError

    gate: ThrottleQueue[One] = ThrottleQueue(lambda: 0.0, passes)
    for name in "ab":
        gate.wait(One(name))
    await settled(lambda: passed == ["a", "b"], "the second one waits for ever")
    assert "ZeroDivisionError" in caplog.text
