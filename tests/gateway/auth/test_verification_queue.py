from __future__ import annotations

import asyncio
import itertools

import pytest

from tidelog.errors import NodeUnreachableError
from tidelog_gateway.auth import verification_queue
from tidelog_gateway.auth.credentials import CallerCredentials, credentials_kind, user_password
from tidelog_gateway.auth.verification_queue import VerificationQueue, verification_queues
from tidelog_gateway.problems import Problem
from tidelog_proto import broker_pb2 as pb


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
        hanging = [asyncio.create_task(queue.verify(held.wait, is_known=is_known)) for _ in range(100)]
        await asyncio.sleep(0)
        for other, also_known in places:
            if (other, also_known) != (queue, is_known):
                assert await other.verify(answer, is_known=also_known) == 7
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_timeout_frees_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification_queue, "NODE_TIMEOUT_S", 0.01)
    queue = VerificationQueue(1, 10)
    hanging = asyncio.create_task(queue.verify(asyncio.Event().wait, is_known=False))
    await asyncio.sleep(0)
    assert await queue.verify(answer, is_known=False) == 7
    with pytest.raises(Problem) as raised:
        await hanging
    assert (raised.value.status, raised.value.retry_after_s, raised.value.retryable) == (503, 1, True)
    with pytest.raises(NodeUnreachableError):
        await queue.verify(fail, is_known=False)
    assert await queue.verify(answer, is_known=False) == 7


async def answer() -> int:
    return 7


async def fail() -> int:
    raise NodeUnreachableError("away")
