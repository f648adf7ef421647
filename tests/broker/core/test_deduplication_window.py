"""The deduplication window, compared with a naive implementation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog_broker.core.deduplication_window import ROW_BYTES, DeduplicationWindow
from tidelog_proto.batch.content_hash import Contents


class Step(NamedTuple):
    """A batch that is looked up and then added without its duplicates."""

    contents: list[int]
    after_us: int
    delete: int
    """Advance of the log start."""


def hashed(contents: list[int], *, alike: bool = False) -> Contents:
    """Return a hash for each content; similar ones differ only in their last bits and share table slots."""
    return np.array([[7 if alike else one * 0x9E3779B97F4A7C15 % 2**64, one] for one in contents], np.uint64).reshape(
        -1, 2
    )


class Naive:
    """All records: content, offset, time."""

    def __init__(self, records_max: int, age_us: int) -> None:
        self.records_max = records_max
        self.age_us = age_us
        self.records: list[tuple[int, int, int]] = []

    def find(self, content: int, now_us: int, log_start: int) -> int:
        return max(
            (
                offset
                for one, offset, at_us in self.records[-self.records_max :]
                if one == content and offset >= log_start and (not self.age_us or at_us > now_us - self.age_us)
            ),
            default=-1,
        )


STEPS = st.lists(
    st.builds(
        Step,
        st.lists(st.integers(0, 30), max_size=12),
        st.sampled_from([0, 0, 1, 5, 40]),
        st.sampled_from([0, 0, 0, 3]),
    ),
    max_size=60,
)


@given(steps=STEPS, records_max=st.integers(1, 40), age_us=st.sampled_from([0, 10, 50]), alike=st.booleans())
@settings(max_examples=200)
def test_results_match_a_naive_implementation(steps: list[Step], records_max: int, age_us: int, alike: bool) -> None:
    taken: list[int] = [0]

    def take(size_bytes: int) -> bool:
        taken[0] += size_bytes
        return True

    def give_back(size_bytes: int) -> None:
        taken[0] -= size_bytes

    window = DeduplicationWindow(records_max=records_max, age_us=age_us, take=take, give_back=give_back)
    naive = Naive(records_max, age_us)
    now_us = offset = log_start = 0
    for step in steps:
        now_us += step.after_us
        log_start = min(log_start + step.delete, offset)
        contents = hashed(step.contents, alike=alike)
        found = window.find(contents, now_us=now_us, log_start=log_start)
        assert found.tolist() == [naive.find(one, now_us, log_start) for one in step.contents]
        offsets = np.arange(offset, offset + len(step.contents))
        assert window.reserve(len(contents))
        window.add(contents, offsets, np.full(len(contents), now_us))
        naive.records += [(one, offset + at, now_us) for at, one in enumerate(step.contents)]
        offset += len(step.contents) + 1  # a record of the broker's own
        assert len(window) <= records_max
        assert window.size_bytes == taken[0]
    window.close()
    assert taken[0] == 0
    assert window.find(hashed([1]), now_us=now_us, log_start=0).tolist() == [-1]


def test_memory_is_bounded_and_reserved_first() -> None:
    room = [200 * 1024 * ROW_BYTES]
    in_use = [0]

    def take(size_bytes: int) -> bool:
        if in_use[0] + size_bytes > room[0]:
            return False
        in_use[0] += size_bytes
        return True

    def give_back(size_bytes: int) -> None:
        in_use[0] -= size_bytes

    records_max = 20_000
    window = DeduplicationWindow(records_max=records_max, age_us=0, take=take, give_back=give_back)
    random = np.random.default_rng(1)
    for number in range(100):
        contents = random.integers(0, 2**63, (1_000, 2), np.int64).view(np.uint64)
        assert window.reserve(1_000)
        window.add(contents, np.arange(1_000) + 1_000 * number, np.full(1_000, number))
        assert window.size_bytes <= 2 * records_max * ROW_BYTES
        assert (window.find(contents, now_us=number, log_start=0) == np.arange(1_000) + 1_000 * number).all()
    room[0] = 0
    refused = False
    for number in range(100, 200):
        before = len(window), window.size_bytes
        if not window.reserve(1_000):
            refused = True
            assert (len(window), window.size_bytes) == before
            break
        contents = random.integers(0, 2**63, (1_000, 2), np.int64).view(np.uint64)
        window.add(contents, np.arange(1_000) + 1_000 * number, np.full(1_000, number))
    assert refused


def test_batch_longer_than_the_window_keeps_its_end() -> None:
    window = DeduplicationWindow(records_max=10, age_us=0, take=lambda _: True, give_back=lambda _: None)
    contents = hashed(list(range(100)))
    assert window.reserve(100)
    window.add(contents, np.arange(100), np.zeros(100, np.int64))
    found = window.find(contents, now_us=0, log_start=0)
    assert found.tolist() == [-1] * 90 + list(range(90, 100))
