"""Topics that members may get according to their callers, also before a new coordinator knows the callers."""

from __future__ import annotations

import pytest

from tidelog_broker.core.groups.consumer_group import ConsumerGroup
from tidelog_broker.core.groups.member_access import UNRESTRICTED, MemberAccess
from tidelog_broker.core.security.permissions import Permissions
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

T, U, V = b"t" * 16, b"u" * 16, b"v" * 16
ADA, BOB = "ada0000000000000", "bob0000000000000"
WISH = pb.GroupWish(pattern=".*")


def write(group: ConsumerGroup) -> None:
    """Make the decisions durable, with each member revoking partitions immediately."""
    for _ in range(3):
        while (record := group.next_record()) is not None:
            group.written(pb.GroupRecord.FromString(record.SerializeToString()))
        for member_id in group.member_ids:
            told = group.assignment_of(member_id)
            assert told is not None
            group.report(member_id, seen_revision=told.revision, held=told.assigned)


def keys(group: ConsumerGroup, member_id: str) -> set[PartitionKey]:
    told = group.assignment_of(member_id)
    assert told is not None
    return set(told.assigned)


@pytest.mark.parametrize(
    ("rules", "may"),
    [
        ([], False),
        ([(pb.OP_DESCRIBE, False)], False),
        ([(pb.OP_CONSUME, False)], True),
        ([(pb.OP_CONSUME, False), (pb.OP_DESCRIBE, True)], False),
        ([(pb.OP_ALL, False), (pb.OP_CONSUME, True)], False),
    ],
)
def test_read_access_requires_describe_and_consume(rules: list[tuple[pb.Operation, bool]], may: bool) -> None:
    permissions = Permissions()
    for number, (operation, deny) in enumerate(rules):
        permissions.put(
            pb.AccessRule(
                rule_id=str(number),
                principal="ann",
                operations=[operation],
                resource=pb.RES_TOPIC,
                name="t",
                deny=deny,
            )
        )
    assert MemberAccess(Session(permissions, "ann")).may_read("t") is may
    assert UNRESTRICTED.may_read("t")


class Callers:
    """Read permissions by caller, and the known callers of members."""

    def __init__(self, **topics: int) -> None:
        self.topics = {name.encode() * 16: count for name, count in topics.items()}
        self.may: dict[str, set[bytes]] = {}
        self.heard: dict[str, MemberAccess] = {}

    def hear(self, member_id: str, name: str, *may: bytes) -> None:
        self.may[name] = set(may)
        self.heard[member_id] = MemberAccess(Session(Permissions(), name))

    def subscribed(self, _: pb.GroupWish, reader: MemberAccess) -> dict[bytes, int]:
        may = self.may[reader.principal] if reader.principal else self.topics.keys()
        return {topic_id: count for topic_id, count in self.topics.items() if topic_id in may}

    def group(self) -> ConsumerGroup:
        return ConsumerGroup("g", self.subscribed, self.heard.get)


def test_members_only_get_topics_that_their_callers_may_read() -> None:
    callers = Callers(t=2, u=2, v=2)
    callers.hear(ADA, "ada", T)
    callers.hear(BOB, "bob", T, U)
    group = callers.group()
    group.join(ADA, WISH)
    group.join(BOB, WISH)
    write(group)
    assert keys(group, ADA) == {(T, 0), (T, 1)}
    assert keys(group, BOB) == {(U, 0), (U, 1)}
    callers.may["ada"] = set()
    group.check_topics()
    write(group)
    assert keys(group, ADA) == set()
    assert keys(group, BOB) == {(T, 0), (T, 1), (U, 0), (U, 1)}
    callers.may["ada"] = {T}
    group.check_topics()
    write(group)
    assert keys(group, ADA) == {(T, 0), (T, 1)}, "the set of readable topics is unchanged"


def test_member_with_an_unknown_caller_keeps_its_topics_and_gets_no_others() -> None:
    callers = Callers(t=1, u=2)
    for member_id, name in ((ADA, "ada"), (BOB, "bob")):
        callers.hear(member_id, name, T)
    group = callers.group()
    group.join(ADA, WISH)
    write(group)
    group.join(BOB, WISH)
    write(group)
    first, second = (ADA, BOB) if keys(group, ADA) else (BOB, ADA)
    callers.heard.clear()
    following = callers.group()
    following.restart(group.durable_record)
    callers.topics[T] = 2
    following.check_topics()
    write(following)
    assert (keys(following, first), keys(following, second)) == ({(T, 0), (T, 1)}, set())
    callers.hear(first, "first", T, U)
    following.check_topics()
    write(following)
    assert (len(keys(following, first)), keys(following, second)) == (4, set())
    callers.hear(second, "second", U)
    following.check_topics()
    write(following)
    assert keys(following, second) == {(U, 0), (U, 1)}
