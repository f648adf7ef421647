"""When a client publishes again after a node has throttled it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from tests.broker.stand import settled

from tidelog.cluster import throttle as module
from tidelog.cluster.throttle import Throttle
from tidelog_proto import broker_pb2 as pb


class World:
    """A throttle, the delays that it has counted, and the waiters that were called."""

    def __init__(self, ask: Callable[[], None] | None = None) -> None:
        self.delays_s: list[float] = []
        self.woken: list[str] = []
        self.throttle = Throttle(asyncio.get_running_loop(), "node:1", self.delays_s.append, ask=ask)

    def heard(self, throttle_ms: int, kind: str = "publish_reply") -> None:
        envelope = pb.Envelope(throttle_ms=throttle_ms)
        getattr(envelope, kind).SetInParent()
        self.throttle.heard(envelope, throttle_ms)

    def wait(self, name: str) -> None:
        self.throttle.when_open(name, lambda: self.woken.append(name))


async def test_nothing_is_published_during_the_pause() -> None:
    world = World()
    assert world.throttle.may_publish()
    world.heard(50)
    assert not world.throttle.may_publish()
    world.wait("a")
    world.wait("a")
    world.wait("b")
    await settled(lambda: bool(world.woken), "no waiter was called")
    assert world.woken == ["a", "b"], "each waiter is called once"
    assert world.throttle.may_publish()


async def test_publishes_are_serial_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIAL_PHASE_S", 0.5)
    world = World()
    world.heard(1)
    await settled(world.throttle.may_publish, "a debt of a millisecond lasts")
    world.throttle.published(1_000)
    assert not world.throttle.may_publish()
    world.wait("a")
    await asyncio.sleep(0.01)
    assert world.woken == []
    world.throttle.answered(1_000)
    assert world.woken == ["a"]
    world.throttle.published(1_000)
    await settled(world.throttle.may_publish, "it goes one by one for ever")


async def test_answers_without_pause_do_not_extend_the_careful_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIAL_PHASE_S", 0.2)
    world = World()
    world.heard(60_000)
    world.heard(0)
    world.throttle.published(100)
    assert not world.throttle.may_publish()

    def may_publish_after_an_answer() -> bool:
        world.heard(0)
        return world.throttle.may_publish()

    await settled(may_publish_after_an_answer, "it goes one by one for ever")


async def test_waiter_also_waits_for_a_pause_reported_meanwhile() -> None:
    world = World()
    world.heard(1)
    await asyncio.sleep(0.01)
    world.throttle.published(1_000)
    world.wait("a")
    await asyncio.sleep(0.01)
    world.heard(20)
    world.throttle.answered(1_000)
    assert world.woken == []
    await settled(lambda: world.woken == ["a"], "no waiter was called")


async def test_in_flight_bytes_are_limited_and_one_request_always_passes() -> None:
    world = World()
    world.throttle.greeted(10_000)
    for size_bytes, may in ((4_000, True), (2_000, False)):
        world.throttle.published(size_bytes)
        assert world.throttle.may_publish() is may
    world.throttle.answered(6_000)
    world.throttle.published(1_000_000)
    assert not world.throttle.may_publish()
    world.throttle.answered(2_000_000)  # including requests sent before the rate was known
    assert world.throttle.may_publish()


async def test_overlapping_delays_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.WARNING, "tidelog.client"):
        for throttle_ms in (1_000, 500, 2_000):
            world.heard(throttle_ms, "fetch_reply")
    assert sum(world.delays_s) == pytest.approx(2, abs=0.2)
    assert world.throttle.may_publish(), "a throttled fetch does not delay publishes"
    assert len(caplog.records) == 1


async def test_waiters_are_called_when_the_connection_is_lost() -> None:
    world = World()
    world.heard(60_000, "hello_reply")
    world.wait("a")
    world.throttle.close()
    assert world.woken == ["a"]


async def test_long_pause_is_queried_and_ends_with_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.02)
    asked: list[bool] = []
    world = World(lambda: asked.append(world.throttle.may_publish()))
    world.heard(60_000)
    await asyncio.sleep(0.1)
    assert asked == [], "nothing is waiting"
    world.wait("a")
    await settled(lambda: len(asked) >= 3, "the node was not asked")
    assert not any(asked)
    world.heard(50_000, "hello_reply")
    assert world.woken == []
    world.heard(0, "hello_reply")
    assert world.woken == ["a"]
    assert world.throttle.may_publish()


async def test_without_a_query_one_publish_is_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.1)
    world = World()
    loop = asyncio.get_running_loop()
    world.heard(60_000)
    assert not world.throttle.may_publish()
    for name in ("a", "b"):
        world.wait(name)
        await settled(lambda name=name: world.woken[-1:] == [name], "no waiter was called")  # type: ignore[misc]  # bound
        assert world.throttle.may_publish()
        assert world.throttle.open_at > loop.time() + 50, "the answer contains the remaining pause"
        world.throttle.published(1_000)
        assert not world.throttle.may_publish(), "one at a time"
        world.throttle.answered(1_000)
        assert not world.throttle.may_publish(), "the publish was refused"
    world.heard(0)
    assert world.throttle.may_publish()
