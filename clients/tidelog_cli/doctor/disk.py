"""Checks of the data directory: its file system, free space, and the latency of syncs."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidelog_cli.base.output import bytes_text
from tidelog_cli.doctor.findings import Finding

SYNCS: Final = 100
SYNC_BYTES: Final = 4096
WRITE_BYTES: Final = 32 << 20
WRITE_CHUNK_BYTES: Final = 1 << 20
BUDGET_S: Final = 5.0
"""Time limit for the syncs; on a very slow disk fewer than `SYNCS` are measured."""

FREE_SHARE_MIN: Final = 0.1
FREE_BYTES_MIN: Final = 5 << 30
"""Less free space than this, or than the share `FREE_SHARE_MIN` of the disk, causes a warning."""
SYNC_SLOW_S: Final = 0.02
SYNC_FAILING_S: Final = 0.25
SYNC_UNLIKELY_S: Final = 0.000_01
"""A disk cannot sync within a shorter median time (10 µs): it ignores the syncs."""

UNSUITABLE: Final = (
    (("tmpfs", "ramfs"), "records are lost when the machine stops", "set data to a directory on a disk"),
    (
        ("nfs", "cifs", "smb", "9p", "fuse", "afs", "ceph", "gluster", "lustre"),
        "locks and syncs of network and user-space file systems are unreliable",
        "set data to a directory on a local disk with ext4 or XFS",
    ),
    (
        ("overlay", "aufs"),
        "the data is lost with the container",
        "mount a volume, and set data to a directory in it",
    ),
)
"""Unsuitable file systems: prefixes of their types as in /proc/self/mountinfo, their problem, and the remedy."""


def check_data(data: Path) -> Iterator[Finding]:
    """Check a data directory, or its nearest existing parent; writes a temporary file into it and removes it."""
    folder = _nearest(data)
    if folder != data:
        yield Finding("data directory", "warning", f"{data} does not exist; checking {folder}", f"create {data}")
    elif not os.access(data, os.W_OK | os.X_OK):
        yield Finding(
            "data directory",
            "failure",
            f"{data} cannot be written by this user",
            "run this command as the node's user, or change the directory's owner with chown",
        )
        return
    else:
        yield Finding("data directory", "ok", str(data))
    yield file_system_finding(file_system_of(folder, Path("/proc/self/mountinfo").read_text()))
    yield from _space(folder)
    try:
        yield from _speed(folder)
    except OSError as error:
        yield Finding(
            "sync", "failure", f"cannot write to {folder}: {error.strerror}", "free disk space, or check the disk"
        )


def _nearest(path: Path) -> Path:
    """Return the nearest existing folder at or above a path."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.is_dir())


def file_system_of(folder: Path, mounts: str) -> str:
    """Return the type of the file system that holds a folder.

    Args:
        mounts: the text of /proc/self/mountinfo.
    """
    best, kind, resolved = "", "", str(folder.resolve())
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split(" ")[4].replace("\\040", " ")
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, rest.split(" ")[0]
    return kind


def file_system_finding(kind: str) -> Finding:
    """Check whether a type of file system is suitable for a log."""
    for kinds, fault, remedy in UNSUITABLE:
        if kind.startswith(kinds):
            return Finding("file system", "warning", f"{kind}: {fault}", remedy)
    return Finding("file system", "ok", kind or "unknown")


def _space(folder: Path) -> Iterator[Finding]:
    disk = os.statvfs(folder)
    free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    fact = f"{bytes_text(free)} of {bytes_text(size)} free"
    is_low = free < FREE_BYTES_MIN or free < FREE_SHARE_MIN * size
    remedy = "free space or add a disk: a node with a full disk refuses publishes" if is_low else ""
    yield Finding("disk space", "warning" if is_low else "ok", fact, remedy)
    if disk.f_files and disk.f_favail < disk.f_files * 0.05:
        yield Finding("inodes", "warning", f"{disk.f_favail:,} of {disk.f_files:,} free", "remove files")


def _speed(folder: Path) -> Iterator[Finding]:
    with tempfile.TemporaryFile(dir=folder, prefix=".tidelog-doctor-", buffering=0) as file:
        number, times_s, began_s = file.fileno(), list[float](), time.monotonic()
        while len(times_s) < SYNCS and time.monotonic() - began_s < BUDGET_S:
            os.write(number, os.urandom(SYNC_BYTES))
            at_s = time.monotonic()
            os.fdatasync(number)
            times_s.append(time.monotonic() - at_s)
        yield sync_finding(times_s)
        chunk, at_s = os.urandom(WRITE_CHUNK_BYTES), time.monotonic()
        for _ in range(WRITE_BYTES // WRITE_CHUNK_BYTES):
            os.write(number, chunk)
        os.fdatasync(number)
        yield Finding("write", "ok", f"{bytes_text(int(WRITE_BYTES / (time.monotonic() - at_s)))}/s, synced at the end")


def sync_finding(times_s: list[float]) -> Finding:
    """Return the finding for the times of syncs, of which there is at least one."""
    median_s, slowest_s = statistics.median(times_s), max(times_s)
    fact = f"median {1000 * median_s:.2f} ms, slowest {1000 * slowest_s:.1f} ms of {len(times_s)} syncs of 4 KiB"
    if median_s < SYNC_UNLIKELY_S:
        return Finding(
            "sync",
            "warning",
            f"{fact}: too fast for a disk, so the disk may ignore syncs",
            "if this is a disk, look for eatmydata, the mount option nobarrier, or a write cache without a battery",
        )
    if median_s >= SYNC_SLOW_S or slowest_s >= SYNC_FAILING_S:
        return Finding(
            "sync",
            "warning",
            f"{fact}: with flush=always each publish waits for a sync",
            "use an SSD that is not busy with other programs, or flush=interval with several copies",
        )
    return Finding("sync", "ok", fact)
