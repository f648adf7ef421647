from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame
from tidelog_proto.wire.pending_requests import PendingRequests, settle

BROKEN = ProtocolError(pb.INTERNAL, "broken")


def late(timeout_s: float) -> ProtocolError:
    return ProtocolError(pb.TIMED_OUT, f"nothing within {timeout_s:g} s")


def answer(number: int) -> Frame:
    return Frame(pb.Envelope(correlation_id=number), memoryview(b""))


@pytest.fixture
async def requests() -> PendingRequests[ProtocolError]:
    return PendingRequests(asyncio.get_running_loop(), late)


async def test_an_answer_finds_the_request_whose_number_it_names_once(
    requests: PendingRequests[ProtocolError],
) -> None:
    seen: list[tuple[str, Any]] = []

    def told(name: str, outcome: Frame | ProtocolError) -> None:
        seen.append((name, outcome))

    for name in "abc":
        requests.add(partial(told, name), timeout_s=60.0)
    assert (requests.last_id, list(requests.waiting)) == (3, [1, 2, 3])
    requests.waiting.pop(2).answered(answer(2))
    requests.add(partial(told, "d"), timeout_s=60.0)
    assert (requests.last_id, list(requests.waiting)) == (4, [1, 3, 4])
    requests.end(BROKEN)
    assert seen == [("b", answer(2)), ("a", BROKEN), ("c", BROKEN), ("d", BROKEN)]


async def test_each_request_has_its_own_time_and_one_timer_serves_all(requests: PendingRequests[ProtocolError]) -> None:
    seen: list[tuple[str, str]] = []

    def told(name: str, outcome: Frame | ProtocolError) -> None:
        assert isinstance(outcome, ProtocolError)
        seen.append((name, outcome.message))

    requests.add(partial(told, "long"), timeout_s=60.0)
    requests.add(partial(told, "short"), timeout_s=0.02)
    requests.add(partial(told, "shortest"), timeout_s=0.01)
    del requests.waiting[1]
    requests.add(partial(told, "longer"), timeout_s=0.03)
    timer = requests._timer
    assert timer is not None
    assert timer.when() < asyncio.get_running_loop().time() + 0.015
    await asyncio.sleep(0.1)
    assert seen == [
        ("shortest", "nothing within 0.01 s"),
        ("short", "nothing within 0.02 s"),
        ("longer", "nothing within 0.03 s"),
    ]
    assert (requests.waiting, requests._timer) == ({}, None)


async def test_timed_out_request_may_be_repeated(requests: PendingRequests[ProtocolError]) -> None:
    seen: list[Frame | ProtocolError] = []
    requests.add(lambda _: requests.add(seen.append, timeout_s=0.01), timeout_s=0.01)
    await asyncio.sleep(0.1)
    assert len(seen) == 1


async def test_all_end_with_the_connection_and_nothing_is_timed_any_more(
    requests: PendingRequests[ProtocolError],
) -> None:
    seen: list[Frame | ProtocolError] = []
    for _ in range(3):
        requests.add(seen.append, timeout_s=0.01)
    requests.end(BROKEN)
    assert seen == [BROKEN] * 3
    await asyncio.sleep(0.03)
    assert seen == [BROKEN] * 3
    requests.end(BROKEN)
    assert seen == [BROKEN] * 3


async def test_an_answer_is_due_from_when_it_was_asked_for(requests: PendingRequests[ProtocolError]) -> None:
    now = asyncio.get_running_loop().time()
    assert requests.due_at is None
    requests.add(lambda _: None, timeout_s=60.0, wait_s=20.0)
    assert requests.due_at == pytest.approx(now + 20.0, abs=1.0)
    requests.add(lambda _: None, timeout_s=60.0)
    assert requests.due_at == pytest.approx(now, abs=1.0)
    del requests.waiting[2]
    assert requests.due_at == pytest.approx(now + 20.0, abs=1.0)
    requests.end(BROKEN)
    assert requests.due_at is None


async def test_future_gets_its_answer_unless_it_is_cancelled() -> None:
    loop = asyncio.get_running_loop()
    good, bad, gone = (loop.create_future() for _ in range(3))
    gone.cancel()
    settle(good, answer(1))
    settle(bad, BROKEN)
    settle(gone, answer(2))
    assert await good == answer(1)
    with pytest.raises(ProtocolError, match="broken"):
        await bad
    assert gone.cancelled()
    settle(good, BROKEN)
    assert await good == answer(1)
