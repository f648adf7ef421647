from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.broker.storage.build import HOME, PARTITION, TOPIC_ID, append, batch
from tests.broker.storage.keyed import keyed
from tests.broker.storage.logs import new_disk, open_partition
from tests.broker.storage.partition.keyed import compact
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_broker.storage.offline.verify import SegmentReport, inspect_segment, verify
from tidelog_broker.storage.partition.compaction_pass import Terms
from tidelog_broker.storage.partition.matching import RecordFilter
from tidelog_broker.storage.partition.partition_dirs import partition_dir_name
from tidelog_broker.storage.segment.layout import begun_path

DIRECTORY = HOME / partition_dir_name("events", TOPIC_ID, PARTITION)


def filled() -> SimDisk:
    sim = new_disk()
    log = open_partition(sim)
    for epoch in range(2):
        log.start_epoch(epoch, log.end_offset)
        for number in range(12):
            append(log, [batch(b"x" * 800, records=2, timestamp_us=number)], epoch=epoch)
            log.sync()
    log.close()
    return sim


def walk(sim: SimDisk, path: Path = HOME) -> list[SegmentReport]:
    before = {name: bytes(sim.node(name).current) for name in all_files(sim, HOME)}
    reports = list(verify(sim, path))
    assert before == {name: bytes(sim.node(name).current) for name in all_files(sim, HOME)}
    assert sim.open_files == 0
    return reports


def all_files(sim: SimDisk, path: Path) -> list[Path]:
    found: list[Path] = []
    for name in sim.list_dir(path):
        found += all_files(sim, path / name) if sim.is_dir(path / name) else [path / name]
    return found


def messages(reports: list[SegmentReport]) -> list[tuple[str, str]]:
    return [(finding.severity, finding.message) for report in reports for finding in report.findings]


def test_valid_files_have_a_report_without_findings() -> None:
    sim = filled()
    reports = walk(sim)
    assert messages(reports) == []
    assert all(report.is_sound for report in reports)
    assert [report.base_offset for report in reports][1:] == [report.end_offset for report in reports][:-1]
    assert sum(report.records for report in reports) == 48
    assert {(report.topic, report.partition) for report in reports} == {("events", PARTITION)}
    assert {report.epoch for report in reports} == {0, 1}
    assert reports[-1].max_timestamp_us == 11


def test_any_directory_level_can_be_verified() -> None:
    sim = filled()
    count = len(walk(sim))
    assert len(walk(sim, DIRECTORY)) == count
    epoch = DIRECTORY / "epoch-00000001"
    assert 0 < len(walk(sim, epoch)) < count
    (report,) = walk(sim, sim.files(epoch, ".seg")[0])
    assert report.epoch == 1
    with pytest.raises(NodeDirError, match="does not exist"):
        walk(sim, HOME / "nowhere")
    sim.make_dir(HOME / "empty")
    with pytest.raises(NodeDirError, match="no Tidelog data"):
        walk(sim, HOME / "empty")


def test_rot_torn_tails_and_notes_are_distinguished() -> None:
    sim = filled()
    segments = sim.files(DIRECTORY / "epoch-00000001", ".seg")
    sim.node(segments[0]).current[300] ^= 1
    reports = walk(sim)
    assert {severity for severity, _ in messages(reports)} == {"damage"}
    assert sum(not report.is_sound for report in reports) == 2

    sim = filled()
    node = sim.node(segments[-1])
    end = inspect_segment(sim, segments[-1]).used_bytes
    node.write(end, b"garbage")
    assert messages(walk(sim)) == [("torn", messages(walk(sim))[0][1])]

    sim = filled()
    sim.node(sim.files(DIRECTORY / "epoch-00000000", ".idx")[0]).current[70] ^= 1
    assert messages(walk(sim)) == [("note", "the index is corrupt; it is rebuilt when needed")]


def test_end_of_an_earlier_segment_or_epoch_is_damaged_not_torn() -> None:
    sim = filled()
    epochs = [sim.files(DIRECTORY / f"epoch-{number:08}", ".seg") for number in (0, 1)]
    assert len(epochs[0]) > 1
    for segment in (epochs[0][0], epochs[0][-1]):
        sim = filled()
        node = sim.node(segment)
        del node.current[inspect_segment(sim, segment).used_bytes - 200 :]
        by_path = {report.path: report for report in walk(sim)}
        assert {finding.severity for finding in by_path[segment].findings} == {"damage"}
        assert not by_path[segment].is_sound
        assert all(report.is_sound == (report.findings == []) for report in by_path.values())


def test_valid_key_indexes_are_reported_and_invalid_ones_noted() -> None:
    sim = new_disk()
    log = open_partition(sim)
    log.indexes.switch(frozenset({"key"}))
    log.start_epoch(0, 0)
    while len(log.epochs[0].segments) < 4:
        append(log, [keyed([b"a", b"b"] * 20)])
    log.matching.newest(limit_offset=log.end_offset, record_filter=RecordFilter(b"nobody"))
    log.close()
    assert [report.indexes for report in walk(sim)] == [["key"], ["key"], ["key"], []]
    paths = sim.files(DIRECTORY / "epoch-00000000", ".key")
    sim.node(paths[0]).current[8] ^= 1
    sim.node(paths[1]).current[-1] ^= 1
    assert [severity for severity, _ in messages(walk(sim))] == ["note", "note"]
    assert [report.indexes for report in walk(sim)] == [[], [], ["key"], []]


