from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidelog.errors import DataLossError, TidelogSourceError
from pyspark_tidelog.offsets import Bounds, TopicPartition
from pyspark_tidelog.stream_offsets import (
    Losses,
    PartitionBounds,
    StreamPosition,
    advance,
    backlog_of,
    parse_position,
    ranges_between,
    shares,
    with_new_partitions,
)
from tidelog.requests.offset_ranges import OffsetRange

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDS = {"a": "0a", "b": "0b"}
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b", "c/é"]), st.integers(0, 12))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**62))


def bounds_at(**ends: int) -> PartitionBounds:
    """`a0=5`: partition 0 of topic a holds offsets 0 to 4."""
    bounds = {TopicPartition(name[0], int(name[1:])): Bounds(0, end) for name, end in ends.items()}
    return PartitionBounds(bounds, {at.topic: IDS[at.topic] for at in bounds})


def losses(told: list[str] | None = None) -> Losses:
    return Losses(fail=told is None, warn=lambda what: None if told is None else told.append(what))


@given(OFFSETS, st.dictionaries(st.sampled_from(["a", "b", "c/é", "other"]), st.just("00ff")))
def test_a_position_comes_back_from_a_checkpoint(offsets: dict[TopicPartition, int], topic_ids: dict[str, str]) -> None:
    text = json.dumps(StreamPosition(offsets, topic_ids).to_json())
    back = parse_position(json.loads(text))
    assert back.offsets == offsets
    assert json.dumps(back.to_json()) == text
    mixed = StreamPosition(dict(reversed(offsets.items())), topic_ids)
    assert json.dumps(mixed.to_json()) == text, "the same place is the same text"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (
            '{"a": {"0": 4, "1": 0, "id": "1189201c773140a5bc52b35d7603d47f"}}',
            StreamPosition({A0: 4, A1: 0}, {"a": "1189201c773140a5bc52b35d7603d47f"}),
        ),
        ('{"a": {"0": 4, "id": "0a", "schema": 3}}', StreamPosition({A0: 4}, {"a": "0a"}, {"a": 3})),
        (
            '{"a": {"0": 9223372036854775807, "id": "0a"}, "b": {"0": 10, "id": "0b"}}',
            StreamPosition({A0: 2**63 - 1, B0: 10}, IDS),
        ),
        ("{}", StreamPosition({}, {})),
    ],
)
def test_stored_positions_stay_readable(text: str, position: StreamPosition) -> None:
    """Frozen: such lines are in checkpoints of queries that stand still; nothing here is to be changed, only added."""
    assert parse_position(json.loads(text)) == position
    assert json.dumps(position.to_json()) == text, "Spark compares positions as texts"


def test_position_of_kafkas_source_has_no_ids() -> None:
    assert parse_position({"a": {"0": 23, "1": 7}}) == StreamPosition({A0: 23, A1: 7})


@pytest.mark.parametrize(
    "given", [None, [], 7, {"a": 3}, {"a": {"x": 3}}, {"a": {"0": -1}}, {"a": {"0": "7"}}, {"a": {"id": "xyz"}}]
)
def test_invalid_position_is_refused(given: object) -> None:
    with pytest.raises(TidelogSourceError, match="its own checkpointLocation"):
        parse_position(given)


def test_new_partitions_enter_in_a_batch_of_which_they_have_no_part() -> None:
    start = StreamPosition({A0: 3}, {"a": "0a"})
    there = PartitionBounds({A0: Bounds(0, 5), A1: Bounds(2, 9), B0: Bounds(0, 1)}, IDS)
    entered = advance(start, there, losses(), most=None)
    assert entered == StreamPosition({A0: 5, A1: 2, B0: 0}, IDS)
    assert ranges_between(start, entered) == [OffsetRange("a", 0, 3, 5)]
    read = advance(entered, there, losses(), most=None)
    assert ranges_between(entered, read) == [OffsetRange("a", 1, 2, 9), OffsetRange("b", 0, 0, 1)]
    assert advance(read, there, losses(), most=None).to_json() == read.to_json(), "nothing is new"


def test_missing_unread_records_are_a_loss() -> None:
    start = StreamPosition({A0: 3, A1: 4}, {"a": "0a"})
    for there, what in (
        (bounds_at(a0=3), "a-1 no longer exists"),
        (bounds_at(a0=3, a1=2), "a-1 ends at offset 2, before the stream's position 4"),
        (PartitionBounds(bounds_at(a0=9, a1=9).bounds, {"a": "ff"}), "deleted and recreated"),
    ):
        with pytest.raises(DataLossError, match=what):
            advance(start, there, losses(), most=None)
        told: list[str] = []
        end = advance(start, there, losses(told), most=None)
        assert len(told) == 1
        assert what in told[0]
        assert ranges_between(start, end) == []
        told.clear()
        after = advance(end, there, losses(told), most=None)
        again = advance(after, there, losses(told), most=None)
        assert again.to_json() == after.to_json(), "a query that takes what there is comes to its end"


