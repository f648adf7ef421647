from __future__ import annotations

import asyncio
import errno
import mmap
import os
import random
import sys
import threading
import time
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.storage.io import mapping as mapping_module
from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.io.mapping import (
    PAGE_BYTES,
    RealMapping,
    RealWriteMapping,
    can_copy,
    can_populate,
    read_ahead,
)
from tidelog_proto.wire.frames import write_parts

needs_populate = pytest.mark.skipif(not can_populate(), reason="needs Linux 5.14")
needs_copy = pytest.mark.skipif(not can_copy(), reason="something forbids process_vm_readv")


def mapped(path: Path, content: bytes) -> RealMapping:
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        return RealMapping(fd)
    finally:
        os.close(fd)


@needs_populate
def test_slice_has_the_file_contents_and_keeps_the_mapping(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(3 * PAGE_BYTES + 17)
    mapping = mapped(tmp_path / "file", content)
    assert mapping.size_bytes == len(content)
    mapping.populate(PAGE_BYTES + 5, 2 * PAGE_BYTES)
    part = mapping.slice(PAGE_BYTES + 5, 2 * PAGE_BYTES)
    (tmp_path / "file").unlink()
    assert not mapping.close()
    assert part == content[PAGE_BYTES + 5 : 3 * PAGE_BYTES + 5]
    del part
    assert mapping.close()


@needs_populate
def test_missing_pages_raise_an_error_instead_of_sigbus(tmp_path: Path) -> None:
    mapping = mapped(tmp_path / "file", bytes(4 * PAGE_BYTES))
    mapping.populate(0, 4 * PAGE_BYTES)
    os.truncate(tmp_path / "file", PAGE_BYTES)
    mapping.populate(0, PAGE_BYTES)
    with pytest.raises(OSError, match="madvise") as failed:
        mapping.populate(0, 4 * PAGE_BYTES)
    assert failed.value.errno == errno.EFAULT


async def _sent(part: memoryview) -> tuple[bytes, Exception | None]:
    """Send a head and a part on the loop that nodes run on; return what arrives, and why the connection ended."""
    arrived = bytearray()
    done = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            arrived.extend(data)
        writer.close()
        done.set()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    class Sender(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.set_result(exc)

    transport, _ = await asyncio.get_running_loop().create_connection(Sender, host, port)
    write_parts(transport, [b"head", part])
    del part
    await asyncio.sleep(0.05)
    transport.close()
    why = await asyncio.wait_for(lost, 5)
    await asyncio.wait_for(done.wait(), 5)
    server.close()
    return bytes(arrived), why


def test_file_truncated_during_a_send_ends_only_the_connection(tmp_path: Path) -> None:
    content = random.Random(2).randbytes(64 * PAGE_BYTES)
    mapping = mapped(tmp_path / "file", content)
    assert uvloop.run(_sent(mapping.slice(0, len(content)))) == (b"head" + content, None)
    os.truncate(tmp_path / "file", PAGE_BYTES)
    arrived, why = uvloop.run(_sent(mapping.slice(0, len(content))))
    assert len(arrived) < 4 + len(content)
    assert isinstance(why, OSError)
    assert why.errno == errno.EFAULT
    assert mapping.close(), "nothing holds the slice when the connection is gone"


@needs_populate
def test_populate_releases_the_gil(tmp_path: Path) -> None:
    """Another thread runs during a call: it sees that the call has begun and not ended."""
    path = tmp_path / "file"
    path.write_bytes(bytes(64 << 20))
    fd = os.open(path, os.O_RDONLY)
    mapping = RealMapping(fd)
    os.close(fd)
    is_inside = was_seen = False

    def populate() -> None:
        nonlocal is_inside
        until = time.monotonic() + 20
        while not was_seen and time.monotonic() < until:  # a busy machine may not run the other thread in time
            is_inside = True
            mapping.populate(0, 64 << 20)
            is_inside = False

    before = sys.getswitchinterval()
    sys.setswitchinterval(60)  # no forced switches: other threads run only when the GIL is released
    try:
        worker = threading.Thread(target=populate)
        worker.start()
        while worker.is_alive() and not was_seen:
            was_seen = is_inside
            time.sleep(0)
        worker.join()
    finally:
        sys.setswitchinterval(before)
    assert was_seen
    assert mapping.close()


def test_reading_ahead_is_a_hint_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(PAGE_BYTES))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    read_ahead(fd, 0, PAGE_BYTES)
    read_ahead(fd, PAGE_BYTES, 10 * PAGE_BYTES)
    os.close(fd)


@needs_copy
@given(
    parts=st.lists(st.binary(max_size=9000), max_size=40),
    at=st.integers(0, 3 * mmap.ALLOCATIONGRANULARITY),
    space_bytes=st.integers(0, 5000),
)
def test_write_through_a_mapping_equals_a_file_write(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], at: int, space_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("mapped") / "file"
    file = RealFileSystem().open(path, create=True)
    size_bytes = at + sum(map(len, parts)) + space_bytes + 1
    file.allocate(0, size_bytes)
    mapping = file.map_to_write(at)
    mapping.write([memoryview(part) for part in parts], at)
    assert mapping.end_bytes == size_bytes
    mapping.close()
    file.datasync()
    assert path.read_bytes() == bytes(at) + b"".join(parts) + bytes(space_bytes + 1)
    file.close()


@needs_copy
def test_more_than_iov_max_parts_take_several_calls(tmp_path: Path) -> None:
    parts = [bytes([number % 251]) * 3 for number in range(3000)]
    file = RealFileSystem().open(tmp_path / "file", create=True)
    file.allocate(0, 9000)
    mapping = file.map_to_write(0)
    mapping.write(parts, 0)
    assert file.pread(9000, 0) == b"".join(parts)
    mapping.close()
    file.close()


@needs_copy
def test_write_to_missing_space_raises_an_error_instead_of_sigbus(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = RealFileSystem().open(path, create=True)
    file.allocate(0, 4 * PAGE_BYTES)
    mapping = file.map_to_write(0)
    os.truncate(path, PAGE_BYTES)
    with pytest.raises(OSError, match=r"mapped file|process_vm_readv") as failed:
        mapping.write([bytes(4 * PAGE_BYTES)], 0)
    assert failed.value.errno == errno.EFAULT
    mapping.close()
    file.close()


def test_missing_system_calls_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def madvise(self, *_: object) -> int:
            return -1

        def process_vm_readv(self, *_: object) -> int:
            return -1

    monkeypatch.setattr(mapping_module, "_libc", Refusing)
    assert not can_populate.__wrapped__()
    assert not can_copy.__wrapped__()


def test_a_mapping_begins_at_the_page_of_its_position(tmp_path: Path) -> None:
    file = RealFileSystem().open(tmp_path / "file", create=True)
    file.allocate(0, 8 * mmap.ALLOCATIONGRANULARITY)
    mapping = file.map_to_write(5 * mmap.ALLOCATIONGRANULARITY + 9)
    assert isinstance(mapping, RealWriteMapping)
    assert len(mapping._map) == 3 * mmap.ALLOCATIONGRANULARITY
    with pytest.raises(AssertionError, match="position before"):
        mapping.write([b"x"], 0)
    with pytest.raises(AssertionError, match="beyond the allocated space"):
        mapping.write([b"xx"], 8 * mmap.ALLOCATIONGRANULARITY - 1)
    mapping.close()
    file.close()
