"""Administration of groups with and without members."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.clients.sharing import new_topic, positions, reading, until

from tidelog import Client, Group, TopicPartition, sync
from tidelog.errors import (
    GroupNotEmptyError,
    InvalidRequestError,
    OverloadedError,
    UnknownGroupError,
    UnknownPartitionError,
)
from tidelog.requests import fetch_and_commit

pytestmark = pytest.mark.e2e


async def test_group_with_members_is_described_and_neither_reset_nor_deleted(real: Client) -> None:
    topic = await new_topic(real, partitions=2, records=3)
    wish = Group(topic, assignor="range", instance_id="one", session_timeout_s=0.5)
    async with reading(real.consumer(topic, group=wish)) as reader:
        await until(lambda: len(reader.seen) == 6)
        told = await real.groups.describe(topic)
        (member,) = told.members
        assert (told.state, told.assignor, told.member_count) == ("stable", "range", 1)
        assert (member.member_id, member.instance_id) == (reader.consumer.member_id, "one")
        assert member.reads == member.is_to_read == (TopicPartition(topic, 0), TopicPartition(topic, 1))
        assert [row.lag for row in await real.groups.lag(topic)] == [3, 3], "of the topics that its members read"
        for refused in (real.groups.delete(topic), real.groups.reset(topic, "earliest", topic=topic)):
            with pytest.raises(GroupNotEmptyError, match="1 members"):
                await refused
    assert topic in {group.name for group in await real.groups.list()}
    assert [row.lag for row in await real.groups.lag(topic)] == [0, 0]


async def test_positions_are_reset_back_and_forth(real: Client) -> None:
    topic = await new_topic(real, partitions=2, records=10)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await real.groups.reset(topic, 7, topic=topic, partitions=[0])
    assert await positions(real, topic) == {zero: 7}
    tried = await real.groups.reset(topic, "earliest", dry_run=True)
    assert {row.partition: (row.next_offset, row.lag) for row in tried} == {0: (0, 10), 1: (0, 10)}
    assert await positions(real, topic) == {zero: 7}
    assert [(row.note, row.commit_timestamp_us) for row in tried][1] == (None, None), "nothing was committed"
    before_us = (await real.groups.lag(topic))[0].commit_timestamp_us
    told = await real.groups.reset(topic, 99)
    assert [(row.partition, row.next_offset, row.note, row.lag) for row in told] == [
        (0, 10, "reset", 0),
        (1, 10, "reset", 0),
    ]
    stamps = [row.commit_timestamp_us for row in await real.groups.lag(topic)]
    assert [row.commit_timestamp_us for row in told] == stamps
    assert (stamps[0] or 0) > (before_us or 0)
    assert await positions(real, topic) == {zero: 10, one: 10}, "limited to the log end"
    await real.groups.reset(topic, datetime(2000, 1, 1, tzinfo=UTC))
    assert await positions(real, topic) == {zero: 0, one: 0}
    async with reading(real.consumer(topic, group=topic)) as reader:
        await until(lambda: len(reader.seen) == 20)


async def test_a_reset_that_fails_at_a_topic_names_the_topics_that_were_reset(
    real: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sorted(
        [await new_topic(real, partitions=1, records=2), await new_topic(real, partitions=1, records=2)]
    )
    group = f"reset-of-{first}"
    for topic in (first, second):
        await real.commit(group, topic, {0: 1})
    really = fetch_and_commit.commit

    async def failing(router: Any, name: str, topic: str, positions: Any, **options: Any) -> Any:
        if topic == second:
            raise OverloadedError("full")
        return await really(router, name, topic, positions, **options)

    monkeypatch.setattr(fetch_and_commit, "commit", failing)
    with pytest.raises(OverloadedError, match=f"full; reset nevertheless: topic '{first}'") as failed:
        await real.groups.reset(group, 2)
    assert not failed.value.definite
    assert await positions(real, group) == {TopicPartition(first, 0): 2, TopicPartition(second, 0): 1}


async def test_invalid_arguments_are_refused(real: Client) -> None:
    topic = await new_topic(real, partitions=1)
    with pytest.raises(InvalidRequestError, match=">= 0"):
        await real.groups.reset(topic, -1, topic=topic)
    with pytest.raises(InvalidRequestError, match="pass topic="):
        await real.groups.reset(topic, 0, partitions=[0])
    with pytest.raises(UnknownPartitionError):
        await real.groups.reset(topic, 0, topic=topic, partitions=[0, 1])
    with pytest.raises(UnknownGroupError):
        await real.groups.reset("nobody", "earliest")
    for name in ("", "x" * 1000):
        with pytest.raises(InvalidRequestError):
            await real.groups.describe(name)


async def test_lag_of_an_unknown_group_is_empty_unless_a_topic_is_named(real: Client) -> None:
    topic = await new_topic(real, partitions=2, records=3)
    assert await real.groups.lag("a-group-that-nobody-has-joined") == []
    assert [row.lag for row in await real.groups.lag("a-group-that-nobody-has-joined", topic)] == [3, 3]


async def test_deleted_group_loses_its_positions(real: Client) -> None:
    topic = await new_topic(real, partitions=1, records=1)
    await real.commit(topic, topic, {0: 1})
    await real.groups.delete(topic)
    assert await positions(real, topic) == {}
    with pytest.raises(UnknownGroupError):
        await real.groups.delete(topic)


def test_blocking_client_administers_groups(shared_node: str) -> None:
    with sync.Client(shared_node) as client:
        client.create_topic("blocking-groups", partitions=1)
        client.groups.reset("blocking-groups", "latest", topic="blocking-groups")
        assert "blocking-groups" in {group.name for group in client.groups.list()}
        assert client.groups.describe("blocking-groups").position_count == 1
        assert [row.next_offset for row in client.groups.lag("blocking-groups")] == [0]
        client.groups.delete("blocking-groups")
