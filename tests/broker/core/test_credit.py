"""Credit of a subscription: both kinds count, at most one batch in excess, partitions are served round-robin."""

from __future__ import annotations

import pytest

from tidelog_broker.core.credit import CREDIT_MAX, Subscription
from tidelog_proto.errors import ProtocolError

A, B = (b"a", 0), (b"b", 0)


def test_sending_stops_when_either_kind_of_credit_is_exhausted() -> None:
    subscription = Subscription(1, credit_records=10, credit_bytes=100)
    subscription.add(A, 5)
    subscription.spend(A, records=8, size_bytes=150, next_offset=13)
    verdicts = [subscription.may_send]
    subscription.grant(records=0, size_bytes=51)
    verdicts.append(subscription.may_send)
    subscription.spend(A, records=2, size_bytes=1, next_offset=15)
    verdicts.append(subscription.may_send)
    assert verdicts == [False, True, False]
    assert subscription.positions == {A: 15}


def test_nothing_is_sent_without_credit_and_credit_has_a_maximum() -> None:
    subscription = Subscription(1, credit_records=0, credit_bytes=10)
    assert not subscription.may_send
    subscription.grant(records=2**63, size_bytes=2**63)
    assert subscription.credit_records == CREDIT_MAX


def test_partitions_are_served_round_robin_and_duplicates_are_refused() -> None:
    subscription = Subscription(1, credit_records=1, credit_bytes=1)
    subscription.add(A, 0)
    subscription.add(B, 0)
    order = []
    for _ in range(3):
        order.append(subscription.next_ready)
        subscription.served(A if len(order) % 2 else B)
    assert order == [A, B, A]
    with pytest.raises(ProtocolError, match="lists partition"):
        subscription.add(A, 3)
    subscription.remove(B)
    assert subscription.next_ready == A


def test_partitions_rest_until_they_are_woken_and_are_served_after_those_that_wait() -> None:
    subscription = Subscription(1, credit_records=1, credit_bytes=1)
    for key in (A, B):
        subscription.add(key, 0)
    order = []
    subscription.rest(A)
    order.append(subscription.next_ready)
    subscription.wake(A)
    subscription.wake(A)
    subscription.rest(B)
    order.append(subscription.next_ready)
    subscription.rest(A)
    order.append(subscription.next_ready)
    subscription.remove(A)
    subscription.wake(A)
    order.append(subscription.next_ready)
    assert order == [B, A, None, None], "an ended partition is not served"


def test_position_never_decreases() -> None:
    subscription = Subscription(1, credit_records=9, credit_bytes=9)
    subscription.add(A, 5)
    with pytest.raises(AssertionError):
        subscription.spend(A, records=1, size_bytes=1, next_offset=5)
