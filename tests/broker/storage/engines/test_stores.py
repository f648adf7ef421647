"""How the engine of an epoch is found, and what becomes of an epoch whose engine is missing."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from random import Random
from typing import cast

import pytest
from tests.broker.storage.build import HOME, PARTITION, SEGMENT_BYTES, TOPIC_ID, append, batch, read_all
from tests.broker.storage.decided import DIRECTORY
from tests.broker.storage.logs import disk_on, new_disk, open_partition
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.directory.engine_marker import is_engine_name, marked_engine
from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.engine.store import SEGMENT, EpochStart, Volume
from tidelog_broker.storage.engines import stores
from tidelog_broker.storage.engines.stores import (
    close_engines,
    create_store,
    engine_named,
    engine_names,
    forget_stores,
    is_deleted,
    open_store,
    remove_store,
)
from tidelog_broker.storage.epoch.segment_engine import SegmentEngine
from tidelog_broker.storage.io.errors import DiskFullError, EngineMissingError, LimboError
from tidelog_broker.storage.segment.disk import Disk

OTHER = "other-1"
EPOCH = HOME / "epoch-00000005"
START = EpochStart(TOPIC_ID, PARTITION, 5, 0)


class OtherEngine(SegmentEngine):
    """Segments, by another name."""

    name = OTHER
    forgotten: list[Path]

    def __init__(self, volume: Volume) -> None:
        super().__init__(cast(Disk, volume))
        self.forgotten = []
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def forget(self, directory: Path) -> None:
        self.forgotten.append(directory)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, EntryPoint]:
    """Return the installed entry points of engines, which a test may change."""
    points = {OTHER: EntryPoint(OTHER, f"{__name__}:OtherEngine", stores.GROUP)}
    monkeypatch.setattr(stores, "entry_points", lambda group: list(points.values()) if group == stores.GROUP else [])
    return points


def two_epochs(sim: SimDisk) -> list[bytes]:
    """Make a partition whose epoch 1 is stored by the other engine, and epoch 2 in segments again."""
    log = open_partition(sim)
    written: list[bytes] = []
    for epoch, engine in ((0, SEGMENT), (1, OTHER), (2, SEGMENT)):
        log.start_epoch(epoch, log.end_offset, engine=engine)
        written += append(log, [batch(), batch()], epoch=epoch)
    log.close()
    return written


def contents(sim: SimDisk) -> dict[Path, bytes]:
    """Return the files of epoch 1, whose engine is missing."""
    return {path: bytes(sim.node(path).current) for path in sim.files(DIRECTORY / "epoch-00000001", "")}


@pytest.mark.parametrize("name", ["", "Memory", "a/b", "9", "a" * 65, "a\n"])
def test_names_of_engines_are_names_of_files(name: str) -> None:
    assert not is_engine_name(name)
    assert is_engine_name("rocks_db-2.x")


def test_directory_without_a_name_is_of_the_segment_engine(installed: object) -> None:
    sim = new_disk()
    create_store(disk_on(sim), EPOCH, START, engine=SEGMENT, segment_bytes=SEGMENT_BYTES).close()
    assert marked_engine(sim.list_dir(EPOCH)) == SEGMENT
    assert not any(name.startswith("engine-") for name in sim.list_dir(EPOCH)), "older releases open it"


def test_directory_names_its_engine(installed: object) -> None:
    sim = new_disk()
    volume = disk_on(sim)
    create_store(volume, EPOCH, START, engine=OTHER, segment_bytes=SEGMENT_BYTES).close()
    again = disk_on(sim.restart())
    assert marked_engine(again.fs.list_dir(EPOCH)) == OTHER
    store = open_store(again, EPOCH, segment_bytes=SEGMENT_BYTES)
    assert store is not None
    assert list(again.engines) == [OTHER]
    store.close()


def test_installed_engines_are_listed_and_cannot_replace_a_built_in_one(installed: dict[str, EntryPoint]) -> None:
    installed[SEGMENT] = EntryPoint(SEGMENT, f"{__name__}:OtherEngine", stores.GROUP)
    assert engine_names() == [SEGMENT, "memory", "rocksdb", OTHER], "file_model chooses the shared one"
    assert type(engine_named(disk_on(new_disk()), SEGMENT)) is SegmentEngine


def test_engine_is_made_once_a_node(installed: object) -> None:
    volume = disk_on(new_disk())
    assert engine_named(volume, OTHER) is engine_named(volume, OTHER)


def test_engine_that_cannot_be_imported_is_missing(installed: dict[str, EntryPoint]) -> None:
    installed["broken"] = EntryPoint("broken", f"{__name__}:nothing", stores.GROUP)
    with pytest.raises(EngineMissingError, match=r"engine broken cannot be used: its package cannot be imported"):
        engine_named(disk_on(new_disk()), "broken")
    with pytest.raises(EngineMissingError, match=r"engine missing cannot be used: the installed engines are segment"):
        engine_named(disk_on(new_disk()), "missing")


def test_log_lies_in_several_engines(installed: object) -> None:
    sim = new_disk()
    written = two_epochs(sim)
    log = open_partition(sim.restart())
    markers = [marked_engine(sim.list_dir(held.directory)) for held in log.epochs]
    assert markers == [SEGMENT, OTHER, SEGMENT]
    assert read_all(log) == written
    log.close()


def test_partition_without_its_engine_names_it_and_opens_whole_with_it(
    installed: dict[str, EntryPoint],
) -> None:
    sim = new_disk()
    written = two_epochs(sim)
    point = installed.pop(OTHER)
    before = contents(sim)
    log = open_partition(sim.restart())
    assert log.state == "limbo"
    assert log.needs_engine
    assert log.unreadable_epoch is None, "nothing may set it aside"
    assert log.limbo is not None
    assert "epoch-00000001: engine other-1 cannot be used" in log.limbo
    with pytest.raises(LimboError, match="other-1"):
        append(log, [batch()], epoch=2)
    with pytest.raises(LimboError, match="other-1"):
        log.start_epoch(3, log.end_offset)
    log.close()
    assert contents(sim) == before
    installed[OTHER] = point
    log = open_partition(sim.restart())
    assert (log.state, log.needs_engine, read_all(log)) == ("active", False, written)
    log.close()


def test_new_epoch_of_a_missing_engine_changes_nothing(installed: object) -> None:
    sim = new_disk()
    log = open_partition(sim)
    log.start_epoch(0, 0)
    written = append(log, [batch()])
    with pytest.raises(EngineMissingError):
        log.start_epoch(1, log.end_offset, engine="missing")
    log.close()
    log = open_partition(sim.restart())
    assert ([held.epoch for held in log.epochs], read_all(log)) == ([0], written)
    log.close()


def test_engine_forgets_a_store_before_its_directory_is_removed(installed: object) -> None:
    sim = new_disk()
    volume = disk_on(sim)
    engine = engine_named(volume, OTHER)
    assert isinstance(engine, OtherEngine)
    for epoch in (5, 6):
        directory = HOME / f"epoch-{epoch:08d}"
        create_store(volume, directory, START._replace(epoch=epoch), engine=OTHER, segment_bytes=SEGMENT_BYTES).close()
    forget_stores(volume, HOME)
    assert sorted(engine.forgotten) == [HOME / "epoch-00000005", HOME / "epoch-00000006"]
    remove_store(volume, EPOCH)
    assert engine.forgotten[2:] == [EPOCH]
    assert not sim.exists(EPOCH)


def test_engine_forgets_a_store_whose_creation_has_failed(installed: object) -> None:
    sim = new_disk()
    volume = disk_on(sim)
    engine = engine_named(volume, OTHER)
    assert isinstance(engine, OtherEngine)
    sim.free_bytes = 0
    with pytest.raises(DiskFullError):
        create_store(volume, EPOCH, START, engine=OTHER, segment_bytes=SEGMENT_BYTES)
    assert engine.forgotten == [EPOCH.with_name(EPOCH.name + NEW_SUFFIX)]


def test_engines_are_closed_with_their_node(installed: object) -> None:
    volume = disk_on(new_disk())
    engine = engine_named(volume, OTHER)
    assert isinstance(engine, OtherEngine)
    close_engines(volume.engines)
    assert engine.is_closed


def test_directory_of_a_missing_engine_can_be_removed(installed: dict[str, EntryPoint]) -> None:
    sim = new_disk()
    create_store(disk_on(sim), EPOCH, START, engine=OTHER, segment_bytes=SEGMENT_BYTES).close()
    installed.clear()
    volume = disk_on(sim)
    assert not is_deleted(volume, EPOCH), "only the engine knows"
    remove_store(volume, EPOCH)
    assert not sim.exists(EPOCH)


def test_engine_outlives_the_rest_of_a_directory_that_is_removed(installed: object) -> None:
    """A start after a crash during the removal still knows whose directory it is."""
    for cut in range(30):
        sim = new_disk()
        create_store(disk_on(sim), EPOCH, START, engine=OTHER, segment_bytes=SEGMENT_BYTES).close()
        sim.cut_at = sim.steps + cut
        try:
            remove_store(disk_on(sim), EPOCH)
        except PowerCutError:
            again = sim.power_cut(Random(cut))
            names = again.list_dir(EPOCH) if again.exists(EPOCH) else []
            assert not names or marked_engine(names) == OTHER, names
        else:
            return
    raise AssertionError("it was never removed")
