"""Callbacks of a blocking member run in a separate thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tidelog import Group
from tidelog.model import TopicPartition
from tidelog.sync.groups import with_callbacks_in_threads

WHAT = frozenset({TopicPartition("t", 0)})


async def _later(told: list[str]) -> None:
    told.append("awaited")


@pytest.mark.parametrize(
    ("returns", "notes"),
    [
        (lambda _: None, []),
        (lambda _: 7, []),
        (lambda _: {TopicPartition("t", 0): 3}, []),  # like the result of `commit()`
        (_later, ["awaited"]),
    ],
)
async def test_awaitable_result_of_a_callback_is_awaited(returns: Callable[[list[str]], Any], notes: list[str]) -> None:
    told: list[str] = []
    threads: set[str] = set()

    def callback(partitions: frozenset[TopicPartition]) -> Any:
        assert partitions == WHAT
        threads.add(threading.current_thread().name)
        return returns(told)

    group = with_callbacks_in_threads(Group("g", on_assigned=callback, on_revoked=callback, on_lost=callback))
    for each in (group.on_assigned, group.on_revoked, group.on_lost):
        assert each is not None
        waits = each(WHAT)
        assert waits is not None
        await waits
    assert told == notes * 3
    assert threading.current_thread().name not in threads


def test_missing_callback_stays_none() -> None:
    assert with_callbacks_in_threads(Group("g")) == Group("g")
