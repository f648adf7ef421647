"""Background commits: order, merging, reported outcomes, and bounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from tests.clients.consume.test_consumer import T0, publish
from tests.clients.fake_node import FakeNode
from tests.clients.sharing import Silence, new_topic, positions, reading, silence, until

from tidelog import Client, Group, TopicPartition
from tidelog.consume.background_commits import CALLBACKS_MAX, WAITING_POSITIONS_MAX, BackgroundCommits
from tidelog.errors import (
    BufferFullError,
    ClosedError,
    ConnectionLostError,
    InvalidRequestError,
    MemberFencedError,
    TidelogError,
    UnknownTopicError,
)
from tidelog.model import Committed
from tidelog.requests.partial_results import Commits

__all__ = ["silence"]

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Store:
    """Stores positions when its gate is open, or fails."""

    def __init__(self) -> None:
        self.asked: list[dict[TopicPartition, int]] = []
        self.gate = asyncio.Event()
        self.failed: dict[TopicPartition, TidelogError] = {}
        self.error: TidelogError | None = None

    async def __call__(self, wanted: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes]) -> Commits:
        self.asked.append(dict(wanted))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        held = {where: Committed(*where, offset, "") for where, offset in wanted.items() if where not in self.failed}
        return Commits(held, self.failed)


class Outcomes:
    """The outcomes that a callback received, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[dict[TopicPartition, int], TidelogError | None]] = []

    def __call__(self, held: dict[TopicPartition, Committed], error: TidelogError | None) -> None:
        self.told.append(({where: each.next_offset for where, each in held.items()}, error))


async def test_one_commit_is_in_flight_and_newest_positions_count() -> None:
    store, first, later = Store(), Outcomes(), Outcomes()
    soon = BackgroundCommits(store, "g", dict)
    soon.add({A: 1}, first)
    await asyncio.sleep(0)
    soon.add({A: 3, B: 2}, later)
    soon.add({A: 2}, later)  # the last call counts, even if it moves back
    await asyncio.sleep(0)
    assert (store.asked, first.told) == ([{A: 1}], [])
    store.gate.set()
    await soon.settled()
    assert store.asked == [{A: 1}, {A: 2, B: 2}]
    soon.add({B: 3}, None)
    await soon.settled()
    assert store.asked[2:] == [{B: 3}], "stored positions are no longer pending"
    assert (first.told, later.told) == ([({A: 1}, None)], [({A: 2, B: 2}, None)])


async def test_settled_waits_for_earlier_commits_only() -> None:
    store = Store()
    soon = BackgroundCommits(store, "g", dict)
    await soon.settled()

    def again(*_: object) -> None:
        store.gate.clear()
        soon.add({A: 2}, None)

    soon.add({A: 1}, again)
    settling = asyncio.create_task(soon.settled())
    await asyncio.sleep(0)
    assert not settling.done()
    store.gate.set()
    async with asyncio.timeout(5):
        await settling
        await until(lambda: len(store.asked) == 2)
        store.gate.set()
        await soon.settled()


async def test_errors_are_passed_to_the_callback_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    store, told = Store(), Outcomes()
    soon = BackgroundCommits(store, "g", dict)
    store.gate.set()
    refused = store.failed[B] = MemberFencedError("assigned to another member")
    soon.add({A: 1, B: 1}, told)
    await soon.settled()
    store.error = lost = ConnectionLostError("gone")
    soon.add({A: 2}, told)
    await soon.settled()
    soon.refuse(refused, told)
    assert len(told.told) == 2, "outcomes are reported asynchronously"
    await asyncio.sleep(0)
    assert told.told == [({A: 1}, refused), ({}, lost), ({}, refused)]
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "tidelog.consumer"):
        soon.add({A: 3}, None)
        await soon.settled()
    assert ["background commit failed" in record.message for record in caplog.records] == [True]


async def test_position_in_a_deleted_topic_is_not_stored_for_its_successor() -> None:
    store, told, ids = Store(), Outcomes(), {"t": b"old", "u": b"u"}
    other = TopicPartition("u", 0)
    soon = BackgroundCommits(store, "g", lambda: ids)
    soon.add({A: 1}, None)
    await asyncio.sleep(0)
    soon.add({A: 1000, B: 1000, other: 3}, told)
    ids["t"] = b"new"
    soon.add({B: 2}, told)
    store.gate.set()
    await soon.settled()
    assert store.asked == [{A: 1}, {B: 2, other: 3}]
    ((held, error),) = told.told
    assert held == {B: 2, other: 3}
    assert isinstance(error, UnknownTopicError)


async def test_exception_of_a_callback_is_contained() -> None:
    loop, met, told = asyncio.get_running_loop(), list[Any](), Outcomes()
    loop.set_exception_handler(lambda _, context: met.append(context["exception"]))

    def raises(*_: object) -> None:
        raise ZeroDivisionError

    store = Store()
    store.gate.set()
    soon = BackgroundCommits(store, "g", dict)
    soon.add({A: 1}, raises)
    soon.add({A: 1}, told)
    await soon.settled()
    soon.add({A: 2}, told)
    await soon.settled()
    assert [type(each) for each in met] == [ZeroDivisionError]
    assert told.told == [({A: 1}, None), ({A: 2}, None)]


