"""Readers of every kind get the bounds of lost records: they neither wait for those nor skip them silently."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from tests.e2e.lost_records import LOST_FROM, TOPIC, Loss, lost_records
from tests.gateway.conftest import process
from websockets.sync.client import connect
from websockets.typing import Subprotocol

import tidelog
from tidelog import sync
from tidelog.errors import OffsetOutOfRangeError, ProducerFencedError
from tidelog.subscriptions.consumer_options import OnOutOfRange
from tidelog.tables.read_arrow import read_arrow

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def loss(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loss]:
    with lost_records(tmp_path_factory.mktemp("loss")) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(loss: Loss) -> Iterator[str]:
    """The address of a gateway of these nodes."""
    with process("gateway", "--bootstrap", loss.bootstrap, "--http-port", "0") as (_, ready):
        yield f"127.0.0.1:{ready['http_port']}"


@pytest.fixture
def client(loss: Loss) -> Iterator[sync.Client]:
    with sync.Client(loss.bootstrap) as client:
        yield client


@contextmanager
def lost(loss: Loss) -> Iterator[None]:
    """Require the error for the lost records."""
    with pytest.raises(
        OffsetOutOfRangeError, match=f"DATA_LOSS: offsets {LOST_FROM} to {loss.resume - 1} are lost"
    ) as refused:
        yield
    assert refused.value.log_start_offset == loss.resume
    assert f"continue at offset {loss.resume}" in str(refused.value)


def is_bounds(loss: Loss, problem: dict[str, Any]) -> bool:
    """Return whether a problem of the gateway has the bounds of the lost records."""
    is_named = f"offsets {LOST_FROM} to {loss.resume - 1} are lost" in problem["detail"]
    return is_named and (problem["code"], problem["log_start_offset"]) == ("offset_out_of_range", loss.resume)


# --- the Python client -----------------------------------------------------------------------------------


def test_fetch_ends_before_the_lost_records_and_is_refused_in_them(loss: Loss, client: sync.Client) -> None:
    found = client.fetch(TOPIC, 0, 0)
    assert [record.value for batch in found.batches for record in batch] == [b"a"]
    assert found.next_offset == LOST_FROM
    for offset in (LOST_FROM, loss.resume - 1):
        with pytest.raises(OffsetOutOfRangeError, match="DATA_LOSS") as refused:
            client.fetch(TOPIC, 0, offset)
        assert refused.value.log_start_offset == loss.resume
    assert client.fetch(TOPIC, 0, loss.resume).batches


def test_bounds_of_the_log_are_offsets_of_records_that_are_left(loss: Loss, client: sync.Client) -> None:
    assert client.list_offsets(TOPIC, "earliest")[0].offset == 0
    assert client.list_offsets(TOPIC, "latest")[0].offset == loss.resume + 1


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
async def test_consumer_follows_its_policy(loss: Loss, policy: OnOutOfRange) -> None:
    async with (
        asyncio.timeout(PATIENCE_S),
        tidelog.Client(loss.bootstrap) as client,
        client.consumer(TOPIC, start="earliest", on_out_of_range=policy) as consumer,
    ):
        assert [record.offset for record in await consumer.poll(1, timeout_s=PATIENCE_S)] == [0]
        if policy == "error":
            with lost(loss):
                await consumer.poll(1, timeout_s=PATIENCE_S)
        elif policy == "earliest":
            assert [one.offset for one in await consumer.poll(1, timeout_s=PATIENCE_S)] == [loss.resume]
        else:
            assert not await consumer.poll(1, timeout_s=1), "it waits for the next record"


def test_blocking_consumer_of_a_group_stays_before_the_lost_records_or_continues_after_them(
    loss: Loss, client: sync.Client
) -> None:
    with client.consumer(TOPIC, group="g") as consumer:
        assert [record.value for record in consumer.poll(1, timeout_s=PATIENCE_S)] == [b"a"]
        consumer.commit()
        with lost(loss):
            consumer.poll(1, timeout_s=PATIENCE_S)
    assert [held.next_offset for held in client.committed("g")] == [LOST_FROM]
    with client.consumer(TOPIC, group="g") as consumer, lost(loss):
        consumer.poll(1, timeout_s=PATIENCE_S)
    with client.consumer(TOPIC, group="g", on_out_of_range="earliest") as consumer:
        assert [record.value for record in consumer.poll(1, timeout_s=PATIENCE_S)] == [b"c"]
        consumer.commit()
    assert [held.next_offset for held in client.committed("g")] == [loss.resume + 1]


def test_position_in_the_lost_records_can_be_committed(loss: Loss, client: sync.Client) -> None:
    for offset in (LOST_FROM, loss.resume - 1, loss.resume):
        client.commit("h", TOPIC, {0: offset})
        assert [held.next_offset for held in client.committed("h")] == [offset]


def test_filtered_consumer_gets_the_error(loss: Loss, client: sync.Client) -> None:
    with client.consumer(TOPIC, start="earliest", key=b"none") as consumer, lost(loss):
        consumer.poll(1, timeout_s=PATIENCE_S)


def test_newest_record_of_a_key_is_the_newest_that_is_left(client: sync.Client) -> None:
    record = client.get(TOPIC, b"k")
    assert record is not None
    assert record.value == b"c"


def test_table_is_refused_with_the_offsets_and_read_after_them(loss: Loss) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=f"offsets {LOST_FROM} to {loss.resume - 1} .*{loss.resume}"):
        read_arrow(TOPIC, bootstrap=loss.bootstrap).read_all()
    table = read_arrow(TOPIC, bootstrap=loss.bootstrap, since={0: loss.resume}).read_all()
    assert table.column("value").to_pylist() == [b"c"]


def test_producer_continues_and_one_with_a_name_ends(loss: Loss) -> None:
    assert loss.resume > LOST_FROM + 1, "a producer whose records are lost gets offsets after them"
    assert isinstance(loss.named_error, ProducerFencedError)
    assert "no longer has the producer's sequence numbers" in str(loss.named_error)


# --- the command -----------------------------------------------------------------------------------------


def consume(loss: Loss, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidelog_cli", "consume", TOPIC, "--bootstrap", loss.bootstrap, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("options", [(), ("--follow",), ("--group", "c"), ("--group", "d", "--follow")])
def test_consume_command_ends_with_the_bounds(loss: Loss, options: tuple[str, ...]) -> None:
    done = consume(loss, *options)
    assert (done.stdout, done.returncode) == ("a\n", 1)
    assert f"offsets {LOST_FROM} to {loss.resume - 1} are lost" in done.stderr
    assert f"continue at offset {loss.resume}" in done.stderr


def test_consume_command_continues_at_the_offset(loss: Loss) -> None:
    done = consume(loss, "--from", str(loss.resume))
    assert (done.stdout, done.returncode) == ("c\n", 0)


# --- the gateway -----------------------------------------------------------------------------------------


def test_http_reads_of_a_partition(loss: Loss, gateway: str) -> None:
    path = f"http://{gateway}/v1/topics/{TOPIC}/partitions/0/records"
    page = httpx.get(path, params={"offset": 0}, timeout=PATIENCE_S).json()
    assert ([record["value"] for record in page["records"]], page["next_offset"]) == (["a"], LOST_FROM)
    for parameters in ({}, {"wait_ms": 1000}, {"key": "none"}):
        answer = httpx.get(path, params={"offset": LOST_FROM, **parameters}, timeout=PATIENCE_S)
        assert answer.status_code == 410
        assert is_bounds(loss, answer.json())
    page = httpx.get(path, params={"offset": loss.resume}, timeout=PATIENCE_S).json()
    assert [record["value"] for record in page["records"]] == ["c"]


def test_http_reads_of_a_topic(loss: Loss, gateway: str) -> None:
    path = f"http://{gateway}/v1/topics/{TOPIC}/records"
    page = httpx.get(path, timeout=PATIENCE_S).json()
    assert [record["value"] for record in page["records"]] == ["a"]
    gone = httpx.get(path, params={"cursor": page["next_cursor"]}, timeout=PATIENCE_S)
    assert gone.status_code == 410
    problem = gone.json()
    assert problem["gaps"] == [{"partition": 0, "offset": LOST_FROM, "log_start_offset": loss.resume}]
    assert f"offset {LOST_FROM}" in problem["detail"]
    page = httpx.get(path, params={"cursor": problem["next_cursor"]}, timeout=PATIENCE_S).json()
    assert [record["value"] for record in page["records"]] == ["c"]


def test_websocket_subscription_ends_with_the_bounds(loss: Loss, gateway: str) -> None:
    def values_of(start: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        with connect(f"ws://{gateway}/v1/ws", subprotocols=[Subprotocol("tidelog.v1.json")]) as socket:
            socket.send(json.dumps({"id": 1, "sub": {"sid": 1, "topic": TOPIC, "credit": {"records": 100}, **start}}))
            values: list[str] = []
            while True:
                message = json.loads(socket.recv(timeout=PATIENCE_S))
                values += [record["value"] for record in message.get("batch", {}).get("records", [])]
                if "end" in message or "error" in message or values[-1:] == ["c"]:
                    return values, message

    values, message = values_of({"from": "earliest"})
    assert (values, message["end"]["sid"]) == (["a"], 1)
    assert is_bounds(loss, message["end"]["error"])
    values, message = values_of({"from": "earliest", "resume": {"0": LOST_FROM}})
    assert values == []
    assert is_bounds(loss, message["end"]["error"])
    assert values_of({"from": "earliest", "resume": {"0": loss.resume}})[0] == ["c"]


class Event(NamedTuple):
    """A server-sent event."""

    name: str
    token: str
    data: Any

    @property
    def values(self) -> list[str]:
        """The values of its records."""
        return [record["value"] for record in self.data.get("records", [])]


def events_of(address: str, **parameters: str) -> Iterator[Event]:
    """Yield the events of a stream."""
    path = f"http://{address}/v1/topics/{TOPIC}/stream"
    with httpx.stream("GET", path, params=parameters, timeout=PATIENCE_S) as answer:
        assert answer.status_code == 200, answer.read()
        name = token = ""
        for line in answer.iter_lines():
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("id:"):
                token = line[3:].strip()
            elif line.startswith("data:"):
                yield Event(name, token, json.loads(line[5:]))
                name = ""


def test_event_stream_ends_with_the_bounds(loss: Loss, gateway: str) -> None:
    events = list(events_of(gateway, **{"from": "earliest"}))
    assert [value for event in events for value in event.values] == ["a"]
    assert events[-1].name == "end"
    assert is_bounds(loss, events[-1].data["error"])
    again = list(events_of(gateway, last_event_id=events[-1].token))
    assert [value for event in again for value in event.values] == []
    assert is_bounds(loss, again[-1].data["error"])
    after = events_of(gateway, last_event_id=events[-1].token, offsets=f"0:{loss.resume}")
    assert next(event.values for event in after if event.values) == ["c"]
