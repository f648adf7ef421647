"""Where large buffers live."""

from __future__ import annotations

import ctypes

import pyarrow as pa
import pytest

from tidelog_proto.process import buffers


@pytest.fixture(autouse=True)
def _ask_anew() -> None:
    buffers.batch_pool.cache_clear()


def test_memory_is_writable_of_the_size_asked_for_and_aligned() -> None:
    for size_bytes, alignment in ((1, 8), (100, 8), (buffers.SMALL_BYTES, 64), (3_000_001, 64)):
        buffer = buffers.allocate(size_bytes)
        buffer[:] = b"x" * size_bytes
        assert (len(buffer), buffer.format) == (size_bytes, "B")
        assert ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % alignment == 0


def test_nothing_is_writable_too() -> None:
    buffer = buffers.allocate(0)
    buffer[:0] = b""
    assert len(buffer) == 0


def test_a_build_without_jemalloc_gets_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> pa.MemoryPool:
        raise NotImplementedError

    monkeypatch.setattr(pa, "jemalloc_memory_pool", missing)
    assert buffers.batch_pool().backend_name == pa.default_memory_pool().backend_name
