from __future__ import annotations

from tidelog_broker.core.membership.dissemination import Dissemination


def test_news_is_told_a_bounded_number_of_times() -> None:
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


def test_what_does_not_fit_is_not_counted_as_told_and_the_least_told_goes_first() -> None:
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


def test_a_change_of_what_is_told_starts_anew_and_what_is_forgotten_is_not_told() -> None:
    news = Dissemination(1)
    news.add("a")
    news.take(3, lambda _: True)
    news.add("a")
    news.take(3, lambda _: True)
    assert "a" in news
    news.drop("a")
    news.drop("a")
    assert "a" not in news


def test_a_node_alone_tells_its_news_to_the_first_that_comes() -> None:
    news = Dissemination(3)
    news.add("me")
    news.take(1, lambda _: False)
    assert "me" in news
