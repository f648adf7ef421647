from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from tidelog_broker.base.offload import Offload
from tidelog_broker.metadata.credential_work import WORK_MAX, CredentialWork
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


@pytest.fixture
async def work() -> AsyncIterator[CredentialWork]:
    workers = IoWorkers(1, name="secret")
    yield CredentialWork(Offload(workers, asyncio.get_running_loop()))
    workers.close()


def refused(outcomes: Sequence[object]) -> int:
    errors = [each for each in outcomes if isinstance(each, BaseException)]
    assert all(isinstance(each, ProtocolError) and each.code == pb.OVERLOADED for each in errors), errors
    return len(errors)


async def test_waiting_authentications_are_limited(work: CredentialWork) -> None:
    calls = [asyncio.create_task(work.call("one", time.sleep, 0.001)) for _ in range(WORK_MAX + 2)]
    assert refused(await asyncio.gather(*calls, return_exceptions=True)) == 2
    await work.call("one", time.sleep, 0)


async def test_full_queue_evicts_from_the_busiest_address(
    work: CredentialWork,
) -> None:
    may_go = threading.Event()
    order: list[str] = []

    def looked_at(who: str) -> bool:
        order.append(who)
        return may_go.wait(10)

    flood = [asyncio.create_task(work.call("flood", looked_at, "flood")) for _ in range(WORK_MAX)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(work.call(f"other {number}", looked_at, "other")) for number in range(5)]
    more = [asyncio.create_task(work.call("flood", looked_at, "flood")) for _ in range(50)]
    await asyncio.sleep(0.05)
    may_go.set()
    assert await asyncio.gather(*others) == [True] * 5
    assert refused(await asyncio.gather(*more, return_exceptions=True)) == 50
    gone = await asyncio.gather(*flood, return_exceptions=True)
    assert refused(gone) == 5
    assert gone[: WORK_MAX - 5] == [True] * (WORK_MAX - 5), "those who came last go"
    assert order[:8] == ["flood", "flood", "flood", *["other"] * 5], (
        "two were on the thread, and it was the flood's turn"
    )


async def test_equal_addresses_do_not_evict_each_other(work: CredentialWork) -> None:
    calls = [asyncio.create_task(work.call(str(number), time.sleep, 0.001)) for number in range(WORK_MAX)]
    late = asyncio.create_task(work.call("late", time.sleep, 0))
    assert refused(await asyncio.gather(*calls, return_exceptions=True)) == 0
    assert refused(await asyncio.gather(late, return_exceptions=True)) == 1


async def test_cancelled_caller_does_not_block_the_queue(work: CredentialWork) -> None:
    calls = [asyncio.create_task(work.call("one", time.sleep, 0.001)) for _ in range(WORK_MAX)]
    await asyncio.sleep(0.005)
    for number, call in enumerate(calls):
        if number % 3:
            call.cancel()
    outcomes = Counter(type(each) for each in await asyncio.gather(*calls, return_exceptions=True))
    assert set(outcomes) <= {type(None), asyncio.CancelledError}
    calls = [asyncio.create_task(work.call("one", time.sleep, 0)) for _ in range(WORK_MAX)]
    assert refused(await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)) == 0


async def test_work_of_a_cancelled_caller_runs_to_its_end(
    work: CredentialWork, caplog: pytest.LogCaptureFixture
) -> None:
    """Else who calls and goes, again and again, would have any number of them wait for the thread."""
    may_go = threading.Event()
    began: list[int] = []

    def looked_at(number: int) -> None:
        began.append(number)
        may_go.wait(10)
        raise ValueError("wrong")

    for number in range(20):
        call = asyncio.create_task(work.call("flood", looked_at, number))
        await asyncio.sleep(0.002)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    other = asyncio.create_task(work.call("other", len, "abc"))
    await asyncio.sleep(0)
    may_go.set()
    assert await asyncio.wait_for(other, 10) == 3
    assert began == [0, 1]
    gc.collect()
    assert not caplog.records, "the result was never retrieved"


class Held:
    """A thread that ends its work when the test releases it."""

    def __init__(self) -> None:
        self.given: dict[int, asyncio.Future[None]] = {}

    async def call(self, _: int, work: object, number: int) -> None:
        del work
        self.given[number] = done = asyncio.get_running_loop().create_future()
        await done


@pytest.mark.parametrize("steps", range(8))
async def test_caller_cancelled_at_its_turn_passes_it_on(steps: int) -> None:
    held = Held()
    work = CredentialWork(cast("Offload", held))
    calls = [asyncio.create_task(work.call("one", abs, number)) for number in range(4)]
    await asyncio.sleep(0.01)
    assert list(held.given) == [0, 1]
    held.given[0].set_result(None)
    for _ in range(steps):
        await asyncio.sleep(0)
    calls[2].cancel()
    await asyncio.sleep(0.01)
    if 2 in held.given:  # the thread had it already
        held.given[2].set_result(None)
        await asyncio.sleep(0.01)
    assert list(held.given)[-1] == 3, "while the second one is looked at still"
    held.given[1].set_result(None)
    held.given[3].set_result(None)
    await asyncio.gather(*calls, return_exceptions=True)
