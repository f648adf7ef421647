"""Bits that flip where the storage can detect it: in ranges covered by a later sync mark; and lost directories.

Rot in the last group of a journal or an open log, or in the mark in front of it, looks like a write that was torn by a
crash, because its evidence comes with the next group. It is truncated like one; that is documented as a limit, and not
simulated.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.broker.storage.sim_disk import Directory, Node, SimDisk
from tests.simulation.process import HOME

from tidelog_broker.storage.commit_log.records import (
    FILE_HEADER_BYTES,
    FILE_SUFFIX,
    Kind,
    payload_of,
    records_in,
    unpack_file_header,
    unpack_mark,
)
from tidelog_broker.storage.directory.names import SEGMENT_SUFFIX
from tidelog_broker.storage.io.errors import LayoutError
from tidelog_broker.storage.node import journal
from tidelog_broker.storage.partition.partition_dirs import epoch_dirs, parse_partition_dir_name
from tidelog_broker.storage.segment.layout import SEGMENT_HEADER_BYTES
from tidelog_broker.storage.segment.scan import read_segment_header, scan_segment

if TYPE_CHECKING:
    from tests.simulation.process import Process

NEWEST_BYTES = 400
"""About two batches."""


def rot(disk: SimDisk, random: Random, *, newest: bool = False) -> str:
    """Flip a bit somewhere, perhaps in the `newest` batches; return where, empty if nothing can rot."""
    candidates = [
        (path, node, covered) for path, node in _files(disk.root, Path("/")) if (covered := _covered(disk, path))
    ]
    if not candidates:
        return ""
    # Mostly where it matters: in the logs of open epochs, which are the last ones of their partitions.
    logs = [candidate for candidate in candidates if candidate[0].suffix == ".seg"]
    open_logs = [candidate for candidate in logs if candidate[0].parent == _newest(logs, candidate[0])]
    open_logs = [candidate for candidate in candidates if candidate[0].suffix == FILE_SUFFIX] or open_logs
    path, node, covered = random.choice(open_logs if open_logs and (newest or random.random() < 0.6) else candidates)
    at = random.randrange(max(0, covered - NEWEST_BYTES) if newest else 0, covered)
    _flip(node, at, random)
    return f"{path} at {at}"


def rot_sealed(process: Process, random: Random) -> str:
    """Flip a bit in a closed segment of a running node; return its position, empty if there is no such segment."""
    segments = [
        segment
        for copy in process.partitions.values()
        for log in copy.log.epochs
        for segment in (log.segments[:-1] if log is copy.log.active else log.segments)
        if log.damage is None
    ]
    if not segments:
        return ""
    segment = random.choice(segments)
    node = process.sim_disk.node(segment.path)
    at = random.randrange(min(segment.size_bytes, len(node.current)))
    _flip(node, at, random)
    return f"{segment.path} at {at}"


def _flip(node: Node, at: int, random: Random) -> None:
    node.current[at] ^= 1 << random.randrange(8)
    node.durable = bytes(node.current)
    node.versions.clear()
    node.lost.clear()


def lose_directory(disk: SimDisk, random: Random) -> str:
    """Take a partition's directory or an epoch's, mostly the newest one's; return which, empty without any."""
    partitions = (
        [HOME / name for name in disk.list_dir(HOME) if parse_partition_dir_name(name)] if disk.exists(HOME) else []
    )
    if not partitions:
        return ""
    path = random.choice(partitions)
    epochs = list(epoch_dirs(disk, path).values())
    if epochs and random.random() < 0.7:
        path = epochs[-1] if random.random() < 0.7 else random.choice(epochs)
    parent = disk.directory(path.parent)
    del parent.names[path.name]
    parent.sync()
    return str(path)


def lose_segment(disk: SimDisk, random: Random) -> str:
    """Take the first of several segment files of an epoch that has ended; return which, empty without any."""
    partitions = (
        [HOME / name for name in disk.list_dir(HOME) if parse_partition_dir_name(name)] if disk.exists(HOME) else []
    )
    ended = [path for partition in partitions for path in list(epoch_dirs(disk, partition).values())[:-1]]
    firsts = [
        path / min(segments)
        for path in ended
        if len(segments := [name for name in disk.list_dir(path) if name.endswith(SEGMENT_SUFFIX)]) > 1
    ]
    if not firsts:
        return ""
    first = random.choice(firsts)
    directory = disk.directory(first.parent)
    for name in [name for name in directory.names if Path(name).stem == first.stem]:
        del directory.names[name]
    directory.sync()
    return str(first)


def _newest(logs: list[tuple[Path, Node, int]], path: Path) -> Path:
    """Return the directory of the newest epoch of the partition that a file belongs to."""
    return max(other.parent for other, _, _ in logs if other.parent.parent == path.parent.parent)


def _covered(disk: SimDisk, path: Path) -> int:
    """Return how many bytes of a file a mark covers."""
    if path.parent.name == "meta":
        data = bytes(disk.node(path).current)
        if len(data) < journal.JOURNAL_HEADER_BYTES:
            return 0
        nonce = int.from_bytes(data[8:16], "little")
        return journal._newest_synced_position(data, nonce)
    if path.suffix == FILE_SUFFIX:
        return _covered_by_marks(disk, path)
    if path.suffix != ".seg" or path.parent.suffix:
        return 0
    file = disk.open_readonly(path)
    try:
        scan = scan_segment(file, read_segment_header(file))
    except LayoutError:
        return 0  # it has rotted already
    finally:
        file.close()
    covered = sum(offset < scan.synced_offset for offset in scan.index.offsets)
    if covered == 0:
        return SEGMENT_HEADER_BYTES
    place = scan.index.place(covered - 1)
    return place.position + place.length  # without the mark after it, which belongs to the next group


def _covered_by_marks(disk: SimDisk, path: Path) -> int:
    """Return how many bytes of a file of the commit log a mark covers, in this file or a later one."""
    base, synced = int(path.stem), 0
    for later in disk.files(path.parent, FILE_SUFFIX):
        data = bytes(disk.node(later).current)
        try:
            header = unpack_file_header(data)
        except LayoutError:
            continue  # It has rotted already.
        synced = max(synced, header.synced)
        for found in records_in(data, FILE_HEADER_BYTES, nonce=header.nonce, base=header.base):
            if found.kind == Kind.MARK:
                synced = max(synced, unpack_mark(payload_of(data, found.at, found.length)).synced)
    return max(0, min(synced - base, len(disk.node(path).current)))


def _files(directory: Directory, path: Path) -> list[tuple[Path, Node]]:
    found: list[tuple[Path, Node]] = []
    for name, node in sorted(directory.names.items()):
        if isinstance(node, Directory):
            found += _files(node, path / name)
        else:
            found.append((path / name, node))
    return found
