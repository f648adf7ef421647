from __future__ import annotations

import pytest
from tests.broker.storage.build import HOME, TOPIC_ID
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.node.journal import Journal
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_proto import broker_pb2 as pb

PATH = HOME / "journal"


def entries(partition: int, decisions: int = 2) -> list[pb.ChainEntry]:
    genesis = pb.ChainEntry(topic_id=TOPIC_ID, partition=partition, genesis=pb.EpochDescriptor(owner="a"))
    return [
        genesis,
        *(
            pb.ChainEntry(topic_id=TOPIC_ID, partition=partition, decision=bytes([number]) * 900)
            for number in range(decisions)
        ),
    ]


def open_journal(sim: SimDisk) -> TypedJournal[pb.ChainEntry]:
    if not sim.exists(PATH):
        TypedJournal.make(sim, PATH, CHAINS)
    return TypedJournal.open(sim, PATH, CHAINS)


def test_chains_are_loaded_in_order_without_forgotten_ones() -> None:
    sim = new_disk()
    journal = open_journal(sim)
    journal.append(entries(0)[:1])
    journal.append(entries(1))
    journal.append(entries(0)[1:])
    journal.append([pb.ChainEntry(topic_id=TOPIC_ID, partition=1, forgotten=True)])
    for view in (journal, open_journal(sim.restart())):
        assert view.load() == entries(0)
    journal.append(entries(1, decisions=0))
    journal.close()
    assert open_journal(sim).load() == [*entries(0), *entries(1, decisions=0)]


@pytest.mark.parametrize("payload", [b"\xff\xff\xff", pb.ChainEntry(partition=3).SerializeToString()])
def test_entry_of_unknown_kind_is_damage(payload: bytes) -> None:
    sim = new_disk()
    open_journal(sim).close()
    raw, _ = Journal.open(sim, PATH, CHAINS.magic)
    raw.append([payload])
    raw.close()
    with pytest.raises(DamagedError):
        open_journal(sim)
    assert sim.open_files == 0
