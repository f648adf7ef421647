from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.broker.storage.build import HOME, TOPIC_ID
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.errors import DamagedError, DiskFullError
from tidelog_broker.storage.node import typed_journal
from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.journal import Journal
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_proto import broker_pb2 as pb

PATH = HOME / "journal"


def fence(number: int) -> pb.FenceEntry:
    return pb.FenceEntry(topic_id=TOPIC_ID, partition=1, epoch=4, promised=pb.Ballot(round=number, node_id="a"))


def chain(partition: int) -> list[pb.ChainEntry]:
    genesis = pb.ChainEntry(topic_id=TOPIC_ID, partition=partition, genesis=pb.EpochDescriptor(owner="a"))
    decisions = [bytes([number]) * 900 for number in range(2)]
    return [genesis, *(pb.ChainEntry(topic_id=TOPIC_ID, partition=partition, decision=one) for one in decisions)]


def forgotten(partition: int) -> pb.ChainEntry:
    return pb.ChainEntry(topic_id=TOPIC_ID, partition=partition, forgotten=True)


def open_fences(sim: SimDisk) -> TypedJournal[pb.FenceEntry]:
    if not sim.exists(PATH):
        TypedJournal.make(sim, PATH, FENCES)
    return TypedJournal.open(sim, PATH, FENCES)


def open_chains(sim: SimDisk) -> TypedJournal[pb.ChainEntry]:
    if not sim.exists(PATH):
        TypedJournal.make(sim, PATH, CHAINS)
    return TypedJournal.open(sim, PATH, CHAINS)


def test_caller_may_change_its_message_after_append() -> None:
    journal = open_fences(new_disk())
    entry = fence(5)
    journal.append([entry])
    entry.promised.round = 1
    assert journal.load() == [fence(5)]


def test_replaced_entries_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_journal, "COMPACT_AFTER_BYTES", 5_000)
    sim = new_disk()
    journal = open_fences(sim)
    for number in range(1, 300):
        journal.append([fence(number)])
        assert journal._journal.size_bytes < 5_300
    assert open_fences(sim.restart()).load() == [fence(299)]


def test_ended_keys_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_journal, "COMPACT_AFTER_BYTES", 10_000)
    sim = new_disk()
    journal = open_chains(sim)
    journal.append(chain(0))
    for partition in range(1, 30):
        journal.append(chain(partition))
        journal.append([forgotten(partition)])
    assert journal._journal.size_bytes < 20_000
    assert open_chains(sim.restart()).load() == chain(0)


def test_mostly_live_journal_is_not_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_journal, "COMPACT_AFTER_BYTES", 5_000)
    journal = open_chains(new_disk())
    sizes = [journal._journal.size_bytes]
    for partition in range(20):
        journal.append(chain(partition))
        sizes.append(journal._journal.size_bytes)
    journal.append([forgotten(3)])
    assert sizes == sorted(set(sizes))
    assert journal._journal.size_bytes > sizes[-1] > 5_000


def test_dead_bytes_are_counted_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = new_disk()
    journal = open_chains(sim)
    for partition in range(10):
        journal.append(chain(partition))
        journal.append([forgotten(partition)])
    journal.close()
    monkeypatch.setattr(typed_journal, "COMPACT_AFTER_BYTES", 5_000)
    again = open_chains(sim)
    again.append(chain(20)[:1])
    assert again._journal.size_bytes < 1_000
    assert again.load() == chain(20)[:1]


def test_full_disk_for_compaction_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_journal, "COMPACT_AFTER_BYTES", 5_000)
    sim = new_disk()
    journal = open_fences(sim)
    sim.free_bytes = 0
    last = 0
    with suppress(DiskFullError):  # once the space that was taken ahead is used up
        for number in range(1, 200):
            journal.append([fence(number)])
            last = number
    assert last > 100
    assert journal._journal.size_bytes > 10_000
    assert journal.load() == [fence(last)]
    sim.free_bytes = None
    journal.append([fence(last + 1)])
    assert journal._journal.size_bytes < 1_000
    assert open_fences(sim.restart()).load() == [fence(last + 1)]


@pytest.mark.parametrize(("opened", "magic"), [(open_fences, FENCES.magic), (open_chains, CHAINS.magic)])
def test_undecodable_entry_is_damage(opened: Callable[[SimDisk], TypedJournal[Any]], magic: bytes) -> None:
    sim = new_disk()
    opened(sim).close()
    raw, _ = Journal.open(sim, PATH, magic)
    raw.append([b"\xff\xff"])
    raw.close()
    with pytest.raises(DamagedError, match="decode"):
        opened(sim)
    assert sim.open_files == 0
