from __future__ import annotations

import asyncio

import pytest

from tidelog_gateway.auth.fair_queue import FairQueue, FullError


async def test_an_address_over_its_limit_does_not_delay_others() -> None:
    turns = FairQueue(at_once=2, waiting=4)
    going, goes_on = list[str](), asyncio.Event()

    async def go(address: str) -> None:
        async with turns.turn(address):
            going.append(address)
            await goes_on.wait()

    tasks = [asyncio.create_task(go("a")) for _ in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(FullError):
        await go("a")
    tasks.append(asyncio.create_task(go("b")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert going == ["a", "a", "b"]
    assert len(turns) == 2
    tasks[2].cancel()
    goes_on.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert going == ["a", "a", "b", "a"], "a cancelled caller has no turn"
    assert len(turns) == 0
