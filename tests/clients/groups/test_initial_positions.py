"""Initial positions of a group that does not start at the log start: new partitions, and short-lived members."""

from __future__ import annotations

import asyncio
from typing import Any, cast, get_args

import pytest
from tests.clients.sharing import new_topic, positions, reading, until

from tidelog import Client, Group, TopicPartition
from tidelog.errors import EpochChangingError, MemberFencedError, TidelogError
from tidelog.groups.commits import GroupCommits
from tidelog.groups.initial_positions import InitialPositions
from tidelog.groups.options import CommitWhen
from tidelog.requests.partial_results import Commits
from tidelog.subscriptions.consumer_options import ConsumerOptions

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.e2e
async def test_new_partitions_and_topics_are_read_from_offset_0(real: Client) -> None:
    topic = await new_topic(real, partitions=1, records=5)
    pattern = rf"{topic}[.].*"
    async with (
        reading(real.consumer(topic, group=topic, start="latest")) as named,
        reading(real.consumer(pattern=pattern, group=f"{topic}-like", start="latest")) as matching,
    ):
        await until(lambda: len(named.consumer.assignment()) == 1 and bool(matching.consumer.member_id))
        await until(lambda: matching.consumer.generation > 0)
        await real.alter_topic(topic, partitions=2)
        await real.create_topic(f"{topic}.new")
        async with real.producer(topic) as grown, real.producer(f"{topic}.new") as made:
            for number in range(10):
                await grown.send(b"%d" % number, partition=1)
                await made.send(b"%d" % number)
        await until(lambda: len(named.seen) >= 10 and len(matching.seen) >= 10)
    assert named.seen == matching.seen == [b"%d" % number for number in range(10)]


@pytest.mark.e2e
@pytest.mark.parametrize("commit", get_args(CommitWhen))
async def test_successor_of_a_member_without_commits_starts_at_the_same_position(
    real: Client, commit: CommitWhen
) -> None:
    topic = await new_topic(real, partitions=2, records=5)
    wish = Group(topic, commit=commit)
    first = real.consumer(topic, group=wish, start="latest")
    await first.begin()
    async with asyncio.timeout(20):
        while len(await positions(real, topic)) < 2:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.02)
    async with real.producer(topic) as producer:
        await producer.send(b"0", partition=0)
        assert [record.value for record in await first.poll(10, 10)] == [b"0"]
        await first.abort()
        await producer.send(b"1", partition=0)
    async with reading(real.consumer(topic, group=wish, start="latest")) as second:
        await until(lambda: len(second.seen) >= 2)
    assert second.seen == [b"0", b"1"]


@pytest.mark.e2e
async def test_earliest_start_stores_no_initial_positions(real: Client) -> None:
    topic = await new_topic(real, partitions=2, records=0)
    async with reading(real.consumer(topic, group=topic)) as member:
        await until(lambda: len(member.consumer.assignment()) == 2)
    assert not await positions(real, topic)


class Storing:
    """The group's commits, with scripted outcomes."""

    def __init__(self, *outcomes: TidelogError | dict[TopicPartition, TidelogError]) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[dict[TopicPartition, int]] = []

    async def store(self, positions: dict[TopicPartition, int], *, note: str = "") -> Commits:
        assert not note
        self.asked.append(dict(positions))
        outcome = self.outcomes.pop(0) if self.outcomes else {}
        if isinstance(outcome, TidelogError):
            raise outcome
        return Commits({}, outcome)


def initial_positions(storing: Storing) -> InitialPositions:
    options = ConsumerOptions.of(("t",), group="g", start="latest")
    nobody: Any = None
    return InitialPositions(nobody, options, cast("GroupCommits", storing))


async def test_retriable_failures_are_retried_and_refusals_are_not() -> None:
    moving, fenced = EpochChangingError("moves"), MemberFencedError("it is another's")
    storing = Storing(moving, {HERE: moving, THERE: fenced}, {})
    await initial_positions(storing).store({HERE: 3, THERE: 4}, lambda _: True)
    assert storing.asked == [{HERE: 3, THERE: 4}, {HERE: 3, THERE: 4}, {HERE: 3}]


async def test_unwanted_partitions_are_not_stored() -> None:
    storing = Storing(EpochChangingError("moves"))
    wanted = {HERE, THERE}

    def is_wanted(where: TopicPartition) -> bool:
        return where in wanted and not (storing.asked and where == HERE)

    await initial_positions(storing).store({HERE: 3, THERE: 4}, is_wanted)
    assert storing.asked == [{HERE: 3, THERE: 4}, {THERE: 4}]
