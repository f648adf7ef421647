from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tidelog_gateway.protocol.codecs import MessageError
from tidelog_gateway.protocol.json_codec import JSON
from tidelog_gateway.protocol.messages import AtTime
from tidelog_gateway.protocol.proto_codec import PROTO
from tidelog_gateway.protocol.ws_protocol import OpenSubscription, Reply, WsProtocol
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto import websocket_pb2 as pb

OURS = [Subprotocol("tidelog.v1.proto")]


def receive(message: pb.ClientMessage, protocol: WsProtocol | None = None) -> Any:
    on = protocol or WsProtocol(GatewaySettings(), codec=PROTO)
    return on.receive(message.SerializeToString(), now_us=7_000)


def fault_of(message: pb.ClientMessage) -> dict[str, Any]:
    action = receive(message)
    assert isinstance(action, Reply), action
    found: dict[str, Any] = action.message
    return found


def test_requests_mean_the_same_as_in_json() -> None:
    sub = pb.Sub(sid=0, topic="t", group="g", resume={3: 42}, key=b"\xff", tag="x", from_timestamp_ms=5)
    sub.credit.records = 10
    sub.credit.bytes = 0
    action = receive(pb.ClientMessage(id=0, sub=sub))
    assert isinstance(action, OpenSubscription)
    assert (action.id, action.sub.sid, action.sub.topic, action.sub.group) == (0, 0, "t", "g")
    assert (action.sub.start, action.sub.resume, action.sub.key) == (AtTime(timestamp_ms=5), {3: 42}, "/w==")
    assert (action.sub.credit.records, action.sub.credit.bytes) == (10, 0)
    plain = pb.Sub(sid=1, topic="t", credit=pb.InitialCredit(records=1))
    action = receive(pb.ClientMessage(id=1, sub=plain))
    assert (action.sub.start, action.sub.key, action.sub.credit.bytes) == ("latest", None, None)


def test_faults_are_those_of_json() -> None:
    fault = fault_of(pb.ClientMessage(id=3, sub=pb.Sub(sid=1, topic="t")))
    assert (fault["id"], fault["error"]["errors"][0]["pointer"]) == (3, "/sub/credit")
    assert "requires an id" in fault_of(pb.ClientMessage(unsub=pb.Unsub(sid=1)))["error"]["detail"]
    assert "exactly one" in fault_of(pb.ClientMessage(id=1))["error"]["detail"]
    wrong = pb.Sub(sid=1, topic="t", credit=pb.InitialCredit(records=1))
    setattr(wrong, "from", "yesterday")
    assert fault_of(pb.ClientMessage(id=1, sub=wrong))["error"]["status"] == 422
    far = pb.PubRecord(value=b"", partition=100_000)
    fault = fault_of(pb.ClientMessage(id=1, pub=pb.Pub(topic="t", records=[pb.PubRecord(value=b""), far])))
    detail = "must be < 100000, got 100000"
    assert fault["error"]["errors"] == [{"pointer": "/pub/records/1/partition", "detail": detail}]
    assert fault_of(pb.ClientMessage(id=1, pub=pb.Pub(topic="t")))["error"]["errors"][0]["pointer"] == "/pub/records"


def test_fields_that_are_not_known_are_refused() -> None:
    later = pb.ClientMessage(id=9, unsub=pb.Unsub(sid=1)).SerializeToString()
    nested = pb.ClientMessage(id=9).SerializeToString() + bytes([8 << 3 | 2, 2, 15 << 3, 1])
    for data in (later + bytes([15 << 3, 1]), nested):
        with pytest.raises(MessageError, match="does not know") as caught:
            PROTO.parse(data, now_us=0)
        assert caught.value.request_id == 9


@given(st.binary(max_size=200))
def test_garbage_is_a_fault_and_never_a_crash(data: bytes) -> None:
    action = WsProtocol(GatewaySettings(), codec=PROTO).receive(data, now_us=0)
    PROTO.encode(action.message if isinstance(action, Reply) else {"id": 1, "ok": {}})


def test_a_message_of_many_empty_records_is_refused_in_little_time() -> None:
    data = pb.ClientMessage(id=1, pub=pb.Pub(topic="t", records=[pb.PubRecord()] * 500_000)).SerializeToString()
    assert len(data) < 1024 * 1024
    protocol = WsProtocol(GatewaySettings(), codec=PROTO)
    began_s = time.process_time()
    action = protocol.receive(data, now_us=0)
    assert time.process_time() - began_s < 0.5
    assert isinstance(action, Reply)
    assert "at most 10000 records" in action.message["error"]["detail"]


@pytest.mark.parametrize(
    "message",
    [
        {"id": 1, "ok": {"sid": 7, "offsets": {"0": 5}, "resume_token": "AQ"}},
        {"id": 0, "ok": {"results": [{"partition": 0, "offset": 0}, {"partition": 1}], "duplicates": 1}},
        {"id": 2, "ok": {"group": "g", "offsets": [], "from_partition": None}},
        {"error": {"code": "x", "status": 422, "detail": "d", "retryable": False, "errors": [{"pointer": "/sub"}]}},
        {"end": {"sid": 7, "error": {"code": "x", "status": 410, "detail": "d", "retryable": True}}},
        {"assigned": {"sid": 7, "offsets": {"3": 9}}},
        {"revoked": {"sid": 7, "partitions": [1, 2], "lost": True}},
        {"gap": {"sid": 7, "partition": 1, "from_offset": 2, "next_offset": 9, "resume_token": "AQ"}},
        {"batch": {"sid": 7, "partition": 1, "records": [], "next_offset": 9}},
    ],
)
def test_messages_of_the_gateway_keep_their_members(message: dict[str, Any]) -> None:
    sent = pb.ServerMessage.FromString(PROTO.encode(message))
    kind = sent.WhichOneof("kind")
    assert kind in message
    assert sent.HasField("id") == ("id" in message)
    if kind == "ok":
        assert sent.ok.sid == message["ok"].get("sid", 0)
        assert [each.offset for each in sent.ok.results] == [
            each.get("offset", 0) for each in message["ok"].get("results", [])
        ]
        assert not sent.ok.HasField("from_partition")
    error = sent.error if kind == "error" else sent.end.error if kind == "end" else None
    if error is not None:
        expected = message["error"] if kind == "error" else message["end"]["error"]
        more = orjson.loads(error.members_json) if error.members_json else {}
        found = {name: getattr(error, name) for name in ("code", "status", "detail", "retryable")}
        assert found | more == expected


