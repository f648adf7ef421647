"""A log from which a node has taken records, read in every way that there is: right offsets, no stop, no repetition."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.gateway.conftest import process
from tests.proto.derived_batches import END_OFFSET, SURVIVORS, compacted_log, survivors_from
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog import Client, TopicPartition, sync
from tidelog_broker.core.incarnation import NONCE_BITS
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.segment.disk import Disk
from tidelog_cli.main import main
from tidelog_proto.batch.header import stamp_owner, unpack_header
from tidelog_proto.limits import SEGMENT_BYTES_DEFAULT

pytestmark = pytest.mark.e2e

TOPIC: Final = "compacted"
NODE: Final = ("node", "--port", "0", "--management-port", "0", "--data")
WAIT_S: Final = 30


def plant(data: Path) -> None:
    """Append batches after the first one to the topic's log, as left by compaction; the node does not run."""
    (directory,) = data.glob(f"partitions/{TOPIC}.*-0/epoch-*")
    log = EpochLog.open(Disk(RealFileSystem()), directory, segment_bytes=SEGMENT_BYTES_DEFAULT)
    for one in compacted_log()[1:]:
        batch = bytearray(one)
        stamp_owner(
            batch,
            base_offset=log.end_offset,
            append_timestamp_us=unpack_header(one).append_timestamp_us,
            epoch=log.epoch,
            owner_incarnation=1 << NONCE_BITS,
            previous_digest=log.end_digest,
        )
        log.ensure_space(len(batch) + 64)
        log.append([batch])
    log.sync()
    log.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a node that holds such a log; the value is its address."""
    data = tmp_path_factory.mktemp("derived") / "data"

    async def create(address: str) -> None:
        async with Client(address) as client:
            await client.create_topic(TOPIC)
            async with client.producer(TOPIC) as producer:
                for value in (b"0", b"1"):
                    await producer.send(value, timestamp_us=1)

    with process(*NODE, str(data)) as (_, ready):
        asyncio.run(create(f"127.0.0.1:{ready['port']}"))
    plant(data)
    with process(*NODE, str(data)) as (_, ready):
        yield f"127.0.0.1:{ready['port']}"


@pytest.fixture(scope="module")
def gateway(node: str) -> Iterator[str]:
    with process("gateway", "--bootstrap", node, "--http-port", "0") as (_, ready):
        yield f"127.0.0.1:{ready['http_port']}"


@pytest.mark.long
async def test_consumers(node: str) -> None:
    async with asyncio.timeout(WAIT_S), Client(node) as client:
        assert (await client.list_offsets(TOPIC, "latest"))[0].offset == END_OFFSET
        for start in (0, 3, 9, 10, 25, 45):
            async with client.consumer(TOPIC, start=start) as consumer:
                left = survivors_from(start)
                records = [await anext(consumer) for _ in left]
                assert [(each.offset, each.value) for each in records] == [(each, b"%d" % each) for each in left]
                if start == 0:
                    batch = await consumer.next_batch()
                    assert batch is not None
                    assert (len(batch), batch.batch.end_offset) == (0, END_OFFSET)


@pytest.mark.long
async def test_times(node: str) -> None:
    """The first record of a time is found, though the offsets between are gone."""
    async with asyncio.timeout(WAIT_S), Client(node) as client:
        times: dict[int, int] = {}
        async with client.consumer(TOPIC) as consumer:
            for _ in SURVIVORS:
                record = await anext(consumer)
                times[record.offset] = record.timestamp_us
        for offset in (6, 9, 40):
            found = (await client.list_offsets(TOPIC, times[offset]))[0]
            assert (found.found, found.offset, found.timestamp_us) == (True, offset, times[offset])
        late = (await client.list_offsets(TOPIC, max(times.values()) + 1))[0]
        assert (late.found, late.offset) == (False, END_OFFSET)


async def test_fetches(node: str) -> None:
    async with asyncio.timeout(WAIT_S), Client(node) as client:
        for start in range(END_OFFSET):
            offset, found = start, list[int]()
            while offset < END_OFFSET:
                fetched = await client.fetch(TOPIC, 0, offset, max_bytes=1)
                found += [record.offset for batch in fetched.batches for record in batch]
                assert fetched.next_offset > offset
                offset = fetched.next_offset
            assert found == survivors_from(start)


def test_blocking_consumers(node: str) -> None:
    with sync.Client(node) as client, client.consumer(TOPIC, group="blocking", start="earliest") as consumer:
        records = [next(consumer) for _ in SURVIVORS[:4]]
        assert [record.offset for record in records] == list(SURVIVORS[:4])
        assert consumer.commit()[TopicPartition(TOPIC, 0)].next_offset == 20, "after the remaining records of the batch"
        batches = consumer.batches()
        columns: Any = next(batches).to_arrow()
        assert columns.column("offset").to_pylist() == [40]
        assert next(batches).batch.offsets().to_pylist() == [60, 61]


def test_the_command(node: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """The consumer reaches the end although no record precedes it, and the group has no lag then."""
    options = ["--bootstrap", node]
    assert main(["consume", TOPIC, "--json", "--from", "7", *options]) == 0
    printed = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [record["offset"] for record in printed] == survivors_from(7)
    assert [record["value"] for record in printed] == [str(each) for each in survivors_from(7)]
    assert main(["consume", TOPIC, "--group", "readers", "--max", "3", *options]) == 0
    assert main(["consume", TOPIC, "--group", "readers", *options]) == 0
    assert [int(line) for line in capsysbinary.readouterr().out.split()] == list(SURVIVORS)
    assert main(["group", "describe", "readers", "--json", *options]) == 0
    told = json.loads(capsysbinary.readouterr().out)
    assert '"lag": 0' in json.dumps(told)


async def test_http(gateway: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://{gateway}", timeout=WAIT_S) as http:
        for records_max in (1, 2, 100):
            offset, found = 0, list[int]()
            while offset < END_OFFSET:
                params = {"offset": offset, "max_records": records_max}
                body = (await http.get(f"/v1/topics/{TOPIC}/partitions/0/records", params=params)).json()
                assert all(record["value"] == str(record["offset"]) for record in body["records"])
                found += [record["offset"] for record in body["records"]]
                assert body["next_offset"] > offset
                offset = body["next_offset"]
            assert found == list(SURVIVORS)


async def test_websocket(gateway: str) -> None:
    subprotocols = [Subprotocol("tidelog.v1.json")]
    async with asyncio.timeout(WAIT_S), connect(f"ws://{gateway}/v1/ws", subprotocols=subprotocols) as socket:
        credit = {"records": 3, "bytes": 1000}
        subscribe = {"sid": 1, "topic": TOPIC, "group": "sockets", "from": "earliest", "credit": credit}
        await socket.send(json.dumps({"id": 1, "sub": subscribe}))
        assert json.loads(await socket.recv())["ok"]["offsets"] == {"0": 0}
        found, next_offset = list[int](), 0
        while next_offset < END_OFFSET:
            batch = json.loads(await socket.recv())["batch"]
            found += [record["offset"] for record in batch["records"]]
            assert batch["next_offset"] > next_offset
            next_offset = batch["next_offset"]
            await socket.send(json.dumps({"credit": {"sid": 1, "records": len(batch["records"])}}))
        assert found == list(SURVIVORS)
        await socket.send(json.dumps({"id": 2, "commit": {"sid": 1, "offsets": {"0": next_offset}}}))
        assert json.loads(await socket.recv())["id"] == 2


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
async def test_spark(node: str) -> None:
    def read() -> list[list[tuple[int, bytes]]]:
        from pyspark_tidelog import local_spark  # noqa: PLC0415 - Java is started for one test alone

        session = local_spark("derived", memory_mb=512)
        try:
            source = session.read.format("tidelog").option("bootstrap", node).option("subscribe", TOPIC)
            frames = [source.load()]
            ends = json.dumps({TOPIC: {"0": 45}})
            frames.append(source.option("endingOffsets", ends).load())
            return [sorted((row.offset, bytes(row.value)) for row in frame.collect()) for frame in frames]
        finally:
            session.stop()

    whole, part = await asyncio.to_thread(read)
    assert whole == [(offset, b"%d" % offset) for offset in SURVIVORS]
    assert part == [(offset, b"%d" % offset) for offset in SURVIVORS if offset < 45]
