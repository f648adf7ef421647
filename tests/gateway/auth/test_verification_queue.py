from __future__ import annotations

import asyncio
import itertools

import pytest

from tidelog.errors import NodeUnreachableError
from tidelog_gateway.auth import verification_queue as lines_module
from tidelog_gateway.auth.credentials import Shown, kind_of, user_password
from tidelog_gateway.auth.verification_queue import Line, lines
from tidelog_gateway.problems import Problem
from tidelog_proto import broker_pb2 as pb


async def test_known_callers_and_other_kinds_of_credentials_do_not_wait() -> None:
    every = lines()
    shown: list[Shown] = [pb.Credentials(token="t"), pb.Credentials(api_key="k"), user_password("ann", "secret")]
    assert [kind_of(each) for each in shown] == ["token", "key", "password"]
    places = [(every[kind_of(each)], is_known) for each, is_known in itertools.product(shown, (False, True))]
    held = asyncio.Event()
    for line, is_known in places:
        hanging = [asyncio.create_task(line.asking(held.wait, is_known=is_known)) for _ in range(100)]
        await asyncio.sleep(0)
        for other, also_known in places:
            if (other, also_known) != (line, is_known):
                assert await other.asking(answer, is_known=also_known) == 7
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_timeout_frees_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "ASKED_S", 0.01)
    line = Line(1, 10)
    hanging = asyncio.create_task(line.asking(asyncio.Event().wait, is_known=False))
    await asyncio.sleep(0)
    assert await line.asking(answer, is_known=False) == 7
    with pytest.raises(Problem) as raised:
        await hanging
    assert (raised.value.status, raised.value.retry_after_s, raised.value.retryable) == (503, 1, True)
    with pytest.raises(NodeUnreachableError):
        await line.asking(fail, is_known=False)
    assert await line.asking(answer, is_known=False) == 7


async def answer() -> int:
    return 7


async def fail() -> int:
    raise NodeUnreachableError("away")
