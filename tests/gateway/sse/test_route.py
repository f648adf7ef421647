"""Streams over a real server and real sockets, on a log in memory."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from random import Random
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Serve, Served
from tests.gateway.fake_log import FakeLog
from tests.gateway.sse.event_source import EventSource, open_stream

from tidelog.errors import OverloadedError, UnknownTopicError
from tidelog_gateway.sse import route
from tidelog_proto.batch.record_batch import columns_of

PATH = "/v1/topics/t/stream"


async def begun(source: EventSource) -> dict[str, Any]:
    """Return the data of the first event."""
    event = await source.next()
    assert event is not None
    assert (event.name, source.response.status_code) == ("begin", 200)
    assert event.id
    data: dict[str, Any] = event.data
    return data


async def test_a_stream_begins_at_the_end_and_sends_new_records(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[], []]
    await log.append("t", 0, columns_of([b"old"]))
    async with serve() as served, open_stream(served.http, PATH) as source:
        headers = source.response.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")
        assert "content-length" not in headers
        assert await begun(source) == {"offsets": {"0": 1, "1": 0}}
        assert source.parser.retry_ms == 1000
        await log.append("t", 1, columns_of([b"new"], keys=[b"k"]))
        event = await source.next()
        assert event is not None
        (record,) = event.data.pop("records")
        assert event.data == {"partition": 1, "next_offset": 1}
        assert (record["offset"], record["key"], record["value"]) == (0, "k", "new")


@pytest.mark.parametrize(
    ("query", "offsets"),
    [
        ("from=earliest", {"0": 0, "1": 0}),
        ("from=latest", {"0": 3, "1": 1}),
        ("timestamp=1970-01-01T00:00:02Z", {"0": 2, "1": 1}),
        ("timestamp=1970-01-01T00:00:01.999999Z", {"0": 1, "1": 1}),
        ("timestamp=1970-01-20T00:00:00Z", {"0": 3, "1": 1}),
        ("timestamp=2000", {"0": 2, "1": 1}),
        ("offsets=0:1,1:0", {"0": 1, "1": 0}),
        ("offsets=0:1&from=earliest", {"0": 1, "1": 0}),
    ],
)
async def test_where_a_stream_begins(serve: Serve, log: FakeLog, query: str, offsets: dict[str, int]) -> None:
    log.logs["t"] = [[], []]
    stamps = [1_000_000, 1_999_999, 2_000_000]
    await log.append("t", 0, columns_of([b"a", b"b", b"c"], timestamps_us=stamps))
    await log.append("t", 1, columns_of([b"d"], timestamps_us=[0]))
    async with serve() as served, open_stream(served.http, f"{PATH}?{query}") as source:
        assert (await begun(source))["offsets"] == offsets
        left = 4 - sum(offsets.values())
        found = await source.records(left) if left else []
        assert Counter(number for number, _, _ in found) == Counter({0: 3 - offsets["0"], 1: 1 - offsets["1"]})


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\n",
        b"a\n\nb\r\nc\rd",
        b"data: x\n\nid: y\n\n",
        b"\x00\x01",
        "\u2028\ufeffä".encode(),
        b"\xff\xfe\n",
        b":c",
    ],
    ids=repr,
)
async def test_any_payload_survives_the_rules_of_parsing(serve: Serve, log: FakeLog, value: bytes) -> None:
    log.logs["t"] = [[]]
    await log.append("t", 0, columns_of([value, None], keys=[value or b"k", None]))
    async with serve() as served, open_stream(served.http, f"{PATH}?from=earliest") as source:
        await begun(source)
        event = await source.next()
        assert event is not None
        record, tombstone = event.data["records"]
        is_base64 = record["value_encoding"] == "base64"
        assert (base64.b64decode(record["value"]) if is_base64 else record["value"].encode()) == value
        assert tombstone["value"] is None


async def test_filters_are_those_of_a_fetch(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served:
        async with open_stream(served.http, f"{PATH}?key=YQ==&key_encoding=base64&tag=x") as source:
            opened = await begun(source)
            assert opened
        assert (b"a", "x") in log.filters


async def test_a_stream_with_a_group_begins_at_its_commit_and_an_id_takes_precedence(
    serve: Serve, log: FakeLog
) -> None:
    log.logs["t"] = [[], []]
    await log.append("t", 0, columns_of([b"a", b"b", b"c"]))
    offsets = "/v1/groups/g/offsets"
    body = {"offsets": [{"topic": "t", "partition": 0, "next_offset": 2}]}
    async with serve() as served, httpx.AsyncClient(base_url=served.http) as api:
        async with open_stream(served.http, f"{PATH}?group=g&from=earliest") as source:
            assert (await begun(source))["offsets"] == {"0": 0, "1": 0}
            assert len(await source.records(3)) == 3
        assert (await api.get(f"{offsets}?topic=t")).json()["offsets"] == [], "nothing is committed by being sent"
        assert (await api.put(offsets, json=body)).status_code == 200
        async with open_stream(served.http, f"{PATH}?group=g&from=earliest") as source:
            event = await source.next()
            assert event is not None
            assert event.data["offsets"] == {"0": 2, "1": 0}
            first_id = event.id
            assert [offset for _, offset, _ in await source.records(1)] == [2]
        assert (await api.put(offsets, json={"offsets": [body["offsets"][0] | {"next_offset": 3}]})).status_code == 200
        resumed = open_stream(served.http, f"{PATH}?group=g&from=earliest&last_event_id={first_id}")
        async with resumed as source:
            assert (await begun(source))["offsets"] == {"0": 2, "1": 0}
        assert (await api.get(f"{PATH}?group=")).status_code == 422
        assert (await api.get(f"{PATH}?group={'g' * 256}")).status_code == 422


async def test_an_id_resumes_over_all_partitions_without_loss_or_repetition(serve: Serve, log: FakeLog) -> None:
    random = Random(7)
    log.logs["t"] = [[], [], []]
    seen: Counter[tuple[int, int]] = Counter()
    published: Counter[tuple[int, int]] = Counter()

    async def publish(count: int) -> None:
        for _ in range(count):
            number = random.randrange(len(log.logs["t"]))
            base = await log.append("t", number, columns_of([b"v"] * random.randint(1, 3)))
            published.update((number, offset) for offset in range(base, log.end("t", number)))

    last_id = ""
    async with serve(ws_batch_records_max=2) as served:
        for turn in range(12):
            if turn == 6:
                log.logs["t"].append([])  # a partition is added while no stream is open
            await publish(4 if turn else 0)
            headers = {"last-event-id": last_id} if last_id else {}
            async with open_stream(served.http, f"{PATH}?from=latest", **headers) as source:
                await begun(source)
                last_id = source.last_id
                await publish(random.randint(0, 3))
                for _ in range(random.randint(0, 3)):
                    if sum(seen.values()) == sum(published.values()):
                        break
                    event = await source.next()
                    assert event is not None
                    assert event.id != last_id, "each event has an id of its own"
                    last_id = event.id
                    seen.update((event.data["partition"], each["offset"]) for each in event.data["records"])
        async with open_stream(served.http, PATH, **{"last-event-id": last_id}) as source:
            await begun(source)
            for found in await source.records(sum(published.values()) - sum(seen.values())):
                seen[found[:2]] += 1
    assert seen == published


async def test_the_header_wins_over_the_address(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    await log.append("t", 0, columns_of([b"0", b"1", b"2"]))
    async with serve(ws_batch_records_max=1) as served:
        async with open_stream(served.http, f"{PATH}?offsets=0:1") as source:
            await begun(source)
            assert await source.records(1) == [(0, 1, "1")]
            last_id = source.last_id
        for query, headers in [("offsets=0:0", {"last-event-id": last_id}), (f"last_event_id={last_id}", {})]:
            async with open_stream(served.http, f"{PATH}?{query}", **headers) as source:
                assert (await begun(source))["offsets"] == {"0": 2}
        async with open_stream(served.http, f"{PATH}?last_event_id={last_id}&offsets=0:0") as source:
            assert (await begun(source))["offsets"] == {"0": 0}


@pytest.mark.parametrize(
    ("query", "headers", "status", "parameter"),
    [
        ("from=yesterday", {}, 422, "from"),
        ("from=earliest&timestamp=5", {}, 422, "from"),
        ("timestamp=soon", {}, 422, "timestamp"),
        ("timestamp=1795964400", {}, 422, "timestamp"),
        ("offsets=0", {}, 422, "offsets"),
        ("offsets=0:1,0:2", {}, 422, "offsets"),
        ("offsets=100000:1", {}, 422, "offsets"),
        ("offsets=0:0", {}, 422, "offsets"),
        ("key=%3D&key_encoding=base64", {}, 422, "key"),
        ("key=YR==&key_encoding=base64", {}, 422, "key"),
        ("member=true", {}, 422, "member"),
        ("", {"last-event-id": "AQ"}, 422, "Last-Event-ID"),
        ("", {"last-event-id": "é"}, 422, "Last-Event-ID"),
        ("", {"accept": "application/json"}, 406, None),
    ],
)
async def test_an_error_has_a_status_and_names_the_parameter(  # noqa: PLR0917 - parameters of the test
    serve: Serve, log: FakeLog, query: str, headers: dict[str, str], status: int, parameter: str | None
) -> None:
    log.logs["t"] = [[], []]
    async with serve() as served, httpx.AsyncClient(base_url=served.http) as client:
        raw = {"accept": "text/event-stream", **headers}
        answer = await client.get(
            f"{PATH}?{query}", headers=[(name.encode(), text.encode()) for name, text in raw.items()]
        )
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        if parameter is not None:
            assert answer.json()["errors"][0]["parameter"] == parameter


async def test_a_topic_that_is_missing_or_of_too_many_partitions_is_refused(
    serve: Serve, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "ID_CHARS_MAX", 100)
    log.logs["t"] = [[] for _ in range(100)]
    async with serve() as served, httpx.AsyncClient(base_url=served.http) as client:
        assert (await client.get("/v1/topics/missing/stream")).status_code == 404
        answer = await client.get(PATH)
        assert (answer.status_code, answer.json()["code"]) == (422, "too_many_partitions")


async def test_nothing_is_sent_before_the_cluster_is_known(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    log.fault = OverloadedError("no node answers")
    async with serve() as served, httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.get(PATH)
        assert answer.status_code == 429
        assert "retry-after" in answer.headers


async def test_silence_is_broken_by_comments(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve(stream_heartbeat_s=0.05) as served, open_stream(served.http, PATH) as source:
        await begun(source)
        await source.comment()
        await source.comment()
        await log.append("t", 0, columns_of([b"x"]))
        assert await source.records(1) == [(0, 0, "x")]


async def test_the_deletion_of_a_topic_ends_the_stream_with_an_event(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, open_stream(served.http, PATH) as source:
        await begun(source)
        await log.append("t", 0, columns_of([b"last"]))
        assert await source.records(1) == [(0, 0, "last")]
        log.fail = UnknownTopicError("the topic was deleted")
        async with log.appended:
            log.appended.notify_all()
        event = await source.next()
        assert event is not None
        assert (event.name, event.data["error"]["status"], event.id) == ("end", 404, source.last_id)
        assert await source.next() is None


async def test_a_stopping_gateway_sends_end_and_the_stream_resumes_at_another(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, open_stream(served.http, PATH) as source:
        await begun(source)
        stopping = asyncio.create_task(served.stop())
        event = await source.next()
        assert event is not None
        assert (event.data["error"]["code"], event.data["error"]["retryable"]) == ("shutting_down", True)
        assert await source.next() is None
        await stopping
    await log.append("t", 0, columns_of([b"meanwhile"]))
    async with serve() as served, open_stream(served.http, PATH, **{"last-event-id": source.last_id}) as source:
        await begun(source)
        assert await source.records(1) == [(0, 0, "meanwhile")]


async def used_bytes(served: Served, name: str) -> float:
    async with httpx.AsyncClient(base_url=served.http) as client:
        page = (await client.get("/metrics")).text
    return float(next(line.split()[1] for line in page.splitlines() if line.startswith(f"{name} ")))


async def test_a_slow_client_holds_little_memory_and_gets_slow_client(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve(ws_slow_timeout_s=3.0, connection_out_bytes_max=1 << 20) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1 << 12)
        writer.write(f"GET {PATH}?from=earliest HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        await reader.readuntil(b"\n\n")
        for _ in range(400):
            await log.append("t", 0, columns_of([b"x" * 50_000]))
        async with open_stream(served.http, f"{PATH}?offsets=0:399") as other:
            await begun(other)
            assert [found[1] for found in await other.records(1)] == [399], "others are not held up"
            assert await used_bytes(served, "tidelog_gateway_out_bytes") < 4 << 20
        async with asyncio.timeout(20):
            while await used_bytes(served, "tidelog_gateway_streams"):  # noqa: ASYNC110 - until it gives up
                await asyncio.sleep(0.05)
            rest = await reader.read(-1)
        assert b'"code":"slow_client"' in rest
        assert rest.endswith(b"0\r\n\r\n"), "a whole answer"
        writer.close()
        assert await used_bytes(served, "tidelog_gateway_streams") == 0


async def test_streams_are_bounded_together_with_websockets(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve(ws_connections_max=1) as served, open_stream(served.http, PATH) as source:
        await begun(source)
        async with httpx.AsyncClient(base_url=served.http) as client:
            answer = await client.get(PATH)
            assert (answer.status_code, answer.json()["code"]) == (429, "too_many_streams")


async def test_streams_of_one_topic_share_a_read(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[], []]
    async with serve() as served:
        sources: list[EventSource] = []
        async with asyncio.TaskGroup() as group:
            is_over = asyncio.Event()

            async def follow() -> None:
                async with open_stream(served.http, PATH) as source:
                    await begun(source)
                    sources.append(source)
                    await is_over.wait()

            for _ in range(20):
                group.create_task(follow())
            while len(sources) < 20:  # noqa: ASYNC110 - each of them may end in an error
                await asyncio.sleep(0.01)
            for at in range(10):
                await log.append("t", at % 2, columns_of([b"%d" % at]))
            found = await asyncio.gather(*(source.records(10) for source in sources))
            assert all(sorted(each) == sorted(found[0]) for each in found)
            assert len({tuple(sorted(each)) for each in found}) == 1
            is_over.set()
        assert log.reads < 20, "not each of them reads"
