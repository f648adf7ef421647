from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_tidelog.errors import DataLossError, OptionError
from pyspark_tidelog.offsets import (
    TASKS_MAX,
    Bounds,
    Lookup,
    TopicPartition,
    resolve,
    resolve_starts,
    select,
    select_present,
    split,
    times_of,
)
from pyspark_tidelog.options import (
    Assign,
    AtTimestamp,
    AtTimestamps,
    Edge,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    parse_options,
)
from tidelog.requests.offset_ranges import OffsetRange

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOUNDS = {P0: Bounds(10, 100), P1: Bounds(0, 50)}


def asked(**options: str) -> ReadOptions:
    return parse_options({"bootstrap": "a:1", "subscribe": "t", **options})


def planned(
    options: ReadOptions,
    *,
    bounds: dict[TopicPartition, Bounds] = BOUNDS,
    starting: dict[TopicPartition, Lookup] | None = None,
    ending: dict[TopicPartition, Lookup] | None = None,
) -> list[OffsetRange]:
    ranges, warnings = resolve(options, bounds, starting=starting or {}, ending=ending or {})
    assert options.fail_on_data_loss is False or not warnings
    return ranges


def test_selection() -> None:
    topics = {"a": 2, "b": 1, "ab": 1}
    assert select(Subscribe(("b", "a")), topics) == [*(TopicPartition("a", p) for p in (0, 1)), TopicPartition("b", 0)]
    assert select(SubscribePattern("a.?"), topics) == sorted(
        [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("ab", 0)]
    )
    assert select(Assign({"a": (1,)}), topics) == [TopicPartition("a", 1)]


@pytest.mark.parametrize("chosen", [select, select_present])
def test_pattern_matches_whole_names(chosen: Callable[..., list[TopicPartition]]) -> None:
    topics = {"a": 1, "ab": 1, "ba": 1, "b": 1}
    assert chosen(SubscribePattern("a"), topics) == [TopicPartition("a", 0)]
    assert chosen(SubscribePattern("a|b"), topics) == [TopicPartition("a", 0), TopicPartition("b", 0)]


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        (Subscribe(("a", "c")), "topic 'c' does not exist"),
        (Assign({"c": (0,)}), "topic 'c' does not exist"),
        (Assign({"a": (0, 2)}), "partitions 0 to 1"),
        (SubscribePattern("b"), "matches none of the"),
    ],
)
def test_a_selection_of_what_is_not_there_is_refused(
    selection: Subscribe | Assign | SubscribePattern, says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        select(selection, {"a": 2, "ab": 1})


def test_everything_there_is_by_default() -> None:
    assert planned(asked()) == [OffsetRange("t", 0, 10, 100), OffsetRange("t", 1, 0, 50)]


def test_offsets_with_the_ends_by_their_numbers() -> None:
    options = asked(startingOffsets='{"t":{"0":20,"1":-2}}', endingOffsets='{"t":{"0":-1,"1":7}}')
    assert planned(options) == [OffsetRange("t", 0, 20, 100), OffsetRange("t", 1, 0, 7)]


def test_empty_ranges_are_left_out() -> None:
    assert planned(asked(), bounds={P0: Bounds(5, 5), P1: Bounds(0, 1)}) == [OffsetRange("t", 1, 0, 1)]
    assert planned(asked(startingOffsets='{"t":{"0":30,"1":50}}', endingOffsets='{"t":{"0":30,"1":50}}')) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"t":{"0":20}}', "lacks t-1"), ('{"t":{"0":20,"1":0,"2":0}}', "has t-2"), ('{"u":{"0":20}}', "has u-0")],
)
def test_offsets_name_exactly_the_chosen_partitions(text: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        planned(asked(startingOffsets=text))
    with pytest.raises(OptionError, match=says):
        times_of(asked(endingOffsetsByTimestamp=text).ending, [P0, P1], "endingOffsetsByTimestamp")


def test_a_range_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(OptionError, match="before it starts"):
        planned(asked(startingOffsets='{"t":{"0":20,"1":9}}', endingOffsets='{"t":{"0":30,"1":8}}'))


@pytest.mark.parametrize(
    ("options", "says", "held"),
    [
        ({"startingOffsets": '{"t":{"0":3,"1":0}}'}, "offsets 3 to 9 are deleted", OffsetRange("t", 0, 10, 100)),
        ({"startingOffsets": '{"t":{"0":9,"1":0}}'}, "offsets 9 to 9 are deleted", OffsetRange("t", 0, 10, 100)),
        ({"startingOffsets": '{"t":{"0":101,"1":0}}'}, "offset 101 is after the partition's end", None),
        (
            {"endingOffsets": '{"t":{"0":101,"1":50}}'},
            "offset 101 is after the partition's end",
            OffsetRange("t", 0, 10, 100),
        ),
        (
            {"startingOffsets": '{"t":{"0":3,"1":0}}', "endingOffsets": '{"t":{"0":6,"1":50}}'},
            "offsets 3 to 5 are deleted",
            None,
        ),
    ],
)
def test_records_that_are_gone_fail_the_read_or_shorten_it(
    options: dict[str, str], says: str, held: OffsetRange | None
) -> None:
    with pytest.raises(DataLossError, match=says):
        planned(asked(**options))
    ranges, warnings = resolve(asked(**options, failOnDataLoss="false"), BOUNDS, starting={}, ending={})
    assert ranges == [*([held] if held else []), OffsetRange("t", 1, 0, 50)]
    assert len(warnings) == 1
    assert says in warnings[0]


def test_stream_that_starts_beyond_the_end_fails_or_begins_at_the_end() -> None:
    text = '{"t":{"0":101,"1":0}}'
    with pytest.raises(DataLossError, match="t-0: offset 101 is after the partition's end"):
        resolve_starts(asked(startingOffsets=text), BOUNDS, {})
    begins, warnings = resolve_starts(asked(startingOffsets=text, failOnDataLoss="false"), BOUNDS, {})
    assert (begins, len(warnings)) == ({P0: 100, P1: 0}, 1)
    assert resolve_starts(asked(startingOffsets='{"t":{"0":100,"1":50}}'), BOUNDS, {}) == ({P0: 100, P1: 50}, [])


def test_earliest_loses_nothing_even_where_the_end_is_deleted() -> None:
    options = asked(endingOffsets='{"t":{"0":4,"1":50}}')
    assert planned(options) == [OffsetRange("t", 1, 0, 50)]


def test_times() -> None:
    assert times_of(Edge.EARLIEST, [P0], "x") == {}
    assert times_of(AtTimestamp(5), [P0, P1], "x") == {P0: 5, P1: 5}
    assert times_of(AtTimestamps({"t": {0: 5, 1: 6}}), [P0, P1], "x") == {P0: 5, P1: 6}
    starting = {P0: Lookup(40, found=True), P1: Lookup(5, found=True)}
    ending = {P0: Lookup(60, found=True), P1: Lookup(50, found=False)}
    options = asked(startingTimestamp="1", endingTimestamp="2")
    assert planned(options, starting=starting, ending=ending) == [
        OffsetRange("t", 0, 40, 60),
        OffsetRange("t", 1, 5, 50),
    ]


def test_a_start_after_the_last_record_is_an_error_unless_told_otherwise() -> None:
    starting = {P0: Lookup(40, found=True), P1: Lookup(50, found=False)}
    with pytest.raises(OptionError, match="t-1: no record is at or after"):
        planned(asked(startingTimestamp="1"), starting=starting)
    late = asked(startingTimestamp="1", startingOffsetsByTimestampStrategy="latest")
    assert planned(late, starting=starting) == [OffsetRange("t", 0, 40, 100)]


def test_no_splitting_unless_asked_for() -> None:
    ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 5, 6)]
    assert split(ranges, None) == ranges
    assert split(ranges, 2) == ranges
    assert split([], 5) == []