def test_a_batch_whose_end_was_found_alone_begins_where_new_partitions_do() -> None:
    """As Spark before 4.2 asks: the end is behind records of what is new."""
    start = StreamPosition({A0: 3}, {"a": "0a"})
    end = StreamPosition({A0: 5, A1: 9, B0: 1}, IDS)
    there = PartitionBounds({A0: Bounds(0, 6), A1: Bounds(2, 9)}, IDS)  # topic b is gone again
    begin = with_new_partitions(start, end, lambda: there, losses())
    assert ranges_between(begin, end) == [
        OffsetRange("a", 0, 3, 5),
        OffsetRange("a", 1, 2, 9),
        OffsetRange("b", 0, 0, 1),
    ]
    assert with_new_partitions(end, end, pytest.fail, losses()) == end, "nothing is new, so no request is needed"


def test_batch_with_an_independent_end_reports_losses() -> None:
    start = StreamPosition({A0: 3}, {"a": "0a"})
    for end, what, ranges in (
        (StreamPosition({}), "a-0 no longer exists", []),
        (StreamPosition({A0: 2}, {"a": "0a"}), "a-0 ends at offset 2, before the stream's position 3", []),
        (StreamPosition({A0: 9}, {"a": "ff"}), "deleted and recreated", [OffsetRange("a", 0, 0, 9)]),
    ):
        with pytest.raises(DataLossError, match=what):
            with_new_partitions(start, end, lambda: bounds_at(a0=9), losses())
        told: list[str] = []
        assert ranges_between(with_new_partitions(start, end, lambda: bounds_at(a0=9), losses(told)), end) == ranges
        assert len(told) == 1


def test_a_topic_made_again_is_read_from_its_beginning_where_losses_may_be() -> None:
    start = StreamPosition({A0: 3}, {"a": "0a"})
    there = PartitionBounds({A0: Bounds(0, 9)}, {"a": "ff"})
    end = advance(start, there, losses([]), most=None)
    assert end == StreamPosition({A0: 0}, {"a": "ff"})
    assert ranges_between(end, advance(end, there, losses(), most=None)) == [OffsetRange("a", 0, 0, 9)]
    elsewhere = StreamPosition({A0: 3})
    assert ranges_between(elsewhere, advance(elsewhere, there, losses(), most=None)) == [OffsetRange("a", 0, 3, 9)]


@pytest.mark.parametrize("topic_id", ["0a", "0a0b0c", "0a0b0d"])
def test_topic_made_again_under_a_similar_id_is_another_topic(topic_id: str) -> None:
    start = StreamPosition({A0: 3}, {"a": "0a0b"})
    there = PartitionBounds({A0: Bounds(5, 9)}, {"a": topic_id})
    with pytest.raises(DataLossError, match="deleted and recreated"):
        advance(start, there, losses(), most=None)
    end = advance(start, there, losses([]), most=None)
    assert end == StreamPosition({A0: 5}, {"a": topic_id})
    assert ranges_between(start, end) == [], "offsets 3 to 4 belong to the topic that was deleted"


def test_backlog_that_just_fits_is_read_whole() -> None:
    assert shares({A0: 3, A1: 4}, 7) == {A0: 3, A1: 4}
    assert shares({A0: 3, A1: 4}, 6) == {A0: 2, A1: 3}


@given(st.dictionaries(PARTITIONS, st.integers(0, 10**12)), st.integers(1, 10**12) | st.none())
def test_shares(backlog: dict[TopicPartition, int], most: int | None) -> None:
    taken = shares(backlog, most)
    assert taken.keys() == backlog.keys()
    assert all((0 < taken[at] <= count) if count else taken[at] == 0 for at, count in backlog.items())
    if most is None:
        assert taken == backlog
    else:
        assert sum(taken.values()) <= most + len(backlog)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), max_size=8), st.integers(1, 20))
def test_batches_follow_one_another_without_gap_or_overlap(growth: list[tuple[int, int]], most: int) -> None:
    position = StreamPosition({A0: 0}, {"a": "0a"})
    ends = {0: 0}
    read: dict[int, list[int]] = {}
    for records, partition in [*growth, *[(0, 0)] * 500]:
        for new in range(partition + 1):
            ends.setdefault(new, 0)
        ends[partition] += records
        there = PartitionBounds({TopicPartition("a", p): Bounds(0, end) for p, end in ends.items()}, {"a": "0a"})
        following = advance(position, there, losses(), most=most)
        assert backlog_of(position, following) <= most + len(ends)
        for wanted in ranges_between(position, following):
            read.setdefault(wanted.partition, []).extend(range(wanted.start, wanted.end))
        position = following
    assert read == {p: list(range(end)) for p, end in ends.items() if end}
