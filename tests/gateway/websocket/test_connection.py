"""The WebSocket over a real server and a real client, on a log in memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Serve, Served
from tests.gateway.fake_log import FakeLog, FakeProducer
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tidelog.errors import OverloadedError, UnknownTopicError
from tidelog.model import Receipt
from tidelog_proto.batch.record_batch import columns_of

SUBPROTOCOL = Subprotocol("tidelog.v1.json")


def opened(served: Served, **options: Any) -> connect:
    return connect(served.ws, subprotocols=[SUBPROTOCOL], **options)


async def ask(socket: ClientConnection, message: Any) -> Any:
    await socket.send(message if isinstance(message, (str, bytes)) else json.dumps(message))
    return await receive(socket)


async def receive(socket: ClientConnection) -> Any:
    async with asyncio.timeout(10):
        return json.loads(await socket.recv())


def sub(*, sid: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": 1, "sub": {"sid": sid, "topic": "t", "from": "earliest", "credit": {"records": 100}, **more}}


def since_now(**more: Any) -> dict[str, Any]:
    message = sub(**more)
    message["sub"]["from"] = "latest"
    return message


@pytest.fixture(autouse=True)
async def filled(log: FakeLog) -> None:
    log.logs["t"] = [[], []]
    await log.append("t", 0, columns_of([f"v{at}".encode() for at in range(10)]))


async def test_auth_sub_batch_commit_and_unsub(serve: Serve, log: FakeLog) -> None:
    async with serve() as served, opened(served) as socket:
        assert socket.subprotocol == SUBPROTOCOL
        assert await ask(socket, {"id": 0, "auth": {"token": "x"}}) == {"id": 0, "ok": {}}
        answer = await ask(socket, sub(group="g"))
        assert answer.pop("id") == 1
        assert answer["ok"].pop("resume_token")
        assert answer == {"ok": {"sid": 1, "offsets": {"0": 0, "1": 0}}}
        batch = (await receive(socket))["batch"]
        assert (batch["sid"], batch["partition"], batch["next_offset"]) == (1, 0, 10)
        assert [record["value"] for record in batch["records"]] == [f"v{at}" for at in range(10)]
        answer = await ask(socket, {"id": 2, "commit": {"sid": 1, "offsets": {"0": 10}, "note": "n"}})
        assert answer == {"id": 2, "ok": {"offsets": {"0": 10}}}
        assert log.groups["g", "t", 0].next_offset == 10
        assert await ask(socket, {"id": 3, "unsub": {"sid": 1}}) == {"id": 3, "ok": {"sid": 1}}
        await log.append("t", 0, columns_of([b"unseen"]))
        error = await ask(socket, {"id": 4, "unsub": {"sid": 1}})
        assert error["error"]["code"] == "unknown_subscription"


async def test_credit_is_kept_exactly(serve: Serve) -> None:
    async with serve() as served, opened(served) as socket:
        await ask(socket, sub(credit={"records": 0}))
        await socket.send(json.dumps({"credit": {"sid": 1, "records": 3}}))
        batch = (await receive(socket))["batch"]
        assert (len(batch["records"]), batch["next_offset"]) == (3, 3)
        # An answer that overtakes nothing proves that no batch was sent without credit.
        assert "ok" in await ask(socket, {"id": 2, "auth": {"token": "x"}})
        await socket.send(json.dumps({"credit": {"sid": 1, "records": 100}}))
        batch = (await receive(socket))["batch"]
        assert ([record["offset"] for record in batch["records"]], batch["next_offset"]) == ([3, 4, 5, 6, 7, 8, 9], 10)


async def test_credit_in_bytes_cuts_batches(serve: Serve) -> None:
    async with serve() as served, opened(served) as socket:
        await ask(socket, sub(credit={"records": 100, "bytes": 4}))
        assert len((await receive(socket))["batch"]["records"]) == 2
        assert "ok" in await ask(socket, {"id": 2, "auth": {"token": "x"}})
        await socket.send(json.dumps({"credit": {"sid": 1, "bytes": 1}}))
        assert len((await receive(socket))["batch"]["records"]) == 1, "one record may pass the limit"


@pytest.mark.parametrize("value", [b"\x01" * 1000, b"\xff" * 1000, b"x" * 1200], ids=["escaped", "base64", "plain"])
async def test_a_client_with_a_limit_of_1_mib_takes_every_batch(serve: Serve, log: FakeLog, value: bytes) -> None:
    log.logs["t"] = [[]]
    await log.append("t", 0, columns_of([value] * 3000))
    offsets: list[int] = []
    async with serve() as served, opened(served, max_size=1 << 20) as socket:
        await ask(socket, sub(credit={"records": 3000}))
        while len(offsets) < 3000:
            offsets += [record["offset"] for record in (await receive(socket))["batch"]["records"]]
    assert offsets == list(range(3000))


async def test_a_record_longer_than_a_batch_message_is_sent_alone(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    await log.append("t", 0, columns_of([b"a", b"\x01" * 5000, b"b", b"c"]))
    async with serve(ws_batch_bytes_max=2048) as served, opened(served) as socket:
        await ask(socket, sub())
        pieces = [[each["offset"] for each in (await receive(socket))["batch"]["records"]] for _ in range(3)]
    assert pieces == [[0], [1], [2, 3]]


@pytest.mark.parametrize("more", [{}, {"group": "g"}])
async def test_a_record_longer_than_the_client_takes_ends_the_subscription_and_is_named(
    serve: Serve, log: FakeLog, more: dict[str, Any]
) -> None:
    log.logs["t"] = [[], []]
    await log.append("t", 1, columns_of([b"a", b"\x01" * 200_000, b"b"]))
    async with serve() as served, opened(served, max_size=1 << 20) as socket:
        await ask(socket, sub(**more))
        batch = (await receive(socket))["batch"]
        assert [record["offset"] for record in batch["records"]] == [0]
        end = (await receive(socket))["end"]
        error = end["error"]
        assert (error["code"], error["status"], error["retryable"]) == ("message_too_large", 413, False)
        assert (error["partition"], error["offset"], error["max_message_bytes"]) == (1, 1, 1 << 20)
        assert error["size_bytes"] > 6 * 200_000
        for name in ("partition 1", "offset 1", str(error["size_bytes"]), "max_message_bytes", '"resume":{"1":2}'):
            assert name in error["detail"]
        past = sub(resume={"1": 2}, resume_token=batch["resume_token"], **more)
        await ask(socket, past)
        assert [each["offset"] for each in (await receive(socket))["batch"]["records"]] == [2]
    async with serve() as served, opened(served, max_size=2 << 20) as socket:
        await ask(socket, sub(max_message_bytes=2 << 20, resume_token=batch["resume_token"], **more))
        assert [each["offset"] for each in (await receive(socket))["batch"]["records"]] == [1]


async def test_a_record_too_long_for_one_follower_of_a_feed_is_sent_to_the_others(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, opened(served, max_size=1 << 20) as one, opened(served, max_size=None) as other:
        await ask(one, since_now())
        await ask(other, since_now(max_message_bytes=1 << 30))
        for socket in (one, other):
            await asyncio.sleep(0.1)
            await log.append("t", 0, columns_of([b"first"]))
            await receive(socket)
        await log.append("t", 0, columns_of([b"\x01" * 200_000]))
        while "end" not in (message := await receive(one)):
            pass
        assert (message["end"]["error"]["code"], message["end"]["error"]["offset"]) == ("message_too_large", 2)
        while (batch := (await receive(other))["batch"])["next_offset"] != 3:
            pass
        assert len(batch["records"][0]["value"]) == 200_000


async def test_a_client_that_takes_little_is_sent_short_messages(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    await log.append("t", 0, columns_of([b"\x01" * 1000] * 100))
    offsets: list[int] = []
    async with serve() as served, opened(served, max_size=16 << 10) as socket:
        await ask(socket, sub(max_message_bytes=16 << 10))
        while len(offsets) < 100:
            offsets += [each["offset"] for each in (await receive(socket))["batch"]["records"]]
        assert offsets == list(range(100))
        refused = await ask(socket, sub(max_message_bytes=1024) | {"id": 9})
        assert "16384" in refused["error"]["detail"]


async def test_a_topic_that_is_recreated_under_a_subscription_ends_it(serve: Serve, log: FakeLog) -> None:
    async with serve() as served, opened(served) as socket:
        await ask(socket, sub(credit={"records": 0}))
        log.ids["t"] = b"another topic id"
        await socket.send(json.dumps({"credit": {"sid": 1, "records": 5}}))
        end = (await receive(socket))["end"]
        assert (end["sid"], end["error"]["code"]) == (1, "unknown_topic")


async def test_resume_continues_without_loss_or_repetition(serve: Serve) -> None:
    seen: list[int] = []
    resume: dict[str, int] = {}
    async with serve() as served:
        for credit in (3, 4, 100):
            async with opened(served) as socket:
                answer = await ask(socket, sub(resume=resume, credit={"records": credit}))
                assert answer["ok"]["offsets"] == {"0": resume.get("0", 0), "1": 0}
                batch = (await receive(socket))["batch"]
                seen += [record["offset"] for record in batch["records"]]
                resume[str(batch["partition"])] = batch["next_offset"]
    assert seen == list(range(10))


async def test_a_group_continues_at_its_commit_and_resume_takes_precedence(serve: Serve) -> None:
    async with serve() as served, opened(served) as socket:
        await ask(socket, sub(group="g", credit={"records": 10}))
        await receive(socket)
        await ask(socket, {"id": 2, "commit": {"sid": 1, "offsets": {"0": 4}}})
        answer = await ask(socket, sub(sid=2, group="g", credit={"records": 0}))
        assert answer["ok"]["offsets"] == {"0": 4, "1": 0}
        answer = await ask(socket, sub(sid=3, group="g", resume={"0": 7}, credit={"records": 0}))
        assert answer["ok"]["offsets"] == {"0": 7, "1": 0}


async def test_several_subscriptions_live_apart(serve: Serve, log: FakeLog) -> None:
    async with serve() as served, opened(served) as socket:
        await ask(socket, sub(sid=1, credit={"records": 0}))
        assert (await ask(socket, sub(sid=2, **{"from": "latest"})))["ok"]["offsets"]["0"] == 10
        await log.append("t", 1, columns_of([b"new"]))
        batch = (await receive(socket))["batch"]
        assert (batch["sid"], batch["partition"], batch["records"][0]["value"]) == (2, 1, "new")


async def test_starting_at_a_time(serve: Serve, log: FakeLog) -> None:
    await log.append("t", 1, columns_of([b"old", b"new"], timestamps_us=[1000, 9_000_000]))
    async with serve() as served, opened(served) as socket:
        answer = await ask(socket, {"id": 1, "sub": {**sub()["sub"], "from": {"timestamp_ms": 5000}}})
        assert answer["ok"]["offsets"] == {"0": 10, "1": 1}


@pytest.mark.parametrize(
    ("text", "offset"), [("1970-01-01T00:00:08.999999Z", 1), ("1970-01-01T01:00:09.000001+01:00", 2)]
)
async def test_starting_at_an_exact_time(serve: Serve, log: FakeLog, text: str, offset: int) -> None:
    await log.append("t", 1, columns_of([b"old", b"new"], timestamps_us=[1000, 9_000_000]))
    async with serve() as served, opened(served) as socket:
        answer = await ask(socket, {"id": 1, "sub": {**sub()["sub"], "from": {"timestamp": text}}})
        assert answer["ok"]["offsets"] == {"0": 10, "1": offset}


async def test_the_answer_to_seconds_has_the_remedy(serve: Serve) -> None:
    async with serve() as served, opened(served) as socket:
        answer = await ask(socket, {"id": 1, "sub": {**sub()["sub"], "from": {"timestamp_ms": 1_795_964_400}}})
        assert "in seconds, but milliseconds since 1970 are expected" in answer["error"]["detail"]
        remedy = "pass 1795964400000, or timestamp with 1970-01-21T18:52:44.400000Z for that time in 1970"
        assert remedy in answer["error"]["detail"]
        answer = await ask(socket, {"id": 2, "sub": {**sub()["sub"], "from": "newest"}})
        assert "/sub/from" in answer["error"]["detail"]


@pytest.mark.parametrize(
    ("change", "code", "status"),
    [
        ({"topic": "none"}, "unknown_topic", 404),
        ({"topic": "__meta"}, "invalid_topic", 422),
        ({"group": "\u0007"}, "invalid_request", 422),
        ({"resume": {"9": 0}}, "unknown_partition", 404),
        ({"resume": {"0": 99}}, "offset_out_of_range", 422),
        ({"resume": {"1": 1}}, "offset_out_of_range", 422),
    ],
)
async def test_subscriptions_that_cannot_open(serve: Serve, change: dict[str, Any], code: str, status: int) -> None:
    async with serve() as served, opened(served) as socket:
        answer = await ask(socket, sub(**change))
        assert answer["id"] == 1
        assert (answer["error"]["code"], answer["error"]["status"]) == (code, status)
        assert "ok" in await ask(socket, sub()), "the sid is free again and the connection lives"


async def test_a_subscription_that_is_ended_at_once_is_answered(serve: Serve, log: FakeLog) -> None:
    async with serve() as served, opened(served) as socket:
        for at in range(20):
            await socket.send(json.dumps(sub() | {"id": 2 * at}))
            await socket.send(json.dumps({"id": 2 * at + 1, "unsub": {"sid": 1}}))
        answers = [message for message in [await receive(socket) for _ in range(40)] if "batch" not in message]
        while len(answers) < 40:
            answers += [message for message in [await receive(socket)] if "batch" not in message]
        assert [answer["id"] for answer in answers] == list(range(40))
        for begun, ended in zip(answers[::2], answers[1::2], strict=True):
            assert "ok" in begun or begun["error"]["code"] == "subscription_ended"
            assert ended["ok"] == {"sid": 1}
        assert "ok" in await ask(socket, sub()), "the sid is free again"


async def test_without_credit_nothing_is_asked_of_the_log(serve: Serve, log: FakeLog) -> None:
    async with serve() as served, opened(served) as socket:
        assert "ok" in await ask(socket, sub(credit={"records": 0}))
        assert "ok" in await ask(socket, sub(sid=2, credit={"records": 5, "bytes": 0}) | {"id": 2})
        assert "ok" in await ask(socket, {"id": 3, "auth": {"token": "x"}})
        assert not log.consumers
        await socket.send(json.dumps({"credit": {"sid": 1, "records": 3}}))
        assert len((await receive(socket))["batch"]["records"]) == 3
        assert log.consumers == [{"prefetch_records": 3, "prefetch_bytes": 1 << 20, "columns": None}]


WEIRD = [
    '{"id":1,"pub":{"topic":"t","records":[{"value":"\\ud800"}]}}',
    '{"id":1,"pub":{"topic":"t","records":[{"value":"a","key":"\\udfff"}]}}',
    '{"id":1,"pub":{"topic":"\\ud800","records":[{"value":"a"}]}}',
    '{"id":1,"pub":{"topic":"t","records":[{"value":"\\ud800","value_encoding":"json"}]}}',
    '{"id":1,"pub":{"topic":"t","records":[{"value":"a","headers":[["\\ud800","b"]]}]}}',
    '{"id":1,"pub":{"topic":"t","records":[{"value":"a","tag":"\\ud800"}]}}',
    '{"id":1,"sub":{"sid":1,"topic":"t","group":"\\ud800","credit":{"records":1}}}',
    '{"id":1,"id":2,"auth":{"token":"x"},"auth":{"token":"y"}}',
    '{"id":NaN,"auth":{"token":"x"}}',
    '{"id":1e400,"auth":{"token":"x"}}',
    '{"id":9007199254740992,"auth":{"token":"x"}}',
    '{"id":' + "9" * 5000 + ',"auth":{"token":"x"}}',
    '{"id":1,"sub":{"sid":1,"topic":"t","resume":{"' + "9" * 5000 + '":1},"credit":{"records":1}}}',
    '{"id":1,"pub":{"topic":"t","records":[{"value":NaN,"value_encoding":"json"}]}}',
    '{"id":1,"pub":{"topic":"t","records":[{"value":"a","timestamp_ms":253402300800000}]}}',
    '{"id":1,"sub":{"sid":1,"topic":"t","from":{"timestamp_ms":253402300800000},"credit":{"records":1}}}',
    "[" * 100_000,
    '{"id":1,"a":' + "[" * 100_000,
    '{"id":1,"a":' * 50_000,
    '{"id":1,"pub":{"topic":"t","records":[{"value":' + "[" * 5000 + "]" * 5000 + ',"value_encoding":"json"}]}}',
]


@pytest.mark.parametrize("message", WEIRD, ids=lambda message: message[:60])
async def test_weird_messages_are_answered_and_the_connection_lives(
    serve: Serve, message: str, server_log: list[str]
) -> None:
    async with serve() as served, opened(served) as socket:
        answer = await ask(socket, message)
        assert answer["error"]["status"] == 422, answer
        assert "ok" in await ask(socket, '{"id":2,"auth":{"token":"y"}}')
    assert not server_log


async def test_resuming_at_deleted_offsets_returns_the_bounds(serve: Serve, log: FakeLog) -> None:
    log.starts["t", 0] = 5
    async with serve() as served, opened(served) as socket:
        error = (await ask(socket, sub(resume={"0": 4})))["error"]
        assert (error["status"], error["log_start_offset"], error["high_watermark"]) == (410, 5, 10)


async def test_the_log_ends_a_subscription(serve: Serve, log: FakeLog) -> None:
    async with serve() as served, opened(served) as socket:
        await ask(socket, sub())
        await receive(socket)
        log.fault = UnknownTopicError("deleted meanwhile")
        async with log.appended:
            log.appended.notify_all()
        end = (await receive(socket))["end"]
        assert (end["sid"], end["error"]["code"]) == (1, "unknown_topic")


async def test_publishing(serve: Serve, log: FakeLog) -> None:
    async with serve() as served, opened(served) as socket:
        records = [{"value": "a", "partition": 1}, {"value": "b", "partition": 9}]
        answer = await ask(socket, {"id": 5, "pub": {"topic": "t", "records": records}})
        assert answer["ok"]["results"][0] == {"partition": 1, "offset": 0}
        assert answer["ok"]["results"][1]["error"]["code"] == "unknown_partition"
        log.fault = OverloadedError("busy")
        answer = await ask(socket, {"id": 6, "pub": {"topic": "t", "records": records}})
        assert (answer["id"], answer["error"]["status"], answer["error"]["retryable"]) == (6, 429, True)


async def test_publishes_of_one_connection_keep_their_order(serve: Serve, log: FakeLog) -> None:
    async with serve(ws_publishes_max=4) as served, opened(served) as socket:
        for at in range(50):
            message = {"id": at, "pub": {"topic": "t", "records": [{"value": str(at), "partition": 1}]}}
            await socket.send(json.dumps(message))
        answers = [await receive(socket) for _ in range(50)]
        assert {answer["id"]: answer["ok"]["results"][0]["offset"] for answer in answers} == {
            at: at for at in range(50)
        }


async def test_publishes_keep_their_order_when_the_topic_is_made_again(
    serve: Serve, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that the producer of the previous topic has accepted are refused later, out of order."""
    enqueue, producers = FakeProducer.enqueue, list[FakeProducer]()

    async def enqueue_or_refuse(producer: FakeProducer, value: bytes, **record: Any) -> Any:
        producers.append(producer)
        if producer is not producers[0]:
            return await enqueue(producer, value, **record)

        async def refused() -> Receipt:
            await asyncio.sleep(0.01 * (3 - int(value) % 3))
            raise UnknownTopicError("the topic was deleted")

        return refused()

    monkeypatch.setattr(FakeProducer, "enqueue", enqueue_or_refuse)
    async with serve() as served, opened(served) as socket:
        for at in range(50):
            message = {"id": at, "pub": {"topic": "t", "records": [{"value": str(at), "partition": 1}]}}
            await socket.send(json.dumps(message))
            await asyncio.sleep(0.001)
        answers = [await receive(socket) for _ in range(50)]
        offsets = {answer["id"]: answer["ok"]["results"][0]["offset"] for answer in answers}
        assert offsets == {at: at for at in range(50)}
    assert len(set(map(id, producers))) == 2


