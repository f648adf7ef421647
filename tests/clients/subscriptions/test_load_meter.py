"""Measured loads: correct at any age, decaying, and reported in portions."""

from __future__ import annotations

import pytest

from tidelog import TopicPartition
from tidelog.subscriptions.load_meter import AGE_MIN_S, MEMORY_S, REPORT_INTERVAL_S, REPORTED_MAX, LoadMeter
from tidelog_proto.limits import LOAD_BYTES_S_MAX

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Measured:
    """A meter with its clock; `read` simulates a steady rate of ten batches per second."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meter = LoadMeter(lambda: self.now)
        self._end = 0

    def read(self, where: TopicPartition, rate: float, retry_after_s: float) -> None:
        for _ in range(round(retry_after_s * 10)):
            self.now += 0.1
            self._end += 1
            self.meter.taken(where, self._end, round(rate / 10))


@pytest.fixture
def measured() -> Measured:
    return Measured()


@pytest.mark.parametrize("age_s", [AGE_MIN_S, 20.0, 200.0])
def test_steady_rate_is_measured_at_any_age(measured: Measured, age_s: float) -> None:
    measured.meter.begin([A, B])
    measured.read(A, 50_000.0, age_s + 0.1)
    rates = measured.meter.rates()
    assert rates[A] == pytest.approx(50_000.0, rel=0.02)
    assert rates[B] == 0.0, "a partition without records has rate 0"


def test_old_reads_decay(measured: Measured) -> None:
    measured.meter.begin([A])
    measured.read(A, 50_000.0, 300.0)
    measured.now += MEMORY_S
    assert measured.meter.rates()[A] == pytest.approx(50_000.0 / 2.718, rel=0.02)
    measured.now += 40 * MEMORY_S
    assert measured.meter.rates()[A] < 1e-9


def test_new_partitions_are_not_reported(measured: Measured) -> None:
    measured.meter.begin([A])
    measured.read(A, 1e6, AGE_MIN_S - 0.2)
    assert measured.meter.rates() == {}
    measured.now += 0.3
    assert measured.meter.rates().keys() == {A}


def test_released_partition_starts_again_from_zero(measured: Measured) -> None:
    measured.meter.begin([A, B])
    measured.read(A, 1e6, 60.0)
    measured.meter.end([A])
    measured.meter.taken(A, 10**9, 10**6)
    assert measured.meter.rates().keys() == {B}
    measured.meter.begin([A])
    measured.now += AGE_MIN_S
    assert measured.meter.rates()[A] == 0.0


def test_put_back_batch_counts_once_and_sought_batch_again(measured: Measured) -> None:
    meter = measured.meter
    meter.begin([A])
    measured.now += AGE_MIN_S
    meter.taken(A, 100, 1000)
    once = meter.rates()[A]
    meter.taken(A, 100, 600)
    assert meter.rates()[A] == once, "the rest of the batch, after a pause"
    meter.seek(A)
    meter.taken(A, 50, 1000)
    assert meter.rates()[A] == pytest.approx(2 * once)
    meter.seek(B)  # not read: no effect
    assert meter.rates().keys() == {A}


def test_report_interval_is_limited(measured: Measured) -> None:
    measured.meter.begin([A])
    measured.now += AGE_MIN_S
    assert measured.meter.due().keys() == {A}
    measured.now += REPORT_INTERVAL_S - 0.1
    assert measured.meter.due() == {}
    measured.now += 0.2
    assert measured.meter.due().keys() == {A}


def test_many_partitions_are_reported_in_turn(measured: Measured) -> None:
    many = [TopicPartition("wide", number) for number in range(2 * REPORTED_MAX + 7)]
    measured.meter.begin(many)
    told: set[TopicPartition] = set()
    for _ in range(3):
        measured.now += REPORT_INTERVAL_S
        due = measured.meter.due()
        assert len(due) == REPORTED_MAX
        told |= due.keys()
    assert told == set(many)


def test_reported_rate_is_capped(measured: Measured) -> None:
    measured.meter.begin([A])
    measured.now += AGE_MIN_S
    measured.meter.taken(A, 1, 10**18)
    assert measured.meter.rates() == {A: LOAD_BYTES_S_MAX}
