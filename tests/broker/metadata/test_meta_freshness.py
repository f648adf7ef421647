"""Unknown topics are confirmed with the owner of `__meta`, with a limited number of requests."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand

from tidelog import Client
from tidelog.errors import UnknownPartitionError, UnknownTopicError
from tidelog_broker.core.topics import META_KEY, META_TOPIC_ID, OFFSETS_KEY
from tidelog_broker.metadata import meta_freshness
from tidelog_broker.metadata.meta_freshness import MetaFreshness
from tidelog_broker.node.node import Node
from tidelog_broker.wire.links import unreachable
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame

UNKNOWN = b"?" * 16


async def cut_off() -> None:
    raise unreachable("the owner of __meta")


@pytest.fixture
async def three(founded: Founded) -> Founded:
    founded.settings["offsets_partitions"] = 1
    await founded.found()
    await founded.settled()
    return founded


Answer = Callable[[], Awaitable[None]]


class Deaf:
    """A node that applies nothing of `__meta` until it hears; `questions` are those that it begins to ask."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.questions = 0
        self.waiting = 0
        """How many have asked it for what it may not have heard of."""
        self.asked = asyncio.Event()
        self.may_apply = asyncio.Event()
        self.before_it_asks: Answer | None = None
        """Awaited with each request; its exceptions become the result of the request."""
        self._apply_committed = node.broker.meta_log.apply_committed
        self._request = node.broker.cluster.request
        self._is_current = node.broker.meta_freshness.is_current
        monkeypatch.setattr(node.broker.meta_freshness, "is_current", self._counts)
        monkeypatch.setattr(node.broker.meta_log, "apply_committed", self._apply)
        monkeypatch.setattr(node.broker.cluster, "request", self._ask)

    async def _counts(self) -> bool:
        self.waiting += 1
        return await self._is_current()

    async def _apply(self) -> None:
        await self.may_apply.wait()
        await self._apply_committed()

    def _ask(self, node_id: str, envelope: pb.Envelope, *rest: Any, timeout_s: float) -> Awaitable[Frame]:
        entries = envelope.list_offsets.entries
        if [entry.topic_id for entry in entries if entry.latest] != [META_TOPIC_ID]:
            return self._request(node_id, envelope, *rest, timeout_s=timeout_s)
        self.questions += 1
        self.asked.set()
        return self._asks_where_meta_ends(node_id, envelope, timeout_s=timeout_s)

    async def _asks_where_meta_ends(self, node_id: str, envelope: pb.Envelope, *, timeout_s: float) -> Frame:
        if self.before_it_asks is not None:
            await self.before_it_asks()
        return await self._request(node_id, envelope, timeout_s=timeout_s)

    async def hears(self) -> None:
        """Let it apply what there is once it has asked."""
        async with asyncio.timeout(20):
            await self.asked.wait()
        self.may_apply.set()


@pytest.fixture
async def deaf(three: Founded, monkeypatch: pytest.MonkeyPatch) -> Deaf:
    """Return the owner of `__offsets`, which is made to be another node than that of `__meta`."""
    meta = three.owner(META_KEY, "a")
    if three.owner(OFFSETS_KEY, "a") == meta:
        partition = three.nodes[meta].broker.partitions.get(*OFFSETS_KEY)
        plan = three.nodes[meta].broker.cluster.handover_plan(OFFSETS_KEY, partition.replica.state.active)
        assert plan is not None
        partition.driver.roll_over(plan)
    await three.until(
        lambda: {three.owner(OFFSETS_KEY, name) for name in "abc"} in [{name} for name in "abc" if name != meta],
        "the owner of __meta owns __offsets",
    )
    monkeypatch.setattr(meta_freshness, "REFRESH_TIMEOUT_S", 20.0)
    return Deaf(three.nodes[three.owner(OFFSETS_KEY, meta)], monkeypatch)


async def made_elsewhere(three: Founded, deaf: Deaf, **config: Any) -> pb.TopicInfo:
    """Make a topic that the deaf node does not hear of."""
    peer = await three.peer(next(name for name in "abc" if name != deaf.node.node_id))
    topic = await peer.create(replication_factor=3, **config)
    assert deaf.node.broker.topics.get(topic.topic_id) is None
    return topic


