"""The available faults, and their order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from tests.faults import nemesis
from tests.faults.gateway import Gateway
from tests.faults.history import History, Key
from tests.faults.load import Load
from tests.faults.nemesis import (
    CLUSTER_ONLY,
    DISK_FAULTS,
    FAULTS,
    GATEWAY_FAULTS,
    MEMBER_CUTS,
    NETWORK_FAULTS,
    OPERATIONS,
    PROCESS_FAULTS,
    QUORUM_LOSSES,
    SQUEEZES,
    TOPIC_CHANGES,
    menu,
)
from tests.faults.network import Network
from tests.faults.nodes import make_nodes
from tests.faults.sharing import MEMBERS_MAX
from tests.faults.stage import Stage

KEYS = [Key("t", 0), Key("t", 1)]


def stage(path: Path, count: int, *, network: Network | None = None, seed: int = 0, only: Sequence[str] = ()) -> Stage:
    nodes = make_nodes(count, path, None, None)
    gateway = Gateway(nodes, path, None)
    load = Load(nodes, gateway, KEYS, History(), Random(0), 1)
    return Stage(nodes, gateway, load, network, Random(seed), lambda _: None, frozenset(only))


async def test_impossible_faults_are_not_available(tmp_path: Path) -> None:
    always = {*PROCESS_FAULTS, *OPERATIONS, *TOPIC_CHANGES, *GATEWAY_FAULTS}
    assert set(menu(stage(tmp_path, 3))) == {*always, QUORUM_LOSSES[0]}
    assert set(menu(stage(tmp_path, 3, network=Network(3)))) == {*always, *QUORUM_LOSSES, *NETWORK_FAULTS}
    assert not set(menu(stage(tmp_path, 5, network=Network(5)))) & set(QUORUM_LOSSES)
    squeezing = Network(3)
    squeezing.can_squeeze = True
    assert set(SQUEEZES) <= set(menu(stage(tmp_path, 3, network=squeezing)))
    assert not set(menu(stage(tmp_path, 1, network=Network(1)))) & {*CLUSTER_ONLY, *DISK_FAULTS}
    assert [fault.__name__ for fault in menu(stage(tmp_path, 3, only=["kill_all"]))] == ["kill_all"]


async def test_a_member_is_cut_off_if_one_has_a_machine_of_its_own(tmp_path: Path) -> None:
    made = stage(tmp_path, 3, network=Network(3))
    assert not set(menu(made)) & set(MEMBER_CUTS)
    keys = [Key("t", number) for number in range(MEMBERS_MAX)]
    made.load = Load(made.nodes, made.gateway, keys, History(), Random(0), 1, place=())
    assert set(MEMBER_CUTS) <= set(menu(made))
    assert FAULTS["cut_off_member"] in MEMBER_CUTS


async def plan(path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the first faults that a seed does, with everything left out that they do."""
    done: list[str] = []
    made = stage(path, 3, network=Network(3), seed=seed)
    count = 2 * len(menu(made))

    async def inflict(_: Stage, fault: nemesis.Fault) -> None:
        done.append(fault.__name__)
        if len(done) == count:
            raise asyncio.CancelledError

    monkeypatch.setattr(nemesis, "inflict", inflict)
    with pytest.raises(asyncio.CancelledError):
        await nemesis.torment(made, time.monotonic() + 1000)
    return done


async def test_a_seed_is_a_plan_in_which_no_fault_repeats_before_all_have_occurred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again, other = [await plan(tmp_path, seed, monkeypatch) for seed in (1, 1, 2)]
    assert first == again != other
    half = len(first) // 2
    assert len(set(first[:half])) == len(set(first[half:])) == half


async def test_a_row_is_executed_in_order_without_impossible_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    async def inflict(_: Stage, fault: nemesis.Fault) -> None:
        done.append(fault.__name__)

    monkeypatch.setattr(nemesis, "inflict", inflict)
    row = ["mute", "fill_disk", "kill_owner", "drain", "mute"]
    await nemesis.follow(stage(tmp_path, 3, network=Network(3)), row)
    assert done == ["mute", "kill_owner", "drain", "mute"], "there is no small disk"


async def test_stuck_partitions_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemesis, "RECOVERY_S", 0.2)
    made = stage(tmp_path, 3)
    world = made.load.world

    async def nothing(_: Stage) -> None:
        asyncio.get_running_loop().call_later(0.1, world.acks_seen.update, {KEYS[0]: 1})
        asyncio.get_running_loop().call_later(0.1, world.signs.update, [made.load.standing.sign()])

    async def healed(_: Stage) -> None:
        pass

    monkeypatch.setattr(Stage, "heal", healed)
    await nemesis.inflict(made, nothing)
    assert len(made.stuck) == 1
    assert made.stuck[0].startswith("t/1, publishing by WebSocket: nothing for")
    assert made.done == {"nothing": 1}