async def answer(socket: ClientConnection, message: pb.ClientMessage) -> pb.ServerMessage:
    await socket.send(message.SerializeToString())
    return await received(socket)


async def received(socket: ClientConnection) -> pb.ServerMessage:
    data = await socket.recv()
    assert isinstance(data, bytes)
    return pb.ServerMessage.FromString(data)


async def test_records_published_and_delivered_are_the_same_in_both_subprotocols(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, connect(served.ws, subprotocols=OURS) as socket:
        assert socket.subprotocol == OURS[0]
        records = [
            pb.PubRecord(value=b"\xff\x00", key=b"k", tag="x", headers=[pb.Header(name="h", value=b"v")]),
            pb.PubRecord(key=b"k"),
            *(pb.PubRecord(value=b"%d" % at, timestamp_ms=at) for at in range(500)),
        ]
        for record in records:
            record.partition = 0
        stored = await answer(socket, pb.ClientMessage(id=1, pub=pb.Pub(topic="t", records=records)))
        assert [result.offset for result in stored.ok.results] == list(range(502))
        sub = pb.Sub(sid=7, topic="t", group="g", credit=pb.InitialCredit(records=600))
        setattr(sub, "from", "earliest")
        opened = await answer(socket, pb.ClientMessage(id=2, sub=sub))
        assert dict(opened.ok.offsets)[0] == 0
        assert opened.ok.resume_token
        found: list[pb.Record] = []
        while len(found) < 502:
            batch = (await received(socket)).batch
            assert (batch.sid, batch.partition) == (7, 0)
            found += batch.records
        assert [record.offset for record in found] == list(range(502))
        assert (found[0].value, found[0].key, found[0].tag) == (b"\xff\x00", b"k", "x")
        assert [(header.name, header.value) for header in found[0].headers] == [("h", b"v")]
        assert not found[1].HasField("value")
        assert [record.timestamp_ms for record in found[2:]] == list(range(500))
        committed = await answer(socket, pb.ClientMessage(id=3, commit=pb.Commit(sid=7, offsets={0: 502}, note="n")))
        assert dict(committed.ok.offsets) == {0: 502}
        told = await answer(socket, pb.ClientMessage(id=4, committed=pb.AskCommitted(group="g", topic="t")))
        assert [(each.partition, each.next_offset, each.note) for each in told.ok.committed] == [(0, 502, "n")]
        ended = await answer(socket, pb.ClientMessage(id=5, unsub=pb.Unsub(sid=7)))
        assert (ended.id, ended.ok.sid) == (5, 7)
        missing = await answer(socket, pb.ClientMessage(id=6, unsub=pb.Unsub(sid=7)))
        assert (missing.error.code, missing.error.status) == ("unknown_subscription", 404)


async def test_a_batch_does_not_exceed_its_bound(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve(ws_batch_bytes_max=1024) as served, connect(served.ws, subprotocols=OURS) as socket:
        records = [pb.PubRecord(value=b"x" * 100, partition=0) for _ in range(100)]
        await answer(socket, pb.ClientMessage(id=1, pub=pb.Pub(topic="t", records=records)))
        sub = pb.Sub(sid=7, topic="t", credit=pb.InitialCredit(records=600))
        setattr(sub, "from", "earliest")
        await answer(socket, pb.ClientMessage(id=2, sub=sub))
        count, messages = 0, 0
        while count < 100:
            data = await socket.recv()
            assert len(data) <= 1024
            count += len(pb.ServerMessage.FromString(data).batch.records)  # type: ignore[arg-type]
            messages += 1
        assert messages < 16


@pytest.mark.parametrize(("codec", "other"), [(JSON, b"\x08\x01"), (PROTO, "{}")])
async def test_a_message_of_the_other_kind_closes_with_1003(serve: Serve, codec: Any, other: str | bytes) -> None:
    async with serve() as served, connect(served.ws, subprotocols=[Subprotocol(codec.subprotocol)]) as socket:
        await socket.send(other)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1003
        assert codec.kind in str(socket.close_reason)


async def test_the_first_offered_subprotocol_that_is_known_is_spoken(serve: Serve) -> None:
    async with serve() as served:
        for offered, spoken in (
            (["tidelog.v9", "tidelog.v1.proto", "tidelog.v1.json"], "tidelog.v1.proto"),
            (["tidelog.v1.json", "tidelog.v1.proto"], "tidelog.v1.json"),
        ):
            async with connect(served.ws, subprotocols=[Subprotocol(name) for name in offered]) as socket:
                assert socket.subprotocol == spoken
        async with connect(served.ws, subprotocols=[Subprotocol("tidelog.v1.json")]) as socket:
            await socket.send(json.dumps({"id": 1, "auth": {"token": "x"}}))
            assert json.loads(await socket.recv()) == {"id": 1, "ok": {}}