async def test_garbage_is_answered_and_the_connection_lives(serve: Serve) -> None:
    async with serve() as served, opened(served) as socket:
        for message in ("{", "[]", "null", "", "\x00", '{"id":1}', '{"credit":{"sid":1,"records":-1}}'):
            assert (await ask(socket, message))["error"]["code"] == "invalid_request"
        assert (await ask(socket, '{"credit":{"sid":9,"records":1}}'))["error"]["code"] == "unknown_subscription"
        assert "ok" in await ask(socket, {"id": 1, "auth": {"token": "x"}})


async def closing(socket: ClientConnection) -> int | None:
    async with asyncio.timeout(20):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed:
            return socket.close_code


async def test_binary_and_huge_messages_close(serve: Serve) -> None:
    async with serve(ws_message_bytes_max=2048) as served:
        async with opened(served) as socket:
            await socket.send(b"\x00")
            assert await closing(socket) == 1003
        async with opened(served) as socket:
            await socket.send("x" * 2049)
            assert await closing(socket) == 1009


async def metric(http: httpx.AsyncClient, line: str) -> None:
    """Ask for the metrics until they have the line."""
    async with asyncio.timeout(20):
        while line not in (await http.get("/metrics")).text:
            pass


async def test_too_many_connections(serve: Serve) -> None:
    async with serve(ws_connections_max=1) as served, opened(served) as first:
        await ask(first, {"id": 1, "auth": {"token": "x"}})
        async with opened(served) as second:
            assert await closing(second) == 4429
        assert "ok" in await ask(first, {"id": 1, "auth": {"token": "x"}})


