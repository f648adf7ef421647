"""Group members are assigned only readable topics, and learn of no others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
from tests.broker.founded import Founded
from tests.broker.group_member import GroupMember
from tests.broker.keyed import founded_with_keys
from tests.broker.peer import Peer
from tests.broker.stand import settled

from tidelog import Client
from tidelog.security import AccessRule
from tidelog.subscriptions import resubscribe_backoff
from tidelog_broker.core.security.registry import SecurityRegistry
from tidelog_broker.server.handlers import commit as commit_handler
from tidelog_proto import broker_pb2 as pb

GROUP = "g"
RULES_S = 10.0
"""Changed rules count for members within about a second, on a machine that is busy with other things in some."""


class Shared:
    """Three nodes, a group that several principals may be members of, and the topics `a1`, `a2`, `b1` and `none`."""

    def __init__(self, founded: Founded, admin: Client) -> None:
        self.founded, self.admin = founded, admin
        self.ids: dict[str, bytes] = {}
        self._peers: list[Peer] = []

    async def create(self, *names: str) -> None:
        """Make topics."""
        for name in names:
            self.ids[name] = (await self.admin.create_topic(name, partitions=2)).topic_id

    async def peer(self, who: str, *prefixes: str, node: str = "a") -> Peer:
        """Return a connection of a principal who may use the group, and consume topics with these prefixes."""
        key = await self.admin.security.create_key(who)
        rules = [AccessRule(who, ("group",), "group", GROUP)]
        rules += [AccessRule(who, ("consume",), "topic", prefix, prefix=True) for prefix in prefixes]
        ids = [(await self.admin.security.grant(rule)).rule_id for rule in rules]
        for each in self.founded.nodes.values():
            registry = each.broker.security.registry
            await settled(partial(_knows, registry, [f"key/{key.info.key_id}", *(f"rule/{each}" for each in ids)]), who)
        peer = await Peer.connect(self.founded.ports[node])
        self._peers.append(peer)
        await peer.greet(api_key=key.api_key)
        return peer

    def coordinator(self) -> str:
        """Return the node that coordinates the group, as a running one knows."""
        name = next(iter(self.founded.nodes))
        return self.founded.owner(self.founded.nodes[name].broker.groups.key_of(GROUP), name)

    def topics(self, member: GroupMember) -> list[str]:
        """Return the topics of what a member reads, each as often as it has partitions of it."""
        names = {topic_id: name for name, topic_id in self.ids.items()}
        return sorted(names[topic_id] for topic_id, _ in member.membership.held)

    async def become(self, wanted: Iterable[tuple[GroupMember, list[str]]], within_s: float = 15.0) -> None:
        """Let members ask until each reads what it should."""
        wanted = list(wanted)
        async with asyncio.timeout(within_s):
            while any(self.topics(member) != topics for member, topics in wanted):
                for member, _ in wanted:
                    error = await member.tried()
                    assert not error.code or error.retriable, error
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()


def _knows(registry: SecurityRegistry, ids: list[str]) -> bool:
    return all(registry.exists(each) for each in ids)


async def until_told(member: GroupMember, is_it: Callable[[pb.Error], bool]) -> None:
    """Let a member ask, as a client does, until the outcome is what is waited for."""
    async with asyncio.timeout(30):
        while not is_it(await member.tried()):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.02)


@pytest.fixture
async def shared(founded: Founded, key_file: Path) -> AsyncIterator[Shared]:
    async with founded_with_keys(founded, key_file) as admin:
        made = Shared(founded, admin)
        try:
            await made.create("a1", "a2", "b1", "none")
            yield made
        finally:
            await made.close()


async def test_pattern_reveals_nothing_to_a_caller_without_rights(shared: Shared) -> None:
    member = GroupMember(await shared.peer("eve"), pattern=".*")
    for _ in range(3):
        assert not (await member.ask(wait_ms=50)).assigned
    described = await member.peer.ask(group_describe=pb.GroupDescribe(group=GROUP))
    assert not any(topic_id in described.envelope.SerializeToString() for topic_id in shared.ids.values())


async def test_refusal_of_a_named_topic_does_not_reveal_its_existence(shared: Shared) -> None:
    peer = await shared.peer("eve", "a")
    said = [await GroupMember(peer, "a1", name).tried() for name in ("none", "nowhere")]
    assert {error.code for error in said} == {pb.FORBIDDEN}
    assert said[0].message.replace("none", "nowhere") == said[1].message
    known = (await peer.ask(metadata=pb.Metadata(topics=["nowhere"]))).envelope.metadata_reply.topics[0].error
    assert known.message.replace("describe", "consume") == said[1].message
    await shared.admin.security.grant(AccessRule("eve", ("describe",), "topic", "none"))
    await until_told(GroupMember(peer, "none"), lambda error: "consume on the topic 'none'" in error.message)


async def test_members_are_assigned_only_readable_topics(shared: Shared) -> None:
    ann = GroupMember(await shared.peer("ann", "a"), pattern=".*")
    ben = GroupMember(await shared.peer("ben", "b", node="b"), pattern=".*")
    await shared.become([(ann, ["a1", "a1", "a2", "a2"]), (ben, ["b1", "b1"])])
    cem = GroupMember(await shared.peer("cem", "a1", node="c"), pattern="a.*")
    await shared.become([(ann, ["a2", "a2"]), (cem, ["a1", "a1"]), (ben, ["b1", "b1"])])
    described = (await ben.peer.ask(group_describe=pb.GroupDescribe(group=GROUP))).envelope.group_describe_reply
    assert [topic.name for topic in described.topics] == ["b1"]
    told = {topic.topic_id for each in described.members for topic in (*each.held, *each.target)}
    assert told == {shared.ids["b1"]}


async def test_pattern_excludes_unreadable_new_topics(shared: Shared) -> None:
    ann = GroupMember(await shared.peer("ann", "a1"), pattern="a.*")
    await shared.become([(ann, ["a1", "a1"])])
    await shared.create("a3", "a10")
    await shared.become([(ann, ["a1", "a1", "a10", "a10"])])
    assert (await ann.ask()).unchanged


async def test_unreadable_new_topic_does_not_disturb_a_consumer(shared: Shared) -> None:
    key = await shared.admin.security.create_key("ann")
    await shared.peer("ann", "a1")
    async with (
        Client(f"127.0.0.1:{shared.founded.ports['a']}", api_key=key.api_key, request_timeout_s=10) as ann,
        ann.consumer(group=GROUP, start="earliest", pattern="a.*") as consumer,
        shared.admin.producer("a1") as producer,
    ):
        for value in (b"before", b"after"):
            await producer.send(value)
            assert (await asyncio.wait_for(anext(consumer), 20)).value == value
            await shared.create(f"a-{value.decode()}")
            await asyncio.sleep(0.5)
        assert {each.topic for each in consumer.assignment()} == {"a1"}


@pytest.mark.parametrize("group", [GROUP, None])
async def test_pattern_follows_revoked_and_restored_rights(
    shared: Shared, group: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resubscribe_backoff, "REFUSED_S", 0.5)
    security = shared.admin.security
    key = await security.create_key("ann")
    await shared.peer("ann", "a")

    async def publish(value: bytes) -> None:
        for topic in ("a1", "a2"):
            async with shared.admin.producer(topic) as producer:
                for partition in range(2):
                    await producer.send(value, partition=partition)

    async with (
        Client(f"127.0.0.1:{shared.founded.ports['a']}", api_key=key.api_key, request_timeout_s=10) as ann,
        ann.consumer(group=group, start="earliest", pattern="a.") as consumer,
    ):
        read = Counter[tuple[str, bytes]]()

        async def until_read(topic: str, value: bytes) -> None:
            async with asyncio.timeout(30):
                while read[topic, value] < 2:
                    read.update((record.topic, record.value) for record in await consumer.poll(timeout_s=0.2))

        await publish(b"before")
        await until_read("a1", b"before")
        await until_read("a2", b"before")
        denied = await security.grant(AccessRule("ann", ("consume",), "topic", "a2", deny=True))
        await asyncio.sleep(1.0)
        await publish(b"meanwhile")
        await until_read("a1", b"meanwhile")
        assert not read["a2", b"meanwhile"]
        await security.revoke(denied.rule_id)
        await until_read("a2", b"meanwhile")
        assert set(read.values()) == {2}, "nothing is read twice"


async def test_forbidden_partition_does_not_block_a_subscription(shared: Shared) -> None:
    peer = await shared.peer("ann", "a1")
    asked = pb.Subscribe(subscription_id=1, entries=[{"topic_id": shared.ids[name]} for name in ("b1", "a1")])
    asked.entries.add(topic_id=shared.ids["b1"], partition=9)
    refused, taken, nowhere = (await peer.ask(subscribe=asked)).envelope.subscribe_reply.results
    assert refused.error.code == nowhere.error.code == pb.FORBIDDEN, "whether there is such a partition is not told"
    assert taken.error.code != pb.FORBIDDEN


async def test_refused_publish_does_not_reveal_partition_counts(
    shared: Shared,
) -> None:
    peer = await shared.peer("ann", "a1")
    for partition in (0, 9):
        (refused,) = await peer.publish(shared.ids["b1"], b"?", partition=partition)
        assert refused.error.code == pb.FORBIDDEN


async def test_changed_rules_apply_to_existing_members(shared: Shared) -> None:
    security = shared.admin.security
    ann = GroupMember(await shared.peer("ann", "a"), pattern=".*")
    await shared.become([(ann, ["a1", "a1", "a2", "a2"])])
    denied = await security.grant(AccessRule("ann", ("consume",), "topic", "a1", deny=True))
    await shared.become([(ann, ["a2", "a2"])], RULES_S)
    ben = GroupMember(await shared.peer("ben", "a1"), pattern=".*")
    await shared.become([(ann, ["a2", "a2"]), (ben, ["a1", "a1"])])
    await security.grant(AccessRule("ben", ("consume",), "topic", "none"))
    await shared.become([(ann, ["a2", "a2"]), (ben, ["a1", "a1", "none", "none"])], RULES_S)
    await security.grant(AccessRule("ben", ("describe",), "topic", "none", deny=True))
    await shared.become([(ann, ["a2", "a2"]), (ben, ["a1", "a1"])], RULES_S)
    await security.revoke(denied.rule_id)
    await security.grant(AccessRule("ben", ("consume",), "topic", "a1", deny=True))
    await shared.become([(ann, ["a1", "a1", "a2", "a2"]), (ben, [])], RULES_S)


async def test_new_coordinator_assigns_only_readable_topics(shared: Shared) -> None:
    coordinator = shared.coordinator()
    running = next(name for name in shared.founded.nodes if name != coordinator)
    ann = GroupMember(await shared.peer("ann", "a", node=running), pattern=".*")
    ben = GroupMember(await shared.peer("ben", "a1", "b", node=running), pattern=".*")
    await shared.become([(ann, ["a1", "a2", "a2"]), (ben, ["a1", "b1", "b1"])])
    generation = ann.membership.generation
    await shared.founded.crash(coordinator)
    await shared.become([(ann, ["a1", "a2", "a2"]), (ben, ["a1", "b1", "b1"])], 30)
    for member in (ann, ben):
        await until_told(member, lambda error: not error.code)
    assert ann.membership.generation == generation, "nothing has changed, so nothing moves"
    await ben.leave()
    await until_told(ann, lambda error: not error.code and shared.topics(ann) == ["a1", "a1", "a2", "a2"])


async def test_member_belongs_to_its_caller(shared: Shared) -> None:
    ann = GroupMember(await shared.peer("ann", "a"), pattern=".*")
    await shared.become([(ann, ["a1", "a1", "a2", "a2"])])
    own, ann.peer = ann.peer, await shared.peer("eve", "a")
    assert await ann.refused() == pb.MEMBER_FENCED
    left = (await ann.peer.ask(group_heartbeat=ann.membership.leaving())).envelope
    assert left.error.code == pb.MEMBER_FENCED
    refused = await ann.peer.refused(
        commit=pb.Commit(
            group=GROUP,
            member_id=ann.membership.member_id,
            generation=ann.membership.generation,
            entries=[pb.CommitEntry(topic_id=shared.ids["a1"], next_offset=0)],
        )
    )
    assert refused.code == pb.MEMBER_FENCED
    ann.peer = own
    assert (await ann.ask()).unchanged
    assert not await ann.commit(shared.ids["a1"], 0, 0)
    await ann.leave()
    assert await ann.refused() == pb.MEMBER_FENCED


async def test_rights_of_the_gateways_caller_apply(shared: Shared) -> None:
    await shared.admin.security.grant(AccessRule("gate", ("impersonate",), "cluster"))
    gate = await shared.peer("gate", "a", "b", "none")
    key = await shared.admin.security.create_key("ann")
    await shared.peer("ann", "a1")
    identified = pb.Identify(credentials=pb.Credentials(api_key=key.api_key))
    ticket = (await gate.ask(identify=identified)).envelope.identify_reply.ticket
    join = pb.GroupWish(pattern=".*", session_timeout_ms=10_000)
    asked = pb.GroupHeartbeat(group=GROUP, member_id="x" * 16, join=join)
    told = (await gate.ask(group_heartbeat=asked, on_behalf=ticket)).envelope.group_heartbeat_reply
    assert [topic.topic for topic in told.assigned] == ["a1"]


async def test_positions_of_hidden_topics_are_omitted(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_handler, "PAGE_POSITIONS", 1)
    for name in shared.ids:
        await shared.admin.commit(GROUP, name, {0: 0})
    key = await shared.admin.security.create_key("ann")
    await shared.peer("ann", "a1")
    async with Client(f"127.0.0.1:{shared.founded.ports['a']}", api_key=key.api_key, request_timeout_s=10) as ann:
        assert [each.topic for each in await ann.committed(GROUP)] == ["a1"]
        assert {each.topic for each in await ann.groups.lag(GROUP)} == {"a1"}
    peer = await shared.peer("ann", "a1")
    entries = [pb.CommittedEntry(topic_id=topic_id) for topic_id in shared.ids.values()]
    named = (await peer.ask(committed=pb.Committed(group=GROUP, entries=entries))).envelope.committed_reply
    assert [each.topic_id for each in named.results if each.found] == [shared.ids["a1"]]
    assert {each.topic for each in await shared.admin.committed(GROUP)} == set(shared.ids)


async def test_refused_commit_on_a_hidden_topic_looks_like_an_unknown_one(shared: Shared) -> None:
    peer = await shared.peer("ann", "a")
    topic_ids = (shared.ids["none"], b"?" * 16)
    commit = pb.Commit(group=GROUP, entries=[pb.CommitEntry(topic_id=each, partition=2) for each in topic_ids])
    results = (await peer.ask(commit=commit)).envelope.commit_reply.results
    assert {(each.error.code, each.found) for each in results} == {(pb.UNKNOWN_TOPIC, False)}
    hidden, nowhere = (each.error.message for each in results)
    assert hidden.replace(topic_ids[0].hex(), topic_ids[1].hex()) == nowhere
    commit.member_id = "m"
    commit.entries[0].ClearField("partition")
    fenced, _ = (await peer.ask(commit=commit)).envelope.commit_reply.results
    assert fenced.error.code == pb.MEMBER_FENCED, "the group's error is returned"


async def test_member_commits_on_a_topic_it_can_no_longer_see(shared: Shared) -> None:
    ann = GroupMember(await shared.peer("ann", "a"), pattern="a1")
    await shared.become([(ann, ["a1", "a1"])])
    await shared.admin.security.grant(AccessRule("ann", ("describe",), "topic", "a1", deny=True))
    entries = [pb.CommittedEntry(topic_id=shared.ids["a1"])]

    async def is_hidden() -> bool:
        asked = pb.Committed(group=GROUP, entries=entries)
        return not (await ann.peer.ask(committed=asked)).envelope.committed_reply.results[0].found

    assert not await ann.commit(shared.ids["a1"], 0, 0)
    async with asyncio.timeout(15):
        while not await is_hidden():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.02)
    assert not await ann.commit(shared.ids["a1"], 0, 0)