def test_pieces_go_where_the_records_are() -> None:
    pieces = split([OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 100)], 10)
    assert [len(piece) for piece in pieces] == [100] * 10


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 2**60), st.integers(1, 5000) | st.integers(1, 2**40)), max_size=12),
    st.integers(1, 60),
)
def test_splitting_covers_every_range_exactly_once(starts: list[tuple[int, int]], min_partitions: int) -> None:
    ranges = [OffsetRange("t", i, start, start + length) for i, (start, length) in enumerate(starts)]
    pieces = split(ranges, min_partitions)
    assert all(len(piece) > 0 for piece in pieces)
    assert len(pieces) == max(len(ranges), min(min_partitions, sum(map(len, ranges))))
    by_partition = {
        partition: list(group) for partition, group in itertools.groupby(pieces, key=lambda piece: piece.partition)
    }
    assert list(by_partition) == [whole.partition for whole in ranges]
    for whole in ranges:
        group = by_partition[whole.partition]
        assert (group[0].start, group[-1].end) == (whole.start, whole.end)
        assert all(left.end == right.start for left, right in itertools.pairwise(group))
        assert max(map(len, group)) - min(map(len, group)) <= 1


def test_no_task_exceeds_max_records() -> None:
    ranges = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 5, 9)]
    pieces = split(ranges, None, 4)
    assert [(each.partition, each.start, each.end) for each in pieces] == [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 5, 9)]
    assert len(split(ranges, 7, 4)) == 7
    assert split(ranges, 2, 100) == ranges
    assert len(split([OffsetRange("t", 0, 0, TASKS_MAX)], None, 1)) == TASKS_MAX
    with pytest.raises(OptionError, match="1000000 tasks"):
        split([OffsetRange("t", 0, 0, 10**6)], None, 1)
