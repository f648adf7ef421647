from __future__ import annotations

from tidelog_broker.core.membership.dissemination import Dissemination


def test_update_is_sent_a_bounded_number_of_times() -> None:
    news = Dissemination(3)
    news.add("a")
    told: list[str] = []

    def fits(node_id: str) -> bool:
        told.append(node_id)
        return True

    for _ in range(100):
        news.take(7, fits)
    assert told == ["a"] * 9, "3 * log2(7 + 1)"
    assert len(news) == 0


def test_update_that_does_not_fit_is_not_counted_and_least_sent_goes_first() -> None:
    news = Dissemination(2)
    offered: list[list[str]] = []

    def one_fits(node_id: str) -> bool:
        offered[-1].append(node_id)
        return len(offered[-1]) == 1

    news.add("old")
    news.take(3, lambda _: True)
    news.add("new")
    for _ in range(3):
        offered.append([])
        news.take(3, one_fits)
    assert offered == [["new", "old"], ["old", "new"], ["new", "old"]]


def test_repeated_change_restarts_the_count_and_dropped_members_are_not_sent() -> None:
    news = Dissemination(1)
    news.add("a")
    news.take(3, lambda _: True)
    news.add("a")
    news.take(3, lambda _: True)
    assert "a" in news
    news.drop("a")
    news.drop("a")
    assert "a" not in news


def test_lone_node_sends_its_update_to_the_first_newcomer() -> None:
    news = Dissemination(3)
    news.add("me")
    news.take(1, lambda _: False)
    assert "me" in news
