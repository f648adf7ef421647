"""WebSocket clients that share a topic as members of a group: real gateway, real node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from datetime import UTC, datetime
from typing import Any, Self, cast

import httpx
import pytest
from tests.gateway.conftest import process
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tidelog import Client, Consumer, Group, TopicPartition
from tidelog.groups.options import OnPartitions
from tidelog_gateway.protocol.messages import AtTime
from tidelog_gateway.protocol.ws_protocol import OpenSubscription, WsProtocol, assigned_message, revoked_message
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.subscriptions.membership import Membership, start_of
from tidelog_gateway.subscriptions.message_sender import Sender

pytestmark = pytest.mark.e2e

PARTITIONS = 4


@pytest.fixture
async def topic(http: httpx.AsyncClient) -> str:
    name = f"shared-{secrets.token_hex(4)}"
    assert (await http.post("/v1/topics", json={"name": name, "partitions": PARTITIONS})).status_code == 201
    return name


class Member:
    """A client that reads all messages: `seen` are values, `has` are its partitions with their next offsets."""

    def __init__(
        self, address: str, topic: str, *, credit: int = 10_000, commits: bool = True, group: str | None = None
    ) -> None:
        self.seen: list[str] = []
        self.has: dict[int, int] = {}
        self.gave_up: list[tuple[list[int], bool]] = []
        self.answers: dict[int, Any] = {}
        self.ended: Any = None
        self._address = address
        self._sub = {"sid": 1, "topic": topic, "group": group or f"of {topic}", "member": True, "from": "earliest"}
        self._sub["credit"] = {"records": credit}
        self._commits = commits
        self._next_id = 1
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._socket: ClientConnection = await connect(
            f"ws://{self._address}/v1/ws", subprotocols=[Subprotocol("tidelog.v1.json")]
        )
        await self.ask(sub=self._sub)
        self._task = asyncio.create_task(self._take())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._socket.close()

    async def ask(self, **request: Any) -> int:
        self._next_id += 1
        await self._socket.send(json.dumps({"id": self._next_id, **request}))
        return self._next_id

    async def give(self, records: int) -> None:
        await self._socket.send(json.dumps({"credit": {"sid": 1, "records": records}}))

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(condition)

    async def _take(self) -> None:
        async for text in self._socket:
            message = json.loads(text)
            if "batch" in message:
                batch = message["batch"]
                assert batch["partition"] in self.has, "only records of its partitions are sent"
                self.seen += [record["value"] for record in batch["records"]]
                self.has[batch["partition"]] = batch["next_offset"]
                if self._commits:
                    await self.ask(commit={"sid": 1, "offsets": {str(batch["partition"]): batch["next_offset"]}})
            elif "assigned" in message:
                self.has |= {int(number): offset for number, offset in message["assigned"]["offsets"].items()}
            elif "revoked" in message:
                told = message["revoked"]
                self.gave_up.append((told["partitions"], told["lost"]))
                for number in told["partitions"]:
                    del self.has[number]
            elif "end" in message:
                self.ended = message["end"]
            else:
                self.answers[message["id"]] = message
            async with self._changed:
                self._changed.notify_all()


async def put(http: httpx.AsyncClient, topic: str, values: range) -> None:
    records = [{"value": str(value), "partition": value % PARTITIONS} for value in values]
    assert (await http.post(f"/v1/topics/{topic}/records", json={"records": records})).status_code == 200


async def test_members_share_and_hand_over_without_gap_or_repeat(
    http: httpx.AsyncClient, topic: str, gateway_address: str
) -> None:
    await put(http, topic, range(100))
    async with Member(gateway_address, topic) as first:
        await first.until(lambda: len(first.seen) == 100)
        assert sorted(first.has) == list(range(PARTITIONS))
        async with Member(gateway_address, topic) as second:
            await second.until(lambda: len(second.has) == PARTITIONS // 2)
            assert not first.has.keys() & second.has.keys()
            assert [lost for _, lost in first.gave_up] == [False] * len(first.gave_up)
            await put(http, topic, range(100, 200))
            await first.until(lambda: len(first.seen) == 150)
            await second.until(lambda: len(second.seen) == 50)
            assert (await http.get(f"/v1/groups/of {topic}")).json()["members"] == 2
        await first.until(lambda: len(first.has) == PARTITIONS)
        await put(http, topic, range(200, 300))
        await first.until(lambda: len(first.seen) + len(second.seen) >= 300)
    assert sorted(map(int, first.seen + second.seen)) == list(range(300))


async def test_a_member_measures_its_reads_for_a_group_balanced_by_load(
    http: httpx.AsyncClient, topic: str, gateway_address: str, node_address: str
) -> None:
    async with Client(node_address) as client, Member(gateway_address, topic) as first:
        await first.until(lambda: len(first.has) == PARTITIONS)
        group = Group(f"of {topic}", assignor="load", session_timeout_s=4.0)
        async with client.consumer(topic, group=group) as second:
            reads = asyncio.create_task(_read_on(second))
            await first.until(lambda: len(first.has) == PARTITIONS // 2)
            busy = set(first.has)
            async with client.producer(topic) as producer, asyncio.timeout(45):
                while len(busy & first.has.keys()) == len(busy):
                    for number in busy:
                        await producer.send_many([b"x" * 500] * 50, partition=number)
                    await first.give(100)
                    await asyncio.sleep(0.1)
            assert len(busy & first.has.keys()) == 1
        await reads


async def _read_on(consumer: Consumer) -> None:
    async for _ in consumer.batches():
        pass


async def test_uncommitted_records_go_to_the_next_member(
    http: httpx.AsyncClient, topic: str, gateway_address: str
) -> None:
    await put(http, topic, range(40))
    async with Member(gateway_address, topic, commits=False) as first:
        await first.until(lambda: len(first.seen) == 40)
    async with Member(gateway_address, topic) as second:
        await second.until(lambda: len(second.seen) == 40)
    assert sorted(second.seen) == sorted(first.seen)


async def test_a_member_without_credit_loses_its_partitions_to_others(
    http: httpx.AsyncClient, topic: str, gateway_address: str
) -> None:
    await put(http, topic, range(400))
    async with Member(gateway_address, topic, credit=10) as slow:
        await slow.until(lambda: len(slow.seen) == 10)
        async with Member(gateway_address, topic) as other:
            await other.until(lambda: len(other.has) == PARTITIONS // 2)
            await other.until(lambda: len(other.seen) >= 150)
            assert len(slow.seen) == 10
            await slow.give(1000)
            await slow.until(lambda: len(set(slow.seen + other.seen)) == 400)
    assert len(slow.seen + other.seen) == 400


async def test_a_member_that_gives_no_credit_for_long_is_removed(
    http: httpx.AsyncClient, topic: str, node_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(http, topic, range(400))
    monkeypatch.setenv("TIDELOG_GATEWAY_WS_MEMBER_IDLE_S", "0.5")
    with process("gateway", "--bootstrap", node_address, "--http-port", "0") as (_, ready):
        address = f"127.0.0.1:{ready['http_port']}"
        async with Member(address, topic, credit=10) as slow, Member(address, topic) as other:
            await slow.until(lambda: slow.ended)
            assert (slow.ended["error"]["code"], slow.ended["error"]["status"]) == ("member_fenced", 409)
            await other.until(lambda: len(set(slow.seen + other.seen)) == 400)


async def test_a_member_commits_only_its_own_partitions(
    topic: str, gateway_address: str, http: httpx.AsyncClient
) -> None:
    await put(http, topic, range(8))
    async with Member(gateway_address, topic) as member:
        await member.until(lambda: len(member.seen) == 8)
        beyond = await member.ask(commit={"sid": 1, "offsets": {"0": 1000}})
        nowhere = await member.ask(commit={"sid": 1, "offsets": {"9": 0}})
        leaving = await member.ask(unsub={"sid": 1})
        await member.until(lambda: leaving in member.answers)
        assert [member.answers[number]["error"]["status"] for number in (beyond, nowhere)] == [422, 422]
        assert "ok" in member.answers[leaving]
        async with asyncio.timeout(5):  # at once, and not a session later
            while (await http.get(f"/v1/groups/of {topic}")).json()["members"]:  # noqa: ASYNC110 (no event to wait for)
                await asyncio.sleep(0.05)


async def test_a_missing_topic_is_reported(gateway_address: str) -> None:
    async with Member(gateway_address, "no-such-topic") as member:
        await member.until(lambda: member.answers)
        assert member.answers[2]["error"]["status"] == 404


async def test_a_topic_that_is_deleted_ends_it(http: httpx.AsyncClient, topic: str, gateway_address: str) -> None:
    async with Member(gateway_address, topic) as member:
        await member.until(lambda: len(member.has) == PARTITIONS)
        assert (await http.delete(f"/v1/topics/{topic}")).status_code == 204
        await member.until(lambda: not member.has or member.ended)


async def test_a_member_that_has_given_up_all_that_was_to_be_sent_stays_a_member(
    http: httpx.AsyncClient, topic: str, node_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"value": str(value), "partition": 0} for value in range(20)]
    assert (await http.post(f"/v1/topics/{topic}/records", json={"records": records})).status_code == 200
    monkeypatch.setenv("TIDELOG_GATEWAY_WS_MEMBER_IDLE_S", "6")
    wish = Group(f"of {topic}", commit="manual", assignor="range")  # the assignment depends on random ids
    with process("gateway", "--bootstrap", node_address, "--http-port", "0") as (_, ready):
        async with Client([node_address]) as client, Member(f"127.0.0.1:{ready['http_port']}", topic, credit=0) as slow:
            await slow.until(lambda: len(slow.has) == PARTITIONS)
            await slow.give(10)
            await slow.until(lambda: len(slow.seen) == 10)
            while True:
                async with contextlib.AsyncExitStack() as others:
                    for _ in range(PARTITIONS - 1):
                        await others.enter_async_context(client.consumer(topic, group=wish))
                    await slow.until(lambda: len(slow.has) == 1)
                    if 0 not in slow.has:
                        await asyncio.sleep(7)
                        assert slow.ended is None
                        return
                await slow.until(lambda: len(slow.has) == PARTITIONS)


class Told:
    """The connection and the consumer of a membership: records messages, and has positions."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.positions: dict[TopicPartition, int] = {}
        self.protocol = WsProtocol(GatewaySettings())
        sub = {"sid": 1, "topic": "t", "group": "g", "member": True, "credit": {"records": 10}}
        action = self.protocol.receive(json.dumps({"id": 1, "sub": sub}), now_us=0)
        assert isinstance(action, OpenSubscription)
        membership = Membership(self.protocol, action.sub, cast(Sender, self), lambda: None)
        membership.reads_with(cast(Consumer, self))
        self.wish = membership.group()

    def position(self) -> dict[TopicPartition, int]:
        return self.positions

    async def send(self, message: Any) -> None:
        if "revoked" in message and message["revoked"]["lost"]:  # after a batch that was sent before
            for number in message["revoked"]["partitions"]:
                self.protocol.delivered(1, number, records=1, payload_bytes=1, next_offset=9)
        self.messages.append(message)

    async def call(self, callback: OnPartitions | None, *numbers: int) -> None:
        assert callback is not None
        waits = callback(frozenset(TopicPartition("t", number) for number in numbers))
        assert waits is not None
        await waits


