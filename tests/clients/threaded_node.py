"""A fake node for tests of the blocking client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from tests.clients.fake_node import FakeNode, running_fake_node


@contextlib.contextmanager
def threaded_fake_node() -> Iterator[FakeNode]:
    """A fake node in a thread, so that the test may block."""
    started: list[FakeNode] = []
    ready, done = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        async with running_fake_node() as node:
            started.append(node)
            loops.append(asyncio.get_running_loop())
            ready.set()
            await done.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    yield started[0]
    loops[0].call_soon_threadsafe(done.set)
    thread.join()
