"""Memory mappings that cannot kill the process with SIGBUS, because only the kernel touches their pages.

A process that reads a mapped page beyond the end of a truncated file, or one that the disk cannot read, gets SIGBUS. A
system call given the same page returns EFAULT instead. So a slice of a `Mapping` is only passed to a socket, and a
`WriteMapping` is filled by `process_vm_readv`, in which the kernel copies. `populate` takes the page faults on a worker
thread without the GIL; Python's own `mmap.madvise` keeps the GIL.

Where the kernel has no MADV_POPULATE_READ (before Linux 5.14), or seccomp forbids the copy, `can_populate` and
`can_copy` return False, and files are read and written without mappings.

Rejected: copying into the mapping in user space, which no preceding check makes safe; `process_vm_writev`, which marks
pages dirty without the file system's knowledge, so that they may never be written; and a SIGBUS handler, because the
interrupted Python code cannot be abandoned.
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
    """A whole file mapped for reading. Thread-safe except `close`."""

    @property
    def size_bytes(self) -> int:
        """The mapped size: the file's size when it was mapped."""
        ...

    def slice(self, at: int, length_bytes: int) -> memoryview:
        """Return a part of the file, for system calls only; the whole file stays mapped until the slice is released."""
        ...

    def populate(self, at: int, length_bytes: int) -> None:
        """Load a part into memory and the page table, waiting for the disk if needed.

        Raises:
            OSError: EFAULT or EHWPOISON if the file is shorter now or cannot be read there; another error if the
                kernel does not support this.
        """
        ...

    def close(self) -> bool:
        """Unmap; return False, and do nothing, while a slice exists."""
        ...


class WriteMapping(Protocol):
    """A part of a file, mapped for writing by one thread."""

    @property
    def end_bytes(self) -> int:
        """The end of the mapping, as a position in the file."""
        ...

    def write(self, buffers: Sequence[Buffer], at: int) -> None:
        """Copy all buffers consecutively to a mapped position of the file.

        Raises:
            OSError: any part of the buffers may have been written.
        """
        ...

    def close(self) -> None:
        """Unmap; written bytes stay in the file."""
        ...


class RealMapping:
    """A `Mapping` of a descriptor, which may be closed afterwards."""

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
    """A `WriteMapping` of a descriptor.

    Args:
        fd: the file, open for reading and writing.
        at: the mapping begins with the page that holds this position.
        size_bytes: the mapping ends here, at the size of the file.
    """

    __slots__ = ("_address", "_begin", "_map", "end_bytes")

    def __init__(self, fd: int, at: int, size_bytes: int) -> None:
        self._begin = at // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        self.end_bytes = size_bytes
        self._map = mmap.mmap(fd, size_bytes - self._begin, offset=self._begin)
        self._address = address_of(self._map)

    def write(self, buffers: Sequence[Buffer], at: int) -> None:
        """See `WriteMapping.write`."""
        assert self._begin <= at, "position before the mapping"
        assert at + sum(map(len, buffers)) <= self.end_bytes, "position beyond the allocated space"
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
    """Return whether this kernel has MADV_POPULATE_READ."""
    with mmap.mmap(-1, PAGE_BYTES) as page:
        try:
            _advise(address_of(page), PAGE_BYTES, _POPULATE_READ)
        except OSError:
            return False
    return True


@functools.cache
def can_copy() -> bool:
    """Return whether the kernel permits `process_vm_readv` within this process."""
    content = b"copied"
    with mmap.mmap(-1, PAGE_BYTES) as page:
        try:
            _copy(address_of(page), [content])
        except OSError:
            return False
        return page[: len(content)] == content


def read_ahead(fd: int, at: int, length_bytes: int) -> None:
    """Have the kernel read a part of a file in one request instead of page by page, unless its last byte is cached.

    This is a hint: bytes beyond the end of the file are left out, and an unreadable part is left to the later read.
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
    """Return the address of a buffer; the caller keeps the buffer alive."""
    address: int = pa.py_buffer(buffer).address
    return address


@functools.cache
def _libc() -> ctypes.CDLL:
    """Return the C library; ctypes releases the GIL during its calls."""
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
    """Have the kernel copy buffers consecutively to an address; return the number of bytes."""
    length_bytes = sum(map(len, parts))
    local = _Part(to, length_bytes)
    remote = (_Part * len(parts))(*[_Part(address_of(part), len(part)) for part in parts])
    copied = _libc().process_vm_readv(os.getpid(), ctypes.byref(local), 1, remote, len(parts), 0)
    if copied < 0:
        raise _error("process_vm_readv")
    if copied < length_bytes:
        raise OSError(errno.EFAULT, f"only {copied} of {length_bytes} bytes could be written to a mapped file")
    return length_bytes


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
