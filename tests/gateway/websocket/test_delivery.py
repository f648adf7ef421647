from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest
from tests.gateway.fake_log import FakeClient, FakeLog

from tidelog.client import Client
from tidelog.errors import UnknownPartitionError, UnknownTopicError
from tidelog_gateway.context import Gateway
from tidelog_gateway.limits import Budget
from tidelog_gateway.metrics import Metrics
from tidelog_gateway.problems import Problem
from tidelog_gateway.producers import Producers
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.websocket.delivery import Delivery, starting_offsets
from tidelog_gateway.websocket.messages import Sub
from tidelog_gateway.websocket.ws_protocol import CommitOffsets, OpenSubscription, WsProtocol
from tidelog_proto.batch import columns_of


@pytest.fixture
async def gateway(log: FakeLog) -> Gateway:
    log.logs["t"] = [[], [], []]
    await log.append("t", 0, columns_of([b"v%d" % at for at in range(10)]))
    client = cast(Client, FakeClient(log))
    budget = Budget(1000)
    producers = Producers(client, limit=1, delivery_timeout_s=1)
    return Gateway(GatewaySettings(ws_batch_records_max=4), client, producers, Metrics(budget), budget)


def sub(**more: Any) -> Sub:
    return Sub.model_validate({"sid": 1, "topic": "t", "credit": {"records": 100}, **more})


async def test_resume_comes_before_the_group_and_the_group_before_from(gateway: Gateway) -> None:
    await gateway.client.commit("g", "t", {0: 3})
    await gateway.client.commit("g", "t", {1: 0})
    assert await starting_offsets(gateway, sub()) == {0: 10, 1: 0, 2: 0}
    assert await starting_offsets(gateway, sub(**{"from": "earliest"})) == {0: 0, 1: 0, 2: 0}
    assert await starting_offsets(gateway, sub(group="g")) == {0: 3, 1: 0, 2: 0}
    assert await starting_offsets(gateway, sub(group="g", resume={0: 8})) == {0: 8, 1: 0, 2: 0}
    assert await starting_offsets(gateway, sub(resume={0: 10})) == {0: 10, 1: 0, 2: 0}, "the end is a place to begin"


async def test_a_group_that_retention_has_overtaken_is_told(gateway: Gateway, log: FakeLog) -> None:
    await gateway.client.commit("g", "t", {0: 3})
    log.starts["t", 0] = 5
    with pytest.raises(Problem) as caught:
        await starting_offsets(gateway, sub(group="g"))
    assert (caught.value.status, caught.value.extra) == (410, {"log_start_offset": 5, "high_watermark": 10})


async def test_batches_are_cut_to_the_message_size_and_wait_for_credit(gateway: Gateway) -> None:
    protocol = WsProtocol(gateway.settings)
    sent: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
    action = protocol.receive('{"id":1,"sub":{"sid":1,"topic":"t","from":"earliest","credit":{"records":6}}}', now_us=0)
    assert isinstance(action, OpenSubscription)
    delivery = Delivery(gateway, protocol, action.sub, sent.put)
    await delivery.open(1)
    assert (await sent.get())["ok"]["offsets"] == {"0": 0, "1": 0, "2": 0}
    running = asyncio.create_task(delivery.run())
    assert [len((await sent.get())["batch"]["records"]) for _ in range(2)] == [4, 2]
    protocol.receive('{"credit":{"sid":1,"records":1}}', now_us=0)
    delivery.wake()
    batch = (await sent.get())["batch"]
    assert ([record["offset"] for record in batch["records"]], batch["next_offset"]) == ([6], 7)
    assert sent.empty()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_end_of_the_log_ends_delivery(gateway: Gateway, log: FakeLog) -> None:
    protocol = WsProtocol(gateway.settings)
    action = protocol.receive('{"id":1,"sub":{"sid":1,"topic":"t","credit":{"records":6}}}', now_us=0)
    assert isinstance(action, OpenSubscription)

    async def drop(_: Mapping[str, Any]) -> None:
        pass

    delivery = Delivery(gateway, protocol, action.sub, drop)
    await delivery.open(1)
    log.fault = UnknownTopicError("deleted")
    with pytest.raises(UnknownTopicError):
        await delivery.run()


async def test_what_a_node_that_lags_denies_is_asked_of_the_owner(gateway: Gateway, log: FakeLog) -> None:
    log.told["t"] = [4, 0]
    assert await starting_offsets(gateway, sub(resume={0: 10, 2: 0})) == {0: 10, 1: 0, 2: 0}
    await gateway.client.commit("g", "t", {0: 7, 2: 0})
    assert await starting_offsets(gateway, sub(group="g")) == {0: 7, 1: 0, 2: 0}
    with pytest.raises(Problem) as caught:
        await starting_offsets(gateway, sub(resume={0: 11}))
    assert (caught.value.status, caught.value.extra["high_watermark"]) == (422, 10)
    with pytest.raises(UnknownPartitionError):
        await starting_offsets(gateway, sub(resume={3: 0}))


async def test_partitions_that_are_added_are_delivered(gateway: Gateway, log: FakeLog) -> None:
    protocol = WsProtocol(gateway.settings)
    sent: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
    action = protocol.receive('{"id":1,"sub":{"sid":1,"topic":"t","group":"g","credit":{"records":6}}}', now_us=0)
    assert isinstance(action, OpenSubscription)
    delivery = Delivery(gateway, protocol, action.sub, sent.put)
    await delivery.open(1)
    await sent.get()
    running = asyncio.create_task(delivery.run())
    log.logs["t"].append([])
    await log.append("t", 3, columns_of([b"new"]))
    batch = (await sent.get())["batch"]
    assert (batch["partition"], batch["next_offset"]) == (3, 1)
    assert isinstance(protocol.receive('{"id":2,"commit":{"sid":1,"offsets":{"3":1}}}', now_us=0), CommitOffsets), (
        "a position as those of the others"
    )
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
