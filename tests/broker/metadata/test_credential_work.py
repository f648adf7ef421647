from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence

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


async def test_only_so_many_are_looked_at_at_a_time(work: CredentialWork) -> None:
    calls = [asyncio.create_task(work.call("one", time.sleep, 0.001)) for _ in range(WORK_MAX + 2)]
    assert refused(await asyncio.gather(*calls, return_exceptions=True)) == 2
    await work.call("one", time.sleep, 0)


async def test_an_address_with_many_makes_room_for_others_and_has_them_wait_for_a_turn_each(
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


async def test_where_all_have_as_many_nobody_goes_for_another(work: CredentialWork) -> None:
    calls = [asyncio.create_task(work.call(str(number), time.sleep, 0.001)) for number in range(WORK_MAX)]
    late = asyncio.create_task(work.call("late", time.sleep, 0))
    assert refused(await asyncio.gather(*calls, return_exceptions=True)) == 0
    assert refused(await asyncio.gather(late, return_exceptions=True)) == 1


async def test_who_stops_waiting_holds_up_nobody(work: CredentialWork) -> None:
    calls = [asyncio.create_task(work.call("one", time.sleep, 0.001)) for _ in range(WORK_MAX)]
    await asyncio.sleep(0.005)
    for number, call in enumerate(calls):
        if number % 3:
            call.cancel()
    outcomes = Counter(type(each) for each in await asyncio.gather(*calls, return_exceptions=True))
    assert set(outcomes) <= {type(None), asyncio.CancelledError}
    calls = [asyncio.create_task(work.call("one", time.sleep, 0)) for _ in range(WORK_MAX)]
    assert refused(await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)) == 0
