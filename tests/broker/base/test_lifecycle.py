from __future__ import annotations

import asyncio
import os

import pytest

from tidelog_broker.base.lifecycle import NEXT, Lifecycle
from tidelog_broker.base.management_answers import State


async def test_failed_disk_stops_the_node_with_its_exit_code() -> None:
    life = Lifecycle()
    life.storage_failed("t/0", OSError("gone"))
    life.storage_failed("t/1", OSError("gone as well"))
    assert (life.health.state, life.exit_code) == ("failed", os.EX_IOERR)
    assert life.stop_reason == "storage failed at t/0: gone"
    async with asyncio.timeout(20):
        await life.asked_to_stop()


async def test_give_up_keeps_the_first_reason() -> None:
    life = Lifecycle()
    life.give_up("another process uses the node id")
    life.give_up("removed")
    assert (life.health.state, life.exit_code) == ("failed", os.EX_CONFIG)
    assert life.stop_reason == "another process uses the node id"
    async with asyncio.timeout(20):
        await life.asked_to_stop()


async def test_requested_stop_is_not_a_failure() -> None:
    life = Lifecycle()
    life.ask_to_stop()
    life.ask_to_stop()
    async with asyncio.timeout(20):
        await life.asked_to_stop()
    assert (life.health.state, life.exit_code, life.stop_reason) == ("starting", 0, "")


def in_state(state: State) -> Lifecycle:
    life = Lifecycle()
    if state in {"running", "stopping"}:
        life.running()
    if state == "stopping":
        life.stop()
    if state == "failed":
        life.storage_failed("t/0", OSError("gone"))
    assert life.health.state == state
    return life


@pytest.mark.parametrize("state", NEXT)
def test_only_listed_state_transitions_are_allowed(state: State) -> None:
    assert ("running" in NEXT[state]) == (state == "starting")
    life = in_state(state)
    if state in {"running", "stopping"}:
        with pytest.raises(AssertionError, match=f"invalid transition from {state} to running"):
            life.running()
    else:
        life.running()
    assert life.health.state == ("running" if state == "starting" else state)


@pytest.mark.parametrize("state", NEXT)
def test_stopping_flag_is_set_in_every_state(state: State) -> None:
    life = in_state(state)
    assert life.stopping == (state == "stopping")
    life.stop()
    assert life.stopping
    assert life.health.state == ("stopping" if state == "running" else state)


@pytest.mark.parametrize("state", NEXT)
def test_any_state_may_fail(state: State) -> None:
    life = in_state(state)
    life.give_up("removed")
    assert life.health.state == "failed"
