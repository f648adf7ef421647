"""Requests of each Spark call, with exactly the permissions that they need, and with all others."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource
from tests.access_table import SPARK, spark_needs
from tests.broker.keyed import ADMIN, client
from tests.broker.stand import Stand
from tests.private_files import keep_private
from tests.spark import conftest

from pyspark_tidelog.errors import ChangedRowsError, TidelogSourceError
from pyspark_tidelog.options import parse_options
from pyspark_tidelog.sink import TaskResult, TidelogStreamWriter, TidelogWriter
from pyspark_tidelog.source import DefaultSource, TidelogReader
from pyspark_tidelog.stream import TidelogStreamReader
from pyspark_tidelog.task import KEPT
from pyspark_tidelog.write_options import parse_write_options
from pyspark_tidelog.write_task import TaskStart, write_rows
from tidelog import Client
from tidelog.errors import ForbiddenError
from tidelog.produce.work import Work
from tidelog.security import AccessRule
from tidelog_broker.core.security.permissions import OPERATIONS, operation_name
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb

PLAN, PLAN_STREAM, READ, WRITE, WRITE_AGAIN, END = SPARK
SCHEMA = pa.schema([pa.field("value", pa.binary())])
NUMBERS = itertools.count()

NOTHING = "does not authenticate"
CALLS: dict[type, dict[str, tuple[str, ...] | str]] = {
    DefaultSource: dict.fromkeys(("name", "schema", "reader", "streamReader", "writer", "streamWriter"), NOTHING),
    TidelogReader: {"partitions": (PLAN,), "read": (READ,)},
    TidelogStreamReader: {
        "initialOffset": (PLAN_STREAM,),
        "latestOffset": (PLAN_STREAM,),
        "reportLatestOffset": (PLAN_STREAM,),
        "prepareForTriggerAvailableNow": (PLAN_STREAM,),
        "partitions": (PLAN_STREAM,),
        "read": (READ,),
        "getDefaultReadLimit": NOTHING,
        "stop": NOTHING,
    },
    TidelogWriter: {"write": (WRITE, WRITE_AGAIN)},
    TidelogStreamWriter: {"write": (WRITE, WRITE_AGAIN), "commit": (END,), "abort": NOTHING},
}
"""Methods of the connector that Spark calls, and their rows in the table."""


def test_each_method_has_a_row() -> None:
    made = {name for name in dir(DataSource) if not name.startswith("_")} & vars(DefaultSource).keys()
    assert made == CALLS[DefaultSource].keys(), "a new kind of reader or writer needs a row"
    for called, rows in CALLS.items():
        assert rows.keys() == {name for name in vars(called) if not name.startswith("_")}, called
    used = {row for rows in CALLS.values() for named in rows.values() if named != NOTHING for row in named}
    assert used == SPARK.keys()


class Asked(NamedTuple):
    """One thing that Spark does; `do` takes the options of who does it, and returns what comes of it."""

    row: str
    do: Callable[[dict[str, str]], Any]
    comes: Any


def plan(options: dict[str, str]) -> Any:
    return TidelogReader(parse_options({**options, "subscribe": "in"}), SCHEMA).partitions()


def read(planned: Any, options: dict[str, str], *, streaming: bool) -> Any:
    kind = TidelogStreamReader if streaming else TidelogReader
    reader = kind(parse_options({**options, "subscribe": "in"}, streaming=streaming), SCHEMA)
    try:
        return [row for batch in pickle.loads(pickle.dumps(reader)).read(planned) for row in batch["value"].to_pylist()]
    finally:
        KEPT.close()


def stream(ask: Callable[[TidelogStreamReader], Any], options: dict[str, str]) -> Any:
    reader = TidelogStreamReader(parse_options({**options, "subscribe": "in"}, streaming=True), SCHEMA)
    try:
        return ask(reader)
    finally:
        reader.stop()


def write(work: Callable[[], Work], options: dict[str, str], *values: bytes) -> Any:
    rows = pa.record_batch({"value": pa.array([b"written", *values], pa.binary())})
    return asyncio.run(write_rows(iter([rows]), parse_write_options({**options, "topic": "out"}), work())).rows


def end(options: dict[str, str]) -> Any:
    """End a micro-batch whose earlier attempt had another first task; return the error."""
    starts = (TaskStart("out", was_tried=True, tasks=2),)
    try:
        TidelogStreamWriter(parse_write_options({**options, "topic": "out"})).commit(
            [TaskResult(1, 1, starts, "q", 0)], 0
        )
    except ChangedRowsError as error:
        return "an earlier attempt of this micro-batch divided its rows" in str(error)
    return None


def new_work() -> Work:
    return Work(f"job/{next(NUMBERS)}", 0)


def all_of_it(planned: Any, position: Any, work: Work) -> list[Asked]:
    """Return all that Spark does; `work` was done before."""

    def target(reader: TidelogStreamReader) -> Any:
        reader.prepareForTriggerAvailableNow()
        return reader.latestOffset(position)["in"]["0"]

    return [
        Asked(PLAN, lambda options: len(plan(options)), 1),
        Asked(READ, partial(read, planned, streaming=False), [b"a record"]),
        Asked(READ, partial(read, planned, streaming=True), [b"a record"]),
        Asked(PLAN_STREAM, partial(stream, lambda reader: reader.initialOffset()["in"]["0"]), 1),
        Asked(PLAN_STREAM, partial(stream, lambda reader: reader.latestOffset(position)["in"]["0"]), 1),
        Asked(PLAN_STREAM, partial(stream, lambda reader: reader.reportLatestOffset().get("in", {}).get("0")), 1),
        Asked(PLAN_STREAM, partial(stream, target), 1),
        Asked(WRITE, partial(write, new_work), 1),
        Asked(WRITE_AGAIN, lambda options: write(lambda: work, options, b"was not stored"), 2),
        *([Asked(END, end, True)] if conftest.SPARK >= (4, 1) else []),
    ]


@dataclass(frozen=True, slots=True)
class World:
    """A node that asks who calls, and its administrator."""

    node: Node
    admin: Client
    path: Path

    async def who(
        self, principal: str, operations: Iterable[pb.Operation], denied: pb.Operation | None = None
    ) -> dict[str, str]:
        """Return the options of a principal with these permissions on all topics."""
        for operation in operations:
            await self._grant(principal, operation, deny=False)
        if denied is not None:
            await self._grant(principal, denied, deny=True)
        path = self.path / principal
        keep_private(path, (await self.admin.security.create_key(principal)).api_key)
        return {"bootstrap": f"127.0.0.1:{self.node.port}", "apiKeyFile": str(path)}

    async def _grant(self, principal: str, operation: pb.Operation, *, deny: bool) -> None:
        rule = AccessRule(principal, (operation_name(operation),), "topic", "", prefix=True, deny=deny)
        await self.admin.security.grant(rule)


def came(do: Callable[[dict[str, str]], Any], options: dict[str, str]) -> Any:
    """Return the result; None for an error or an empty result, as for topics that the caller may not see."""
    try:
        return do(options)
    except (ForbiddenError, TidelogSourceError):
        return None


def counted(node: Node) -> dict[str, float]:
    """Return how many requests of each kind came so far."""
    (family,) = node.broker.metrics.requests.collect()
    return {sample.labels["kind"]: sample.value for sample in family.samples if sample.name.endswith("_total")}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    stand = Stand(tmp_path / "node")
    key_file = tmp_path / "admin"
    keep_private(key_file, ADMIN)
    try:
        node = await stand.start(auth="required", admin_key_file=key_file)
        async with client(node.port, ADMIN) as admin:
            for name in ("in", "out"):
                await admin.create_topic(name)
            await admin.producer("in").send(b"a record")
            yield World(node, admin, tmp_path)
    finally:
        await stand.close()


async def test_each_thing_that_spark_does_sends_what_its_row_says_and_needs_that_alone(world: World) -> None:
    everything = await world.who("all", OPERATIONS[pb.RES_TOPIC])
    (planned,) = await asyncio.to_thread(plan, everything)
    begins = partial(stream, lambda reader: reader.initialOffset())
    position = await asyncio.to_thread(begins, {**everything, "startingOffsets": "earliest"})
    work = new_work()
    await asyncio.to_thread(write, lambda: work, everything)
    await asyncio.to_thread(write, lambda: Work("spark/q", 0, 1), everything)
    for number, (row, do, comes) in enumerate(all_of_it(planned, position, work)):
        needs = spark_needs(row)
        only = await world.who(f"only-{number}", needs)
        before = counted(world.node)
        assert await asyncio.to_thread(do, only) == comes, row
        sent = {kind for kind, count in counted(world.node).items() if count > before.get(kind, 0)}
        assert sent - {"hello"} == set(SPARK[row]), (row, number)
        for lacked in needs:
            lacking = await world.who(f"not-{number}-{lacked}", OPERATIONS[pb.RES_TOPIC], lacked)
            assert await asyncio.to_thread(came, do, lacking) is None, (row, number, lacked)
