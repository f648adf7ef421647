from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest
from tests.holding import entries_of

from tidelog_broker.cluster import route_watch
from tidelog_broker.cluster.route_watch import (
    LOOKED_PER_TURN,
    LOOKED_UP_AT_ONCE,
    LOOKS_PER_TURN,
    HeldRequest,
    RouteWatch,
    TopicView,
    changed_partitions,
    check_known,
    described,
    has_newer_metadata,
    view_of,
)
from tidelog_broker.cluster.routes import Route
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

ID = b"t" * 16
OTHER = b"o" * 16
LONG_S = 1000.0


def known(*topic_ids: bytes) -> list[pb.KnownEpochs]:
    return [pb.KnownEpochs(topic_id=topic_id, news_from=[1]) for topic_id in topic_ids]


def topic(partitions: int = 1) -> pb.TopicRecord:
    return pb.TopicRecord(name="t", topic_id=ID, config=pb.TopicConfig(partitions=partitions))


async def all_looked(news: RouteWatch, held: Sequence[HeldRequest]) -> None:
    """Execute the next turn of every waiter, and forget it."""
    async with asyncio.timeout(20):
        await asyncio.gather(*(one.woken.wait() for one in held))
        while news._looking:  # noqa: ASYNC110 - the pause between two turns has no event
            await asyncio.sleep(0.001)
    for one in held:
        one.woken.clear()


async def test_change_of_a_topic_wakes_only_its_waiting_requests() -> None:
    news = RouteWatch()
    with (
        news.listening(known(ID, OTHER), wait_s=LONG_S) as both,
        news.listening(known(ID), wait_s=LONG_S) as one,
        news.listening(known(OTHER), wait_s=LONG_S) as other,
    ):
        await all_looked(news, [both, one, other])
        news.changed(ID)
        assert [held.woken.is_set() for held in (both, one, other)] == [True, True, False]
        one.woken.clear()
        news.wake()
        assert one.woken.is_set()
        assert other.woken.is_set()


async def test_ended_hold_is_forgotten() -> None:
    news = RouteWatch()
    before = entries_of(news)
    with news.listening(known(ID, ID), wait_s=LONG_S), news.listening(known(ID), wait_s=LONG_S) as held:
        pass
    held.woken.clear()
    news.changed(ID)
    assert not held.woken.is_set()
    assert entries_of(news) == before


@pytest.mark.parametrize("why", ["news", "the time is over"])
async def test_held_requests_are_checked_a_few_at_a_time(why: str) -> None:
    news = RouteWatch()
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(news.listening(known(ID), wait_s=LONG_S)) for _ in range(3 * LOOKS_PER_TURN)]
        await all_looked(news, held)
        for _ in range(5):
            if why == "news":
                news.changed(ID)
            else:
                for one in held:
                    news._over(one)
        assert [one.woken.is_set() for one in held].count(True) <= LOOKS_PER_TURN
        await all_looked(news, held)
        assert [one.is_over for one in held] == [why != "news"] * len(held)


async def test_held_requests_are_checked_in_order_under_constant_changes() -> None:
    news, turns = RouteWatch(), list[int]()

    async def looking(number: int) -> None:
        with news.listening(known(ID), wait_s=LONG_S) as held:
            while len(turns) < 200:
                await held.woken.wait()
                held.woken.clear()
                turns.append(number)
                news.changed(ID)

    async with asyncio.timeout(20):
        looking_on = [asyncio.create_task(looking(number)) for number in range(2 * LOOKS_PER_TURN)]
        await asyncio.wait(looking_on, return_when=asyncio.FIRST_COMPLETED)
    for task in looking_on:
        task.cancel()
    await asyncio.gather(*looking_on, return_exceptions=True)
    assert set(turns) == set(range(2 * LOOKS_PER_TURN))


async def test_held_requests_share_a_view_until_a_change() -> None:
    news, record, asked = RouteWatch(), topic(), list[PartitionKey]()

    def route(key: PartitionKey) -> Route:
        asked.append(key)
        return Route(3, "a", ("a",))

    assert news.view(record, route) is not news.view(record, route), "without waiting clients nothing is cached"
    with news.listening(known(ID), wait_s=LONG_S):
        view = news.view(record, route)
        asked.clear()
        assert news.view(record, route) is view
        assert not asked
        news.changed(ID)
        assert news.view(record, route) is not view
        assert news.view(topic(2), route).owned == [3, 3], "the topic has another record"


