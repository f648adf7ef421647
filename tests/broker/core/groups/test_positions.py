"""Committed offsets: monotone unless reset, ordered while pending, replayable in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.prepared import prepared

from tidelog_broker.core.groups.positions import POSITION_BYTES, GroupBounds, GroupOffsets, OffsetKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

KEY = OffsetKey("g", b"t" * 16, 0)


def prepare(offsets: GroupOffsets, position: int, *, reset: bool = False, note: str = "") -> pb.OffsetRecord | None:
    return prepared(offsets, KEY, next_offset=position, note=note, reset=reset)


def commit(offsets: GroupOffsets, position: int, *, reset: bool = False, note: str = "") -> None:
    record = prepare(offsets, position, reset=reset, note=note)
    if record is not None:
        offsets.apply(record)


def committed(offsets: GroupOffsets) -> int:
    record = offsets.get(KEY)
    assert record is not None
    return record.next_offset


def test_position_decreases_only_with_reset() -> None:
    offsets = GroupOffsets()
    for position, expected in ((5, 5), (3, 5), (5, 5), (9, 9)):
        commit(offsets, position)
        assert committed(offsets) == expected
    commit(offsets, 2, reset=True)
    assert committed(offsets) == 2


def test_same_position_with_another_note_is_written() -> None:
    offsets = GroupOffsets()
    commit(offsets, 5, note="a")
    assert prepare(offsets, 5, note="a") is None
    commit(offsets, 5, note="b")
    record = offsets.get(KEY)
    assert record is not None
    assert record.note == "b"


def test_commit_older_than_a_pending_one_repeats_the_pending_position() -> None:
    offsets = GroupOffsets()
    first = prepare(offsets, 8)
    second = prepare(offsets, 6)
    assert first is not None
    assert second is not None
    assert second.next_offset == 8
    offsets.apply(second)
    offsets.apply(first)
    assert committed(offsets) == 8


def test_a_refused_write_is_withdrawn() -> None:
    offsets = GroupOffsets()
    record = prepare(offsets, 8)
    assert record is not None
    offsets.withdraw(record)
    commit(offsets, 6)
    assert committed(offsets) == 6


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1), st.randoms(use_true_random=False))
def test_a_replay_in_any_order_gives_the_same_positions(commits: list[tuple[int, bool]], random: object) -> None:
    offsets = GroupOffsets()
    written: list[pb.OffsetRecord] = []
    for position, reset in commits:
        record = prepare(offsets, position, reset=reset)
        if record is not None:
            written.append(record)
            offsets.apply(record)
    random.shuffle(written)  # type: ignore[attr-defined] # hypothesis types its random as object
    replayed = GroupOffsets()
    for record in written:
        replayed.apply(record)
    assert list(replayed.records()) == list(offsets.records())


def test_deleted_topic_is_dropped_and_groups_are_listed() -> None:
    offsets = GroupOffsets()
    commit(offsets, 1)
    assert [record.next_offset for record in offsets.of_group("g")] == [1]
    assert list(offsets.of_group("other")) == []
    offsets.forget_topic(KEY.topic_id)
    assert len(offsets) == 0


def held(offsets: GroupOffsets, key: OffsetKey, note: str = "") -> None:
    record = prepared(offsets, key, next_offset=1, note=note, reset=True)
    assert record is not None
    offsets.apply(record)


def refused(offsets: GroupOffsets, key: OffsetKey, note: str = "") -> str:
    with pytest.raises(ProtocolError) as caught:
        prepared(offsets, key, next_offset=1, note=note, reset=True)
    assert caught.value.code == pb.INVALID_REQUEST
    return caught.value.message


def test_listing_a_group_does_not_visit_other_groups() -> None:
    """Counts visits instead of measuring time."""
    offsets = GroupOffsets()
    places = [(bytes([topic]) * 16, partition) for topic in (2, 1, 3) for partition in (1, 0, 10, 2)]
    for place in places:
        held(offsets, OffsetKey("g", *place))
    for number in range(100):
        held(offsets, OffsetKey(f"other-{number}", *places[0]))
    told = [(record.topic_id, record.partition) for record in offsets.of_group("g")]
    assert told == sorted(places)
    assert [(one.topic_id, one.partition) for one in offsets.of_group("g", told[4])] == told[5:]
    between = (told[4][0], told[4][1] + 1) if told[4][1] else (told[3][0], 99)
    assert [(one.topic_id, one.partition) for one in offsets.of_group("g", between)] == [
        place for place in told if place > between
    ]
    offsets.forget_topic(bytes([1]) * 16)
    assert [record.topic_id[0] for record in offsets.of_group("g")] == [2] * 4 + [3] * 4
    assert len(offsets) == 8 + 100
    offsets.forget_topic(places[0][0])
    assert [len(list(offsets.of_group(f"other-{number}"))) for number in range(100)] == [0] * 100
    assert len(offsets) == 4


def test_new_groups_and_positions_are_limited_but_existing_ones_can_be_updated() -> None:
    offsets = GroupOffsets(GroupBounds(groups=2, positions=3))
    for partition in range(3):
        held(offsets, OffsetKey("a", b"t" * 16, partition))
    assert "group_positions_max" in refused(offsets, OffsetKey("a", b"t" * 16, 3))
    on_its_way = prepared(offsets, OffsetKey("b", b"t" * 16, 0), next_offset=1)
    assert on_its_way is not None
    assert "groups_max" in refused(offsets, OffsetKey("c", b"t" * 16, 0)), "one that is on its way counts"
    held(offsets, OffsetKey("a", b"t" * 16, 2))
    offsets.withdraw(on_its_way)
    held(offsets, OffsetKey("c", b"u" * 16, 0))
    assert "groups_max" in refused(offsets, OffsetKey("b", b"t" * 16, 0))
    offsets.forget_topic(b"u" * 16)
    held(offsets, OffsetKey("b", b"t" * 16, 0))
    assert len(offsets) == 4


def test_memory_of_positions_is_limited_but_durable_records_are_applied() -> None:
    offsets = GroupOffsets(GroupBounds(size_bytes=2 * POSITION_BYTES + 1000))
    held(offsets, OffsetKey("a", b"t" * 16, 0), "x" * 900)
    held(offsets, OffsetKey("b", b"t" * 16, 0))
    assert offsets.size_bytes == 2 * POSITION_BYTES + 900
    held(offsets, OffsetKey("b", b"t" * 16, 0), "x" * 200)
    assert "positions_bytes" in refused(offsets, OffsetKey("c", b"t" * 16, 0))
    assert "positions_bytes" in refused(offsets, OffsetKey("a", b"t" * 16, 0), "x" * 901)
    held(offsets, OffsetKey("a", b"t" * 16, 0), "x" * 10)
    assert offsets.size_bytes == 2 * POSITION_BYTES + 210
    offsets.apply(pb.OffsetRecord(group="c", topic_id=b"t" * 16, note="y" * 2000, revision=1))
    assert len(offsets) == 3
    offsets.forget_topic(b"t" * 16)
    assert (len(offsets), offsets.size_bytes) == (0, 0)


places = st.tuples(st.sampled_from(["g", "h"]), st.sampled_from([b"t" * 16, b"u" * 16]), st.integers(0, 3))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("prepare"), places, st.text(max_size=3)),
        st.tuples(st.sampled_from(["apply", "withdraw"]), st.integers(0, 5)),
        st.tuples(st.just("forget"), st.sampled_from(["g", "h"])),
        st.tuples(st.just("topic"), st.sampled_from([b"t" * 16, b"u" * 16])),
    ),
    max_size=60,
)


@given(steps)
def test_sizes_and_counts_are_exact_after_any_drops(done: list[tuple[str, *tuple[object, ...]]]) -> None:
    """Compares with a model: dropped entries leave no trace, and the others are unchanged and in order."""
    offsets, applied = GroupOffsets(), dict[OffsetKey, pb.OffsetRecord]()
    on_their_way: list[pb.OffsetRecord] = []
    forgotten: set[int] = set()
    for number, (step, *rest) in enumerate(done):
        if step == "prepare":
            key = OffsetKey(*rest[0])  # type: ignore[misc]  # as drawn above
            note = str(rest[1])
            record = prepared(offsets, key, next_offset=number, note=note, reset=True, commit_timestamp_us=number)
            assert record is not None
            earlier = [other for other in (*on_their_way, *applied.values()) if id(other) not in forgotten]
            revisions = [
                other.revision for other in earlier if OffsetKey(other.group, other.topic_id, other.partition) == key
            ]
            assert record.revision > max(revisions, default=0)
            on_their_way.append(record)
        elif step in {"apply", "withdraw"} and on_their_way:
            assert isinstance(rest[0], int)
            record = on_their_way.pop(rest[0] % len(on_their_way))
            key = OffsetKey(record.group, record.topic_id, record.partition)
            getattr(offsets, step)(record)
            if step == "apply" and (key not in applied or applied[key].revision < record.revision):
                applied[key] = record
        elif step == "forget":
            offsets.forget_group(str(rest[0]))
            forgotten.update(id(record) for record in on_their_way if record.group == rest[0])
            applied = {key: record for key, record in applied.items() if key.group != rest[0]}
        elif step == "topic":
            assert isinstance(rest[0], bytes)
            offsets.forget_topic(rest[0])
            forgotten.update(id(record) for record in on_their_way if record.topic_id == rest[0])
            applied = {key: record for key, record in applied.items() if key.topic_id != rest[0]}
        assert len(offsets) == len(applied)
        assert {id(record) for record in offsets.records()} == {id(record) for record in applied.values()}
        assert offsets.size_bytes == sum(POSITION_BYTES + len(record.note) for record in applied.values())
        for group in ("g", "h"):
            found = [(record.topic_id, record.partition) for record in offsets.of_group(group)]
            assert found == sorted((key.topic_id, key.partition) for key in applied if key.group == group)
            assert offsets.count_of(group) == len(found)
            newest = [record.commit_timestamp_us for key, record in applied.items() if key.group == group]
            assert offsets.last_commit_us(group) == max(newest, default=0)
            assert offsets.is_committing(group) <= (group in offsets.names())


def test_group_is_committing_until_its_commits_are_resolved() -> None:
    offsets = GroupOffsets()
    first = prepare(offsets, 1)
    assert first is not None
    assert offsets.is_committing("g")
    offsets.apply(first)
    assert not offsets.is_committing("g")
    second = prepare(offsets, 2)
    assert second is not None
    assert offsets.is_committing("g")
    offsets.forget_group("g")
    assert not offsets.is_committing("g")
    assert "g" not in offsets.names()
    offsets.forget_group("g")
    assert (len(offsets), offsets.size_bytes) == (0, 0)


def test_withdrawing_an_older_commit_keeps_the_newer_one_pending() -> None:
    offsets = GroupOffsets()
    first, second = prepare(offsets, 5), prepare(offsets, 8)
    assert first is not None
    assert second is not None
    offsets.withdraw(first)
    assert offsets.is_committing("g")
    repeated = prepare(offsets, 6)
    assert repeated is not None
    assert (repeated.next_offset, repeated.revision) == (8, second.revision + 1)


def test_withdrawing_the_newest_commit_keeps_older_ones_pending() -> None:
    """An owner without a quorum refuses new commits, while earlier appended ones may still be committed."""
    offsets = GroupOffsets()
    first, second, third = (prepare(offsets, position) for position in (5, 6, 8))
    assert first is not None
    assert second is not None
    assert third is not None
    offsets.withdraw(third)
    assert offsets.is_committing("g")
    behind = prepare(offsets, 4)
    assert behind is not None
    assert (behind.next_offset, behind.revision) == (6, second.revision + 1)
    offsets.withdraw(behind)
    offsets.apply(first)
    after = prepare(offsets, 9)
    assert after is not None
    assert after.revision == second.revision + 1
    offsets.apply(second)
    offsets.apply(after)
    assert committed(offsets) == 9
    assert not offsets.is_committing("g")


def test_durable_older_commit_keeps_the_newer_one_pending() -> None:
    offsets = GroupOffsets()
    first, second = prepare(offsets, 5), prepare(offsets, 8)
    assert first is not None
    assert second is not None
    offsets.apply(first)
    assert offsets.is_committing("g")
    repeated = prepare(offsets, 6)
    assert repeated is not None
    assert (repeated.next_offset, repeated.revision) == (8, second.revision + 1)


@pytest.mark.parametrize("record_epoch", [None, 0, 3])
def test_superseded_commit_repeats_the_epoch_of_the_pending_one(record_epoch: int | None) -> None:
    offsets = GroupOffsets()
    prepared(offsets, KEY, next_offset=8, epoch=4, record_epoch=record_epoch)
    second = prepared(offsets, KEY, next_offset=6, epoch=2, record_epoch=1)
    assert second is not None
    assert (second.next_offset, second.epoch) == (8, 4)
    assert (second.record_epoch if second.HasField("record_epoch") else None) == record_epoch


def test_pending_commits_count_in_the_memory_limit() -> None:
    offsets = GroupOffsets(GroupBounds(size_bytes=2 * POSITION_BYTES))
    keys = [OffsetKey("g", KEY.topic_id, number) for number in range(3)]
    for key in keys[:2]:
        assert prepared(offsets, key, next_offset=1) is not None
    assert "positions_bytes" in refused(offsets, keys[2])
