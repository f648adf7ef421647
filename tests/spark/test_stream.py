from __future__ import annotations

import pickle
import sys
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.clients.logs import FakeClient, FakeLog, numbered
from tests.spark.typed_frames import columns_of, evolved, schema_of

from pyspark_tidelog import DataLossError, OptionError, TidelogSourceError, task
from pyspark_tidelog.options import parse_options
from pyspark_tidelog.stream import TidelogStreamReader
from pyspark_tidelog.typed_topic import TypedTopic
from tidelog_proto.schema.topic_schema import Schema

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
except ImportError:
    pytest.skip("before Spark 4.2 streams have no limits", allow_module_level=True)

SCHEMA = pa.schema([pa.field("offset", pa.int64())])
ALL = ReadAllAvailable()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient({"t": [FakeLog([numbered(30)]), FakeLog()]})
    monkeypatch.setattr(task, "Client", fake)
    return fake


def reader(clock: Clock | None = None, **options: str) -> TidelogStreamReader:
    given = {"bootstrap": "a:1", "subscribe": "t", "startingOffsets": "earliest", **options}
    return TidelogStreamReader(parse_options(given, streaming=True), SCHEMA, clock or Clock())


def grow(fake: FakeClient, count: int, partition: int = 0) -> None:
    log = fake.logs["t"][partition]
    log.batches.append(numbered(count, log.end))


def at(fake: FakeClient, *offsets: int) -> dict[str, object]:
    by_partition: dict[str, int | str] = {str(p): offset for p, offset in enumerate(offsets)}
    return {"t": {**by_partition, "id": fake.topic("t").topic_id.hex()}}


def test_where_a_query_begins(fake: FakeClient) -> None:
    assert reader().initialOffset() == at(fake, 0, 0)
    assert reader(startingOffsets="latest").initialOffset() == at(fake, 30, 0)
    assert reader(startingOffsets='{"t":{"0":7,"1":-1}}').initialOffset() == at(fake, 7, 0)
    fake.logs["t"][0].deleted = 9
    with pytest.raises(DataLossError, match="offsets 7 to 8 are deleted"):
        reader(startingOffsets='{"t":{"0":7,"1":-1}}').initialOffset()
    missing = reader(subscribe="missing")
    with pytest.raises(OptionError, match="topic 'missing' does not exist"):
        missing.initialOffset()


def test_a_spark_that_knows_no_limits_reads_all_there_is(fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)  # as before Spark 4.2
    assert reader().latestOffset(at(fake, 4, 0)) == at(fake, 30, 0)


def test_a_batch_is_planned_alike_however_often_and_read_by_a_copy(fake: FakeClient) -> None:
    query = reader(minPartitions="3")
    start, end = at(fake, 4, 0), at(fake, 30, 0)
    assert query.latestOffset(start, ALL) == end
    grow(fake, 10)
    planned = [each.wanted for each in query.partitions(start, end)]
    assert planned == [each.wanted for each in reader(minPartitions="3").partitions(start, end)]
    travelled: TidelogStreamReader = pickle.loads(pickle.dumps(query))
    batches = [batch for each in query.partitions(start, end) for batch in travelled.read(each)]
    assert [offset for batch in batches for offset in batch.to_pydict()["offset"]] == list(range(4, 30))
    assert query.partitions(end, end) == []
    query.stop()
    query.stop()


def test_a_limit_is_spark_s_to_set(fake: FakeClient) -> None:
    query = reader(maxOffsetsPerTrigger="12")
    assert query.getDefaultReadLimit() == ReadMaxRows(12)
    assert reader().getDefaultReadLimit() == ALL
    assert query.latestOffset(at(fake, 0, 0), ReadMaxRows(12)) == at(fake, 12, 0)
    assert query.latestOffset(at(fake, 0, 0), ALL) == at(fake, 30, 0)
    assert query.reportLatestOffset() == at(fake, 30, 0)


def test_too_few_records_wait_but_not_for_ever(fake: FakeClient) -> None:
    clock = Clock()
    query = reader(clock, minOffsetsPerTrigger="40", maxTriggerDelay="30s")
    default = query.getDefaultReadLimit()
    assert default == ReadMinRows(40)
    start = at(fake, 0, 0)
    assert query.latestOffset(start, default) == start
    clock.now += 29
    assert query.latestOffset(start, default) == start
    clock.now += 1
    end = at(fake, 30, 0)
    assert query.latestOffset(start, default) == end
    grow(fake, 39)
    assert query.latestOffset(end, default) == end
    grow(fake, 1, partition=1)
    assert query.latestOffset(end, default) == at(fake, 69, 1)


def test_minimum_equal_to_the_maximum_is_reached_despite_rounding(fake: FakeClient) -> None:
    query = reader(minOffsetsPerTrigger="31", maxOffsetsPerTrigger="31")
    grow(fake, 30, partition=1)
    assert query.latestOffset(at(fake, 0, 0), query.getDefaultReadLimit()) == at(fake, 15, 15)


def test_request_for_all_records_does_not_wait(fake: FakeClient) -> None:
    at_least = reader(minOffsetsPerTrigger="40")
    for query in (at_least, reader(minOffsetsPerTrigger="40", maxOffsetsPerTrigger="60")):
        assert query.latestOffset(at(fake, 0, 0), query.getDefaultReadLimit()) == at(fake, 0, 0)
        assert query.latestOffset(at(fake, 0, 0), ALL) == at(fake, 30, 0), "trigger(once=True)"


