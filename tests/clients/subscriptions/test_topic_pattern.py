from __future__ import annotations

import time

import pytest
from tests.clients.fake_node import FakeNode

from tidelog.cluster.connection_pool import ConnectionPool, Identity
from tidelog.cluster.routing import Router
from tidelog.errors import InvalidRequestError
from tidelog.subscriptions.topic_pattern import PATTERN_CHARS_MAX, TopicPattern


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("orders", ["orders"]),
        (r"orders\..*", ["orders.eu", "orders.us"]),
        ("orders|visits", ["orders", "visits"]),
        (".*", ["orders", "orders.eu", "orders.us", "visits"]),
        ("(?i)ORDERS", ["orders"]),
        ("rders", []),
    ],
)
def test_whole_names_match_and_internal_topics_never(text: str, matching: list[str]) -> None:
    names = ["orders", "orders.eu", "orders.us", "visits", "__offsets"]
    assert TopicPattern(text).matching(names) == matching


def test_excluded_topic_does_not_match() -> None:
    assert TopicPattern(r"orders\..*", exclude="orders.dead").matching(["orders.dead", "orders.dead2"]) == [
        "orders.dead2"
    ]


@pytest.mark.parametrize("text", ["", "(", "a)|(b", r"(a)\1", "(?=a)", "x" * (PATTERN_CHARS_MAX + 1)])
def test_invalid_pattern_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        TopicPattern(text)


def test_no_pattern_takes_exponential_time() -> None:
    began_s = time.process_time()
    assert TopicPattern("(a*)*(a|aa)*b").matching(["a" * 200]) == []
    assert time.process_time() - began_s < 0.5


async def test_matching_topics_are_listed(node: FakeNode) -> None:
    router = Router([("127.0.0.1", node.port)], ConnectionPool(Identity("test", "test", 5.0)), request_timeout_s=5.0)
    node.add_topic("web")
    assert sorted(await TopicPattern("w.*").topics(router)) == ["web", "wide"]
    await router.close()
