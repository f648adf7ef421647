"""Offline verification of a commit log: files, and the stores that have lost synced records."""

from __future__ import annotations

from tests.broker.storage.build import HOME
from tests.broker.storage.commit_log.shared_world import LOG_DIR, SharedWorld
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.commit_log.records import FILE_HEADER_BYTES, FILE_SUFFIX, Kind, records_in
from tidelog_broker.storage.offline.verify import verify
from tidelog_broker.storage.offline.verify_commit_log import verify_commit_log


def closed_log() -> SimDisk:
    world = SharedWorld(new_disk())
    for number in range(3):
        world.create(number)
        for _ in range(4):
            world.append(number, [50])
    for number in range(3):
        world.stores[number].close()
    world.sim.make_dir(HOME / "partitions")
    return world.sim


def contents(sim: SimDisk) -> dict[str, bytes]:
    return {name: bytes(sim.node(LOG_DIR / name).current) for name in sim.list_dir(LOG_DIR)}


def test_sound_log_has_no_findings_and_is_not_changed() -> None:
    sim = closed_log()
    before = contents(sim)
    log = verify_commit_log(sim, LOG_DIR)
    assert log.bad_tails == []
    assert sum(file.batches for file in log.files) == sum(file.records for file in log.files) == 12
    assert all(file.fault == "" and not file.bad and file.marks for file in log.files[-1:])
    assert [finding for report in verify(sim, HOME) for finding in report.findings] == []
    assert contents(sim) == before


def test_damage_of_synced_records_names_the_partition() -> None:
    sim = closed_log()
    (path,) = sim.files(LOG_DIR, FILE_SUFFIX)
    data = sim.node(path).current
    nonce = int.from_bytes(data[8:16], "little")
    batches = [one for one in records_in(bytes(data), FILE_HEADER_BYTES, nonce=nonce, base=0) if one.kind == Kind.BATCH]
    data[batches[5].at + 150] ^= 1
    (report,) = verify(sim, HOME)
    damage = [finding for finding in report.findings if finding.severity == "damage"]
    assert len(damage) == 1
    assert not report.is_sound
    assert damage[0].offset == 1
    assert "partition 1 of topic id" in damage[0].message
    assert "records below offset 4 were synced, but those from 1 on are damaged or missing" in damage[0].message
    assert [finding.severity for finding in report.findings if finding not in damage] == ["note"]
    data[0] ^= 1
    assert verify_commit_log(sim, LOG_DIR).files[0].fault
