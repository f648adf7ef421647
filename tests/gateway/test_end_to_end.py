"""End to end: a real node, a real gateway process, real HTTP and WebSocket clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import process
from tests.json_texts import EXAMPLES
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Data, Subprotocol

from tidelog import Client
from tidelog.errors import OffsetOutOfRangeError
from tidelog_cli.records.json_records import records_of

pytestmark = pytest.mark.e2e


@pytest.fixture
async def topic(http: httpx.AsyncClient) -> str:
    name = f"t-{secrets.token_hex(4)}"
    response = await http.post("/v1/topics", json={"name": name, "partitions": 2})
    assert response.status_code == 201, response.text
    assert response.json()["partitions"] == 2
    return name


def opened(address: str, **options: Any) -> connect:
    return connect(f"ws://{address}/v1/ws", subprotocols=[Subprotocol("tidelog.v1.json")], **options)


async def receive(socket: ClientConnection) -> Any:
    async with asyncio.timeout(20):
        return json.loads(await socket.recv())


async def test_topics_are_created_listed_and_deleted(http: httpx.AsyncClient, topic: str) -> None:
    assert (await http.post("/v1/topics", json={"name": topic})).status_code == 409
    names = [each["name"] for each in (await http.get("/v1/topics", params={"limit": 1000})).json()["topics"]]
    assert topic in names
    altered = await http.patch(f"/v1/topics/{topic}", json={"partitions": 3, "retention_bytes": 1 << 30})
    assert altered.status_code == 200, altered.text
    assert (altered.json()["partitions"], altered.json()["retention_bytes"]) == (3, 1 << 30)
    assert (await http.delete(f"/v1/topics/{topic}")).status_code == 204
    assert (await http.get(f"/v1/topics/{topic}")).status_code == 404


async def test_duplicates_are_dropped_and_reported(http: httpx.AsyncClient, gateway_address: str) -> None:
    name = f"t-{secrets.token_hex(4)}"
    made = await http.post("/v1/topics", json={"name": name, "deduplicate_s": 600, "deduplicate_records": 1000})
    assert (made.json()["deduplicate_s"], made.json()["deduplicate_records"]) == (600, 1000)
    path = f"/v1/topics/{name}/records"
    first = await http.post(path, json={"records": [{"value": "a"}, {"value": "b"}, {"value": "a"}]})
    stored = [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}, {"partition": 0}]
    assert first.json() == {"results": stored, "duplicates": 1}
    records = [{"value": f"{number % 150}"} for number in range(200)]
    many = await http.post(path, json={"records": records})
    assert many.status_code == 200
    assert many.json()["duplicates"] == 50
    assert [each.get("offset") for each in many.json()["results"]] == [*range(2, 152), *[None] * 50]
    async with opened(gateway_address) as socket:
        await socket.send(json.dumps({"id": 1, "pub": {"topic": name, "records": [{"value": "a"}, {"value": "b"}]}}))
        assert await receive(socket) == {"id": 1, "ok": {"results": [{"partition": 0}] * 2, "duplicates": 2}}
    altered = await http.patch(f"/v1/topics/{name}", json={"deduplicate_s": 0, "deduplicate_records": 0})
    assert altered.json()["deduplicate_s"] == 0
    assert (await http.post(path, json={"records": [{"value": "a"}]})).json() == {
        "results": [{"partition": 0, "offset": 153}]  # a batch of only duplicates takes one offset
    }


async def test_a_committed_offset_is_the_same_through_every_interface(
    http: httpx.AsyncClient, gateway_address: str, node_address: str, topic: str
) -> None:
    group, note = f"g-{topic}", "file 7, line 12 [/]\n"
    async with Client(node_address) as client:
        await client.producer(topic).send_many([b"v"] * 3, partition=1)
        await client.commit(group, topic, {1: 2}, note=note)
        (held,) = await client.committed(group)
        assert (held.partition, held.next_offset, held.note) == (1, 2, note)
        assert held.commit_timestamp_us > 1_600_000_000_000_000
    told = {
        "topic": topic,
        "partition": 1,
        "next_offset": 2,
        "note": note,
        "commit_timestamp_ms": held.commit_timestamp_us // 1000,
        "epoch": held.epoch,
    }
    assert (await http.get(f"/v1/groups/{group}/offsets")).json()["offsets"] == [told]
    unread, row = (await http.get(f"/v1/groups/{group}/lag")).json()["partitions"]
    assert row.items() >= told.items()
    assert (unread["next_offset"], unread["note"]) == (None, None)
    async with opened(gateway_address) as socket:
        await socket.send(json.dumps({"id": 1, "committed": {"group": group, "topic": topic}}))
        whole = {"group": group, "offsets": [told], "from_partition": None}
        assert await receive(socket) == {"id": 1, "ok": whole}
        await socket.send(json.dumps({"id": 2, "committed": {"group": group, "topic": "none-such"}}))
        assert (await receive(socket))["error"]["code"] == "unknown_topic"
    shown, table = await commands_said(node_address, ["group", "lag", group, "--json"], ["group", "lag", group])
    assert json.loads(shown)[1].items() >= told.items()
    assert "file 7, line 12 [/]\\n" in table


async def commands_said(node: str, *commands: list[str]) -> list[str]:
    """Run commands with a node, one after the other; return their outputs."""
    said: list[str] = []
    for command in commands:
        program = [sys.executable, "-m", "tidelog_cli", *command, "--bootstrap", node]
        process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(60):
            out, _ = await process.communicate()
        assert process.returncode == 0
        said.append(out.decode())
    return said


async def test_json_values_are_returned_as_sent(
    http: httpx.AsyncClient, gateway_address: str, node_address: str, topic: str
) -> None:
    records = ",".join(f'{{"partition":0,"value_encoding":"json","value": {text} }}' for text in EXAMPLES)
    path = f"/v1/topics/{topic}"
    headers = {"content-type": "application/json"}
    stored = await http.post(f"{path}/records", content=f'{{"records":[{records}]}}', headers=headers)
    assert stored.status_code == 200
    async with opened(gateway_address) as socket:
        await socket.send(f'{{"id":1,"pub":{{"topic":"{topic}","records":[{records}]}}}}')
        assert "ok" in await receive(socket)
        sub = {"sid": 1, "topic": topic, "from": "earliest", "credit": {"records": 2 * len(EXAMPLES)}}
        await socket.send(json.dumps({"id": 2, "sub": sub}))
        assert "ok" in await receive(socket)
        sent: list[str] = []
        while len(sent) < 2 * len(EXAMPLES):
            sent += [record["value"] for record in (await receive(socket))["batch"]["records"]]
    assert sent == [*EXAMPLES, *EXAMPLES]
    fetched = (await http.get(f"{path}/partitions/0/records")).json()["records"]
    assert [record["value"] for record in fetched] == sent
    (lines,) = await commands_said(node_address, ["consume", topic, "--json"])
    again = records_of(lines.encode().splitlines(), 1)
    assert again is not None
    assert again.column("value").to_pylist() == [text.encode() for text in sent]


async def test_every_kind_of_record_is_returned_as_published(http: httpx.AsyncClient, topic: str) -> None:
    records: list[dict[str, Any]] = [
        {
            "key": "k",
            "value": "text",
            "value_encoding": "utf8",
            "headers": [["h", "1"], ["b", "/w==", "base64"]],
            "tag": "x",
        },
        {"key": "/g==", "key_encoding": "base64", "value": "/w==", "value_encoding": "base64"},
        {"key": "gone", "value": None},
        {"value": {"a": [1, None]}, "value_encoding": "json", "timestamp_ms": 1_700_000_000_123},
    ]
    body = {"records": [{**record, "partition": 1} for record in records]}
    response = await http.post(f"/v1/topics/{topic}/records", json=body)
    assert response.json() == {"results": [{"partition": 1, "offset": at} for at in range(4)]}
    raw = await http.post(
        f"/v1/topics/{topic}/records",
        content=b"\x00\x01",
        headers={"Content-Type": "application/octet-stream"},
        params={"key": "raw", "partition": 1},
    )
    assert raw.json() == {"results": [{"partition": 1, "offset": 4}]}
    fetched = (await http.get(f"/v1/topics/{topic}/partitions/1/records")).json()
    assert (fetched["next_offset"], fetched["high_watermark"]) == (5, 5)
    found = fetched["records"]
    assert found[0]["headers"] == records[0]["headers"]
    assert (found[0]["key"], found[0]["tag"], found[0]["value"]) == ("k", "x", "text")
    assert (found[1]["key"], found[1]["key_encoding"], found[1]["value"]) == ("/g==", "base64", "/w==")
    assert found[2]["value"] is None
    assert (found[3]["value"], found[3]["timestamp_ms"]) == ('{"a":[1,null]}', 1_700_000_000_123)
    assert found[4]["value"] == "\x00\x01"
    by_time = await http.get(f"/v1/topics/{topic}/partitions/1/offsets", params={"timestamp": 1})
    assert by_time.json()["found"]


async def test_a_large_request_is_divided_by_key_and_stored_completely(http: httpx.AsyncClient, topic: str) -> None:
    records = [{"key": f"k{at % 50}", "value": str(at)} for at in range(5000)]
    response = await http.post(f"/v1/topics/{topic}/records", json={"records": records})
    assert response.status_code == 200
    places = [(result["partition"], result["offset"]) for result in response.json()["results"]]
    assert {partition for partition, _ in places} == {0, 1}
    stored: dict[tuple[int, int], str] = {}
    for partition in (0, 1):
        offset = 0
        while True:
            params = {"offset": offset, "max_records": 700}
            page = (await http.get(f"/v1/topics/{topic}/partitions/{partition}/records", params=params)).json()
            if not page["records"]:
                break
            stored.update({(partition, record["offset"]): record["value"] for record in page["records"]})
            offset = page["next_offset"]
    assert [stored[place] for place in places] == [str(at) for at in range(5000)]
    assert len(stored) == 5000


async def test_concurrent_publishes_are_stored_once_each(http: httpx.AsyncClient, topic: str) -> None:
    async def publish(at: int) -> tuple[int, int]:
        response = await http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": str(at)}]})
        result = response.json()["results"][0]
        return result["partition"], result["offset"]

    places = await asyncio.gather(*(publish(at) for at in range(100)))
    assert len(set(places)) == 100


async def test_a_long_poll_returns_with_the_record(http: httpx.AsyncClient, topic: str) -> None:
    path = f"/v1/topics/{topic}/partitions/0/records"
    empty = await http.get(path, params={"wait_ms": 1})
    assert empty.json()["records"] == []
    waiting = asyncio.create_task(http.get(path, params={"offset": 0, "wait_ms": 20_000}))
    await http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": "late", "partition": 0}]})
    assert [record["value"] for record in (await waiting).json()["records"]] == ["late"]


async def test_errors_of_a_real_node_are_problems(http: httpx.AsyncClient, topic: str) -> None:
    path = f"/v1/topics/{topic}"
    beyond = await http.get(f"{path}/partitions/0/records", params={"offset": 5})
    assert (beyond.status_code, beyond.json()["code"], beyond.json()["high_watermark"]) == (
        422,
        "offset_out_of_range",
        0,
    )
    for status, response in (
        (404, await http.get(f"{path}/partitions/7/records")),
        (404, await http.get("/v1/topics/none/offsets")),
        (404, await http.post("/v1/topics/none/records", json={"records": [{"value": "a"}]})),
        (404, await http.post(f"{path}/records", json={"records": [{"value": "a", "partition": 7}]})),
        (422, await http.patch(path, json={"partitions": 1})),
    ):
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"
    mixed = {"records": [{"value": "a", "partition": 0}, {"value": "b", "partition": 7}]}
    assert (await http.post(f"{path}/records", json=mixed)).status_code == 207


async def test_a_recreated_topic_accepts_records(http: httpx.AsyncClient, topic: str, node_address: str) -> None:
    path = f"/v1/topics/{topic}/records"
    body = {"records": [{"value": "a", "partition": 0}]}
    assert (await http.post(path, json=body)).json()["results"] == [{"partition": 0, "offset": 0}]
    async with Client(node_address) as client:  # without the gateway's knowledge
        await client.delete_topic(topic)
        await client.create_topic(topic, partitions=2)
    assert (await http.post(path, json=body)).json()["results"] == [{"partition": 0, "offset": 0}]
    assert (await http.get(f"/v1/topics/{topic}/offsets")).json()["offsets"][0]["high_watermark"] == 1


async def test_retention_settings_are_stored(http: httpx.AsyncClient) -> None:
    wanted = {"retention_ms": 604_800_000, "retention_bytes": 1 << 30, "cleanup": "compact,delete", "hold": True}
    wanted |= {"compaction_lag_ms": 5, "tombstone_retention_ms": 6, "dirty_percent": 7}
    wanted |= {"index_key": True, "index_tag": True}
    made = await http.post("/v1/topics", json={"name": "keeps", **wanted})
    assert made.status_code == 201, made.text
    assert {name: made.json()[name] for name in wanted} == wanted
    changes = {"retention_ms": 0, "cleanup": "delete", "hold": False, "index_tag": False}
    altered = await http.patch("/v1/topics/keeps", json=changes)
    assert {name: altered.json()[name] for name in wanted} == wanted | changes
    assert (await http.get("/v1/topics/keeps")).json() == altered.json()


async def test_groups_commit_offsets(http: httpx.AsyncClient, topic: str) -> None:
    await http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": "a", "partition": 0}] * 5})
    path = f"/v1/groups/g-{topic}/offsets"
    assert (await http.get(path)).json()["offsets"] == []
    item = {"topic": topic, "partition": 0, "next_offset": 3, "note": "from a test"}
    put = await http.put(path, json={"offsets": [item]})
    assert put.status_code == 200, put.text
    (held,) = (await http.get(path, params={"topic": topic})).json()["offsets"]
    assert {name: held[name] for name in item} == item
    assert held["commit_timestamp_ms"] > 1_700_000_000_000


async def test_a_websocket_subscriber_commits_leaves_and_resumes(
    http: httpx.AsyncClient, topic: str, gateway_address: str
) -> None:
    records = [{"value": str(at), "partition": at % 2} for at in range(200)]
    await http.post(f"/v1/topics/{topic}/records", json={"records": records})
    group = f"ws-{topic}"
    seen: list[str] = []

    async def read(socket: ClientConnection, count: int) -> None:
        subscription = {"sid": 1, "topic": topic, "group": group, "from": "earliest", "credit": {"records": count}}
        await socket.send(json.dumps({"id": 1, "sub": subscription}))
        assert "ok" in await receive(socket)
        offsets: dict[str, int] = {}
        while count:
            batch = (await receive(socket))["batch"]
            count -= len(batch["records"])
            offsets[str(batch["partition"])] = batch["next_offset"]
            seen.extend(record["value"] for record in batch["records"])
        await socket.send(json.dumps({"id": 2, "commit": {"sid": 1, "offsets": offsets}}))
        assert await receive(socket) == {"id": 2, "ok": {"offsets": offsets}}

    for count in (37, 80, 83):
        async with opened(gateway_address) as socket:
            await read(socket, count)
    assert sorted(map(int, seen)) == list(range(200))


async def resumed(socket: ClientConnection, topic: str, **more: Any) -> dict[str, Any]:
    """Subscribe, by default from the end, and return the answer."""
    await socket.send(json.dumps({"id": 1, "sub": {"sid": 1, "topic": topic, "credit": {"records": 1000}, **more}}))
    answer: dict[str, Any] = await receive(socket)
    return answer


async def test_a_token_resumes_partitions_without_a_batch_and_added_partitions(
    http: httpx.AsyncClient, topic: str, gateway_address: str
) -> None:
    async def publish(*partitions: int) -> None:
        records = [{"value": f"{partition}", "partition": partition} for partition in partitions]
        assert (await http.post(f"/v1/topics/{topic}/records", json={"records": records})).status_code == 200

    await publish(0, 1)
    async with opened(gateway_address) as socket:
        assert "ok" in await resumed(socket, topic)
        await publish(0)
        batch = (await receive(socket))["batch"]
        assert (batch["partition"], batch["next_offset"]) == (0, 2)
    await publish(0, 1, 1)
    assert (await http.patch(f"/v1/topics/{topic}", json={"partitions": 3})).status_code == 200
    await publish(2, 2)
    seen: list[tuple[int, int]] = []
    async with opened(gateway_address) as socket:
        answer = await resumed(socket, topic, resume_token=batch["resume_token"])
        assert answer["ok"]["offsets"] == {"0": 2, "1": 1, "2": 0}
        while len(seen) < 5:
            more = (await receive(socket))["batch"]
            seen += [(more["partition"], record["offset"]) for record in more["records"]]
    assert sorted(seen) == [(0, 2), (1, 1), (1, 2), (2, 0), (2, 1)]


async def test_offsets_that_would_skip_records_of_other_partitions_are_refused(
    topic: str, gateway_address: str
) -> None:
    async with opened(gateway_address) as socket:
        answer = await resumed(socket, topic, resume={"0": 0})
        assert (answer["error"]["code"], answer["error"]["status"]) == ("incomplete_resume", 422)
        assert "ok" in await resumed(socket, topic, resume={"0": 0, "1": 0})


async def test_a_token_of_a_topic_that_was_recreated_is_refused(
    http: httpx.AsyncClient, topic: str, gateway_address: str
) -> None:
    async with opened(gateway_address) as socket:
        token = (await resumed(socket, topic))["ok"]["resume_token"]
    assert (await http.delete(f"/v1/topics/{topic}")).status_code == 204
    assert (await http.post("/v1/topics", json={"name": topic, "partitions": 2})).status_code == 201
    async with opened(gateway_address) as socket:
        answer = await resumed(socket, topic, resume_token=token)
        assert (answer["error"]["code"], answer["error"]["status"]) == ("topic_recreated", 410)
        assert "ok" in await resumed(socket, topic)


async def test_a_group_that_begins_at_the_end_misses_nothing_between_subscriptions(
    http: httpx.AsyncClient, topic: str, gateway_address: str
) -> None:
    group = f"ws-{topic}"
    async with opened(gateway_address) as socket:
        assert "ok" in await resumed(socket, topic, group=group)
    await http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": "missed", "partition": 1}]})
    async with opened(gateway_address) as socket:
        assert "ok" in await resumed(socket, topic, group=group)
        assert [each["value"] for each in (await receive(socket))["batch"]["records"]] == ["missed"]


async def test_a_subscriber_gets_records_published_by_websocket(topic: str, gateway_address: str) -> None:
    async with opened(gateway_address) as reader, opened(gateway_address) as writer:
        subscription = {"sid": 5, "topic": topic, "from": "latest", "credit": {"records": 1000, "bytes": 1 << 20}}
        await reader.send(json.dumps({"id": 1, "sub": subscription}))
        assert "ok" in await receive(reader)
        for at in range(20):
            message = {"id": at, "pub": {"topic": topic, "records": [{"key": "k", "value": str(at)}]}}
            await writer.send(json.dumps(message))
        offsets = [(await receive(writer))["ok"]["results"][0]["offset"] for _ in range(20)]
        assert sorted(offsets) == list(range(20))
        seen: list[str] = []
        while len(seen) < 20:
            seen += [record["value"] for record in (await receive(reader))["batch"]["records"]]
        assert seen == [str(at) for at in range(20)]


async def test_deleting_the_topic_ends_its_subscriptions(
    http: httpx.AsyncClient, topic: str, gateway_address: str
) -> None:
    async with opened(gateway_address) as socket:
        await socket.send(json.dumps({"id": 1, "sub": {"sid": 5, "topic": topic, "credit": {"records": 1}}}))
        assert "ok" in await receive(socket)
        assert (await http.delete(f"/v1/topics/{topic}")).status_code == 204
        end = (await receive(socket))["end"]
        assert (end["sid"], end["error"]["code"]) == (5, "unknown_topic")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Poll a condition until it holds."""
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)


