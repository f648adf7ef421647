"""A counter without locks has the text of a counter of `prometheus_client`."""

from __future__ import annotations

import time

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from tidelog_gateway.metrics.integer_counter import IntegerCounter


def test_the_exposition_is_that_of_a_counter_of_the_client_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1.5)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine, other = (
        IntegerCounter("records", "Records.", "surface", registry=ours),
        Counter("records", "Records.", ("surface",), registry=theirs),
    )
    assert generate_latest(ours) == generate_latest(theirs)
    for surface, amount in (("http", 3), ("stream", 2**60), ("http", 1)):
        mine.labels(surface).inc(amount)
        other.labels(surface).inc(amount)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_name_is_used_once() -> None:
    registry = CollectorRegistry()
    IntegerCounter("records", "Records.", "surface", registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Counter("records", "Records.", registry=registry)
