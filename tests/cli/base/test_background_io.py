from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tidelog_cli.base.background_io import call_in_background, in_background


async def test_items_come_in_order() -> None:
    assert [item async for item in in_background(range(100), depth=3)] == list(range(100))


async def test_an_exception_of_the_source_is_raised_after_its_items() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    items = in_background(source())
    assert await anext(items) == 1
    with pytest.raises(OSError, match="gone"):
        await anext(items)


async def test_it_reads_ahead_no_further_than_told() -> None:
    taken: list[int] = []
    behind = threading.Event()

    def source() -> Iterator[int]:
        for item in range(10):
            taken.append(item)
            if item == 3:
                behind.set()
            yield item

    items = in_background(source(), depth=2)
    assert await anext(items) == 0
    # Two wait, one is in the reader's hand; the first is ours and frees nothing until the next is asked for.
    assert not behind.is_set()
    assert await anext(items) == 1
    await asyncio.to_thread(behind.wait, 10)
    assert behind.is_set()
    assert len(taken) <= 4
    await items.aclose()


async def test_leaving_early_ends_the_thread() -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "tidelog-read"}
    items = in_background(iter(int, 1), depth=2)
    assert await anext(items) == 0
    await items.aclose()
    for thread in threading.enumerate():
        if thread.name == "tidelog-read" and thread not in before:
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()


async def test_a_call_gives_its_result_or_raises() -> None:
    assert await call_in_background(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await call_in_background(lambda: 1 // 0)


async def test_blocking_call_does_not_delay_the_event_loop() -> None:
    stuck = threading.Event()
    waiting = asyncio.create_task(call_in_background(stuck.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    stuck.set()
