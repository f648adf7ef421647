from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proto.typed_batches import encoded

from tidelog.cluster.topic_schemas import TopicSchemas
from tidelog.errors import ConnectionLostError, NotOwnerError, TidelogError
from tidelog.model import TopicPartition
from tidelog.subscriptions.prefetch import Credit, Prefetch
from tidelog.subscriptions.subscription import Prefetched, Subscription
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import stamp_owner
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.schema_messages import message_of_schema
from tidelog_proto.schema.type_text import field_of_text
from tidelog_proto.wire.frames import Frame
from tidelog_proto.wire.pushed_events import PushedEvent

TOPIC = b"t" * 16
P0 = TopicPartition("t", 0)


class Recorder:
    """Records the events of a subscription."""

    def __init__(self) -> None:
        self.items: list[Prefetched] = []
        self.ended: list[tuple[list[int], TidelogError]] = []
        self.errors: list[TidelogError] = []
        self.credits: list[Credit] = []
        self.takes = 0
        self.taken: list[int] = []
        self.missing: list[tuple[TopicPartition, bytes, int]] = []

    def take_at_once(self, where: TopicPartition, batch: RecordBatch) -> bool:
        assert where.topic == "t"
        if len(self.taken) >= self.takes:
            return False
        self.taken.append(batch.base_offset)
        return True

    def prefetched(self, items: list[Prefetched]) -> None:
        self.items += items

    def detached(self, subscription: Subscription, partitions: Collection[TopicPartition], error: TidelogError) -> None:
        self.ended.append(([where.partition for where in partitions], error))

    def schema_missing(self, where: TopicPartition, topic_id: bytes, number: int) -> None:
        self.missing.append((where, topic_id, number))

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        self.errors.append(error)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def subscription(recorder: Recorder) -> Subscription:
    return subscribed(recorder, {0: 5})


def subscribed(recorder: Recorder, positions: dict[int, int], *, filtered: bool = False) -> Subscription:
    window = Prefetch(Credit(10, 10_000)).open()
    window.ready(recorder.credits.append)
    at = {TopicPartition("t", partition): offset for partition, offset in positions.items()}
    return Subscription({TOPIC: "t"}, at, window, recorder, filtered=filtered)


def stored(base_offset: int, count: int, *, control: bool = False) -> bytes:
    values: list[bytes | None] = [b"%d" % number for number in range(base_offset, base_offset + count)]
    data = bytearray(encode_batch(columns_of(values), now_us=1, control=control).to_bytes())
    stamp_owner(data, base_offset=base_offset, append_timestamp_us=1, epoch=0, owner_incarnation=1, previous_digest=0)
    return bytes(data)


def event(*batches: bytes, records: int, next_offset: int = 0, partition: int = 0, topic: bytes = TOPIC) -> PushedEvent:
    return PushedEvent(1, topic, partition, records, next_offset, next_offset, memoryview(b"".join(batches)))


def values(recorder: Recorder) -> list[bytes | None]:
    return [value for item in recorder.items for value in item.batch.values()]


def test_batches_are_trimmed_to_the_position_and_repeats_dropped(
    subscription: Subscription, recorder: Recorder
) -> None:
    subscription.pushed(event(stored(0, 3), stored(3, 4), stored(7, 2), records=9))
    assert values(recorder) == [b"5", b"6", b"7", b"8"]
    subscription.pushed(event(stored(7, 2), records=2))
    assert values(recorder) == [b"5", b"6", b"7", b"8"]
    assert subscription.positions == {P0: 9}


def test_control_batches_move_the_position_only(subscription: Subscription, recorder: Recorder) -> None:
    subscription.pushed(event(stored(5, 1, control=True), stored(6, 1), records=2))
    assert values(recorder) == [b"6"]
    assert subscription.positions == {P0: 7}


def test_event_sets_the_next_position(subscription: Subscription) -> None:
    subscription.pushed(event(stored(5, 1), records=1, next_offset=40))
    assert subscription.positions == {P0: 40}


def test_credit_is_returned_with_the_last_batch_and_sent_in_halves(
    subscription: Subscription, recorder: Recorder
) -> None:
    subscription.pushed(event(stored(5, 2), stored(7, 2), records=4))
    first, last = recorder.items
    assert first.credit is None
    assert last.credit is not None
    assert last.credit.records == 4
    subscription.window.give_back(last.credit)
    assert recorder.credits == []
    subscription.window.give_back(Credit(1, 10))
    assert recorder.credits == [Credit(5, last.credit.bytes + 10)]
    subscription.window.give_back(Credit(0, 5_000))
    assert recorder.credits[1:] == [Credit(0, 5_000)]


@pytest.mark.parametrize("takes", range(4))
def test_batches_processed_inline_precede_queued_ones(
    subscription: Subscription, recorder: Recorder, takes: int
) -> None:
    recorder.takes = takes
    subscription.pushed(event(stored(5, 2), stored(7, 2), stored(9, 1), records=5, next_offset=10))
    offsets = [5, 7, 9]
    assert recorder.taken == offsets[:takes]
    assert [item.batch.base_offset for item in recorder.items] == offsets[takes:]
    assert subscription.positions == {P0: 10}
    waiting = subscription.window.waiting
    assert waiting.records == (5 if takes < 3 else 0)
    assert [item.credit for item in recorder.items if item.credit is not None] == ([waiting] if takes < 3 else [])


