from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from tests.gateway.fake_log import FakeClient, FakeLog
from tests.proto.derived_batches import END_OFFSET, SURVIVORS, compacted_log

from tidelog.client import Client
from tidelog.errors import UnknownTopicError
from tidelog.model import ConsumedBatch
from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.coalescing.producers import ProducerLimit, Producers
from tidelog_gateway.context import Gateway
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.messages import Sub
from tidelog_gateway.protocol.ws_protocol import CommitOffsets, OpenSubscription, WsProtocol
from tidelog_gateway.records.json_encoding import BatchReader
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.subscriptions.delivery import Delivery
from tidelog_gateway.subscriptions.message_sender import Sender
from tidelog_proto.batch.record_batch import columns_of
from tidelog_proto.limits import KIB


@pytest.fixture
async def gateway(log: FakeLog) -> Gateway:
    log.logs["t"] = [[], [], []]
    await log.append("t", 0, columns_of([b"v%d" % at for at in range(10)]))
    client = cast(Client, FakeClient(log))
    budget = RequestBudget(1000)
    outgoing = ResponseBudget(64 * KIB, 48 * KIB)
    producers = Producers(client, producer_limit=ProducerLimit(1), delivery_timeout_s=1)
    settings = GatewaySettings(ws_batch_records_max=4)
    return Gateway(settings, client, producers, Metrics(budget, outgoing), budget, outgoing)


class Wire:
    """A WebSocket as its sender sees it: it accepts every text until it is broken."""

    def __init__(self) -> None:
        self.broken: Exception | None = None
        self.sent: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self.application_state = WebSocketState.CONNECTED

    async def send_text(self, text: str) -> None:
        if self.broken is not None:
            raise self.broken
        self.sent.put_nowait(json.loads(text))


def sender_of(gateway: Gateway, wire: Wire) -> Sender:
    return Sender(cast(WebSocket, wire), ConnectionOutput(gateway.outgoing, 30), slow_timeout_s=30)


def sub(**more: Any) -> Sub:
    return Sub.model_validate({"sid": 1, "topic": "t", "credit": {"records": 100}, **more})


async def test_batches_are_cut_to_the_message_size_and_wait_for_credit(gateway: Gateway) -> None:
    protocol = WsProtocol(gateway.settings)
    wire = Wire()
    sent = wire.sent
    action = protocol.receive('{"id":1,"sub":{"sid":1,"topic":"t","from":"earliest","credit":{"records":6}}}', now_us=0)
    assert isinstance(action, OpenSubscription)
    delivery = Delivery(gateway, protocol, action.sub, sender_of(gateway, wire))
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
    delivery = Delivery(gateway, protocol, action.sub, sender_of(gateway, Wire()))
    await delivery.open(1)
    log.fault = UnknownTopicError("deleted")
    with pytest.raises(UnknownTopicError):
        await delivery.run()


async def test_partitions_that_are_added_are_delivered(gateway: Gateway, log: FakeLog) -> None:
    protocol = WsProtocol(gateway.settings)
    wire = Wire()
    action = protocol.receive('{"id":1,"sub":{"sid":1,"topic":"t","group":"g","credit":{"records":6}}}', now_us=0)
    assert isinstance(action, OpenSubscription)
    delivery = Delivery(gateway, protocol, action.sub, sender_of(gateway, wire))
    await delivery.open(1)
    await wire.sent.get()
    running = asyncio.create_task(delivery.run())
    log.logs["t"].append([])
    await log.append("t", 3, columns_of([b"new"]))
    batch = (await wire.sent.get())["batch"]
    assert (batch["partition"], batch["next_offset"]) == (3, 1)
    assert isinstance(protocol.receive('{"id":2,"commit":{"sid":1,"offsets":{"3":1}}}', now_us=0), CommitOffsets), (
        "a position as those of the others"
    )
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def subscribed(gateway: Gateway, protocol: WsProtocol, wire: Wire, sid: int, credit: int) -> Delivery:
    """Return the delivery of a new subscription to everything."""
    message = {"id": sid, "sub": {"sid": sid, "topic": "t", "from": "earliest", "credit": {"records": credit}}}
    action = protocol.receive(json.dumps(message), now_us=0)
    assert isinstance(action, OpenSubscription)
    return Delivery(gateway, protocol, action.sub, sender_of(gateway, wire))


async def test_without_room_nothing_is_lost_or_repeated(gateway: Gateway, log: FakeLog) -> None:
    """Batches larger than the room that there is, more subscriptions than fit, and credit that comes in drops."""
    log.logs["t"] = [[], []]
    for at in range(24):
        await log.append("t", at % 2, columns_of([b"%d" % at * 3000] * 3))
    protocols, wires, tasks = [], [], []
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for sid in range(6):
            protocols.append(WsProtocol(gateway.settings))
            wires.append(Wire())
            delivery = subscribed(gateway, protocols[-1], wires[-1], sid, credit=1)
            await delivery.open(sid)
            tasks.append(group.create_task(delivery.run()))
            group.create_task(drip(protocols[-1], delivery, sid))
        seen: list[list[tuple[int, int]]] = [[] for _ in wires]
        for places, wire in zip(seen, wires, strict=True):
            while len(places) < 72:
                batch = (await wire.sent.get()).get("batch", {"records": []})
                places += [(batch["partition"], record["offset"]) for record in batch["records"]]
                assert gateway.outgoing.prefetched_bytes <= 32 * KIB
        for task in tasks:
            task.cancel()
    for places in seen:
        for partition in (0, 1):
            assert [offset for number, offset in places if number == partition] == list(range(36))
    assert (gateway.outgoing.used_bytes, gateway.outgoing.prefetched_bytes) == (0, 0)
    assert len(log.consumers) > 6, "some records were read more than once"


