from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tidelog.cluster.hedged_requests import race, summary
from tidelog.errors import ConnectionLostError, NodeUnreachableError, OverloadedError, TidelogError, UnknownTopicError

LONG_S = 60.0


class Runner:
    """Scripted attempts, with a record of which were started and cancelled."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.both = asyncio.Event()

    def attempt(self, name: str, outcome: TidelogError | None = None) -> Callable[[], Awaitable[str]]:
        async def run() -> str:
            self.begun.append(name)
            if outcome is not None:
                raise outcome
            return name

        return run

    def stuck(self, name: str) -> Callable[[], Awaitable[str]]:
        async def run() -> str:
            self.begun.append(name)
            if len(self.begun) == 2:
                self.both.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            raise AssertionError("it never comes")

        return run


@pytest.fixture
def runner() -> Runner:
    return Runner()


async def test_first_success_is_returned(runner: Runner) -> None:
    assert await race([runner.attempt("a"), runner.attempt("b")], stagger_s=LONG_S) == "a"
    assert runner.begun == ["a"]


async def test_failure_starts_the_next_attempt_immediately(runner: Runner) -> None:
    attempts = [runner.attempt("a", NodeUnreachableError("down")), runner.attempt("b")]
    assert await race(attempts, stagger_s=LONG_S) == "b"


async def test_slow_attempt_is_hedged_and_finally_cancelled(runner: Runner) -> None:
    assert await race([runner.stuck("a"), runner.stuck("b"), runner.attempt("c")], stagger_s=0.01) == "c"
    assert runner.begun == ["a", "b", "c"]
    assert sorted(runner.cancelled) == ["a", "b"]


async def test_non_retriable_error_ends_the_race(runner: Runner) -> None:
    with pytest.raises(UnknownTopicError):
        await race([runner.attempt("a", UnknownTopicError("no")), runner.attempt("b")], stagger_s=LONG_S)
    assert runner.begun == ["a"]


async def test_cancellation_cancels_the_attempts(runner: Runner) -> None:
    racing = asyncio.ensure_future(race([runner.stuck("a"), runner.stuck("b")], stagger_s=0.01))
    await runner.both.wait()
    racing.cancel()
    await asyncio.gather(racing, return_exceptions=True)
    assert sorted(runner.cancelled) == ["a", "b"]


async def test_unknown_outcome_takes_precedence(runner: Runner) -> None:
    failures = [NodeUnreachableError("down"), OverloadedError("busy"), ConnectionLostError("gone")]
    with pytest.raises(ConnectionLostError) as caught:
        await race([runner.attempt(str(each), each) for each in failures], stagger_s=LONG_S)
    assert not caught.value.definite


def test_several_failures_are_combined() -> None:
    down = [NodeUnreachableError("a is down"), NodeUnreachableError("b is down")]
    busy, lost = OverloadedError("busy"), ConnectionLostError("gone")
    assert str(summary(down)) == "a is down; b is down"
    assert summary([*down, busy]) is busy
    assert summary([busy, lost]) is lost
    assert isinstance(summary([]), NodeUnreachableError)
