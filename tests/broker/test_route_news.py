from __future__ import annotations

import pytest

from tidelog_broker.route_news import RouteNews, is_news
from tidelog_broker.routes import Route
from tidelog_proto import broker_pb2 as pb

ID = b"t" * 16
OTHER = b"o" * 16


def test_news_about_a_topic_wakes_who_waits_for_it_and_nobody_else() -> None:
    news = RouteNews()
    with news.listening([ID, OTHER]) as both, news.listening([ID]) as one, news.listening([OTHER]) as other:
        news.changed(ID)
        assert [woken.is_set() for woken in (both, one, other)] == [True, True, False]
        one.clear()
        news.wake()
        assert one.is_set()
        assert other.is_set()


def test_who_has_stopped_waiting_is_forgotten() -> None:
    news = RouteNews()
    with news.listening([ID, ID]), news.listening([ID]) as woken:
        pass
    news.changed(ID)
    assert not woken.is_set()
    assert not news._waiting


@pytest.mark.parametrize(
    ("known", "route", "told"),
    [
        ([8], Route(7, "a", ("a",)), False),
        ([7], Route(7, "a", ("a",)), True),
        ([7], Route(8, "a", ("a",)), True),
        ([7], Route(8, "", ("a",)), False),
        ([7], None, False),
        ([], Route(0, "a", ("a",)), True),
        ([8, 0], Route(7, "a", ("a",)), False),
    ],
    ids=["the same", "an owner", "a later epoch", "nobody owns it", "nothing known", "a new partition", "fewer here"],
)
def test_what_is_news(known: list[int], route: Route | None, *, told: bool) -> None:
    topic = pb.TopicRecord(name="t", topic_id=ID, config=pb.TopicConfig(partitions=1))
    routes = {(ID, 0): route}
    assert is_news(pb.KnownEpochs(topic_id=ID, news_from=known), topic, routes.get) == told


def test_that_a_topic_is_gone_is_news() -> None:
    known = pb.KnownEpochs(topic_id=ID, news_from=[9])
    assert is_news(known, None, lambda _: None)
    assert is_news(known, pb.TopicRecord(topic_id=ID, deleted=True), lambda _: None)
