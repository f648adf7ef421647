"""Work on I/O workers keeps its order, and its outcome is delivered on the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tidelog_broker.base.offload import Offload
from tidelog_broker.storage.io.workers import IoWorkers


@pytest.fixture
def workers() -> Iterator[IoWorkers]:
    workers = IoWorkers(1)
    yield workers
    workers.close()


@pytest.mark.parametrize("promptly", [False, True])
async def test_call_returns_or_raises_the_works_result(workers: IoWorkers, promptly: bool) -> None:
    offload = Offload(workers, asyncio.get_running_loop())
    call = offload.call_promptly if promptly else offload.call
    assert await call(0, lambda: threading.current_thread().name) != threading.current_thread().name
    with pytest.raises(KeyError):
        await call(0, lambda: {"something": 1}["nothing"])
    assert not offload.pending


async def test_refused_work_does_not_count_as_pending() -> None:
    workers = IoWorkers(1)
    workers.close()
    offload = Offload(workers, asyncio.get_running_loop())
    with pytest.raises(RuntimeError, match="closed"):
        await offload.call_promptly(0, lambda: None)
    assert not offload.pending


async def test_callback_gets_the_outcome_on_the_loop(workers: IoWorkers) -> None:
    loop = asyncio.get_running_loop()
    offload = Offload(workers, loop)
    outcomes: list[tuple[object, object, str]] = []
    done = asyncio.Event()

    def note(result: object, error: BaseException | None) -> None:
        outcomes.append((result, type(error), threading.current_thread().name))
        if len(outcomes) == 2:
            done.set()

    offload.start(0, lambda: 5, note)
    offload.start(0, lambda: 1 // 0, note)
    assert offload.pending
    await done.wait()
    here = threading.current_thread().name
    assert outcomes == [(5, type(None), here), (None, ZeroDivisionError, here)]
    assert not offload.pending


@pytest.mark.parametrize("promptly", [False, True])
async def test_abandoned_work_still_counts_as_pending(workers: IoWorkers, promptly: bool) -> None:
    offload = Offload(workers, asyncio.get_running_loop())
    release = threading.Event()
    waiting = asyncio.create_task((offload.call_promptly if promptly else offload.call)(0, release.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    busy = offload.pending > 0
    release.set()
    await offload.call(0, lambda: None)
    assert busy
    assert not offload.pending


async def test_work_that_rests_is_pending_but_not_busy(workers: IoWorkers) -> None:
    offload = Offload(workers, asyncio.get_running_loop())
    release = threading.Event()
    waiting = asyncio.create_task(offload.call(0, release.wait))
    await asyncio.sleep(0)
    assert offload.is_busy
    offload.rests = True
    assert (offload.is_busy, offload.pending) == (False, 1)
    offload.rests = False
    release.set()
    await waiting
    assert not offload.is_busy
