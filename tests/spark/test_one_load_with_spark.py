"""Scans of one `load()` do not affect each other: sequences of uses of one frame, with a real node and a real Spark.

Each use is compared with the same use of a frame of the same rows without a data source.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from tests.spark.conftest import Node

import tidelog
from pyspark_tidelog.pushdown import SETTING
from tidelog.sync import Client

pytestmark = pytest.mark.spark

PARTITIONS, ROWS = 2, 30
BASE_S = 1_700_000_000
FILTERS = (
    "offset < 3",
    "offset >= 17 AND offset < 26",
    "offset = 5 OR partition = 1",
    "partition = 1",
    "partition IN (0, 7)",
    "topic = 'another'",
    "key = CAST('k1' AS BINARY)",
    "tag = 'red'",
    f"timestamp < timestamp_seconds({BASE_S + 7})",
    f"timestamp >= timestamp_seconds({BASE_S + 21}) AND partition = 0",
    "value IS NOT NULL AND offset % 7 = 3",
)
PLACE = ["partition", "offset"]
QUERIES = (
    "SELECT * FROM frame WHERE offset < (SELECT max(offset) - 20 FROM frame WHERE partition = 0)",
    "SELECT * FROM frame WHERE offset IN (SELECT offset FROM frame WHERE key = CAST('k2' AS BINARY))",
    "WITH few AS (SELECT * FROM frame WHERE offset < 4) SELECT a.* FROM frame a JOIN few b USING (partition, offset)",
)

Rows = list[tuple[Any, ...]]
Use = Callable[[DataFrame], DataFrame]


@pytest.fixture(scope="module")
def topic(node: Node) -> str:
    """Records with keys, tags, and timestamps a second apart."""
    name = f"t-{uuid.uuid4().hex}"
    with Client(node.address) as client:
        client.create_topic(name, partitions=PARTITIONS, flush="never")
        with client.producer(name) as producer:
            for partition in range(PARTITIONS):
                for start in range(0, ROWS, 10):
                    numbers = range(start, start + 10)
                    stamps = pa.array([(BASE_S + n) * 1_000_000 for n in numbers]).cast(pa.timestamp("us", "UTC"))
                    columns = {
                        "value": [b"%d/%d" % (partition, n) for n in numbers],
                        "key": [b"k%d" % (n % 4) for n in numbers],
                        "tag": ["red" if n % 3 else "blue" for n in numbers],
                        "timestamp": stamps,
                    }
                    producer.send_arrow(pa.table(columns), partition=partition)
                    producer.flush()
    return name


@pytest.fixture(params=["on", "off"])
def pushdown(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    before = spark.conf.get(SETTING, "false")
    spark.conf.set(SETTING, "true" if request.param == "on" else "false")
    yield request.param
    spark.conf.set(SETTING, str(before))


@pytest.fixture
def load(node: Node, spark: SparkSession, topic: str) -> Callable[[], DataFrame]:
    reading = spark.read.format("tidelog").options(bootstrap=node.address, subscribe=topic, includeTags="true")
    return reading.load


@pytest.fixture(scope="module")
def kept(node: Node, spark: SparkSession, topic: str) -> DataFrame:
    """The rows of one read without push-down, as a frame without a data source."""
    assert spark.conf.get(SETTING, "false") == "false", "local_spark leaves it off"
    reading = spark.read.format("tidelog").options(bootstrap=node.address, subscribe=topic, includeTags="true")
    read = reading.load()
    rows = read.collect()
    assert len(rows) == PARTITIONS * ROWS
    return spark.createDataFrame(rows, read.schema)


@pytest.mark.usefixtures("pushdown")
def test_a_count_after_a_filtered_count_has_all_rows(load: Callable[[], DataFrame]) -> None:
    frame = load()
    assert frame.where("offset < 3").count() == 3 * PARTITIONS
    assert frame.count() == ROWS * PARTITIONS


@pytest.mark.usefixtures("pushdown")
def test_a_write_after_a_filtered_count_stores_all_rows(
    load: Callable[[], DataFrame], node: Node, client: Client
) -> None:
    frame = load()
    assert frame.where("offset < 3").count() == 3 * PARTITIONS
    assert len(written(frame, node, client)) == ROWS * PARTITIONS


def test_a_frame_that_is_written_twice_is_stored_twice(
    load: Callable[[], DataFrame], node: Node, client: Client, topic: str
) -> None:
    name = f"{topic}-twice"
    client.create_topic(name, flush="never")
    writing = load().select("value").write.format("tidelog").options(bootstrap=node.address, topic=name)
    for _ in range(2):
        writing.mode("append").save()
    assert tidelog.read_arrow(name, bootstrap=node.address).read_all().num_rows == 2 * ROWS * PARTITIONS


@pytest.mark.usefixtures("pushdown")
def test_filtered_and_unfiltered_scans_of_one_query_have_their_own_rows(load: Callable[[], DataFrame]) -> None:
    frame = load()
    assert frame.where("offset < 3").unionAll(frame).count() == (3 + ROWS) * PARTITIONS
    joined = frame.where("offset < 3").join(frame.where("offset > 1"), PLACE)
    assert sorted(map(tuple, joined.select(*PLACE).collect())) == [(0, 2), (1, 2)]


@dataclass(frozen=True)
class Uses:
    """Random uses of one frame and one stream, of one load each.

    Attributes:
        node, client: where the topic is, and where rows are written.
        frame, stream: of the topic.
        kept: the same rows without a data source.
        directory: for checkpoints.
    """

    node: Node
    client: Client
    frame: DataFrame
    stream: DataFrame
    kept: DataFrame
    directory: Path

    def found_and_expected(self, chance: random.Random) -> tuple[str, Rows, Rows]:
        """Use the frame or the stream in a random way; return which, the rows that it has, and the right ones."""
        action = chance.choice(["rows", "rows", "count", "cached", "written", "streamed", "sql"])
        if action == "sql":
            query = chance.choice(QUERIES)
            return query, _answer(query, self.frame), _answer(query, self.kept)
        if action == "streamed":
            text, use_both = _streamed_use(chance)
            found = _streamed(use_both(self.stream, self.frame), self.directory / uuid.uuid4().hex)
            return f"streamed {text}", found, _places(use_both(self.kept, self.kept))
        text, use = _use(chance, depth=2)
        text, frame, expected = f"{action} {text}", use(self.frame), _places(use(self.kept))
        if action == "count":
            return text, [(frame.count(), 0)], [(len(expected), 0)]
        if action == "cached":
            return text, _cached(frame), expected
        return text, written(frame, self.node, self.client) if action == "written" else _places(frame), expected


@pytest.fixture
def uses(node: Node, client: Client, kept: DataFrame, topic: str, tmp_path: Path) -> Uses:
    spark = kept.sparkSession
    options = {"bootstrap": node.address, "subscribe": topic, "includeTags": "true"}
    frame = spark.read.format("tidelog").options(**options).load()
    stream = spark.readStream.format("tidelog").options(**options, startingOffsets="earliest").load()
    return Uses(node, client, frame, stream, kept, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_uses_of_one_load_has_the_rows_of_a_read_without_pushdown(
    seed: int, pushdown: str, uses: Uses
) -> None:
    chance = random.Random(seed)
    done: list[str] = []
    for _ in range(6):
        text, found, expected = uses.found_and_expected(chance)
        done.append(text)
        assert found == expected, f"push-down {pushdown}: {done}"


def _use(chance: random.Random, depth: int) -> tuple[str, Use]:
    """Return a random use of a frame, whose rows are some of the frame's, perhaps repeated, and its description."""
    kind = chance.choice(["all", "where", "where", "first", "union", "join", "without"]) if depth else "all"
    if kind == "all":
        return "all", lambda frame: frame
    text, use = _use(chance, depth - 1)
    if kind == "where":
        condition = chance.choice(FILTERS)
        return f"({text} where {condition})", lambda frame: use(frame).where(condition)
    if kind == "first":
        return f"(first 5 of {text})", lambda frame: use(frame).orderBy(*PLACE).limit(5)
    other_text, other = _use(chance, depth - 1)
    if kind == "union":
        return f"({text} union {other_text})", lambda frame: use(frame).unionAll(other(frame))
    how = "left_semi" if kind == "join" else "left_anti"
    return (
        f"({text} {how} {other_text})",
        lambda frame: use(frame).join(other(frame), PLACE, how).select(*frame.columns),
    )


