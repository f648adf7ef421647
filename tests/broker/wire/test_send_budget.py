"""The budget of unsent bytes: shares, resumption and closing of stalled clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.broker.stand import settled
from tests.holding import entries_of

from tidelog_broker.wire import send_budget as outgoing_module
from tidelog_broker.wire.send_budget import LEAST, PROMPT_S, SendBacklog, SendBudget

MAX = 80_000
MARK = 5_000


class FakeSink:
    """A connection; its client takes what the test says."""

    def __init__(self, outgoing: SendBudget, *, name: str = "") -> None:
        self.name = name
        self.buffer_bytes = 0
        self.told = 0
        self.looked = 0
        self.cut: list[float] = []
        self.backlog = SendBacklog(outgoing, self)

    def unsent(self) -> int:
        return self.buffer_bytes

    def changed(self) -> None:
        self.looked += 1

    def has_room_again(self) -> None:
        self.told += 1

    def close_stalled(self, stalled_s: float) -> None:
        self.cut.append(stalled_s)
        self.buffer_bytes = 0
        self.backlog.end()

    def send(self, size_bytes: int) -> None:
        self.buffer_bytes += size_bytes
        self.backlog.wrote(size_bytes)

    def take(self, size_bytes: int) -> None:
        self.buffer_bytes -= size_bytes


def budget(*, stall_ms: int = 60_000) -> SendBudget:
    return SendBudget(bytes_max=MAX, connection_bytes_max=MARK, stall_ms=stall_ms)


async def test_tls_overhead_does_not_count_as_sent_bytes() -> None:
    """Each small answer is encrypted to more than it is; a client that takes none of them has stalled all the same."""
    outgoing = budget(stall_ms=60)
    sink = FakeSink(outgoing)
    async with asyncio.timeout(20):
        while not sink.cut:
            sink.buffer_bytes += 52
            sink.backlog.wrote(30)
            await asyncio.sleep(0.001)
    other = FakeSink(outgoing)
    for _ in range(200):
        other.buffer_bytes += 52
        other.backlog.wrote(30)
        other.take(50)
        await asyncio.sleep(0.001)
    assert other.cut == [], "a client that takes a few bytes is not cut"
    other.backlog.end()
    assert outgoing.used_bytes == 0


async def test_stalled_clients_leave_a_share_for_others() -> None:
    outgoing = budget()
    given: list[int] = []
    for _ in range(500):
        sink = FakeSink(outgoing)
        while sink.backlog.has_room():
            sink.send(min(1000, sink.backlog.room_bytes))
        given.append(sink.buffer_bytes)
    assert (given[0], given[-1]) == (MARK, MAX // LEAST)
    assert given[10] > given[30] > given[60]
    assert 3 * MAX // 4 <= outgoing.used_bytes < MAX
    polite = FakeSink(outgoing)
    for _ in range(100):
        assert polite.backlog.room_bytes == MAX // LEAST > 0
        polite.send(MAX // LEAST)
        assert not polite.backlog.has_room()
        polite.take(MAX // LEAST)
        polite.backlog.look()
    for _ in range(2000):
        sink = FakeSink(outgoing)
        while sink.backlog.has_room():
            sink.send(sink.backlog.room_bytes)
        assert outgoing.used_bytes <= MAX
    assert not polite.backlog.has_room()


async def test_reading_pauses_at_the_limit_of_a_connection() -> None:
    outgoing = budget()
    sink = FakeSink(outgoing)
    sink.send(MARK)
    assert not sink.backlog.has_room()
    assert sink.looked == 1
    sink.take(1)
    sink.backlog.look()
    assert sink.backlog.has_room()


async def test_batch_larger_than_the_share_is_sent_if_the_budget_has_room() -> None:
    outgoing = budget()
    first, second = FakeSink(outgoing), FakeSink(outgoing)
    assert first.backlog.fits(10 * MAX), "alone it always fits, or it would never be sent"
    assert first.backlog.fits(MAX)
    first.send(MAX // 2)
    assert not first.backlog.fits(MAX // 4), "something waits for it already"
    assert second.backlog.fits(MAX // 2)
    assert not second.backlog.fits(MAX // 2 + 1)
    third = FakeSink(budget())
    with third.backlog.reserving(MAX // 2):
        assert not third.backlog.fits(MAX // 2), "another batch is read for it already"


async def test_reserved_reads_count_as_unsent() -> None:
    outgoing = budget()
    sink, other = FakeSink(outgoing), FakeSink(outgoing)
    with sink.backlog.reserving(MAX // 2):
        assert outgoing.used_bytes == MAX // 2
        assert not other.backlog.fits(MAX // 2 + 1)
    with pytest.raises(ZeroDivisionError), sink.backlog.reserving(MAX):
        raise ZeroDivisionError
    assert outgoing.used_bytes == 0


async def test_waiting_connection_is_resumed_without_asyncio_callbacks() -> None:
    outgoing = budget()
    slow, other = FakeSink(outgoing), FakeSink(outgoing)
    slow.send(MAX - 8)
    assert not slow.backlog.has_room()
    other.backlog.want(1000)
    assert not other.backlog.has_room(), "nothing smaller goes before it"
    slow.take(500)
    await asyncio.sleep(3 * outgoing_module.TICK_S)
    assert (slow.told, other.told) == (0, 0)
    slow.take(MAX - 8 - 500)
    await settled(lambda: (slow.told, other.told) == (1, 1), "no sender was notified")
    assert outgoing.used_bytes == 0
    await settled(lambda: outgoing._timer is None, "it looks on though nothing waits")


@pytest.mark.parametrize("meanwhile", ["nothing", "more is sent to it"])
async def test_stalled_client_is_closed_and_slow_one_is_not(meanwhile: str) -> None:
    outgoing = budget(stall_ms=1500)
    deaf, slow = FakeSink(outgoing), FakeSink(outgoing)
    deaf.send(100)
    slow.send(1000)
    async with asyncio.timeout(20):
        while not deaf.cut:
            await asyncio.sleep(0.05)
            slow.take(1)
            if meanwhile != "nothing":
                if not deaf.cut:
                    deaf.send(1)
                slow.send(2)  # more waits for it each time, and yet it takes something
    assert deaf.cut[0] >= 1.5
    assert not slow.cut
    slow.backlog.end()
    assert outgoing.used_bytes == 0


async def test_a_client_is_closed_as_soon_as_it_has_read_nothing_for_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    outgoing = budget(stall_ms=1500)
    now_s = 100.0
    monkeypatch.setattr(outgoing, "now_s", lambda: now_s)
    deaf = FakeSink(outgoing)
    deaf.send(100)
    now_s += 1.499
    await asyncio.sleep(3 * outgoing_module.TICK_S)
    assert not deaf.cut
    now_s = 101.5
    await settled(lambda: deaf.cut == [1.5], "it is not closed")


@pytest.mark.parametrize("somebody_waits", [True, False])
async def test_largest_stalled_clients_are_closed_when_others_find_no_room(
    monkeypatch: pytest.MonkeyPatch, *, somebody_waits: bool
) -> None:
    monkeypatch.setattr(outgoing_module, "OVER_BUDGET_STALL_S", 0.1)
    outgoing = budget()
    sinks = [FakeSink(outgoing, name=str(size)) for size in (10, 20, 30, 19)]
    for sink in sinks:
        sink.send(int(sink.name) * 1000)
    node = FakeSink(outgoing)
    node.backlog.become_node()
    node.send(10**6)
    polite = FakeSink(outgoing)
    if somebody_waits:
        polite.backlog.want(20_000)
        await settled(lambda: polite.told == 1, "no room was made")
        assert [bool(sink.cut) for sink in sinks] == [False, True, True, False]
    else:
        await asyncio.sleep(0.3)
        assert not any(sink.cut for sink in sinks)
    assert not node.cut
    for sink in [*sinks, node]:
        sink.backlog.end()
    assert outgoing.used_bytes == 0


async def test_connections_of_nodes_are_not_counted_but_limited() -> None:
    outgoing = budget()
    node, client = FakeSink(outgoing), FakeSink(outgoing)
    node.send(100)
    assert outgoing.used_bytes == 100
    node.backlog.become_node()
    assert outgoing.used_bytes == 0
    client.send(MAX)
    assert node.backlog.has_room()
    assert node.backlog.fits(MAX)
    with node.backlog.reserving(MAX):
        assert outgoing.used_bytes == MAX
    node.send(MARK)
    assert not node.backlog.has_room()


def ends() -> list[Callable[[FakeSink], None]]:
    return [lambda sink: sink.backlog.end(), lambda sink: sink.close_stalled(1.0)]


@pytest.mark.parametrize("end", ends())
async def test_closed_connection_is_forgotten(end: Callable[[FakeSink], None]) -> None:
    outgoing = budget()
    sink = FakeSink(outgoing)
    sink.send(MARK)
    assert not sink.backlog.has_room()
    end(sink)
    assert (outgoing.used_bytes, entries_of(outgoing)) == (0, 0)
    await settled(lambda: outgoing._timer is None, "the timer runs without clients")
    assert sink.told == 0


async def test_lagging_connection_is_not_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    outgoing = budget()
    now_s = 100.0
    monkeypatch.setattr(outgoing, "now_s", lambda: now_s)
    sink = FakeSink(outgoing)
    prompt = [sink.backlog.is_prompt]
    sink.send(10)
    now_s += PROMPT_S / 2
    sink.send(10)
    prompt.append(sink.backlog.is_prompt)
    now_s += PROMPT_S / 2
    prompt.append(sink.backlog.is_prompt)
    sink.take(10)
    sink.backlog.look()
    prompt.append(sink.backlog.is_prompt)  # the waiting bytes are younger
    assert prompt == [True, True, False, True]
    outgoing.let_go(sink.backlog)