@pytest.mark.parametrize("begun", [True, False])
async def test_cancelled_commit_is_reported_and_ends_waits(*, begun: bool) -> None:
    store, first, later = Store(), Outcomes(), Outcomes()
    soon = BackgroundCommits(store, "g", dict)
    soon.add({A: 1}, first)
    if begun:
        await asyncio.sleep(0)
    soon.add({A: 2}, later)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:  # like asyncio.run at its end
        if task.get_name() == "background commits of g":
            task.cancel()
    async with asyncio.timeout(5):
        await soon.settled()
        await until(lambda: len(first.told) == len(later.told) == 1)
    assert all(isinstance(error, ClosedError) and not held for held, error in first.told + later.told)
    store.gate.set()
    soon.add({A: 3}, later)
    await soon.settled()
    assert later.told[1:] == [({A: 3}, None)], "the next commit is stored"


async def test_pending_commits_are_bounded() -> None:
    store, told = Store(), Outcomes()
    soon = BackgroundCommits(store, "g", dict)
    for number in range(CALLBACKS_MAX):
        soon.add({A: number}, lambda *_: None)
    with pytest.raises(BufferFullError):
        soon.add({A: CALLBACKS_MAX}, told)
    soon.add({A: CALLBACKS_MAX}, None)
    with pytest.raises(BufferFullError):
        soon.add({TopicPartition("t", number): 0 for number in range(1, WAITING_POSITIONS_MAX + 1)}, None)
    for number in range(WAITING_POSITIONS_MAX + 1):
        soon.add({A: number}, None)
    store.gate.set()
    await soon.settled()
    assert store.asked == [{A: WAITING_POSITIONS_MAX}]
    assert told.told == []


# ------------------------------------------------------------------------------------------------ in a consumer


async def test_close_waits_for_background_commits_without_membership(node: FakeNode, client: Client) -> None:
    await publish(node, b"0", b"1", b"2")
    told = Outcomes()
    async with client.consumer("t", group="g", partitions="all") as consumer:
        for offset in range(3):
            assert (await anext(consumer)).offset == offset
            consumer.commit_soon(on_commit=told)
            await asyncio.sleep(0)
        assert told.told == []
    assert told.told == [({T0: 1}, None), ({T0: 3}, None)]
    assert [each.next_offset for each in await client.committed("g", "t")] == [3]


async def test_commit_runs_after_background_commits(node: FakeNode, client: Client) -> None:
    node.reach("t", 3)
    first, second = Outcomes(), Outcomes()
    consumer = client.consumer("t", group="g", partitions="all")
    consumer.commit_soon({T0: 1}, on_commit=first)
    await asyncio.sleep(0)
    consumer.commit_soon({T0: 2}, on_commit=second)
    assert (await consumer.commit({T0: 3}))[T0].next_offset == 3
    assert (first.told, second.told) == ([({T0: 1}, None)], [({T0: 2}, None)])


async def test_callback_receives_partial_results_of_several_topics(node: FakeNode, client: Client) -> None:
    node.reach("t", 3)
    told = Outcomes()
    async with client.consumer("t", group="g", partitions="all") as consumer:
        consumer.commit_soon({T0: 1, TopicPartition("nowhere", 0): 1}, on_commit=told)
    ((held, error),) = told.told
    assert held == {T0: 1}
    assert isinstance(error, TidelogError)


async def test_invalid_arguments_are_refused_immediately(client: Client) -> None:
    async with client.consumer("t") as alone, client.consumer("t", group="g", partitions="all") as consumer:
        with pytest.raises(InvalidRequestError, match="no group"):
            alone.commit_soon()
        for offset in (-1, 2**63):
            with pytest.raises(InvalidRequestError, match="must be 0 to"):
                consumer.commit_soon({T0: offset})
    assert await client.committed("g") == []


@pytest.mark.e2e
@pytest.mark.usefixtures("silence")
async def test_next_member_begins_at_background_commit_of_revocation(real: Client) -> None:
    topic = await new_topic(real, partitions=1, records=10)
    told = Outcomes()
    consumer = real.consumer(
        topic, group=Group(topic, commit="manual", on_revoked=lambda _: consumer.commit_soon(on_commit=told))
    )
    assert len(await consumer.poll(4, timeout_s=60.0)) == 4
    await consumer.close()
    where = TopicPartition(topic, 0)
    assert told.told == [({where: 4}, None)]
    assert await positions(real, topic) == {where: 4}


@pytest.mark.e2e
async def test_loss_of_partitions_is_reported_once(shared_node: str, real: Client, silence: Silence) -> None:
    topic = await new_topic(real, partitions=1, records=5)
    wish = Group(topic, commit="manual", session_timeout_s=0.8)
    told = Outcomes()
    async with Client(shared_node) as other, reading(other.consumer(topic, group=wish)) as first:
        await until(lambda: len(first.seen) == 5)
        member = first.consumer.member_id
        silence.for_good = True
        silence.of.add(member)
        await until(lambda: first.consumer.member_id != member)
        silence.routers.clear()
        await until(lambda: len(first.seen) == 10)
        first.consumer.commit_soon(on_commit=told)
        await until(lambda: len(told.told) == 1)
        first.consumer.commit_soon(on_commit=told)
        await until(lambda: len(told.told) == 2)
    assert isinstance(told.told[0][1], MemberFencedError)
    assert told.told[1] == ({TopicPartition(topic, 0): 5}, None)
