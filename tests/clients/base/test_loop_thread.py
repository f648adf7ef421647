from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tidelog.base.loop_thread import LoopThread
from tidelog.errors import ClosedError, ForkedError, UsageError


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test loop")
    yield thread
    thread.stop()


async def answer() -> int:
    return 42


async def fail() -> None:
    raise ValueError("as it is")


def test_thread_starts_with_the_first_run(thread: LoopThread) -> None:
    assert all(each.name != "test loop" for each in threading.enumerate())
    assert thread.run(answer) == 42
    assert any(each.name == "test loop" and each.daemon for each in threading.enumerate())
    assert thread.started


def test_errors_are_raised_unchanged(thread: LoopThread) -> None:
    with pytest.raises(ValueError, match="as it is"):
        thread.run(fail)


def test_timeout_cancels_the_coroutine(thread: LoopThread) -> None:
    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError):
        thread.run(forever, timeout_s=0.01)
    assert cancelled.wait(5)


def test_waiting_call_raises_closed_error_on_stop(thread: LoopThread) -> None:
    began, told = threading.Event(), list[BaseException]()

    async def forever() -> None:
        began.set()
        await asyncio.Event().wait()

    def wait(of_submitted: bool) -> None:
        try:
            if of_submitted:
                thread.result_of(thread.submit(forever))
            else:
                thread.run(forever)
        except BaseException as error:  # noqa: BLE001 - compared below
            told.append(error)

    waiting = [threading.Thread(target=wait, args=(each,)) for each in (False, True)]
    for each in waiting:
        began.clear()
        each.start()
        assert began.wait(5)
    thread.stop()
    for each in waiting:
        each.join(5)
    assert [type(error) for error in told] == [ClosedError] * 2
    assert not any(isinstance(error, ClosedError) and error.definite for error in told), (
        "the outcome of the coroutines is unknown"
    )


def test_call_in_the_loop_thread_is_refused(thread: LoopThread) -> None:
    async def inside() -> None:
        thread.run(answer)

    with pytest.raises(UsageError, match="would deadlock"):
        thread.run(inside)


def test_stop_cancels_coroutines_and_ends_the_thread(thread: LoopThread) -> None:
    began = threading.Event()

    async def forever() -> None:
        began.set()
        await asyncio.Event().wait()

    future = thread.submit(forever)
    assert began.wait(5)
    thread.stop()
    thread.stop()
    assert future.cancelled()
    assert thread.closed
    assert all(each.name != "test loop" for each in threading.enumerate())
    with pytest.raises(ClosedError):
        thread.run(answer)


def test_system_exit_does_not_stop_the_loop(thread: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    async def leave() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)

    for _ in range(2):
        thread.run(leave)
        assert thread.run(answer) == 42
    assert "a callback raised SystemExit(3) in the client's thread 'test loop'" in caplog.text


def test_system_exit_during_stop_does_not_keep_the_thread(thread: LoopThread) -> None:
    async def both() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(thread.stop)
        loop.call_soon(sys.exit, 3)

    thread.run(both)
    ends_at = time.monotonic() + 5
    while any(each.name == "test loop" for each in threading.enumerate()):
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def test_use_after_fork_is_refused(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    thread.run(answer)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        assert thread.closed
        thread.stop()
        with pytest.raises(ForkedError):
            thread.run(answer)
    assert thread.run(answer) == 42, "the parent process is not affected"