async def commit_error(peer: Peer, topic_id: bytes, partition: int = 0) -> pb.Error:
    entry = pb.CommitEntry(topic_id=topic_id, partition=partition)
    frame = await peer.ask(commit=pb.Commit(group="g", entries=[entry]))
    return frame.envelope.commit_reply.results[0].error


async def fetch_error(peer: Peer, topic_id: bytes, partition: int = 0) -> pb.Error:
    frame = await peer.reply(peer.post_fetch(topic_id, partition=partition))
    return frame.envelope.fetch_reply.results[0].error


async def subscribe_error(peer: Peer, topic_id: bytes, partition: int = 0) -> pb.Error:
    entry = pb.SubscribeEntry(topic_id=topic_id, partition=partition)
    asked = pb.Subscribe(subscription_id=secrets.randbits(40), entries=[entry])
    return (await peer.ask(subscribe=asked)).envelope.subscribe_reply.results[0].error


async def offsets_error(peer: Peer, topic_id: bytes, partition: int = 0) -> pb.Error:
    entry = pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, earliest=True)
    frame = await peer.ask(list_offsets=pb.ListOffsets(entries=[entry]))
    return frame.envelope.list_offsets_reply.results[0].error


async def publish_error(peer: Peer, topic_id: bytes, partition: int = 0) -> pb.Error:
    return (await peer.publish(topic_id, batch(b"v"), partition=partition))[0].error


Ask = Callable[[Peer, bytes, int], Coroutine[Any, Any, pb.Error]]
READS: list[Ask] = [fetch_error, subscribe_error, offsets_error]
ASKS: list[Ask] = [commit_error, *READS, publish_error]


async def test_commit_on_a_new_topic_is_stored(three: Founded, deaf: Deaf) -> None:
    """Through another node, as clients do: the owner of `__offsets` hears of the topic before it answers."""
    topic = await made_elsewhere(three, deaf)
    via = next(name for name in "abc" if name != deaf.node.node_id)
    entry = pb.CommitEntry(topic_id=topic.topic_id, next_offset=3, note="kept")
    asked = pb.Commit(group="g", entries=[entry])
    asking = asyncio.create_task((await three.peer(via)).ask(commit=asked))
    await deaf.hears()
    (result,) = (await asking).envelope.commit_reply.results
    assert (result.found, result.next_offset, result.note) == (True, 3, "kept")


