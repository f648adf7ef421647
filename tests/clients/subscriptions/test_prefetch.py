from __future__ import annotations

from tidelog.subscriptions.prefetch import NONE, Credit, Prefetch, Window

BOUND = Credit(100, 1000)


def opened(prefetch: Prefetch) -> tuple[Window, list[Credit]]:
    window, sent = prefetch.open(), list[Credit]()
    window.ready(sent.append)
    return window, sent


def test_single_subscription_gets_the_whole_bound_in_halves() -> None:
    window, sent = opened(Prefetch(BOUND))
    assert window.outstanding == BOUND
    window.arrived(Credit(60, 60))
    window.give_back(Credit(40, 40))
    assert sent == []
    window.give_back(Credit(20, 20))
    assert sent == [Credit(60, 60)]


def test_bound_applies_to_all_subscriptions_together() -> None:
    prefetch = Prefetch(BOUND)
    prefetch.subscription_count = 3
    windows = [prefetch.open() for _ in range(3)]
    assert [window.outstanding for window in windows] == [Credit(33, 333)] * 3
    fourth = prefetch.open()
    assert fourth.outstanding == Credit(1, 1), "the remainder"
    assert prefetch.held == BOUND


def test_returned_credit_goes_to_starved_subscriptions() -> None:
    prefetch, needs = Prefetch(BOUND), list[None]()
    prefetch.on_starved = lambda: needs.append(None)
    first, to_first = opened(prefetch)
    second, to_second = opened(prefetch)
    assert second.outstanding == NONE
    assert needs == [None]
    first.arrived(Credit(80, 800))
    first.give_back(Credit(10, 100))
    assert to_second == [Credit(10, 100)]
    first.give_back(Credit(70, 700))
    assert second.outstanding == Credit(50, 500), "exactly its share"
    assert to_first == [Credit(30, 300)]
    assert prefetch.held == BOUND


def test_small_returns_are_available_to_the_next_subscription() -> None:
    prefetch = Prefetch(BOUND)
    first, sent = opened(prefetch)
    first.arrived(Credit(40, 400))
    for _ in range(4):
        first.give_back(Credit(10, 100))
    assert sent == [], "too little for a message"
    assert prefetch.open().outstanding == Credit(40, 400)
    assert prefetch.held == BOUND


def test_idle_credit_is_reclaimed_for_starved_subscriptions() -> None:
    prefetch = Prefetch(BOUND)
    first, _ = opened(prefetch)
    assert prefetch.overdrawn() == []
    second, to_second = opened(prefetch)
    assert prefetch.overdrawn() == [first]
    prefetch.subscription_count = 2
    first.close()
    assert to_second == [Credit(50, 500)]
    third, _ = opened(prefetch)
    assert third.outstanding == second.outstanding == Credit(50, 500)
    assert prefetch.overdrawn() == []


def test_unacknowledged_subscription_is_not_starved() -> None:
    prefetch = Prefetch(BOUND)
    opened(prefetch)
    refused = prefetch.open()
    assert prefetch.overdrawn() == []
    refused.close()
    assert prefetch.held == BOUND


def test_batches_of_lost_subscriptions_stay_counted() -> None:
    prefetch, waiting = Prefetch(BOUND), list[Window]()
    for _ in range(10):
        window, _ = opened(prefetch)
        cost = window.outstanding
        window.arrived(cost)
        waiting.append(window)
        window.close()
        assert prefetch.held.records <= BOUND.records
        assert prefetch.held.bytes <= BOUND.bytes
    last, sent = opened(prefetch)
    assert last.outstanding == NONE
    assert prefetch.overdrawn() == []
    waiting[0].give_back(BOUND)
    assert last.outstanding == BOUND
    assert sent == [BOUND]


def test_batch_larger_than_the_credit_is_settled_once() -> None:
    window, sent = opened(Prefetch(BOUND))
    window.arrived(Credit(250, 10))
    assert sent == []
    window.give_back(Credit(250, 10))
    assert sent == [Credit(250, 10)], "so that the node's balance of -150 becomes 100"


def test_more_subscriptions_than_records_are_all_served() -> None:
    for beside in (NONE, Credit(1, 1)):
        prefetch = Prefetch(Credit(2, 2))
        prefetch.subscription_count = 3
        assert beside.at_most(prefetch.paused_max) == beside
        prefetch.keep(beside)
        assert [prefetch.open().outstanding for _ in range(3)] == [Credit(1, 1)] * 3
