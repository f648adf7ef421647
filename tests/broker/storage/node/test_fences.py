from __future__ import annotations

import pytest
from tests.broker.storage.build import HOME, TOPIC_ID
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.node.fences import FENCES, fence_key
from tidelog_broker.storage.node.journal import Journal
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_proto import broker_pb2 as pb

PATH = HOME / "fences"
DESCRIPTOR = pb.EpochDescriptor(epoch=4, owner="a")


def fence(promised: int, accepted: int | None = None, *, value: bytes = b"", epoch: int = 4) -> pb.FenceEntry:
    return pb.FenceEntry(
        topic_id=TOPIC_ID,
        partition=1,
        epoch=epoch,
        descriptor=DESCRIPTOR,
        promised=pb.Ballot(round=promised, node_id="a"),
        accepted=pb.Ballot(round=accepted, node_id="a") if accepted is not None else None,
        accepted_value=value,
    )


def open_journal(sim: SimDisk) -> TypedJournal[pb.FenceEntry]:
    if not sim.exists(PATH):
        TypedJournal.make(sim, PATH, FENCES)
    return TypedJournal.open(sim, PATH, FENCES)


def fences_of(journal: TypedJournal[pb.FenceEntry]) -> dict[int, pb.FenceEntry]:
    """Return them by epoch, all of one partition."""
    found = {fence_key(entry): entry for entry in journal.load()}
    assert {key[:2] for key in found} <= {(TOPIC_ID, 1)}
    return {key[2]: entry for key, entry in found.items()}


def test_newest_fence_of_an_epoch_survives_restarts() -> None:
    sim = new_disk()
    journal = open_journal(sim)
    journal.append([fence(1), fence(2), fence(9, epoch=5)])
    journal.append([fence(3, 3, value=b"v")])
    for view in (journal, open_journal(sim.restart())):
        assert fences_of(view) == {4: fence(3, 3, value=b"v"), 5: fence(9, epoch=5)}
    journal.append([pb.FenceEntry(topic_id=TOPIC_ID, partition=1, epoch=4, dropped=True)])
    journal.close()
    assert fences_of(open_journal(sim)) == {5: fence(9, epoch=5)}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (fence(5), fence(4)),
        (fence(5, 5, value=b"v"), fence(6, 4, value=b"v")),
        (fence(5, 5, value=b"v"), fence(6)),
        (fence(5, 5, value=b"v"), fence(5, 5, value=b"w")),
        (fence(5), fence(5, 6)),
        (fence(5), pb.FenceEntry(topic_id=TOPIC_ID, partition=1, epoch=4, promised=pb.Ballot(round=7))),
    ],
)
def test_fence_never_regresses(first: pb.FenceEntry, second: pb.FenceEntry) -> None:
    sim = new_disk()
    journal = open_journal(sim)
    with pytest.raises(AssertionError):
        journal.append([first, second])
    journal.append([first])
    with pytest.raises(AssertionError):
        journal.append([second])
    assert fences_of(open_journal(sim.restart())) == {4: first}
    open_journal(sim).close()
    raw, _ = Journal.open(sim, PATH, FENCES.magic)
    raw.append([second.SerializeToString()])
    raw.close()
    with pytest.raises(DamagedError):
        open_journal(sim)


def test_dropped_fence_may_be_replaced_by_any_entry() -> None:
    journal = open_journal(new_disk())
    dropped = pb.FenceEntry(topic_id=TOPIC_ID, partition=1, epoch=4, dropped=True)
    journal.append([fence(5), dropped, fence(1)])
    journal.append([dropped])
    journal.append([fence(2)])
    assert fences_of(journal) == {4: fence(2)}