async def drip(protocol: WsProtocol, delivery: Delivery, sid: int) -> None:
    """Give credit for all records but the first, a few at a time."""
    for _ in range(18):
        await asyncio.sleep(0.01)
        protocol.receive(json.dumps({"credit": {"sid": sid, "records": 4}}), now_us=0)
        delivery.wake()


async def test_idle_records_without_credit_are_dropped_for_other_connections(gateway: Gateway, log: FakeLog) -> None:
    wire, protocol = Wire(), WsProtocol(gateway.settings)
    delivery = subscribed(gateway, protocol, wire, 1, credit=3)
    await delivery.open(1)
    running = asyncio.create_task(delivery.run())
    async with asyncio.timeout(10):
        await wire.sent.get()
        assert len((await wire.sent.get())["batch"]["records"]) == 3
        assert gateway.outgoing.prefetched_bytes > 0
        gateway.outgoing.shed_load(1)
        while gateway.outgoing.prefetched_bytes:  # noqa: ASYNC110 - the delivery does it in its own time
            await asyncio.sleep(0)
        assert len(log.consumers) == 1, "without credit it is not read again"
        protocol.receive('{"credit":{"sid":1,"records":9}}', now_us=0)
        delivery.wake()
        offsets: list[int] = []
        while len(offsets) < 7:
            offsets += [record["offset"] for record in (await wire.sent.get())["batch"]["records"]]
        assert offsets == list(range(3, 10))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_records_that_are_no_longer_counted_are_not_kept(gateway: Gateway, log: FakeLog) -> None:
    """Neither by a subscription that waits for more, nor by the error of one that failed in the middle of a batch."""
    gc.collect()
    wire, protocol = Wire(), WsProtocol(gateway.settings)
    delivery = subscribed(gateway, protocol, wire, 1, credit=1000)
    await delivery.open(1)
    running = asyncio.create_task(delivery.run())
    async with asyncio.timeout(10):
        await wire.sent.get()
        assert [len((await wire.sent.get())["batch"]["records"]) for _ in range(3)] == [4, 4, 2]
        while gateway.outgoing.prefetched_bytes:  # noqa: ASYNC110 - the delivery does it in its own time
            await asyncio.sleep(0)
        assert kept() == []
        wire.broken = WebSocketDisconnect(1006)
        await log.append("t", 0, columns_of([b"more"] * 3))
        with pytest.raises(WebSocketDisconnect) as caught:
            await running
    assert gateway.outgoing.prefetched_bytes == 0
    assert kept() == []
    assert caught.value.__traceback__ is not None, "the error keeps its traceback here"


def kept() -> list[object]:
    """Return the batches that were handed out and are still here, and what reads them."""
    return [each for each in gc.get_objects() if type(each) in {BatchReader, ConsumedBatch}]


async def test_a_compacted_log_is_delivered_with_its_gaps(gateway: Gateway, log: FakeLog) -> None:
    """Records have their offsets, positions advance over deleted records, and that costs no credit."""
    log.logs["t"] = [[]]
    log.plant("t", 0, compacted_log())
    protocol, wire = WsProtocol(gateway.settings), Wire()
    delivery = subscribed(gateway, protocol, wire, 1, credit=len(SURVIVORS) + 1)
    await delivery.open(1)
    await wire.sent.get()
    running = asyncio.create_task(delivery.run())
    messages: list[tuple[list[int], int]] = []
    async with asyncio.timeout(20):
        while not messages or messages[-1][1] < END_OFFSET:
            batch = (await wire.sent.get())["batch"]
            assert all(record["value"] == str(record["offset"]) for record in batch["records"])
            messages.append(([record["offset"] for record in batch["records"]], batch["next_offset"]))
    assert messages == [([0, 1], 2), ([6, 9], 20), ([], 40), ([40], 50), ([], 60), ([60, 61], 62), ([], END_OFFSET)]
    assert protocol.subscriptions[1].positions == {0: END_OFFSET}
    assert protocol.subscriptions[1].credit_records == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


KEYED = '"key":"%s","key_encoding":"base64","tag":"x"'


def wanting(gateway: Gateway, key: str) -> Delivery:
    protocol = WsProtocol(gateway.settings)
    text = '{"id":1,"sub":{"sid":1,"topic":"t","from":"earliest","credit":{"records":6},' + KEYED % key + "}}"
    action = protocol.receive(text, now_us=0)
    assert isinstance(action, OpenSubscription)
    return Delivery(gateway, protocol, action.sub, sender_of(gateway, Wire()))


async def test_filters_are_applied_by_the_log(gateway: Gateway, log: FakeLog) -> None:
    delivery = wanting(gateway, "/w==")
    await delivery.open(1)
    running = asyncio.create_task(delivery.run())
    for _ in range(20):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert log.filters == [(b"\xff", "x")]


async def test_a_key_that_is_not_base64_is_refused(gateway: Gateway) -> None:
    with pytest.raises(Problem) as caught:
        await wanting(gateway, "no base64!").open(1)
    assert (caught.value.status, caught.value.code) == (422, "invalid_request")