async def test_a_stop_closes_with_service_restart(serve: Serve) -> None:
    async with serve() as served, opened(served) as socket:
        await ask(socket, sub())
        await receive(socket)
        stopping = asyncio.create_task(served.stop())
        assert await closing(socket) == 1012
        await stopping


async def test_a_client_that_does_not_read_is_closed_as_slow(serve: Serve, log: FakeLog) -> None:
    for _ in range(3):
        await log.append("t", 0, columns_of([b"x" * 1_000_000] * 12))
    async with (
        serve(ws_slow_timeout_s=0.5) as served,
        httpx.AsyncClient(base_url=served.http) as http,
        opened(served, max_queue=1, max_size=None) as socket,
    ):
        await socket.send(json.dumps(sub(credit={"records": 1000})))
        await metric(http, 'tidelog_gateway_websocket_closes_total{code="4408"} 1.0')
        assert await closing(socket) == 4408


async def test_no_task_is_left(serve: Serve) -> None:
    async with serve() as served, httpx.AsyncClient(base_url=served.http) as http:
        async with opened(served) as socket:
            await ask(socket, sub())
            await metric(http, "tidelog_gateway_subscriptions 1.0")
        await metric(http, "tidelog_gateway_websockets 0.0")
        await metric(http, "tidelog_gateway_subscriptions 0.0")
