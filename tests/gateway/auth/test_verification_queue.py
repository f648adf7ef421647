from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from tidelog.errors import NodeUnreachableError
from tidelog_gateway.auth import verification_queue
from tidelog_gateway.auth.credentials import CallerCredentials, credentials_kind, user_password
from tidelog_gateway.auth.verification_queue import (
    ADDRESS_SLOTS,
    ADDRESS_WAITING_MAX,
    VerificationQueue,
    verification_queues,
)
from tidelog_gateway.problems import Problem
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.flow.fair_slots import FullError

T = TypeVar("T")


async def test_known_callers_and_other_kinds_of_credentials_do_not_wait() -> None:
    every = verification_queues()
    shown: list[CallerCredentials] = [
        pb.Credentials(token="t"),
        pb.Credentials(api_key="k"),
        user_password("ann", "secret"),
    ]
    assert [credentials_kind(each) for each in shown] == ["token", "key", "password"]
    places = [(every[credentials_kind(each)], is_known) for each, is_known in itertools.product(shown, (False, True))]
    held = asyncio.Event()
    for queue, is_known in places:
        hanging = [asyncio.create_task(verify(queue, held.wait, f"{n}", is_known=is_known)) for n in range(100)]
        await asyncio.sleep(0)
        for other, also_known in places:
            if (other, also_known) != (queue, is_known):
                assert await verify(other, answer, is_known=also_known) == 7
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_timeout_frees_the_slot(monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    monkeypatch.setattr(verification_queue, "NODE_TIMEOUT_S", 0.01)
    queue = VerificationQueue(1, 10)
    hanging = asyncio.create_task(verify(queue, asyncio.Event().wait, is_known=is_known))
    await asyncio.sleep(0)
    assert await verify(queue, answer, is_known=is_known) == 7
    with pytest.raises(Problem) as raised:
        await hanging
    assert (raised.value.status, raised.value.retry_after_s, raised.value.retryable) == (503, 1, True)
    with pytest.raises(NodeUnreachableError):
        await verify(queue, fail, is_known=is_known)
    assert await verify(queue, answer, is_known=is_known) == 7


async def test_addresses_take_turns_and_each_has_limits() -> None:
    queue = VerificationQueue(ADDRESS_SLOTS + 1, 1000)
    flood = [asyncio.create_task(verify(queue, asyncio.Event().wait, "flood")) for _ in range(ADDRESS_WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(FullError):
        await verify(queue, answer, "flood")
    assert await verify(queue, answer, "other") == 7, "one slot is left by a flood"
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    assert await verify(queue, answer, "flood") == 7


async def verify(
    queue: VerificationQueue, ask: Callable[[], Awaitable[T]], address: str = "a", *, is_known: bool = False
) -> T:
    if is_known:
        return await queue.verify(ask, is_known=True)
    async with queue.turn(address):
        return await queue.verify(ask, is_known=False)


async def answer() -> int:
    return 7


async def fail() -> int:
    raise NodeUnreachableError("away")
