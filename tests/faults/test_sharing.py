"""The members of a group that is judged: which lives they lead, and that they tell everything, in any process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from tests.faults.history import History, Key
from tests.faults.member_process import MemberProcess
from tests.faults.nodes import Node, make_nodes
from tests.faults.sharer import COMMITS, LEAVES, READS, life
from tests.faults.sharer_process import replay
from tests.faults.sharing import GROUP, Sharing
from tests.faults.tenures import Tenures
from tests.faults.values import number_of, value_of
from tests.faults.world import World

from tidelog import Client

RECORDS = 60
SHARED = [Key("t", 0), Key("t", 1)]


def test_all_ways_to_read_commit_and_leave_come_with_each_other() -> None:
    count = len(READS) * len(COMMITS) * len(LEAVES)
    assert len({life(number) for number in range(count)}) == count


def test_all_ways_to_read_and_to_commit_occur_soon() -> None:
    soon = [life(number) for number in range(3)]
    assert {each.reads for each in soon} == set(READS)
    assert {each.commits for each in soon} == set(COMMITS)


def test_a_line_is_taken_down_as_it_was_written() -> None:
    history = History()
    tenures = Tenures("g", history)
    key = Key("t", 0)
    lines = [
        ["begin", ["a", key], {"position": 3, "generation": 2, "at": 1.0}],
        ["hand", ["a", key, 3, [7, 8]], {"at": 1.5}],
        ["committed", [key, 5], {"at": 1.6}],
        ["end", ["a", key], {"lost": True, "at": 2.0}],
    ]
    for line in lines:
        assert replay(json.dumps(line).encode(), tenures) is None
    (tenure,) = tenures.by_key[key]
    assert (tenure.position, tenure.generation, tenure.last_at, tenure.ended_at, tenure.lost) == (3, 2, 1.5, 2.0, True)
    assert (tenures.read_to(key), tenures.position(key)) == (5, 5)
    assert replay(b'["complain", ["OverloadedError", "later"], {}]', tenures) == ("OverloadedError", "later")
    with pytest.raises(ValueError, match="judge"):
        replay(b'["judge", [{}], {}]', tenures)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    (node,) = make_nodes(1, tmp_path, None, None)
    await node.start()
    yield node
    await node.stop()


async def published(client: Client, history: History) -> dict[Key, list[int]]:
    """Publish RECORDS into the shared partitions; return which numbers they hold."""
    await client.create_topic("t", partitions=len(SHARED))
    async with client.producer("t") as producer:
        for sequence in range(RECORDS):
            number = number_of(1, sequence)
            key = SHARED[sequence % len(SHARED)]
            receipt = await producer.send(value_of(number), partition=key.partition)
            history.send(key, number)
            history.ack(key, number, receipt.offset)
    return {key: list(history.sent[key].acked) for key in SHARED}


@pytest.mark.e2e
@pytest.mark.parametrize("number", range(3))
async def test_a_member_that_blocks_reads_everything_once_and_leaves(node: Node, number: int) -> None:
    history = History()
    world = World([node], SHARED, history, Random(1), 1)
    tenures = Tenures("g", history)
    member = MemberProcess(world, tenures, ["t"], "blocks", number, blocking=True)
    async with Client(node.address) as client:
        truths = await published(client, history)
        await member.start()
        member.say("stay")
        async with asyncio.timeout(30):
            seen = tenures.position if life(number).commits == "manual" else tenures.read_to
            while any(seen(key) < history.sent[key].end for key in SHARED):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        world.be_quiet()
        await member.end()
        assert member.returncode == 0
        assert [each.next_offset for each in await client.committed("g", "t")] == [RECORDS // 2] * 2
        assert not (await client.groups.describe("g")).members
    assert not any(tenures.judge(truths))


@pytest.mark.e2e
async def test_members_here_and_in_another_process_read_everything_once(node: Node) -> None:
    history = History()
    world = World([node], SHARED, history, Random(1), 1)
    async with Client(node.address) as client:
        truths = await published(client, history)
        world.be_quiet()
        sharing = Sharing(world, ["t"], Random(1))
        lives = [asyncio.create_task(each) for each in sharing.lives()]
        try:
            async with asyncio.timeout(60):
                while any(sharing.tenures.read_to(key) < history.sent[key].end for key in SHARED):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            members = {member.client_id for member in (await client.groups.describe(GROUP)).members}
        finally:
            for each in lives:
                each.cancel()
            ended = await asyncio.gather(*lives, return_exceptions=True)
        await sharing.settle()
        await sharing.stop()
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
    assert members <= {"sharer-0", "sharer-1", "sharer-2", "sharer-alone-0"}
    assert [sharing.tenures.position(key) for key in SHARED] == [RECORDS // 2] * 2
    assert not any(sharing.tenures.judge(truths))
