from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidelog_cli.base.interrupts import interrupts_end_quietly, run_interruptibly


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have an interrupt be a KeyboardInterrupt, as in a program."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler, "left as it was found"


@pytest.fixture
def ignored() -> Iterator[None]:
    """Have interrupts be ignored, as `nohup` has it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN, "left as it was found"


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_the_systems_until_everything_is_loaded() -> None:
    with interrupts_end_quietly():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(ImportError), interrupts_end_quietly():
        raise ImportError


@pytest.mark.usefixtures("ignored")
def test_ignored_interrupts_stay_ignored() -> None:
    with interrupts_end_quietly():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


class LoopsThatAreInterrupted(asyncio.DefaultEventLoopPolicy):
    """An interrupt comes while a loop is being made."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        signal.raise_signal(signal.SIGINT)
        return super().new_event_loop()


@pytest.mark.usefixtures("interruptible")
def test_uninterrupted_work_returns_its_result() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert run_interruptibly(work) == 7


@pytest.mark.usefixtures("interruptible")
def test_work_that_raises_raises() -> None:
    async def work() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        run_interruptibly(work)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_the_loop_is_made_comes_when_it_is_closed() -> None:
    begun = False

    async def work() -> None:
        nonlocal begun
        begun = True

    asyncio.set_event_loop_policy(LoopsThatAreInterrupted())
    try:
        with pytest.raises(KeyboardInterrupt):
            run_interruptibly(work)
    finally:
        asyncio.set_event_loop_policy(None)
    assert not begun


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_cancels_the_work_which_cleans_up() -> None:
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        asyncio.get_running_loop().call_later(0.01, signal.raise_signal, signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned = True

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(work)
    assert cleaned


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_does_not_wait() -> None:
    waited = False

    async def work() -> None:
        nonlocal waited
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(0)
            waited = True

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(work)
    assert not waited


@pytest.mark.usefixtures("interruptible")
def test_interrupt_while_the_loop_closes_is_raised_afterwards() -> None:
    async def left() -> AsyncGenerator[int, None]:
        try:
            yield 7
        finally:
            signal.raise_signal(signal.SIGINT)

    given = left()

    async def work() -> int:
        return await anext(given)

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(work)


@pytest.mark.usefixtures("interruptible")
def test_work_that_ended_before_its_interrupt_is_interrupted_all_the_same() -> None:
    async def work() -> int:
        signal.raise_signal(signal.SIGINT)
        return 7

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(work)


@pytest.mark.usefixtures("ignored")
def test_ignored_interrupt_does_not_cancel_work() -> None:
    async def work() -> int:
        signal.raise_signal(signal.SIGINT)
        return 7

    assert run_interruptibly(work) == 7


@pytest.mark.usefixtures("interruptible")
def test_in_a_thread_there_is_nothing_to_note() -> None:
    async def work() -> int:
        return 7

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(run_interruptibly, work).result() == 7
