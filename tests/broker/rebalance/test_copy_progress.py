from __future__ import annotations

from collections.abc import Collection

import pytest
from tests.broker.founded import Founded

from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.rebalance import copy_progress
from tidelog_broker.rebalance.copy_progress import MOVES_MAX, STALLED_MS, CopyReport, NewCopies, ask
from tidelog_proto import broker_pb2 as pb

KEY = (b"t" * 16, 0)


class Trial:
    """Copies on nodes whose reports are set by the test."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.told: dict[str, dict[PartitionKey, pb.PartitionInfo]] = {}
        self.asked: list[tuple[str, set[PartitionKey]]] = []
        self.dead: set[str] = set()
        self.copies = NewCopies(ask=self.ask, alive=lambda node: node not in self.dead, now_ms=lambda: self.now_ms)

    async def ask(self, node_id: str, keys: Collection[PartitionKey]) -> CopyReport:
        self.asked.append((node_id, set(keys)))
        return self.told.get(node_id, {})

    def tell(
        self,
        node: str,
        *,
        epoch: int = 5,
        missing: int = 0,
        placement: str = "acd",
        state: str = "active",
        fault: str = "",
    ) -> None:
        info = pb.PartitionInfo(
            epoch=epoch,
            placement=placement,
            state=state,
            missing_epochs=int(missing > 0),
            missing_records=missing,
            copy_fault=fault,
        )
        self.told.setdefault(node, {})[KEY] = info

    async def is_awaited(self) -> bool:
        await self.copies.look()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(copy_progress, "MOVES_MAX", 0)  # only begun moves may be tried again
            return self.copies.has_room(KEY, advised=False)


async def test_move_counts_until_all_new_copies_are_complete() -> None:
    trial = Trial()
    trial.copies.begun(KEY, 5, {"c", "d"}, advised=False)
    assert await trial.is_awaited()
    trial.tell("c")
    trial.tell("d", missing=9)
    assert await trial.is_awaited()
    trial.tell("d")
    trial.asked.clear()
    assert not await trial.is_awaited()
    assert trial.asked == [("d", {KEY})], "c has been whole before"
    await trial.copies.look()
    assert len(trial.asked) == 1, "no request is sent without a reason"


@pytest.mark.parametrize(
    "told",
    [
        {"epoch": 4},
        {"epoch": 4, "placement": "ab"},
        {"state": "away"},
        {"missing": 1},
        {"fault": "limbo"},
    ],
)
async def test_copy_is_incomplete(told: dict[str, int]) -> None:
    trial = Trial()
    trial.copies.begun(KEY, 5, {"c"}, advised=False)
    trial.tell("c", **told)  # type: ignore[arg-type]
    assert await trial.is_awaited()


async def test_unneeded_copy_or_copy_on_a_down_node_is_not_waited_for() -> None:
    trial = Trial()
    trial.copies.begun(KEY, 5, {"c"}, advised=False)
    trial.tell("c", epoch=6, placement="ab", state="away")
    assert not await trial.is_awaited()
    trial.copies.begun(KEY, 7, {"d"}, advised=False)
    trial.dead = {"d"}
    trial.asked.clear()
    assert not await trial.is_awaited()
    assert trial.asked == []


async def test_copy_is_waited_for_while_it_makes_progress() -> None:
    trial = Trial()
    trial.copies.begun(KEY, 5, {"c"}, advised=False)
    for missing in (900, 800, 700):
        trial.now_ms += STALLED_MS - 1
        trial.tell("c", missing=missing)
        assert await trial.is_awaited()
    trial.now_ms += STALLED_MS - 1
    trial.tell("c", missing=800)
    assert await trial.is_awaited()
    trial.now_ms += 1
    trial.tell("c", missing=750)
    assert not await trial.is_awaited(), "repeated restarts do not count as progress"


async def test_silent_node_is_waited_for_only_a_while() -> None:
    trial = Trial()
    trial.copies.begun(KEY, 5, {"c"}, advised=False)
    trial.now_ms = STALLED_MS - 1
    assert await trial.is_awaited()
    trial.now_ms = STALLED_MS
    assert not await trial.is_awaited()


def test_moves_are_bounded_but_retries_allowed() -> None:
    copies = Trial().copies
    keys = [(b"t" * 16, index) for index in range(MOVES_MAX)]
    for key in keys:
        assert copies.has_room(key, advised=False)
        copies.begun(key, 5, {"c"}, advised=False)
    another = (b"t" * 16, MOVES_MAX)
    assert not copies.has_room(another, advised=False)
    assert copies.has_room(another, advised=True)
    assert copies.has_room(keys[0], advised=False)


async def test_node_reports_its_copies_of_requested_partitions(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create("t", partitions=3, replication_factor=1)
    await peer.create("u")
    keys = [(topic.topic_id, index) for index in (0, 2)]
    owner = topic.partitions[2].owner
    asker = founded.nodes[next(name for name in founded.nodes if name != owner)].broker.cluster
    await founded.until(lambda: owner in asker.linked, "there is no link")
    await founded.until(lambda: founded.nodes[owner].broker.partitions.find(keys[1]) is not None, "it is not taken up")
    told = await ask(asker, owner, [*keys, (b"x" * 16, 0), (topic.topic_id, 9)])
    assert list(told) == keys
    assert (told[keys[1]].partition, list(told[keys[1]].placement)) == (2, [owner])
    assert told[keys[1]].state not in {"away", "no owner"}
    assert (await ask(asker, "nobody", keys)) == {}
    everything = pb.ClusterStatus(partitions=[pb.PartitionName(topic_id=topic.topic_id, partition=1)])
    status = (await peer.ask(cluster_status=everything)).envelope.cluster_status_reply
    assert len(status.nodes) == 3, "a client gets the complete status"