def _streamed_use(chance: random.Random) -> tuple[str, Callable[[DataFrame, DataFrame], DataFrame]]:
    """Return a random use of a stream and a frame of the same rows."""
    one, other = chance.choice(FILTERS), chance.choice(FILTERS)
    kind = chance.choice(["where", "union", "join"])
    if kind == "where":
        return f"where {one}", lambda stream, _: stream.where(one)
    if kind == "union":
        return f"where {one} union where {other}", lambda stream, _: stream.where(one).unionAll(stream.where(other))
    text = f"where {one} join where {other}"
    return text, lambda stream, frame: stream.where(one).join(frame.where(other), PLACE, "left_semi")


def _places(frame: DataFrame) -> Rows:
    return sorted(map(tuple, frame.select(*PLACE).collect()))


def _answer(query: str, frame: DataFrame) -> Rows:
    frame.createOrReplaceTempView("frame")
    return _places(frame.sparkSession.sql(query))


def _cached(frame: DataFrame) -> Rows:
    frame = frame.cache()
    first = _places(frame)
    assert frame.count() == len(first)
    assert _places(frame) == first
    frame.unpersist()
    return first


def written(frame: DataFrame, node: Node, client: Client) -> Rows:
    """Write a frame into a new topic, and return the rows that it stores."""
    name = f"w-{uuid.uuid4().hex}"
    client.create_topic(name, flush="never")
    values = frame.select(sql.concat_ws("/", *PLACE).alias("value"))
    values.write.format("tidelog").options(bootstrap=node.address, topic=name).mode("append").save()
    stored = tidelog.read_arrow(name, bootstrap=node.address, columns=["value"]).read_all()
    client.delete_topic(name)
    return sorted(tuple(map(int, (value or b"").split(b"/"))) for value in stored.column("value").to_pylist())


def _streamed(frame: DataFrame, directory: Path) -> Rows:
    """Run a stream over what there is, and return the rows that its micro-batches had."""
    name = f"s{uuid.uuid4().hex}"
    writing = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(directory))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    return _places(frame.sparkSession.table(name))
