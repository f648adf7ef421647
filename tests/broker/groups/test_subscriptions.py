"""Resolution of subscriptions to topics, and the cost limits of patterns."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from tidelog_broker.core.groups.member_access import UNRESTRICTED, MemberAccess
from tidelog_broker.core.security.permissions import Decision, Permissions
from tidelog_broker.core.security.session import Session
from tidelog_broker.core.topics import META_TOPIC_ID, TopicRegistry
from tidelog_broker.groups.subscriptions import (
    KEPT_MAX,
    PATTERN_CHARS_MAX,
    PATTERN_S_MAX,
    TOPICS_MAX,
    Subscriptions,
    check_wish,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def add(topics: TopicRegistry, number: int, name: str, *, partitions: int = 1, revision: int = 1) -> None:
    config = pb.TopicConfig(partitions=partitions)
    topics.apply(pb.TopicRecord(name=name, topic_id=id_of(number), config=config, revision=revision))


def remove(topics: TopicRegistry, number: int, name: str) -> None:
    topics.apply(pb.TopicRecord(name=name, topic_id=id_of(number), deleted=True, revision=9))


@pytest.fixture
def topics() -> TopicRegistry:
    registry = TopicRegistry()
    for number, name in enumerate(["orders", "orders-old", "visits"], start=10):
        add(registry, number, name, partitions=number)
    registry.apply(pb.TopicRecord(name="__meta", topic_id=META_TOPIC_ID, config=pb.TopicConfig(partitions=1)))
    return registry


def refusal(wish: pb.GroupWish) -> str:
    with pytest.raises(ProtocolError) as refused:
        check_wish(wish)
    assert refused.value.code in {pb.INVALID_REQUEST, pb.INVALID_TOPIC}
    return refused.value.message


@pytest.mark.parametrize(
    ("wish", "numbers"),
    [
        (pb.GroupWish(topics=["orders", "none"]), [10]),
        (pb.GroupWish(pattern="orders.*"), [10, 11]),
        (pb.GroupWish(pattern="rders"), []),
        (pb.GroupWish(pattern="orders|visits"), [10, 12]),
        (pb.GroupWish(pattern=".*"), [10, 11, 12]),
        (pb.GroupWish(pattern="__.*"), []),
        (pb.GroupWish(topics=["visits"], pattern="orders"), [10, 12]),
        (pb.GroupWish(pattern="(?i)ORDERS"), [10]),
        (pb.GroupWish(pattern="[a-z]{6}"), [10, 12]),
    ],
)
def test_subscription_resolves_to_topics(topics: TopicRegistry, wish: pb.GroupWish, numbers: list[int]) -> None:
    check_wish(wish)
    assert Subscriptions(topics).of(wish, UNRESTRICTED) == {id_of(number): number for number in numbers}


def test_subscription_follows_created_and_deleted_topics(topics: TopicRegistry) -> None:
    subscriptions, wish = Subscriptions(topics), pb.GroupWish(pattern="orders.*")
    assert len(subscriptions.of(wish, UNRESTRICTED)) == 2
    add(topics, 20, "orders-new")
    add(topics, 21, "other")
    assert id_of(20) in subscriptions.of(wish, UNRESTRICTED)
    assert id_of(21) not in subscriptions.of(wish, UNRESTRICTED)
    remove(topics, 20, "orders-new")
    assert id_of(20) not in subscriptions.of(wish, UNRESTRICTED)
    add(topics, 22, "orders-new", partitions=4)
    assert subscriptions.of(wish, UNRESTRICTED)[id_of(22)] == 4
    add(topics, 22, "orders-new", partitions=7, revision=2)
    assert subscriptions.of(wish, UNRESTRICTED)[id_of(22)] == 7


def test_patterns_beyond_the_cache_are_resolved(topics: TopicRegistry) -> None:
    subscriptions = Subscriptions(topics)
    for _ in range(2):
        for number in range(KEPT_MAX + 3):
            assert len(subscriptions.of(pb.GroupWish(pattern=f"orders|{number}"), UNRESTRICTED)) == 1
        add(topics, 30, "passing")


@pytest.mark.parametrize("pattern", ["(", "[", "a)|(?:b", "*", r"\\"[:1], "(?=a)", "a{2000}", "(?P<x>a", "a{3,1}"])
def test_invalid_pattern_is_refused(pattern: str) -> None:
    assert "pattern" in refusal(pb.GroupWish(pattern=pattern)) or "repeats" in refusal(pb.GroupWish(pattern=pattern))


@pytest.mark.parametrize("pattern", ["(((.?){10}){10}){10}b", "(.{0,99}){0,99}", "((((a*){9}){9}){9}){9}"])
def test_pattern_with_large_repetitions_is_refused(pattern: str) -> None:
    assert "has too many repetitions" in refusal(pb.GroupWish(pattern=pattern))


def test_oversized_subscription_is_refused() -> None:
    assert "must name topics" in refusal(pb.GroupWish())
    assert str(TOPICS_MAX) in refusal(pb.GroupWish(topics=["t"] * (TOPICS_MAX + 1)))
    assert str(PATTERN_CHARS_MAX) in refusal(pb.GroupWish(pattern="a" * (PATTERN_CHARS_MAX + 1)))
    assert refusal(pb.GroupWish(topics=["no/topic"]))


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|aa)+b",
        "(a*)*b",
        "(.*a){20}b",
        "((.?){30}){5}b",
        ".?" * 490 + "b",
        "(.*.*.*.*.*.*.*.*.*.*.*.*.*.*)+b",
        "(a|b)*a(a|b){200}",
    ],
)
def test_expensive_pattern_is_fast_or_refused(pattern: str) -> None:
    registry = TopicRegistry()
    for number in range(2000):
        add(registry, number + 1, f"{number:b}".replace("0", "a").replace("1", "b").rjust(249, "a"))
    wish = pb.GroupWish(pattern=pattern)
    check_wish(wish)
    subscriptions = Subscriptions(registry)
    began_s = time.process_time()
    try:
        subscriptions.try_out(wish)
        subscriptions.of(wish, UNRESTRICTED)
    except ProtocolError as error:
        assert "takes longer than" in error.message  # noqa: PT017 - either will do
    assert time.process_time() - began_s < PATTERN_S_MAX + 1


def test_pattern_matches_readable_topics_and_checks_rules_only_for_new_names(
    topics: TopicRegistry,
) -> None:
    subscriptions, wish = Subscriptions(topics), pb.GroupWish(pattern=".*")
    decided: list[str] = []

    class Asked(Permissions):
        def decide(
            self, principal: str, roles: Iterable[str], operation: pb.Operation, resource: pb.Resource, name: str
        ) -> Decision:
            decided.append(name)
            return super().decide(principal, roles, operation, resource, name)

    permissions = Asked()

    def grant(number: int, name: str, *, deny: bool = False) -> None:
        rule = pb.AccessRule(rule_id=str(number), principal="ann", name=name, prefix=True, deny=deny)
        rule.resource = pb.RES_TOPIC
        rule.operations.append(pb.OP_CONSUME)
        permissions.put(rule)

    def read() -> list[int]:
        """Return the topics that match the pattern, of a session without a cache."""
        found = subscriptions.of(wish, MemberAccess(Session(permissions, "ann")))
        return sorted(int.from_bytes(topic_id, "big") for topic_id in found)

    assert read() == []
    grant(1, "orders")
    assert read() == [10, 11]
    assert sorted(subscriptions.of(wish, MemberAccess(Session(permissions, "ben")))) == [], "it is another's"
    decided.clear()
    assert read() == [10, 11]
    assert decided == []
    add(topics, 20, "orders-new")
    add(topics, 21, "visits-new")
    assert read() == [10, 11, 20]
    assert set(decided) == {"orders-new", "visits-new"}
    remove(topics, 11, "orders-old")
    assert read() == [10, 20]
    grant(2, "orders-n", deny=True)
    assert read() == [10]
    assert subscriptions.of(pb.GroupWish(topics=["orders", "visits"]), MemberAccess(Session(permissions, "ann"))) == {
        id_of(10): 10
    }