async def test_a_websocket_that_does_not_read_is_closed_as_slow(
    topic: str, node_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(node_address) as client, client.producer(topic) as producer:
        for _ in range(3):
            await producer.send_many([b"x" * 1_000_000] * 10, partition=0)
    monkeypatch.setenv("TIDELOG_GATEWAY_WS_SLOW_TIMEOUT_S", "1.5")
    everything = {"sid": 1, "topic": topic, "from": "earliest", "credit": {"records": 100, "bytes": 1 << 30}}
    with process("gateway", "--bootstrap", node_address, "--http-port", "0") as (_, ready):
        address = f"127.0.0.1:{ready['http_port']}"
        async with (
            httpx.AsyncClient(base_url=f"http://{address}") as http,
            opened(address, max_queue=1, max_size=None) as deaf,
            opened(address, max_size=None) as reader,
        ):

            async def closed_as_slow() -> bool:
                return 'closes_total{code="4408"} 1.0' in (await http.get("/metrics")).text

            await deaf.send(json.dumps({"id": 1, "sub": everything}))
            await until(closed_as_slow)
            async for _ in closing(deaf):
                pass
            assert deaf.close_code == 4408
            await reader.send(json.dumps({"id": 1, "sub": everything}))
            assert "ok" in await receive(reader)
            count = 0
            while count < 30:
                count += len((await receive(reader))["batch"]["records"])


async def closing(socket: ClientConnection) -> AsyncIterator[Data]:
    """Yield the remaining messages until the connection is closed with any code."""
    with contextlib.suppress(ConnectionClosed):  # the test checks the code
        while True:
            yield await socket.recv()


async def test_records_deleted_by_retention_are_gone_and_the_bounds_are_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retention limit is stored with the topic and applied on disk; readers of deleted records get the bounds."""
    monkeypatch.setenv("TIDELOG_NODE_RETENTION_INTERVAL_MS", "20")
    data = tmp_path / "data"
    with (
        process("node", "--data", str(data), "--port", "0", "--management-port", "0") as (_, node),
        process("gateway", "--bootstrap", f"127.0.0.1:{node['port']}", "--http-port", "0") as (_, gateway),
    ):
        address = f"http://127.0.0.1:{gateway['http_port']}"
        async with httpx.AsyncClient(base_url=address) as http, Client(f"127.0.0.1:{node['port']}") as client:
            await http.post("/v1/topics", json={"name": "t", "segment_bytes": 64 << 10, "flush": "never"})
            async with client.producer("t") as producer:
                for _ in range(100):
                    await producer.send(b"x" * 20_000)
            assert (await client.fetch("t", 0, 0)).batches
            assert (await http.patch("/v1/topics/t", json={"retention_bytes": 256 << 10})).status_code == 200

            async def small_enough() -> bool:
                return (await client.topic("t")).partitions[0].size_bytes <= 256 << 10

            await until(small_enough)
            gone = await http.get("/v1/topics/t/partitions/0/records", params={"offset": 0})
            with pytest.raises(OffsetOutOfRangeError) as refused:
                await client.fetch("t", 0, 0)
            bounds = (gone.json()["log_start_offset"], gone.json()["high_watermark"])
            assert (gone.status_code, bounds[1]) == (410, 100)
            assert bounds == (refused.value.log_start_offset, refused.value.high_watermark)
            assert 80 < bounds[0] < 100
            assert (await client.fetch("t", 0, bounds[0])).batches[0].base_offset == bounds[0]
            segments = sum(path.stat().st_size for path in data.glob("partitions/t.*/**/*.seg"))
            assert segments <= 512 << 10, "the files still exist"


async def test_health_and_metrics_are_served(http: httpx.AsyncClient) -> None:
    assert (await http.get("/livez")).status_code == 200
    assert (await http.get("/readyz")).json()["status"] == "ready"
    assert (await http.get("/docs")).status_code == 200
    assert "tidelog_gateway_requests_total" in (await http.get("/metrics")).text


async def stored_values(http: httpx.AsyncClient, topic: str, count: int) -> list[list[str]]:
    """Return the values of both partitions of a topic."""
    found: list[list[str]] = []
    for partition in range(2):
        answer = await http.get(f"/v1/topics/{topic}/partitions/{partition}/records", params={"max_records": count})
        found.append([record["value"] for record in answer.json()["records"]])
    return found


async def test_pipelined_publishes_of_one_key_are_stored_in_their_order(
    http: httpx.AsyncClient, topic: str, gateway_address: str
) -> None:
    """The gateway learns of the topic by the first message; every third has two records."""
    sent: list[str] = []
    async with opened(gateway_address) as socket:
        for number in range(60):
            values = [f"{number}-{index}" for index in range(1 + (number % 3 == 0))]
            sent += values
            records = [{"key": "k", "value": value} for value in values]
            await socket.send(json.dumps({"id": number, "pub": {"topic": topic, "records": records}}))
        for _ in range(60):
            assert "ok" in await receive(socket)
    assert sorted(await stored_values(http, topic, 100)) == [[], sent]


async def test_pipelined_http_requests_are_stored_in_their_order(
    http: httpx.AsyncClient, topic: str, gateway_address: str
) -> None:
    host, port = gateway_address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    for number in range(20):
        body = json.dumps({"records": [{"key": "k", "value": str(number)}]}).encode()
        head = f"POST /v1/topics/{topic}/records HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    async with asyncio.timeout(20):
        for _ in range(20):
            assert b"200" in (await reader.readuntil(b"\r\n\r\n")).splitlines()[0]
            await reader.readuntil(b"]}")
    writer.close()
    await writer.wait_closed()
    assert sorted(await stored_values(http, topic, 100)) == [[], [str(number) for number in range(20)]]


async def test_an_added_partition_is_written_and_read_through_an_existing_gateway(
    http: httpx.AsyncClient, topic: str, node_address: str
) -> None:
    assert (await http.get(f"/v1/topics/{topic}/offsets")).status_code == 200
    async with Client(node_address) as client:
        await client.alter_topic(topic, partitions=3)
    path = f"/v1/topics/{topic}/partitions/2/records"
    assert (await http.get(path)).json()["records"] == []
    body = {"records": [{"value": "v", "partition": 2}]}
    assert (await http.post(f"/v1/topics/{topic}/records", json=body)).status_code == 200
    commit = {"offsets": [{"topic": topic, "partition": 2, "next_offset": 1}]}
    assert (await http.put("/v1/groups/g/offsets", json=commit)).status_code == 200
    held = (await http.get("/v1/groups/g/offsets", params={"topic": topic})).json()["offsets"]
    assert [(each["partition"], each["next_offset"]) for each in held] == [(2, 1)]
    assert len((await http.get(f"/v1/topics/{topic}/offsets")).json()["offsets"]) == 3
    assert (await http.get(f"/v1/topics/{topic}/partitions/3/records")).status_code == 404


async def test_publishing_continues_in_a_recreated_topic(
    http: httpx.AsyncClient, topic: str, node_address: str
) -> None:
    body = {"records": [{"value": "v", "partition": 0}]}
    assert (await http.post(f"/v1/topics/{topic}/records", json=body)).status_code == 200
    async with Client(node_address) as client:
        await client.delete_topic(topic)
        await client.create_topic(topic, partitions=2)
    answers = await asyncio.gather(*(http.post(f"/v1/topics/{topic}/records", json=body) for _ in range(5)))
    assert [answer.status_code for answer in answers] == [200] * 5
    assert sorted(answer.json()["results"][0]["offset"] for answer in answers) == list(range(5))
