"""How soon a partition is tried again."""

from __future__ import annotations

from tidelog.errors import NotOwnerError
from tidelog.model import TopicPartition
from tidelog.pacing import Pacing

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_news_ends_the_wait_of_what_has_moved_alone() -> None:
    place = {A: "here", B: "here"}
    pacing = Pacing(place.get)
    for _ in range(4):
        pacing.tried(A, 10.0)
        pacing.tried(B, 10.0)
    assert not pacing.news()
    assert pacing.due_at(A, 10.0) > 10.0
    place[A] = "there"
    assert pacing.news()
    assert pacing.due_at(A, 10.0) == 10.0
    assert pacing.due_at(B, 10.0) > 10.0
    pacing.tried(A, 10.0)
    assert pacing.due_at(A, 10.0) <= 10.02, "nothing has been in the way of it there yet"
    assert not pacing.news()


async def test_a_node_says_how_long_to_wait() -> None:
    pacing = Pacing(lambda _: None)
    pacing.failed(A, NotOwnerError("wait", retry_after_ms=60_000))
    assert pacing.due_at(A, 0.0) == 0.0, "it was served until now"
    pacing.tried(A, 0.0)
    pacing.failed(A, NotOwnerError("wait", retry_after_ms=60_000))
    assert pacing.due_at(A, 0.0) > 50.0
    pacing.begin_anew([A])
    assert pacing.due_at(A, 0.0) == 0.0