async def test_view_expires_without_a_reported_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_watch, "VIEW_S", 0.0)
    news, record = RouteWatch(), topic()
    with news.listening(known(ID), wait_s=LONG_S):
        assert news.view(record, lambda _: None).owned == [-1]
        assert news.view(record, lambda _: Route(0, "a", ("a",))).owned == [0]


async def test_held_requests_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_watch, "HELD_BYTES_MAX", 8192)
    news, small, large = RouteWatch(), known(ID), [pb.KnownEpochs(topic_id=ID, news_from=[0] * 1000)]
    assert not news.may_hold(large)
    assert news.may_hold(small)
    with news.listening(small, wait_s=LONG_S):
        assert not news.may_hold(small)
    assert news.may_hold(small)


def test_request_with_many_topics_is_not_held() -> None:
    news = RouteWatch()
    assert news.may_hold(known(ID) * 256)
    assert not news.may_hold(known(ID) * 257)
    assert not news.may_hold([])


def test_too_many_known_partitions_are_refused() -> None:
    check_known([pb.KnownEpochs(news_from=[0] * 4096)] * 32)
    for much in ([pb.KnownEpochs()] * 4097, [pb.KnownEpochs(news_from=[0] * 4097)] * 32):
        with pytest.raises(ProtocolError) as caught:
            check_known(much)
        assert caught.value.code == pb.INVALID_REQUEST


@pytest.mark.parametrize(
    ("news_from", "route", "told"),
    [
        ([8], Route(7, "a", ("a",)), False),
        ([7], Route(7, "a", ("a",)), True),
        ([7], Route(8, "a", ("a",)), True),
        ([7], Route(8, "", ("a",)), False),
        ([7], None, False),
        ([], Route(0, "a", ("a",)), True),
        ([8, 0], Route(7, "a", ("a",)), False),
        ([2**64 - 1], Route(7, "a", ("a",)), False),
    ],
    ids=["the same", "an owner", "later", "no owner", "nothing known", "a new partition", "fewer here", "absurd"],
)
def test_newer_epoch_is_news(news_from: list[int], route: Route | None, *, told: bool) -> None:
    view = view_of(topic(), {(ID, 0): route}.get)
    assert has_newer_metadata(pb.KnownEpochs(topic_id=ID, news_from=news_from), view) == told


def test_deleted_topic_is_news() -> None:
    assert has_newer_metadata(pb.KnownEpochs(topic_id=ID, news_from=[9]), None)


async def test_only_changed_partitions_of_a_view_are_looked_up() -> None:
    news, record, asked = RouteWatch(), topic(3), list[PartitionKey]()
    routes = {(ID, index): Route(3, "a", ("a",)) for index in range(3)}

    def route(key: PartitionKey) -> Route:
        asked.append(key)
        return routes[key]

    with news.listening(known(ID), wait_s=LONG_S):
        news.view(record, route)
        asked.clear()
        routes[ID, 1] = Route(4, "b", ("b",))
        news.changed(ID, 1)
        news.changed(ID, 7)  # of a newer record than this one
        assert news.view(record, route).owned == [3, 4, 3]
        assert news.view(record, route).routes[1] == Route(4, "b", ("b",))
        assert asked == [(ID, 1)]


@pytest.mark.parametrize(
    ("news_from", "told"),
    [([6, 6, 6], []), ([6, 5, 0], [1]), ([5], [0, 1, 2]), ([9] * 5, [])],
    ids=["nothing", "one that is later", "two that are new", "more is known than here"],
)
def test_news_lists_changed_partitions(news_from: list[int], told: list[int]) -> None:
    routes = {(ID, 0): Route(5, "a", ("a",)), (ID, 1): Route(5, "a", ("a",)), (ID, 2): Route(5, "", ("a",))}
    view = view_of(topic(3), routes.get)
    assert changed_partitions(pb.KnownEpochs(topic_id=ID, news_from=news_from), view) == told


