from __future__ import annotations

from itertools import permutations

from tidelog_broker.core.groups.records import GroupRecords, group_in, wrapped
from tidelog_proto import broker_pb2 as pb


def record(revision: int, *, group: str = "g", members: int = 0, deleted: bool = False) -> pb.GroupRecord:
    return pb.GroupRecord(
        group=group,
        revision=revision,
        members=[pb.GroupMember(member_id=f"member{number:010}") for number in range(members)],
        deleted=deleted,
    )


def test_highest_revision_wins_in_any_order() -> None:
    for order in permutations([record(1), record(2, members=3), record(3, members=1)]):
        records = GroupRecords()
        for one in order:
            records.apply(one)
        assert records.get("g") == record(3, members=1)
        assert not records.apply(record(3, members=2))
        assert list(records.records()) == [record(3, members=1)]


def test_deletion_is_not_kept_and_supersedes_earlier_records() -> None:
    records = GroupRecords()
    records.apply(record(4, members=2))
    assert not records.apply(record(3, deleted=True))
    assert records.apply(record(5, deleted=True))
    assert records.get("g") is None
    assert not records.names()
    assert records.apply(record(1)), "another group of that name begins again"


def test_sizes_match_the_kept_records() -> None:
    records = GroupRecords()
    sizes = []
    for one in (record(1, members=5), record(1, group="h", members=1), record(2), record(3, members=9)):
        records.apply(one)
        sizes.append(records.size_bytes)
    assert sizes[1] > sizes[0] > 0
    assert sizes[2] < sizes[1]
    alone = GroupRecords()
    alone.apply(record(1, group="h", members=1))
    records.apply(record(4, deleted=True))
    assert records.size_bytes == alone.size_bytes
    records.apply(record(2, group="h", deleted=True))
    assert records.size_bytes == 0
    records.apply(record(9, group="never", deleted=True))
    assert records.size_bytes == 0


def test_groups_are_counted_by_creator() -> None:
    records = GroupRecords()
    for name, creator in (("g", "ann"), ("h", "ann"), ("i", ""), ("j", "ben")):
        records.apply(pb.GroupRecord(group=name, creator=creator))
    assert (records.made_by("ann"), records.made_by("ben"), records.made_by("")) == (2, 1, 0)
    records.apply(pb.GroupRecord(group="g", creator="ann", revision=1, members=[pb.GroupMember()]))
    records.apply(pb.GroupRecord(group="h", revision=1, deleted=True))
    records.apply(pb.GroupRecord(group="j", revision=1))
    assert (records.made_by("ann"), records.made_by("ben")) == (1, 0)
    records.apply(pb.GroupRecord(group="g", creator="ben"))
    assert records.made_by("ben") == 0, "the record is older than the known one"
    records.forget_all()
    assert records.made_by("ann") == 0


def test_group_record_is_distinguished_from_a_position() -> None:
    one = record(7, members=2)
    assert group_in(wrapped(one).SerializeToString()) == one
    position = pb.OffsetRecord(
        group="g", topic_id=b"t" * 16, partition=1, next_offset=5, note="n", commit_timestamp_us=9, revision=3, epoch=4
    )
    assert group_in(position.SerializeToString()) is None
    assert group_in(b"") is None
