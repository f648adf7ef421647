"""The thread pools: long work of one kind does not delay other kinds."""

from __future__ import annotations

import asyncio
import threading

from tidelog_broker.base.threads import Threads
from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.segment.hash_memory import HashMemory


async def test_long_sync_delays_only_background_syncs() -> None:
    threads = Threads(1)
    disk = threads.disk(RealFileSystem(), HashMemory())
    gate, named, spaced = threading.Event(), threading.Event(), threading.Event()
    assert disk.syncer is not None
    assert disk.namer is not None
    assert disk.preallocator is not None

    def wait() -> None:
        gate.wait(20)

    try:
        assert disk.syncer.offer(wait)
        assert disk.namer.offer(named.set)
        assert disk.preallocator.offer(spaced.set)
        ahead = asyncio.ensure_future(threads.ahead.call(0, lambda: None))
        pools = (threads.io, threads.journals, threads.readers, threads.verifiers, threads.notes)
        await asyncio.wait_for(asyncio.gather(*(pool.call(0, lambda: None) for pool in pools)), 10)
        assert named.wait(10)
        assert spaced.wait(10)
        assert not ahead.done()
        gate.set()
        await asyncio.wait_for(ahead, 10)
    finally:
        gate.set()
        threads.close()


async def test_long_log_write_delays_no_other_pool() -> None:
    threads = Threads(1)
    gate = threading.Event()
    try:
        writing = asyncio.ensure_future(threads.io.call(0, gate.wait, 20))
        pools = (threads.journals, threads.readers, threads.verifiers, threads.notes, threads.ahead)
        await asyncio.wait_for(asyncio.gather(*(pool.call(0, lambda: None) for pool in pools)), 10)
        assert not writing.done()
        gate.set()
        assert await writing
    finally:
        gate.set()
        threads.close()
