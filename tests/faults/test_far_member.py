"""The member that is cut off: the steps of the fault, the report when nothing continues, and slow reading."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from tests.faults import harms
from tests.faults import stage as stages
from tests.faults.far_member import FarMember
from tests.faults.gateway import Gateway
from tests.faults.history import History, Key
from tests.faults.load import Load
from tests.faults.member_process import MemberProcess
from tests.faults.network import Network
from tests.faults.nodes import make_nodes
from tests.faults.sharer import DAWDLE_POLLED, DAWDLE_S, POLLED
from tests.faults.sharing import MEMBERS_MAX, Sharing
from tests.faults.stage import Stage
from tests.faults.tenures import Tenures
from tests.faults.values import number_of, value_of
from tests.faults.world import World

from tidelog import Client

KEYS = [Key("t", number) for number in range(MEMBERS_MAX)]
FAR = "sharer-far"
POLLING_LIFE = 2


class Scene:
    """A stage on which nothing is real, with one partition that the far member has and is handed records of."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self.network = Network(3)
        nodes = make_nodes(3, path, None, None)
        load = Load(nodes, Gateway(nodes, path, None), KEYS, History(), Random(0), 1, place=())
        self.stage = Stage(nodes, None, load, self.network, Random(0), lambda _: None)
        self.tenures = load.sharing.tenures
        self.tenures.begin(FAR, KEYS[0], position=0, generation=1, at=time.monotonic())

        async def soon(_: Stage, __: float, ___: float) -> None:
            await asyncio.sleep(0.05)

        monkeypatch.setattr(harms, "BACKLOG_S", 0.0)
        monkeypatch.setattr(stages, "RECOVERY_S", 0.5)
        monkeypatch.setattr(Stage, "hold", soon)
        monkeypatch.setattr(Network, "cut_off", lambda _, place: self.did.append(f"cut {place}"))
        monkeypatch.setattr(Network, "heal", lambda _: self.did.append("heal"))
        monkeypatch.setattr(FarMember, "dawdle", lambda _: self.did.append("dawdle"))
        monkeypatch.setattr(FarMember, "go_on", lambda _: self.did.append("go on"))

    def hand(self, who: str, key: Key) -> None:
        self.tenures.hand(who, key, 0, [1], at=time.monotonic())

    def begin(self, who: str, key: Key) -> None:
        self.tenures.begin(who, key, position=0, generation=2, at=time.monotonic())

    def come_back(self) -> None:
        self.begin(FAR, KEYS[1])
        self.hand(FAR, KEYS[1])

    async def go(self, *steps: Callable[[], None]) -> None:
        """Do the fault, and each step once the fault has done one thing more."""
        doing = asyncio.create_task(harms.cut_off_member(self.stage))
        for count, step in enumerate(steps, 1):
            while len(self.did) < count and not doing.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            step()
        await doing


async def test_a_member_with_records_at_hand_is_cut_off_until_others_have_begun_and_then_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, monkeypatch)
    await scene.go(
        lambda: scene.hand(FAR, KEYS[0]),
        lambda: scene.begin("sharer-0", KEYS[0]),
        lambda: None,
        scene.come_back,
    )
    assert scene.did == ["dawdle", f"cut {scene.network.member}", "heal", "go on"]
    assert scene.stage.stuck == []


async def test_a_missing_takeover_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    await scene.go(
        lambda: scene.hand(FAR, KEYS[0]),
        lambda: None,
        lambda: None,
        lambda: scene.hand(FAR, KEYS[0]),
    )
    assert scene.stage.stuck == [f"no member has taken over t/0 from {FAR}, which was cut off"]


async def test_a_member_without_further_records_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    await scene.go(lambda: scene.hand(FAR, KEYS[0]), lambda: scene.begin("sharer-0", KEYS[0]))
    assert scene.stage.stuck == [f"{FAR} was handed nothing after it was cut off and healed"]


async def test_a_member_that_has_nothing_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    await scene.go()
    assert scene.did == ["dawdle", "go on"]
    assert scene.stage.stuck == [f"{FAR} was handed nothing, and was not cut off"]


def test_a_far_member_exists_if_it_has_a_machine_and_topics(tmp_path: Path) -> None:
    nodes = make_nodes(1, tmp_path, None, None)

    def sharing(keys: Sequence[Key], place: Sequence[str] | None) -> Sharing:
        return Sharing(World(nodes, keys, History(), Random(0), 1), ["t"], Random(0), place)

    assert sharing(KEYS, ["nsenter"]).far is not None
    assert sharing(KEYS, None).far is None
    assert sharing(KEYS[1:], ["nsenter"]).far is None


class HandedAt(Tenures):
    """Also notes how many records were handed out at each time."""

    def __init__(self, history: History) -> None:
        super().__init__("g", history)
        self.counts: Counter[float] = Counter()

    def hand(self, who: str, key: Key, first: int, numbers: Sequence[int], *, at: float) -> None:
        """Count, too."""
        super().hand(who, key, first, numbers, at=at)
        self.counts[at] += len(numbers)


@pytest.mark.e2e
async def test_a_slow_member_takes_few_records_at_a_time_and_continues_on_request(tmp_path: Path) -> None:
    (node,) = make_nodes(1, tmp_path, None, None)
    await node.start()
    key, history = Key("t", 0), History()
    handed, count = HandedAt(history), 3 * POLLED
    process = MemberProcess(World([node], [key], history, Random(1), 1), handed, ["t"], "far", POLLING_LIFE)
    try:
        async with Client(node.address) as client, asyncio.timeout(60):
            await client.create_topic("t")
            async with client.producer("t") as producer:
                await producer.send_many([value_of(number_of(1, sequence)) for sequence in range(count)])
            await process.start()
            process.say("dawdle")
            while len(handed.counts) < 7:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            dawdled = sorted(handed.counts)[1:]  # the first poll may have begun before the request
            process.say("go on")
            while handed.read_to(key) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        await process.end()
        await node.stop()
    assert max(handed.counts[at] for at in dawdled) <= DAWDLE_POLLED
    assert min(later - earlier for earlier, later in pairwise(dawdled)) >= DAWDLE_S
    assert max(taken for at, taken in handed.counts.items() if at > dawdled[-1]) > DAWDLE_POLLED
