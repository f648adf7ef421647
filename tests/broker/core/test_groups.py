"""Committed offsets: monotone unless reset, ordered while in flight, replayable in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.groups import GroupOffsets, OffsetKey
from tidelog_proto import broker_pb2 as pb

KEY = OffsetKey("g", b"t" * 16, 0)


def prepare(offsets: GroupOffsets, position: int, *, reset: bool = False, note: str = "") -> pb.OffsetRecord | None:
    return offsets.prepare(KEY, next_offset=position, note=note, reset=reset, now_us=1)


def commit(offsets: GroupOffsets, position: int, *, reset: bool = False, note: str = "") -> None:
    record = prepare(offsets, position, reset=reset, note=note)
    if record is not None:
        offsets.apply(record)


def standing(offsets: GroupOffsets) -> int:
    record = offsets.get(KEY)
    assert record is not None
    return record.next_offset


def test_a_position_goes_forward_only_unless_it_is_reset() -> None:
    offsets = GroupOffsets()
    for position, expected in ((5, 5), (3, 5), (5, 5), (9, 9)):
        commit(offsets, position)
        assert standing(offsets) == expected
    commit(offsets, 2, reset=True)
    assert standing(offsets) == 2


def test_the_same_position_with_another_note_is_news() -> None:
    offsets = GroupOffsets()
    commit(offsets, 5, note="a")
    assert prepare(offsets, 5, note="a") is None
    commit(offsets, 5, note="b")
    record = offsets.get(KEY)
    assert record is not None
    assert record.note == "b"


def test_a_commit_overtaken_by_one_in_flight_still_writes_what_will_stand() -> None:
    offsets = GroupOffsets()
    first = prepare(offsets, 8)
    second = prepare(offsets, 6)
    assert first is not None
    assert second is not None
    assert second.next_offset == 8
    offsets.apply(second)
    offsets.apply(first)
    assert standing(offsets) == 8


def test_a_refused_write_is_withdrawn() -> None:
    offsets = GroupOffsets()
    record = prepare(offsets, 8)
    assert record is not None
    offsets.withdraw(record)
    commit(offsets, 6)
    assert standing(offsets) == 6


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


def test_a_deleted_topic_is_forgotten_and_groups_are_listed() -> None:
    offsets = GroupOffsets()
    commit(offsets, 1)
    assert [record.next_offset for record in offsets.of_group("g")] == [1]
    assert offsets.of_group("other") == []
    offsets.forget_topic(KEY.topic_id)
    assert len(offsets) == 0
