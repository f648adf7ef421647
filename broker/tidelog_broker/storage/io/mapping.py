"""Mappings of files whose pages nobody but the kernel touches, so that no page of them can end the process.

A process that reads a page of a mapping which is gone (somebody cut the file) or which the disk does not give gets
SIGBUS. A system call that is handed the same page returns EFAULT instead. So a slice of a `Mapping` goes to a socket
and is never looked at, and a `WriteMapping` is filled by `process_vm_readv`, in which the kernel copies. Page faults
are taken by `populate`, on a worker and without the interpreter's lock; Python's own `mmap.madvise` keeps the lock.

Where the kernel has no MADV_POPULATE_READ (before Linux 5.14), or something forbids the copy (seccomp), `can_populate`
and `can_copy` say so, and files are read and written as they are without mappings.

Rejected: copying into the mapping in user space, which no check before it makes safe; `process_vm_writev`, which marks
pages dirty behind the file system's back, so that it may never write them; and a handler for SIGBUS, since what Python
was in the middle of cannot be left.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Sequence
from typing import Final, Protocol

import pyarrow as pa

from tidelog_proto.batch.header import Buffer

PAGE_BYTES: Final = mmap.PAGESIZE
_WILLNEED: Final = 3
_POPULATE_READ: Final = 22
_IOV_MAX: Final = 1024
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)


class Mapping(Protocol):
    """A whole file, mapped for reading. Thread-safe but for `close`."""

    @property
    def size_bytes(self) -> int:
        """How much of the file is mapped: its size at the time."""
        ...

    def slice(self, at: int, length_bytes: int) -> memoryview:
        """Return a part for a system call, which keeps all of it mapped; nobody else may look at it."""
        ...

    def populate(self, at: int, length_bytes: int) -> None:
        """Have a part in memory and in the page table, waiting for the disk if need be.

        Raises:
            OSError: EFAULT, EHWPOISON: the file is shorter by now, or cannot be read there. Others: it cannot be done.
        """
        ...

    def close(self) -> bool:
        """Unmap; False while a slice is held, and nothing was done."""
        ...


class WriteMapping(Protocol):
    """A part of a file, mapped for writing by one thread."""

    @property
    def end_bytes(self) -> int:
        """Up to where in the file it goes."""
        ...

    def write(self, buffers: Sequence[Buffer], at: int) -> None:
        """Copy all buffers behind each other to a position of the file that is mapped.

        Raises:
            OSError: any part of them may have been written.
        """
        ...

    def close(self) -> None:
        """Unmap; what was written stays."""
        ...


class RealMapping:
    """See `Mapping`. The descriptor may be closed afterwards."""

    __slots__ = ("_address", "_map", "size_bytes")

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        self.size_bytes = len(self._map)
        self._address = address_of(self._map)

    def slice(self, at: int, length_bytes: int) -> memoryview:
        """See `Mapping.slice`."""
        return memoryview(self._map)[at : at + length_bytes]

    def populate(self, at: int, length_bytes: int) -> None:
        """See `Mapping.populate`."""
        first = at // PAGE_BYTES * PAGE_BYTES
        _advise(self._address + first, at + length_bytes - first, _POPULATE_READ)

    def close(self) -> bool:
        """See `Mapping.close`."""
        try:
            self._map.close()
        except BufferError:
            return False
        return True


class RealWriteMapping:
    """See `WriteMapping`.

    Args:
        fd: of the file, open for reading and writing.
        at: from the page that holds this position ...
        size_bytes: ... to here, the size of the file.
    """

    __slots__ = ("_address", "_begin", "_map", "end_bytes")

    def __init__(self, fd: int, at: int, size_bytes: int) -> None:
        self._begin = at // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        self.end_bytes = size_bytes
        self._map = mmap.mmap(fd, size_bytes - self._begin, offset=self._begin)
        self._address = address_of(self._map)

    def write(self, buffers: Sequence[Buffer], at: int) -> None:
        """See `WriteMapping.write`."""
        assert self._begin <= at, "what lies in front was written before"
        assert at + sum(map(len, buffers)) <= self.end_bytes, "take the space first"
        to = self._address + at - self._begin
        parts = [buffer for buffer in buffers if len(buffer)]
        for first in range(0, len(parts), _IOV_MAX):
            to += _copy(to, parts[first : first + _IOV_MAX])

    def close(self) -> None:
        """See `WriteMapping.close`."""
        self._map.close()


class _Part(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("length_bytes", ctypes.c_size_t))


@functools.cache
def can_populate() -> bool:
    """Whether this kernel has MADV_POPULATE_READ."""
    with mmap.mmap(-1, PAGE_BYTES) as page:
        try:
            _advise(address_of(page), PAGE_BYTES, _POPULATE_READ)
        except OSError:
            return False
    return True


@functools.cache
def can_copy() -> bool:
    """Whether the kernel copies within this process when it is asked to."""
    said = b"copied"
    with mmap.mmap(-1, PAGE_BYTES) as page:
        try:
            _copy(address_of(page), [said])
        except OSError:
            return False
        return page[: len(said)] == said


def read_ahead(fd: int, at: int, length_bytes: int) -> None:
    """Have the kernel begin to read a part of a file if its end is not in memory: all of it at once, not page by page.

    It is a hint: what the kernel says to it does not matter, and what lies behind the file's end is left out.
    """
    length_bytes = min(length_bytes, os.fstat(fd).st_size - at)
    if length_bytes <= 0:
        return
    if _NOWAIT:
        try:
            os.preadv(fd, [bytearray(1)], at + length_bytes - 1, _NOWAIT)
        except BlockingIOError:
            pass
        except OSError:
            return
        else:
            return
    os.posix_fadvise(fd, at, length_bytes, _WILLNEED)


def address_of(buffer: Buffer | mmap.mmap) -> int:
    """Return where a buffer lies, which nobody keeps there."""
    address: int = pa.py_buffer(buffer).address
    return address


@functools.cache
def _libc() -> ctypes.CDLL:
    """Return the C library, whose calls give the interpreter's lock away."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    libc.process_vm_readv.argtypes = (
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong),
        *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong),
    )
    return libc


def _advise(address: int, length_bytes: int, advice: int) -> None:
    if _libc().madvise(address, length_bytes, advice):
        raise _error("madvise")


def _copy(to: int, parts: Sequence[Buffer]) -> int:
    """Copy buffers behind each other to an address, in the kernel; return how much that was."""
    length_bytes = sum(map(len, parts))
    local = _Part(to, length_bytes)
    remote = (_Part * len(parts))(*[_Part(address_of(part), len(part)) for part in parts])
    copied = _libc().process_vm_readv(os.getpid(), ctypes.byref(local), 1, remote, len(parts), 0)
    if copied < 0:
        raise _error("process_vm_readv")
    if copied < length_bytes:
        raise OSError(errno.EFAULT, f"{copied} of {length_bytes} bytes could be written to a mapped file")
    return length_bytes


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