def test_credit_of_inline_batches_is_sent_in_halves(subscription: Subscription, recorder: Recorder) -> None:
    recorder.takes = 9
    subscription.pushed(event(stored(5, 4), records=4, next_offset=9))
    assert recorder.credits == []
    subscription.pushed(event(stored(9, 1), records=1, next_offset=10))
    assert [credit.records for credit in recorder.credits] == [5]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4), st.booleans(), st.integers(0, 30)), max_size=6))
def test_single_batch_event_equals_the_general_path(events: list[tuple[int, int, bool, int]]) -> None:
    """The other subscription gets each batch after a repeated one, which it drops."""
    alone, repeated = Recorder(), Recorder()
    subscriptions = subscribed(alone, {0: 5}), subscribed(repeated, {0: 5})
    for base_offset, count, control, next_offset in events:
        data = stored(base_offset, count, control=control)
        subscriptions[0].pushed(event(data, records=count, next_offset=next_offset))
        subscriptions[1].pushed(event(stored(0, 1), data, records=count, next_offset=next_offset))
    assert values(alone) == values(repeated)
    assert subscriptions[0].positions == subscriptions[1].positions
    assert [str(error) for error in alone.errors] == [str(error) for error in repeated.errors]


@pytest.mark.parametrize("other", [{"partition": 3}, {"topic": b"x" * 16}])
def test_unwanted_batches_return_their_credit(
    subscription: Subscription, recorder: Recorder, other: dict[str, object]
) -> None:
    subscription.pushed(event(stored(5, 9), records=9, **other))  # type: ignore[arg-type] # parametrised
    assert recorder.items == []
    assert [credit.records for credit in recorder.credits] == [9]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [(stored(6, 1), "the node skipped records 5 to 5"), (stored(5, 1)[:-1], ""), (b"x" * 200, "")],
)
def test_damage_and_gaps_break_the_subscription(
    subscription: Subscription, recorder: Recorder, data: bytes, complaint: str
) -> None:
    subscription.pushed(event(data, records=1))
    (error,) = recorder.errors
    assert complaint in str(error)
    assert recorder.items == []


def test_detached_partition_is_reported_once(subscription: Subscription, recorder: Recorder) -> None:
    ended = pb.SubscriptionEnded(topic_id=TOPIC, partition=0, error=pb.Error(code=pb.NOT_OWNER))
    subscription.ended(ended)
    assert [(partitions, type(error)) for partitions, error in recorder.ended] == [([0], NotOwnerError)]
    subscription.positions.clear()
    subscription.end(P0, NotOwnerError("again"))
    subscription.connection_lost(ConnectionLostError("gone"))
    assert len(recorder.ended) == 1


def test_lost_connection_detaches_every_partition(recorder: Recorder) -> None:
    subscription = subscribed(recorder, {0: 1, 2: 3})
    subscription.connection_lost(ConnectionLostError("gone"))
    assert recorder.ended[0][0] == [0, 2]


def filtered(recorder: Recorder) -> Subscription:
    return subscribed(recorder, {0: 5}, filtered=True)


def test_filtered_range_advances_the_position(recorder: Recorder) -> None:
    subscription = filtered(recorder)
    subscription.pushed(event(stored(7, 2), stored(20, 1), records=3, next_offset=30))
    assert not recorder.errors
    assert values(recorder) == [b"7", b"8", b"20"]
    assert subscription.positions == {P0: 30}
    spans = [(item.batch.base_offset, item.batch.end_offset, len(item.batch)) for item in recorder.items]
    assert spans == [(7, 9, 2), (20, 21, 1), (21, 30, 0)]
    assert [item.credit is not None for item in recorder.items] == [False, False, True]


def test_event_without_records_advances_the_position(recorder: Recorder) -> None:
    subscription = filtered(recorder)
    subscription.pushed(event(records=0, next_offset=9))
    subscription.pushed(event(records=0, next_offset=9))
    assert [(item.batch.base_offset, item.batch.end_offset) for item in recorder.items] == [(5, 9)]
    subscription.pushed(event(records=0, next_offset=9 + 2**33))
    assert recorder.items[-1].batch.end_offset == 9 + 2**33
    assert subscription.positions == {P0: 9 + 2**33}


async def _no_node(make: object, *, repeatable: bool) -> Frame:
    raise AssertionError("nothing is asked")


def test_a_typed_batch_waits_for_its_schema(recorder: Recorder) -> None:
    schema = first_schema([field_of_text("a int8")])
    rows = pa.RecordBatch.from_pydict({"a": [1, 2]})
    batch = encoded(row_layout(schema), rows, base=5)
    schemas = TopicSchemas(_no_node)
    subscription = Subscription({TOPIC: "t"}, {P0: 6}, Prefetch(Credit(10, 10_000)).open(), recorder, schemas=schemas)
    subscription.pushed(event(batch, records=2, next_offset=7))
    assert (recorder.missing, recorder.items, recorder.errors) == ([(P0, TOPIC, 1)], [], [])
    assert subscription.positions == {P0: 6}
    schemas.note(TOPIC, message_of_schema(schema))
    subscription.pushed(event(batch, records=2, next_offset=7))
    (item,) = recorder.items
    assert (item.batch.layout, item.batch.base_offset, len(item.batch)) == (row_layout(schema), 6, 1)
