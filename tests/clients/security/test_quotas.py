"""Quotas and their usage are converted to and from messages without a change of meaning."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import InvalidRequestError
from tidelog.security.quotas import FIELDS, Quota, QuotaUsage, quota_of, quota_to, usage_of
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import UNLIMITED

LIMITS = st.none() | st.just(math.inf) | st.integers(0, 2**53 - 1).map(float)


@given(st.fixed_dictionaries(dict.fromkeys(FIELDS, LIMITS)))
def test_a_quota_survives_its_message(limits: dict[str, float | None]) -> None:
    quota = Quota(**limits)
    sent = pb.Quota.FromString(quota_to("ann", quota).SerializeToString())
    assert (sent.subject, quota_of(sent)) == ("ann", quota)


def test_an_absent_limit_and_no_limit_differ_in_the_message() -> None:
    message = quota_to("ann", Quota(requests=math.inf, topics=0))
    assert (message.requests, message.HasField("topics"), message.HasField("groups")) == (UNLIMITED, True, False)


@pytest.mark.parametrize("value", [-1, math.nan, -math.inf, float(UNLIMITED)])
def test_limits_that_a_message_cannot_hold_are_refused(value: float) -> None:
    with pytest.raises(InvalidRequestError, match=r"partitions must be >= 0 and less than \d+, .* got "):
        quota_to("ann", Quota(partitions=value))


def test_usage_is_in_seconds() -> None:
    message = pb.QuotaUsage(
        node_id="n1",
        caller="address:10.0.0.0/8",
        connections=3,
        waiting=2,
        in_flight_bytes=70,
        throttled_ms=1500,
        produce_debt_ms=20,
        consume_debt_ms=1,
    )
    assert usage_of(message) == QuotaUsage("n1", "address:10.0.0.0/8", 3, 2, 70, 1.5, 0.02, 0.001)