async def test_partitions_lost_before_their_announcement_are_not_announced() -> None:
    told = Told()
    told.positions = {TopicPartition("t", 1): 5}
    await told.call(told.wish.on_assigned, 0, 1)
    await told.call(told.wish.on_lost, 0)
    await told.call(told.wish.on_assigned, 2)
    await told.call(told.wish.on_revoked, 1, 2)
    assert told.messages == [assigned_message(1, {1: 5}), revoked_message(1, [1], lost=False)]


async def test_a_batch_waiting_while_its_partition_is_lost_is_not_sent() -> None:
    told = Told()
    told.positions = {TopicPartition("t", 0): 5}
    await told.call(told.wish.on_assigned, 0)
    assignment = told.protocol.assignment(1, 0)
    assert told.protocol.may_send(1, 0, assignment)
    await told.call(told.wish.on_lost, 0)
    assert not told.protocol.may_send(1, 0, assignment)


def test_a_time_to_begin_at() -> None:
    assert start_of("latest") == "latest"
    assert start_of(AtTime(timestamp_ms=1500)) == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert start_of(AtTime(timestamp_ms=253402300799999)) == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)


async def test_an_invalid_group_name_is_reported(topic: str, gateway_address: str) -> None:
    async with Member(gateway_address, topic, group="no\ngroup") as member:
        await member.until(lambda: member.answers)
        assert member.answers[2]["error"]["status"] == 422


async def test_records_read_before_a_revocation_are_not_sent_after_reassignment(
    http: httpx.AsyncClient, topic: str, gateway_address: str, node_address: str
) -> None:
    await put(http, topic, range(400))
    async with Member(gateway_address, topic, credit=10) as slow, Client([node_address]) as client:
        await slow.until(lambda: len(slow.seen) == 10)
        at_hand = int(slow.seen[0]) % PARTITIONS
        wish = Group(f"of {topic}", commit="manual", assignor="range")  # the assignment depends on random ids
        async with asyncio.timeout(60):
            while not any(at_hand in numbers for numbers, _ in slow.gave_up):
                async with contextlib.AsyncExitStack() as others:
                    for _ in range(PARTITIONS - 1):
                        await others.enter_async_context(client.consumer(topic, group=wish))
                    await slow.until(lambda: len(slow.has) == 1)
                await slow.until(lambda: len(slow.has) == PARTITIONS)
        await slow.give(1000)
        await slow.until(lambda: len(slow.seen) >= 400)
        assert sorted(map(int, slow.seen)) == list(range(400))
