from __future__ import annotations

import asyncio
import os

import pytest

from tidelog_broker.base.lifecycle import NEXT, Lifecycle
from tidelog_broker.base.management_answers import State


async def test_failed_disk_stops_the_node_with_its_exit_code() -> None:
    lifecycle = Lifecycle()
    lifecycle.storage_failed("t/0", OSError("gone"))
    lifecycle.storage_failed("t/1", OSError("gone as well"))
    assert (lifecycle.health.state, lifecycle.exit_code) == ("failed", os.EX_IOERR)
    assert lifecycle.stop_reason == "storage failed at t/0: gone"
    async with asyncio.timeout(20):
        await lifecycle.asked_to_stop()


async def test_give_up_keeps_the_first_reason() -> None:
    lifecycle = Lifecycle()
    lifecycle.give_up("another process uses the node id")
    lifecycle.give_up("removed")
    assert (lifecycle.health.state, lifecycle.exit_code) == ("failed", os.EX_CONFIG)
    assert lifecycle.stop_reason == "another process uses the node id"
    async with asyncio.timeout(20):
        await lifecycle.asked_to_stop()


async def test_requested_stop_is_not_a_failure() -> None:
    lifecycle = Lifecycle()
    lifecycle.ask_to_stop()
    lifecycle.ask_to_stop()
    async with asyncio.timeout(20):
        await lifecycle.asked_to_stop()
    assert (lifecycle.health.state, lifecycle.exit_code, lifecycle.stop_reason) == ("starting", 0, "")


def in_state(state: State) -> Lifecycle:
    lifecycle = Lifecycle()
    if state in {"running", "stopping"}:
        lifecycle.running()
    if state == "stopping":
        lifecycle.stop()
    if state == "failed":
        lifecycle.storage_failed("t/0", OSError("gone"))
    assert lifecycle.health.state == state
    return lifecycle


@pytest.mark.parametrize("state", NEXT)
def test_only_listed_state_transitions_are_allowed(state: State) -> None:
    assert ("running" in NEXT[state]) == (state == "starting")
    lifecycle = in_state(state)
    if state in {"running", "stopping"}:
        with pytest.raises(AssertionError, match=f"invalid transition from {state} to running"):
            lifecycle.running()
    else:
        lifecycle.running()
    assert lifecycle.health.state == ("running" if state == "starting" else state)


@pytest.mark.parametrize("state", NEXT)
def test_stopping_flag_is_set_in_every_state(state: State) -> None:
    lifecycle = in_state(state)
    assert lifecycle.stopping == (state == "stopping")
    lifecycle.stop()
    assert lifecycle.stopping
    assert lifecycle.health.state == ("stopping" if state == "running" else state)


@pytest.mark.parametrize("state", NEXT)
def test_any_state_may_fail(state: State) -> None:
    lifecycle = in_state(state)
    lifecycle.give_up("removed")
    assert lifecycle.health.state == "failed"