async def test_commit_does_not_wait_for_opening_logs(
    three: Founded, deaf: Deaf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of `__offsets` owns a partition of the topic, too, and has only just heard of it."""
    opened, follow = asyncio.Event(), deaf.node.broker._follow_topic

    async def follow_late(record: pb.TopicRecord) -> None:
        if record.topic_id == topic.topic_id:  # else it is one that was made in vain, and in front of that
            await opened.wait()
        await follow(record)

    monkeypatch.setattr(deaf.node.broker.meta_log, "_follow", follow_late)
    deaf.node.broker.replication.take_part(lambda _: None)  # the other replicas' messages would open it
    mine, topic = list[int](), pb.TopicInfo()
    while not mine:
        topic = await made_elsewhere(three, deaf, partitions=6, name=f"t-{secrets.token_hex(4)}")
        mine = [one.partition for one in topic.partitions if one.owner == deaf.node.node_id]
    asking = asyncio.create_task(commit_error(await three.peer(deaf.node.node_id), topic.topic_id, mine[0]))
    await deaf.hears()
    assert not (await asking).code
    assert deaf.node.broker.partitions.find((topic.topic_id, mine[0])) is None
    opened.set()


async def test_questions_have_a_minimum_interval(three: Founded, deaf: Deaf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_freshness, "ASK_AGAIN_S", 3600)
    deaf.may_apply.set()
    await deaf.node.broker.meta_freshness.refresh_for([(b"1" * 16, 0)])
    later = asyncio.create_task(deaf.node.broker.meta_freshness.refresh_for([(b"2" * 16, 0)]))
    peer = await three.peer(deaf.node.node_id)
    await peer.ask(metadata=pb.Metadata())
    assert deaf.questions == 1
    later.cancel()


@pytest.mark.parametrize("ask", ASKS)
async def test_new_topic_is_not_denied(three: Founded, deaf: Deaf, ask: Ask) -> None:
    topic = await made_elsewhere(three, deaf)
    asking = asyncio.create_task(ask(await three.peer(deaf.node.node_id), topic.topic_id, 0))
    await deaf.hears()
    error = await asking
    # The answering node may have an open log a moment later, but never appends a batch after later ones.
    assert not error.code or (error.retriable and error.definite), error
    assert deaf.node.broker.topics.get(topic.topic_id) is not None


@pytest.mark.parametrize("ask", ASKS)
async def test_unknown_topic_id_is_denied_and_cached(three: Founded, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[str] = []
    is_current = MetaFreshness.is_current

    async def noted(self: MetaFreshness) -> bool:
        (name,) = (name for name, node in three.nodes.items() if node.broker.meta_freshness is self)
        joined.append(name)
        return await is_current(self)

    monkeypatch.setattr(MetaFreshness, "is_current", noted)
    for name in "abc":
        peer = await three.peer(name)
        for _ in range(3):
            error = await ask(peer, UNKNOWN, 0)
            assert (error.code, error.retriable) == (pb.UNKNOWN_TOPIC, False)
    assert len(joined) == len(set(joined)), "the answer for an id is cached"
    assert joined


@pytest.mark.parametrize("ask", ASKS)
async def test_new_partition_is_not_denied(three: Founded, deaf: Deaf, ask: Ask) -> None:
    deaf.may_apply.set()
    peer = await three.peer(deaf.node.node_id)
    topic = await peer.create(replication_factor=3)
    deaf.may_apply.clear()
    other = await three.peer(next(name for name in "abc" if name != deaf.node.node_id))
    await other.ask(topic_alter=pb.TopicAlter(name="t", partitions=2))
    asking = asyncio.create_task(ask(peer, topic.topic_id, 1))
    await deaf.hears()
    error = await asking
    assert not error.code or (error.retriable and error.definite), error
    assert (await ask(peer, topic.topic_id, 2)).code == pb.UNKNOWN_PARTITION


@pytest.mark.parametrize("ask", ASKS)
async def test_unknown_id_is_retriable_without_an_owner(
    three: Founded, deaf: Deaf, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf.before_it_asks = cut_off
    error = await ask(await three.peer(deaf.node.node_id), UNKNOWN, 0)
    assert (error.code, error.retriable, error.definite) == (pb.EPOCH_CHANGING, True, True)
    assert deaf.node.broker.topics.may_exist(UNKNOWN, 0)


@pytest.mark.parametrize("ask", ASKS)
async def test_unknown_partition_is_retriable_without_an_owner(
    three: Founded, deaf: Deaf, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf.may_apply.set()
    peer = await three.peer(deaf.node.node_id)
    topic = await peer.create(replication_factor=3)
    deaf.before_it_asks = cut_off
    error = await ask(peer, topic.topic_id, 1)
    assert (error.code, error.retriable, error.definite) == (pb.EPOCH_CHANGING, True, True)
    deaf.before_it_asks = None
    assert (await ask(peer, topic.topic_id, 1)).code == pb.UNKNOWN_PARTITION


async def test_silent_owner_makes_the_answer_retriable(
    three: Founded, deaf: Deaf, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = asyncio.Event()

    async def is_silent() -> None:
        await silent.wait()

    monkeypatch.setattr(meta_freshness, "REFRESH_TIMEOUT_S", 0.05)
    deaf.before_it_asks = is_silent
    assert (await fetch_error(await three.peer(deaf.node.node_id), UNKNOWN)).code == pb.EPOCH_CHANGING


async def test_flood_of_ids_causes_two_questions(three: Founded, deaf: Deaf) -> None:
    peers = [await three.peer(deaf.node.node_id) for _ in range(4)]
    first = asyncio.create_task(fetch_error(peers[0], UNKNOWN))
    async with asyncio.timeout(20):
        await deaf.asked.wait()
    topic = await made_elsewhere(three, deaf)
    ids = [secrets.token_bytes(16) for _ in range(200)]
    flood = [asyncio.create_task(fetch_error(peers[number % 4], one)) for number, one in enumerate(ids)]
    late = asyncio.create_task(fetch_error(peers[0], topic.topic_id))
    await three.until(lambda: deaf.waiting == 1 + len(flood) + 1, "the flood did not come in")
    await deaf.hears()
    for error in await asyncio.gather(first, *flood):
        assert error.code == pb.UNKNOWN_TOPIC
    assert (await late).code != pb.UNKNOWN_TOPIC
    tasks = deaf.node.broker.tasks
    await three.until(
        lambda: not tasks.named("asking for the end of __meta"), "the request continues without waiting callers"
    )
    assert 2 <= deaf.questions <= 3, "the first one's, and two for the flood"


async def test_flood_of_names_causes_two_questions(three: Founded, deaf: Deaf) -> None:
    peers = [await three.peer(deaf.node.node_id) for _ in range(4)]

    async def told(peer: Peer, name: str) -> pb.TopicInfo:
        (topic,) = (await peer.ask(metadata=pb.Metadata(topics=[name]))).envelope.metadata_reply.topics
        return topic

    first = asyncio.create_task(told(peers[0], "none"))
    async with asyncio.timeout(20):
        await deaf.asked.wait()
    topic = await made_elsewhere(three, deaf, name="made")
    flood = [asyncio.create_task(told(peers[number % 4], f"none-{number}")) for number in range(200)]
    made = asyncio.create_task(told(peers[0], "made"))
    await three.until(lambda: deaf.waiting == 1 + len(flood) + 1, "the flood did not come in")
    await deaf.hears()
    for answer in await asyncio.gather(first, *flood):
        assert answer.error.code == pb.UNKNOWN_TOPIC
    assert (await made).topic_id == topic.topic_id
    assert 2 <= deaf.questions <= 3, "the first one's, and two for the flood"


async def test_stopping_node_ends_pending_questions(three: Founded, deaf: Deaf) -> None:
    waiting = [
        asyncio.create_task(deaf.node.broker.meta_freshness.refresh_for([(secrets.token_bytes(16), 0)]))
        for _ in range(2)
    ]
    async with asyncio.timeout(20):
        await deaf.asked.wait()
    waiting.append(asyncio.create_task(deaf.node.broker.meta_freshness.refresh_for([(UNKNOWN, 0)])))
    await asyncio.sleep(0)
    (task,) = deaf.node.broker.tasks.named("asking for the end of __meta")
    task.cancel()
    async with asyncio.timeout(20):
        await asyncio.gather(*waiting)
    assert deaf.node.broker.topics.may_exist(UNKNOWN, 0), "nothing was learned"
    await deaf.hears()


@pytest.mark.parametrize("ask", ASKS)
async def test_single_node_asks_no_question(stand: Stand, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asks(_: MetaFreshness) -> bool:
        raise AssertionError("no node to ask")

    await stand.start()
    monkeypatch.setattr(MetaFreshness, "is_current", asks)
    peer = await stand.peer()
    assert (await ask(peer, UNKNOWN, 0)).code == pb.UNKNOWN_TOPIC
    topic = await peer.create()
    assert (await ask(peer, topic.topic_id, 7)).code == pb.UNKNOWN_PARTITION
    assert not (await ask(peer, topic.topic_id, 0)).code


@pytest.mark.parametrize("ask", ASKS)
async def test_known_topic_asks_no_question(three: Founded, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    topic_id, owner, _ = await three.used()

    async def asks(_: MetaFreshness) -> bool:
        raise AssertionError("it is known")

    monkeypatch.setattr(MetaFreshness, "is_current", asks)
    error = await ask(await three.peer(owner), topic_id, 0)
    assert error.code != pb.UNKNOWN_TOPIC
    assert not error.code or error.retriable


async def described_by(peer: Peer) -> pb.TopicInfo:
    return (await peer.ask(topic_describe=pb.TopicDescribe(name="t"))).envelope.topic_reply.topics[0]


async def told_by(peer: Peer) -> pb.TopicInfo:
    asked = pb.Metadata(topics=["t"], confirmed=True)
    return (await peer.ask(metadata=asked)).envelope.metadata_reply.topics[0]


async def listed_by(peer: Peer) -> pb.TopicInfo:
    return (await peer.ask(topic_list=pb.TopicList())).envelope.topic_reply.topics[0]


async def listed_behind_by(peer: Peer) -> pb.TopicInfo:
    asked = pb.TopicList(cursor=pb.TopicCursor(topic="s"), limit=1)
    return (await peer.ask(topic_list=asked)).envelope.topic_reply.topics[0]


AsksByName = Callable[[Peer], Coroutine[Any, Any, pb.TopicInfo]]


@pytest.mark.parametrize("ask", [described_by, told_by, listed_by, listed_behind_by])
async def test_recreated_topic_is_reported_with_its_new_id(three: Founded, deaf: Deaf, ask: AsksByName) -> None:
    first = await made_elsewhere(three, deaf)
    deaf.may_apply.set()
    await three.until(lambda: deaf.node.broker.topics.exists("t"), "the topic is not heard of")
    deaf.may_apply.clear()
    peer = await three.peer(next(name for name in "abc" if name != deaf.node.node_id))
    await peer.delete("t")
    second = await made_elsewhere(three, deaf)
    assert deaf.node.broker.topics.named("t").topic_id == first.topic_id
    asking = asyncio.create_task(ask(await three.peer(deaf.node.node_id)))
    await deaf.hears()
    told = await asking
    assert (told.topic_id, told.serial) == (second.topic_id, second.serial)
    assert second.serial > first.serial


async def test_unconfirmed_metadata_is_marked(three: Founded, deaf: Deaf, monkeypatch: pytest.MonkeyPatch) -> None:
    await made_elsewhere(three, deaf)
    deaf.may_apply.set()
    await three.until(lambda: deaf.node.broker.topics.exists("t"), "the topic is not heard of")

    deaf.before_it_asks = cut_off
    peer = await three.peer(deaf.node.node_id)
    assert (await described_by(peer)).name == "t", "unconfirmed state is returned to requests that allow it"
    refused = await peer.refused(topic_describe=pb.TopicDescribe(name="t", confirmed=True))
    assert (refused.code, refused.retriable) == (pb.EPOCH_CHANGING, True)
    for confirmed in (False, True):
        asked = pb.Metadata(topics=["t"], confirmed=confirmed)
        reply = (await peer.ask(metadata=asked)).envelope.metadata_reply
        assert ([topic.name for topic in reply.topics], reply.unconfirmed) == (["t"], confirmed)


async def test_client_of_a_lagging_node_follows_its_topic(three: Founded, deaf: Deaf) -> None:
    """It grows, is deleted and made again; the node hears of it only when it asks."""
    other = await three.peer(next(name for name in "abc" if name != deaf.node.node_id))
    deaf.may_apply.set()
    async with Client(f"127.0.0.1:{deaf.node.port}") as client:
        await client.create_topic("t", partitions=1)
        producer = client.producer("t")
        await producer.send(b"v")

        deaf.may_apply.clear()
        await other.ask(topic_alter=pb.TopicAlter(name="t", partitions=2))
        asking = asyncio.create_task(client.list_offsets("t", "latest"))
        deaf.asked.clear()
        await deaf.hears()
        assert {partition: offset.offset for partition, offset in (await asking).items()} == {0: 1, 1: 0}
        await producer.send(b"w", partition=1)
        with pytest.raises(UnknownPartitionError):
            await client.fetch("t", 2, 0)

        deaf.may_apply.clear()
        await other.delete("t")
        second = await other.create("t", replication_factor=3)
        deaf.asked.clear()
        asking_topic = asyncio.create_task(client.topic("t"))
        await deaf.hears()
        assert (await asking_topic).topic_id == second.topic_id
        with pytest.raises(UnknownTopicError):
            await producer.send(b"x")
        assert (await client.fetch("t", 0, 0)).high_watermark == 0
        await client.producer("t").send(b"y")
        await client.delete_topic("t")
        with pytest.raises(UnknownTopicError):
            await client.topic("t")
