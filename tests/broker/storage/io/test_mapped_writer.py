from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.io.mapped_writer import MappedWriter
from tidelog_broker.storage.io.mapping import can_copy

PATH = Path("/file")


@pytest.mark.skipif(not can_copy(), reason="something forbids process_vm_readv")
def test_writes_continue_in_later_allocated_space(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = MappedWriter(RealFileSystem().open(path, create=True))
    at = 0
    for number in range(1, 40):
        data = bytes([number]) * 1000
        if at + len(data) > file.size():
            file.allocate(file.size(), 5000)
        file.pwritev([data[:300], data[300:]], at)
        assert file.pread(1000, at) == data
        at += len(data)
    file.datasync()
    file.truncate(at)
    assert path.read_bytes() == b"".join(bytes([number]) * 1000 for number in range(1, 40))
    file.pwritev_durably([b"head"], 0)
    file.close()
    assert path.read_bytes()[:5] == b"head\1"


def test_file_is_never_truncated_while_mapped() -> None:
    sim = SimDisk()
    file = MappedWriter(sim.open(PATH, create=True))
    file.allocate(0, 100)
    file.pwritev([b"abc"], 0)
    with pytest.raises(AssertionError, match="mapped for writing"):
        sim.open(PATH).truncate(3)
    file.truncate(50)
    file.pwritev([b"d"], 3)
    file.finish_writing()
    sim.open(PATH).truncate(4)
    assert file.pread(9, 0) == b"abcd"
    file.close()
    assert not sim.mapped_to_write


def test_write_beyond_the_allocated_space_is_refused() -> None:
    sim = SimDisk()
    file = MappedWriter(sim.open(PATH, create=True))
    file.allocate(0, 4)
    with pytest.raises(AssertionError, match="SIGBUS"):
        file.pwritev([b"abcde"], 0)