def test_later_records_are_not_read_by_a_query_for_current_records(fake: FakeClient) -> None:
    query = reader(minOffsetsPerTrigger="1000")
    query.prepareForTriggerAvailableNow()
    grow(fake, 10)
    fake.logs["t"].append(FakeLog([numbered(3)]))
    assert query.latestOffset(at(fake, 0, 0), query.getDefaultReadLimit()) == at(fake, 30, 0)
    begun_later = reader(startingOffsets="latest")
    begun_later.prepareForTriggerAvailableNow()
    grow(fake, 10)
    fake.logs["t"].append(FakeLog([numbered(3)]))
    start = begun_later.initialOffset()
    assert begun_later.latestOffset(start, ALL) == start, "no loss: the target was taken earlier"


def test_loss_is_logged_once(fake: FakeClient, caplog: pytest.LogCaptureFixture) -> None:
    start = at(fake, 30, 0)
    fake.logs["t"].pop()
    with pytest.raises(DataLossError, match="t-1 no longer exists"):
        reader().latestOffset(start, ALL)
    lenient = reader(failOnDataLoss="false")
    for _ in range(3):
        assert lenient.latestOffset(start, ALL) == start
    assert caplog.text.count("t-1 no longer exists") == 1
    fake.logs.clear()
    assert lenient.latestOffset(start, ALL) == start, "a topic that is gone stays where it was"


def test_before_spark_4_2(fake: FakeClient) -> None:
    assert reader().latestOffset() == at(fake, 30, 0)
    with pytest.raises(OptionError, match=r"need Spark 4\.2"):
        reader(maxOffsetsPerTrigger="1").latestOffset()


CHAIN = [schema_of("n int8")]
CHAIN.append(evolved(CHAIN[0], add=["m int8"]))
CHAIN.append(evolved(CHAIN[1], widen={"n": "int16"}))


def typed_reader(fake: FakeClient, schema: Schema) -> TidelogStreamReader:
    columns = columns_of(schema)
    topic = TypedTopic("t", fake.topic("t").topic_id, schema)
    parsed = parse_options({"bootstrap": "a:1", "subscribe": "t", "startingOffsets": "earliest"}, streaming=True)
    return TidelogStreamReader(parsed, replace(columns, topic=topic), Clock())


def numbered_at(fake: FakeClient, number: int, *offsets: int) -> dict[str, object]:
    (position,) = at(fake, *offsets).values()
    assert isinstance(position, dict)
    return {"t": {**position, "schema": number}}


def test_positions_of_typed_topics_have_the_number_of_their_schema(
    fake: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeClient, "schema", lambda _, name, number: CHAIN[number - 1], raising=False)
    query = typed_reader(fake, CHAIN[1])
    start, end = numbered_at(fake, 2, 0, 0), numbered_at(fake, 2, 30, 0)
    assert query.initialOffset() == start
    assert query.latestOffset(start, ALL) == end
    assert [each.pinned for each in query.partitions(start, end)] == [None]
    assert query.latestOffset(end, ALL) == end
    restarted = typed_reader(fake, CHAIN[2])
    assert restarted.latestOffset(end, ALL) == end, "nothing is new, so no micro-batch follows from the new schema"
    (repeated,) = restarted.partitions(start, end)
    assert repeated.pinned == CHAIN[1]
    assert pickle.loads(pickle.dumps(repeated)).pinned == CHAIN[1]
    grow(fake, 5)
    following = numbered_at(fake, 3, 35, 0)
    assert restarted.latestOffset(end, ALL) == following
    assert [each.pinned for each in restarted.partitions(end, following)] == [None]
    assert [each.pinned for each in restarted.partitions(at(fake, 0, 0), at(fake, 9, 0))] == [None], (
        "of an older release"
    )


def test_a_frame_with_an_older_schema_than_its_checkpoint_is_refused(fake: FakeClient) -> None:
    older = typed_reader(fake, CHAIN[0])
    start, end = numbered_at(fake, 2, 0, 0), numbered_at(fake, 2, 30, 0)
    for call in (lambda: older.latestOffset(start, ALL), lambda: older.partitions(start, end)):
        with pytest.raises(
            TidelogSourceError, match=r"written with schema 2 .* and the DataFrame has schema 1: leave out"
        ):
            call()


def test_a_recreated_typed_topic_stops_the_query_even_if_losses_are_allowed(
    fake: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    query = typed_reader(fake, CHAIN[1])
    before = query.initialOffset()
    ended = numbered_at(fake, 2, 30, 0)
    fake.made["t"] = 1
    with pytest.raises(DataLossError, match="was deleted and recreated"):
        query.latestOffset(before, ALL)
    lenient = TidelogStreamReader(
        parse_options({"bootstrap": "a:1", "subscribe": "t", "failOnDataLoss": "false"}, streaming=True),
        replace(columns_of(CHAIN[1]), topic=TypedTopic("t", bytes.fromhex(str(id_in(before))), CHAIN[1])),
    )
    with pytest.raises(TidelogSourceError, match="for a stream, restart the query"):
        lenient.latestOffset(before, ALL)
    again = typed_reader(fake, CHAIN[0])
    assert [each.pinned for each in again.partitions(before, ended)] == [None], "tasks report its records as lost"


def id_in(position: object) -> object:
    assert isinstance(position, dict)
    return position["t"]["id"]