def test_segment_with_temporary_name_is_verified_and_without_header_not_damage() -> None:
    sim = filled()
    newest = sim.files(DIRECTORY / "epoch-00000001", ".seg")[-1]
    records = sum(report.records for report in walk(sim))
    begun = begun_path(newest)
    sim.rename(newest, begun)
    assert (messages(walk(sim)), sum(report.records for report in walk(sim))) == ([], records)
    header = bytes(sim.node(begun).current[:128])
    sim.node(begun).current[:128] = bytes(sim.node(sim.files(DIRECTORY / "epoch-00000001", ".seg")[0]).current[:128])
    assert [severity for severity, _ in messages(walk(sim))] == ["torn"]
    sim.node(begun).current[:128] = bytes(128)
    assert [severity for severity, _ in messages(walk(sim))] == ["torn"]
    sim.node(begun).current[:128] = header
    assert messages(walk(sim)) == []


def test_bad_header_gap_and_foreign_segment_are_damage() -> None:
    sim = filled()
    segments = sim.files(DIRECTORY / "epoch-00000000", ".seg")
    sim.node(segments[1]).current[0] ^= 1
    assert any("magic" in message for _, message in messages(walk(sim)))

    sim = filled()
    sim.unlink(segments[1])
    assert any("ends at" in message for _, message in messages(walk(sim)))

    sim = filled()
    other = DIRECTORY.with_name(partition_dir_name("events", TOPIC_ID, PARTITION + 1))
    sim.rename(DIRECTORY, other)
    assert all("directory of partition 4" in message for _, message in messages(walk(sim)))
    assert messages(walk(sim))


def partition_with_copies() -> SimDisk:
    """Epoch 3 in the log, epochs 0 and 1 beside it, epoch 2 set aside."""
    sim = filled()
    log = open_partition(sim)
    log.start_epoch(2, 48)
    append(log, [batch(b"two")], epoch=2)
    log.start_epoch(3, 49)
    append(log, [batch(b"three")], epoch=3)
    log.sync()
    log.copies.set_aside(2, "rot")
    log.close()
    return sim


def test_copies_beside_the_log_are_listed_and_their_faults_are_notes() -> None:
    sim = partition_with_copies()
    reports = walk(sim)
    assert [(report.role, report.epoch) for report in reports if report.role != "fill"] == [("log", 3), ("aside", 2)]
    assert {report.epoch for report in reports if report.role == "fill"} == {0, 1}
    assert messages(reports) == []
    for name in ("epoch-00000000.fill", "epoch-00000002.bad-1"):
        path = sim.files(DIRECTORY / name, ".seg")[0]
        sim.node(path).current[200] ^= 1
        (report, *_) = walk(sim, DIRECTORY / name)
        assert {finding.severity for finding in report.findings} == {"note"}
    assert all(report.is_sound for report in walk(sim))
    assert {severity for severity, _ in messages(walk(sim))} == {"note"}


def test_versions_of_compacted_epochs_are_distinguished() -> None:
    sim = new_disk()
    log = open_partition(sim)
    for epoch in range(3):
        log.start_epoch(epoch, log.end_offset)
        append(log, [keyed([b"a", b"b"])], epoch=epoch)
        log.sync()
    compact(log, Terms(4, 0, 0), decided=5)
    first, second = DIRECTORY / "epoch-00000000.c00000005", DIRECTORY / "epoch-00000001.c00000005"
    assert [(report.role, report.path.parent) for report in list(verify(sim, HOME))[:2]] == [
        ("log", first),
        ("log", second),
    ]
    end, one = log.epochs[1], log.compacted.begin(1, 2)
    one.append(log.reader.read(2, 1000, limit_offset=end.end_offset).batches)
    one.finish()
    log.close()
    for target in ("epoch-00000000", "epoch-00000000.c00000003"):
        copy_dir(sim, first, DIRECTORY / target)
    assert [(report.role, report.epoch) for report in walk(sim)] == [
        *[("log", 0), ("log", 1), ("log", 2)],
        *[("old", 0)] * 2,
        ("making", 1),
    ]
    for name in ("epoch-00000000", "epoch-00000001.making"):
        sim.node(sim.files(DIRECTORY / name, ".seg")[0]).current[200] ^= 1
    assert {severity for severity, _ in messages(walk(sim))} == {"note"}
    sim.node(sim.files(first, ".seg")[0]).current[200] ^= 1
    assert "damage" in {severity for severity, _ in messages(walk(sim))}


def copy_dir(sim: SimDisk, source: Path, target: Path) -> None:
    sim.make_dir(target)
    for name in sim.list_dir(source):
        with closing(sim.open_readonly(source / name)) as old, closing(sim.open(target / name, create=True)) as new:
            new.pwritev([old.pread(old.size(), 0)], 0)


def test_partition_with_only_copies_is_verified() -> None:
    sim = new_disk()
    log = open_partition(sim)
    log.start_epoch(4, 0)
    append(log, [batch()], epoch=4)
    log.close()
    log = open_partition(sim)
    log.copies.set_aside(4, "rot")
    log.close()
    for path in (HOME, DIRECTORY):
        (report,) = walk(sim, path)
        assert report.role == "aside"
        assert ["has not been replaced" in message for _, message in messages([report])] == [True]
        assert not report.is_sound


def test_unfinished_repair_is_damage() -> None:
    sim = filled()
    newest = sim.files(DIRECTORY / "epoch-00000001", ".seg")[-1]
    sim.node(newest).current[300] ^= 1
    log = open_partition(sim)
    log.repair.truncate_to_valid_prefix(1)
    log.close()
    (message,) = [message for severity, message in messages(walk(sim)) if severity == "damage"]
    assert "not been fetched" in message
