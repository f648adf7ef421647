from __future__ import annotations

import pytest
from tests.broker.storage.build import HOME, TOPIC_ID
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.node import fences
from tidelog_broker.storage.node.fences import MAGIC, FenceJournal
from tidelog_broker.storage.node.journal import Journal
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


def open_journal(sim: SimDisk) -> FenceJournal:
    if not sim.exists(PATH):
        FenceJournal.make(sim, PATH)
    return FenceJournal.open(sim, PATH)


def test_the_newest_fence_of_an_epoch_holds_across_restarts() -> None:
    sim = new_disk()
    journal = open_journal(sim)
    journal.append([fence(1), fence(2), fence(9, epoch=5)])
    journal.append([fence(3, 3, value=b"v")])
    for view in (journal, open_journal(sim.restart())):
        assert view.get((TOPIC_ID, 1), 4) == fence(3, 3, value=b"v")
        assert view.get((TOPIC_ID, 1), 6) is None
        assert set(view.load()) == {(TOPIC_ID, 1, 4), (TOPIC_ID, 1, 5)}
    journal.append([pb.FenceEntry(topic_id=TOPIC_ID, partition=1, epoch=4, dropped=True)])
    journal.close()
    assert set(open_journal(sim).load()) == {(TOPIC_ID, 1, 5)}


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
def test_a_fence_never_goes_back(first: pb.FenceEntry, second: pb.FenceEntry) -> None:
    sim = new_disk()
    journal = open_journal(sim)
    with pytest.raises(AssertionError):
        journal.append([first, second])
    journal.append([first])
    with pytest.raises(AssertionError):
        journal.append([second])
    assert open_journal(sim.restart()).get((TOPIC_ID, 1), 4) == first
    open_journal(sim).close()
    raw, _ = Journal.open(sim, PATH, MAGIC)
    raw.append([second.SerializeToString()])
    raw.close()
    with pytest.raises(DamagedError):
        open_journal(sim)


def test_the_caller_s_message_may_change_afterwards() -> None:
    journal = open_journal(new_disk())
    entry = fence(5)
    journal.append([entry])
    entry.promised.round = 1
    assert journal.get((TOPIC_ID, 1), 4) == fence(5)


def test_the_journal_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fences, "COMPACT_AFTER_BYTES", 5_000)
    sim = new_disk()
    journal = open_journal(sim)
    for number in range(1, 300):
        journal.append([fence(number)])
    assert journal._journal.size_bytes < 6_000
    assert open_journal(sim.restart()).get((TOPIC_ID, 1), 4) == fence(299)


def test_an_entry_that_does_not_decode_is_damage() -> None:
    sim = new_disk()
    open_journal(sim).close()
    raw, _ = Journal.open(sim, PATH, MAGIC)
    raw.append([b"\xff\xff"])
    with pytest.raises(DamagedError, match="decode"):
        open_journal(sim)
