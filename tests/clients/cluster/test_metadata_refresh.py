from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tidelog.cluster.metadata_refresh import HOLD_S, TOPICS_PER_REQUEST, MetadataRefresher, RefreshRequest
from tidelog.errors import ClosedError, NodeUnreachableError, TidelogError, UnknownTopicError


class Asked:
    """Records the requests and answers them as scripted."""

    def __init__(self) -> None:
        self.rounds: list[tuple[list[str], int]] = []
        self.holds_s: list[float] = []
        self.sure: list[tuple[bool, frozenset[str]]] = []
        self.news = False
        self.errors: dict[str, TidelogError] = {}
        self.failure: TidelogError | None = None
        self.hold: asyncio.Event | None = None
        self.begun = asyncio.Event()

    async def __call__(self, question: RefreshRequest) -> tuple[bool, Mapping[str, TidelogError]]:
        self.rounds.append((question.topics, question.rounds))
        self.holds_s.append(question.hold_s)
        self.sure.append((question.confirm, question.must_confirm))
        self.begun.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure
        return self.news, self.errors


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def refresher(asked: Asked) -> MetadataRefresher:
    return MetadataRefresher(asked)


async def test_concurrent_topics_are_one_request(asked: Asked, refresher: MetadataRefresher) -> None:
    await asyncio.gather(*(refresher.request(topic) for topic in ("a", "b", "a")))
    assert [topics for topics, _ in asked.rounds] == [["a", "b"]]


async def test_topics_wanted_meanwhile_are_the_next_request(asked: Asked, refresher: MetadataRefresher) -> None:
    asked.hold = asyncio.Event()
    first = refresher.request("a")
    await asked.begun.wait()
    others = [refresher.request("b"), refresher.request("c")]
    assert refresher.request("a") is first, "the request is in flight"
    asked.hold.set()
    await asyncio.gather(first, *others)
    assert [topics for topics, _ in asked.rounds] == [["a"], ["b", "c"]]


async def test_rounds_without_change_are_counted_and_reset_by_a_change(
    asked: Asked, refresher: MetadataRefresher
) -> None:
    for _ in range(3):
        await refresher.request("a")
    asked.news = True
    await refresher.request("a")
    await refresher.request("a")
    assert [rounds for _, rounds in asked.rounds] == [0, 1, 2, 3, 0]


async def test_rounds_without_change_back_off(asked: Asked, refresher: MetadataRefresher) -> None:
    await refresher.request("a")
    loop = asyncio.get_running_loop()
    gaps = []
    for _ in range(4):
        begun = loop.time()
        await refresher.request("a")
        gaps.append(loop.time() - begun)
    assert all(gap >= least for gap, least in zip(gaps, [0.005, 0.01, 0.02, 0.04], strict=True))


async def test_errors_of_topics_and_rounds_are_raised(asked: Asked, refresher: MetadataRefresher) -> None:
    asked.errors = {"b": UnknownTopicError("no")}
    good, bad = refresher.request("a"), refresher.request("b")
    await good
    with pytest.raises(UnknownTopicError):
        await bad
    asked.failure = NodeUnreachableError("down")
    with pytest.raises(NodeUnreachableError):
        await refresher.request("a")
    asked.failure = None
    await refresher.request("a")


async def test_request_stays_within_the_protocols_bound(asked: Asked, refresher: MetadataRefresher) -> None:
    await asyncio.gather(*(refresher.request(str(number)) for number in range(TOPICS_PER_REQUEST + 1)))
    assert [len(topics) for topics, _ in asked.rounds] == [TOPICS_PER_REQUEST, 1]


async def test_close_ends_pending_requests(asked: Asked, refresher: MetadataRefresher) -> None:
    asked.hold = asyncio.Event()
    answers = [refresher.request("a")]
    await asked.begun.wait()
    answers.append(refresher.request("b"))
    await refresher.close()
    answers.append(refresher.request("c"))
    for answer in answers:
        with pytest.raises(ClosedError):
            await answer


async def test_unexpected_exception_is_raised_and_contained(asked: Asked, refresher: MetadataRefresher) -> None:
    asked.failure = ValueError("bug")  # type: ignore[assignment] # no error of the client's
    with pytest.raises(ValueError, match="bug"):
        await refresher.request("a")
    asked.failure = None
    await refresher.request("a")


async def test_only_patient_callers_have_the_answer_held_back(asked: Asked, refresher: MetadataRefresher) -> None:
    await refresher.request("a", awaits_change=True)
    await asyncio.gather(refresher.request("a", awaits_change=True), refresher.request("b"))
    await refresher.request("b", awaits_change=True)
    await asyncio.gather(refresher.request("c"), refresher.request("c", awaits_change=True))
    await refresher.request("c", awaits_change=True)
    assert asked.holds_s == [HOLD_S, 0.0, HOLD_S, 0.0, HOLD_S]


async def test_joining_a_held_request_does_not_hurry_later_ones(asked: Asked, refresher: MetadataRefresher) -> None:
    asked.hold = asyncio.Event()
    first = refresher.request("a", awaits_change=True)
    await asked.begun.wait()
    assert refresher.request("a") is first
    asked.hold.set()
    await first
    await refresher.request("a", awaits_change=True)
    assert asked.holds_s == [HOLD_S, HOLD_S]


async def test_next_request_is_due_immediately_after_a_held_answer(asked: Asked, refresher: MetadataRefresher) -> None:
    asked.hold = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, asked.hold.set)
    await refresher.request("a", awaits_change=True)
    await asyncio.sleep(0)
    assert refresher._next_at <= loop.time(), "time held back counts"


async def test_deciding_caller_does_not_join_an_older_request(asked: Asked, refresher: MetadataRefresher) -> None:
    asked.hold = asyncio.Event()
    first = refresher.request("a")
    await asked.begun.wait()
    fresh, sure = refresher.request("a", fresh=True), refresher.request("a", must_confirm=True)
    assert fresh is sure is not first
    asked.hold.set()
    await asyncio.gather(first, fresh)
    await refresher.request("a")
    assert [topics for topics, _ in asked.rounds] == [["a"]] * 3
    await refresher.request("a", fresh=True)
    assert asked.sure == [(False, frozenset()), (True, frozenset({"a"})), (False, frozenset()), (True, frozenset())]
