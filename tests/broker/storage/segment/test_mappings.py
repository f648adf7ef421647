from __future__ import annotations

from pathlib import Path

from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.segment.mappings import Mappings


def files(count: int, size_bytes: int = 100) -> list[File]:
    sim = SimDisk()
    found = []
    for number in range(count):
        file = sim.open(Path(f"/{number}"), create=True)
        file.allocate(0, size_bytes)
        file.pwritev([bytes([number]) * size_bytes], 0)
        found.append(file)
    return found


def test_least_recently_used_mappings_are_removed() -> None:
    mappings = Mappings(bytes_max=250)
    one, two, three = files(3)
    for file in (one, two, one, three):
        assert mappings.take(file, 0, 10) is not None
    assert list(mappings._mapped) == [one, three]
    assert mappings.mapped_bytes == 200
    (large,) = files(1, 1000)
    assert mappings.take(large, 0, 1000) is not None
    assert list(mappings._mapped) == [large]
    few = Mappings(files_max=2)
    for file in (one, two, three):
        assert few.take(file, 0, 10) is not None
    assert len(few) == 2


def test_slices_are_refused_beyond_the_held_bytes_bound() -> None:
    mappings = Mappings(held_bytes_max=150)
    one, two, three = files(3)
    slices = [mappings.take(file, 0, 10) for file in (one, two)]
    assert not mappings.drop(one)
    assert mappings.held_bytes == 100
    assert not mappings.drop(two)
    assert mappings.held_bytes == 200
    assert mappings.take(three, 0, 10) is None
    assert [bytes(one or b"") for one in slices] == [bytes(10), b"\1" * 10]
    slices.clear()
    assert bytes(mappings.take(three, 0, 10) or b"") == b"\2" * 10
    assert mappings.held_bytes == 0
    assert mappings.drop(three)
    assert mappings.drop(three), "an unmapped file has no holders"


def test_short_or_unmappable_file_gives_no_slice() -> None:
    mappings = Mappings()
    (file,) = files(1)
    assert mappings.take(file, 50, 51) is None
    assert mappings.take(file, 50, 50) is not None
    file.truncate(60)
    assert mappings.take(file, 50, 50) is None
    assert mappings.take(file, 0, 60) is not None