def test_described_topic_omits_unknown_routes() -> None:
    route = Route(4, "b", ("b", "c"))
    view = view_of(topic(2), {(ID, 1): route}.get)
    assert view == TopicView(topic(2), [None, route], [-1, 4])
    assert described(view.record, enumerate(view.routes), 3) == pb.TopicInfo(
        name="t",
        topic_id=ID,
        config=pb.TopicConfig(partitions=2),
        schema_number=3,
        partitions=[pb.PartitionInfo(partition=1, owner="b", epoch=4, placement=["b", "c"])],
    )


class CountedRoutes:
    """Routes of one epoch, and how many were looked up since the event loop last ran other work."""

    def __init__(self) -> None:
        self.epoch = 0
        self.now = self.most = self.all = 0

    def __call__(self, _key: PartitionKey) -> Route | None:
        self.now += 1
        self.all += 1
        self.most = max(self.most, self.now)
        return Route(self.epoch, "a", ("a",))

    async def run_other_work(self) -> None:
        while True:
            self.now = 0
            await asyncio.sleep(0)


async def test_view_of_a_large_topic_is_made_in_slices_and_once_for_all() -> None:
    news, record, routes = RouteWatch(), topic(10 * LOOKED_UP_AT_ONCE + 1), CountedRoutes()
    await news.prepare(record, routes)
    assert routes.all == 0, "without held requests nothing is cached"
    other_work = asyncio.create_task(routes.run_other_work())
    with news.listening(known(ID), wait_s=LONG_S):
        making = [asyncio.create_task(news.prepare(record, routes)) for _ in range(3)]
        await asyncio.sleep(0)
        routes.epoch = 4
        news.changed(ID, 7)  # reported while the view is made, after the partition was looked up
        await asyncio.gather(*making)
        view = news.view(record, routes)
        assert (view.owned[7], view.owned[0], len(view.owned)) == (4, 0, record.config.partitions)
        await news.prepare(record, routes)
        assert news.view(record, routes) is view
    other_work.cancel()
    assert (routes.most, routes.all) == (LOOKED_UP_AT_ONCE, record.config.partitions + 1)


async def test_view_of_a_large_topic_is_kept_between_two_requests_of_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_watch, "VIEW_S", 0.1)
    news, looked = RouteWatch(), list[int]()

    def route_of(key: PartitionKey) -> Route | None:
        looked.append(key[1])
        return Route(1, "a", ("a",))

    large = topic(LOOKED_UP_AT_ONCE + 1)
    before = entries_of(news)
    with news.listening(known(ID), wait_s=LONG_S):
        await news.prepare(large, route_of)
    news.changed(ID, 5)
    view = news.view(large, route_of)  # for the answer
    with news.listening(known(ID), wait_s=LONG_S):
        await news.prepare(large, route_of)
        assert news.view(large, route_of) is view
    assert looked[large.config.partitions :] == [5], "only the changed partition is looked up again"
    async with asyncio.timeout(20):
        while entries_of(news) != before:  # noqa: ASYNC110 - the removal has no event
            await asyncio.sleep(0.01)
    assert news.view(large, route_of) is not view


async def test_view_that_was_made_during_a_change_of_its_topic_is_not_used() -> None:
    news, record, routes = RouteWatch(), topic(2 * LOOKED_UP_AT_ONCE), CountedRoutes()
    with news.listening(known(ID), wait_s=LONG_S):
        making = asyncio.create_task(news.prepare(record, routes))
        await asyncio.sleep(0)
        routes.epoch = 4
        news.changed(ID)
        await making
        assert set(news.view(record, routes).owned) == {4}


async def test_few_requests_that_list_many_partitions_are_checked_in_a_round() -> None:
    news = RouteWatch()
    large = [pb.KnownEpochs(topic_id=ID, news_from=[1] * (LOOKED_PER_TURN // 2))]
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(news.listening(large, wait_s=LONG_S)) for _ in range(5)]
        await all_looked(news, held)
        news.changed(ID)
        assert [one.woken.is_set() for one in held] == [True, True, False, False, False]
        await all_looked(news, held)
