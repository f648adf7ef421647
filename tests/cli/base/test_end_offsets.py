from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tidelog import Client, ConsumedBatch, Consumer
from tidelog.errors import NodeUnreachableError, QuorumLostError, TidelogError, UnknownTopicError
from tidelog.model import Offset
from tidelog_cli.base import end_offsets as module
from tidelog_cli.base.end_offsets import Ends, insisting


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_WAIT_S", 0.05)
    monkeypatch.setattr(module, "TRY_S", 0.02)


class FakeClient:
    """Knows some ends. Of the others it says that there is no quorum, or nothing at all."""

    def __init__(self) -> None:
        self.ends = {0: 5}
        self.fault: TidelogError | None = QuorumLostError("1 of 3 replicas is reachable")

    async def list_offsets(self, topic: str, at: str, partitions: list[int]) -> dict[int, Offset]:
        assert (topic, at) == ("t", "latest")
        if not self.ends.keys() >= set(partitions):
            if self.fault is None:
                await asyncio.Event().wait()
            else:
                raise self.fault
        return {partition: Offset(self.ends[partition], True, 0, 0, 0) for partition in partitions}


class FakeConsumer:
    """Returns the prepared batches, and waits in between."""

    def __init__(self) -> None:
        self.batches: asyncio.Queue[Any] = asyncio.Queue()

    async def next_batch(self) -> Any:
        return await self.batches.get()


@pytest.fixture
async def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
async def ends(client: FakeClient) -> AsyncIterator[Ends]:
    ends = Ends(cast("Client", client), "t", [0, 1])
    yield ends
    await ends.close()


@pytest.mark.parametrize("silent", [False, True])
async def test_an_end_that_is_not_known_is_looked_for_while_others_are_read(
    client: FakeClient, ends: Ends, capsys: pytest.CaptureFixture[str], silent: bool
) -> None:
    if silent:
        client.fault = None
    consumer = FakeConsumer()
    reading = cast("Consumer", consumer)
    async with asyncio.timeout(20):
        await ends.find()
        assert await ends.next_batch(reading) is None
        assert (ends.known, ends.missing) == ({0: 5}, [1])
        batches = [cast("ConsumedBatch", object()), cast("ConsumedBatch", object())]
        consumer.batches.put_nowait(batches[0])
        assert await ends.next_batch(reading) is batches[0]
        note = "the ends of partitions 1 are not confirmed yet"
        while note not in capsys.readouterr().err:  # noqa: ASYNC110 - streams have no event for this
            await asyncio.sleep(0.01)
        client.ends[1] = 7
        while ends.missing:
            assert await ends.next_batch(reading) is None
        assert ends.known == {0: 5, 1: 7}
        consumer.batches.put_nowait(batches[1])
        while (batch := await ends.next_batch(reading)) is None:
            pass
        assert batch is batches[1]


async def test_known_ends_are_returned_at_once(client: FakeClient, ends: Ends) -> None:
    client.ends[1] = 0
    await ends.find()
    assert ends.known == {0: 5, 1: 0}
    assert ends._finding is None


async def test_final_error_is_raised(client: FakeClient, ends: Ends) -> None:
    client.fault = UnknownTopicError("there is no topic")
    with pytest.raises(UnknownTopicError):
        await ends.find()


async def test_deletion_of_a_topic_during_the_search_is_raised(client: FakeClient, ends: Ends) -> None:
    await ends.find()
    client.fault = UnknownTopicError("there is no topic")
    consumer = cast("Consumer", FakeConsumer())

    async def read_on() -> None:
        async with asyncio.timeout(20):
            while True:
                await ends.next_batch(consumer)

    with pytest.raises(UnknownTopicError):
        await read_on()


async def test_one_insists_while_some_node_answers() -> None:
    answers: list[TidelogError | int] = [QuorumLostError("no"), QuorumLostError("no"), 3]

    async def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, TidelogError):
            raise answer
        return answer

    assert await insisting(ask) == 3
    for final in (NodeUnreachableError("nobody"), UnknownTopicError("none")):
        answers[:] = [QuorumLostError("no"), final]
        with pytest.raises(type(final)):
            await insisting(ask)
