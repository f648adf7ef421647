from __future__ import annotations

import asyncio
import os

from tidelog_broker.base.life import Life


async def test_a_failed_disk_ends_the_node_with_a_code_of_its_own() -> None:
    life = Life()
    life.storage_failed("t/0", OSError("gone"))
    life.storage_failed("t/1", OSError("gone as well"))
    assert (life.health.state, life.exit_code) == ("failed", os.EX_IOERR)
    assert life.stop_reason == "storage failed at t/0: gone"
    async with asyncio.timeout(20):
        await life.asked_to_stop()


async def test_who_gives_up_says_why_once() -> None:
    life = Life()
    life.give_up("another process uses the node id")
    life.give_up("removed")
    assert (life.health.state, life.exit_code) == ("failed", os.EX_CONFIG)
    assert life.stop_reason == "another process uses the node id"
    async with asyncio.timeout(20):
        await life.asked_to_stop()


async def test_a_stop_that_is_asked_for_is_no_failure() -> None:
    life = Life()
    life.ask_to_stop()
    life.ask_to_stop()
    async with asyncio.timeout(20):
        await life.asked_to_stop()
    assert (life.health.state, life.exit_code, life.stop_reason) == ("starting", 0, "")
