"""What an epoch's files hold after any stop: the good prefix, and whether what is missing may be forgotten.

Segments that were synced as a whole are taken by the headers around them. From the segment in which the newest known
sync ended, everything is walked and checked. At the first bad or zero block the question is what was there:

- A sync mark that covers it exists (behind it, or in a later segment): it was on the disk once and has rotted. The
  log goes into LIMBO: nothing is changed, the good prefix stays readable, and a peer or a person repairs it.
- No such mark: the block belongs to the last unsynced writes. The page cache writes back in any order, so valid
  batches may lie behind it; none of them was acknowledged. The file is made shorter, durably, before the log goes on:
  a stale batch that fitted a later chain would otherwise come back. Zeroes in its place could be lost as it could.

Rot in the very last synced group looks like a torn write, since its mark comes with the group after it: it is cut.
What is kept and no mark covers is written anew and synced before anyone sees it, and so are the names: after a kill it
may lie in the page cache only, and after a sync that failed even a sync would leave it there, see `rewrite`.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from tidelog_broker.storage.epoch.rewrite import write_anew
from tidelog_broker.storage.io.errors import DamagedError, unreadable
from tidelog_broker.storage.io.filesystem import File, FileSystem
from tidelog_broker.storage.segment.active_segment import ActiveSegment, write_index
from tidelog_broker.storage.segment.disk import Disk, OpenSegment
from tidelog_broker.storage.segment.layout import (
    BEGUN_SUFFIX,
    NEW_SUFFIX,
    SEGMENT_HEADER_BYTES,
    SEGMENT_SUFFIX,
    LayoutError,
    SegmentHeader,
    made_paths,
    segment_path,
)
from tidelog_broker.storage.segment.scan import Remainder, SegmentScan, examine_tail, read_segment_header, scan_segment
from tidelog_broker.storage.segment.sealed_segment import SealedSegment, peek_index_end, try_load_index


@dataclass(frozen=True, slots=True)
class Damage:
    """Why a log is in LIMBO.

    Attributes:
        path: the damaged file.
        position: of the damage in it, in bytes.
        offset: the first offset that cannot be read.
        synced_offset: how far the log was synced once, as far as is known.
        reason: for a person.
    """

    path: Path
    position: int
    offset: int
    synced_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class LastSegment:
    """The segment in which the good prefix ends, walked."""

    path: Path
    scan: SegmentScan


@dataclass(slots=True)
class Recovered:
    """What an epoch's directory holds."""

    sealed: list[SealedSegment] = field(default_factory=list)
    last: LastSegment | None = None
    """None when the epoch is sealed as a whole, or nothing of a segment behind `sealed` is readable."""
    damage: Damage | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path
    header: SegmentHeader
    size_bytes: int


def recover_epoch(
    fs: FileSystem, directory: Path, *, sealed_end_offset: int | None = None, is_new: bool = False
) -> Recovered:
    """Find out what an epoch holds, cutting an unsynced tail; with LIMBO nothing is changed.

    Args:
        fs: the files.
        directory: the epoch's.
        sealed_end_offset: where the epoch ends, when it is decided; nothing of a sealed epoch is ever cut.
        is_new: whether this process has just made the directory, durably. In any other one a process that was killed
            may have left names that no sync has reached.

    Raises:
        DamagedError: there is no segment with a valid header: not even what the epoch is can be told.
        StorageFailedError: the disk does not read or write.
    """
    try:
        _remove_unfinished(fs, directory)
        _name_begun(fs, directory)
        found, damage = _read_headers(fs, directory)
        if sealed_end_offset is not None and damage is None:
            return _recover_sealed(fs, found, sealed_end_offset)
        return _recover_open(fs, found, damage, is_new=is_new)
    except OSError as error:
        raise unreadable(f"{directory} cannot be recovered", error) from error


def _remove_unfinished(fs: FileSystem, directory: Path) -> None:
    for name in fs.list_dir(directory):
        if name.endswith(NEW_SUFFIX):
            fs.unlink(directory / name)


def _name_begun(fs: FileSystem, directory: Path) -> None:
    """Give segments their names that were only begun; one without a header has nothing that was ever synced, and goes.

    Such a header was never written, or only to the page cache: where it is another's, the file was used before.
    """
    begun = [directory / name for name in fs.list_dir(directory) if name.endswith(BEGUN_SUFFIX)]
    for path in begun:
        segment = path.with_suffix(SEGMENT_SUFFIX)
        with closing(fs.open(path)) as file:
            try:
                header = read_segment_header(file)
                # A copy of a directory that was made in two goes may have it under both names.
                is_there = segment_path(directory, header.base_offset) == segment and not fs.exists(segment)
            except LayoutError:
                is_there = False
            if is_there:
                file.pwritev_durably([file.pread(SEGMENT_HEADER_BYTES, 0)], 0)
        if is_there:
            fs.rename(path, segment)
        else:
            fs.unlink(path)
    if begun:
        fs.sync_dir(directory)


def _read_headers(fs: FileSystem, directory: Path) -> tuple[list[_Found], Damage | None]:
    """Return the segments up to the first whose header is bad: headers are durable before a segment has its name."""
    found: list[_Found] = []
    for name in fs.list_dir(directory):
        if not name.endswith(SEGMENT_SUFFIX):
            continue
        path = directory / name
        file = fs.open_readonly(path)
        try:
            header = read_segment_header(file)
            size_bytes = file.size()
            _check_place(path, header, found)
        except LayoutError as error:
            if not found:
                raise DamagedError.at(path, 0, str(error)) from error
            offset = int(path.stem) if path.stem.isdigit() else found[-1].header.base_offset
            return found, Damage(path, 0, offset, found[-1].header.synced_offset, str(error))
        finally:
            file.close()
        found.append(_Found(path, header, size_bytes))
    if not found:
        raise DamagedError.at(directory, 0, "there is no segment")
    return found, None


def _check_place(path: Path, header: SegmentHeader, before: list[_Found]) -> None:
    """Raise LayoutError when a segment does not belong where it lies."""
    if path != segment_path(path.parent, header.base_offset):
        raise LayoutError(f"the header says base offset {header.base_offset}")
    if before:
        first = before[0].header
        if (header.topic_id, header.partition, header.epoch) != (first.topic_id, first.partition, first.epoch):
            raise LayoutError("the header is of another partition or epoch")


def _sealed_by_next(segment: _Found, following: SegmentHeader) -> SealedSegment:
    return SealedSegment(
        segment.path, segment.header, following.base_offset, following.start_digest, segment.size_bytes
    )


def _trusted(fs: FileSystem, found: list[_Found]) -> Recovered:
    """Take all segments but the last by the headers behind them; an index that says otherwise tells of a hole."""
    recovered = Recovered()
    for segment, following in pairwise(found):
        sealed = _sealed_by_next(segment, following.header)
        end = peek_index_end(fs, segment.path, segment.header)
        if end is not None and (end.offset, end.digest) != (sealed.end_offset, sealed.end_digest):
            reason = f"it does not meet the segment at offset {sealed.end_offset}"
            synced_offset = found[-1].header.synced_offset
            recovered.sealed.append(replace(sealed, end_offset=end.offset, end_digest=end.digest))
            recovered.damage = Damage(segment.path, end.position, end.offset, synced_offset, reason)
            return recovered
        recovered.sealed.append(sealed)
    return recovered


def _recover_sealed(fs: FileSystem, found: list[_Found], end_offset: int) -> Recovered:
    recovered = _trusted(fs, found)
    if recovered.damage is not None:
        return recovered
    last = found[-1]
    loaded = try_load_index(fs, last.path, last.header)
    if loaded is not None and loaded[1].offset == end_offset:
        recovered.sealed.append(SealedSegment(last.path, last.header, end_offset, loaded[1].digest, last.size_bytes))
        return recovered
    scan = _scan(fs, last)
    if scan.end_offset != end_offset:
        reason = f"the epoch ends at offset {end_offset}, this segment at {scan.end_offset}: {scan.stop.reason}"
        recovered.last = LastSegment(last.path, scan)
        recovered.damage = Damage(last.path, scan.stop.position, scan.end_offset, end_offset, reason)
        return recovered
    write_index(fs, last.path, last.header, scan.index, scan.end)
    recovered.sealed.append(SealedSegment(last.path, last.header, end_offset, scan.end_digest, last.size_bytes))
    return recovered


def _recover_open(fs: FileSystem, found: list[_Found], damage: Damage | None, *, is_new: bool) -> Recovered:
    synced_offset = found[-1].header.synced_offset
    start = max((i for i, segment in enumerate(found) if segment.header.base_offset <= synced_offset), default=0)
    recovered = _trusted(fs, found[: start + 1])
    if recovered.damage is not None:
        return recovered
    walked: list[tuple[_Found, SegmentScan]] = []
    for number in range(start, len(found)):
        segment = found[number]
        scan = _scan(fs, segment)
        following = found[number + 1].header if number + 1 < len(found) else None
        if following is not None and (scan.end_offset, scan.end_digest) == (
            following.base_offset,
            following.start_digest,
        ):
            recovered.sealed.append(_sealed_by_next(segment, following))
            walked.append((segment, scan))
            continue
        recovered.last = LastSegment(segment.path, scan)
        if damage is not None and following is None:
            recovered.damage = damage
        else:
            recovered.damage = _judge(fs, scan, segment, found[number + 1 :])
        if recovered.damage is None:
            _keep(fs, walked, max(scan.synced_offset, synced_offset))
            _cut(fs, segment, scan, found[number + 1 :], is_new=is_new)
        return recovered
    raise AssertionError("the last segment has no next one")


def _judge(fs: FileSystem, scan: SegmentScan, segment: _Found, later: list[_Found]) -> Damage | None:
    """Tell rot from a torn tail, where the good prefix ends in `segment` and other segments may lie behind it."""
    reason = scan.stop.reason or f"nothing is left of what was there ({scan.stop.kind})"
    if later and scan.end_offset >= later[0].header.base_offset:
        # No crash explains this: a segment is begun where the one before it ends.
        reason = f"it does not meet the segment at offset {later[0].header.base_offset}"
        return Damage(segment.path, scan.stop.position, scan.end_offset, scan.synced_offset, reason)
    marks = [scan.synced_offset, _tail(fs, segment, scan.end_position).synced_offset]
    for other in later:
        marks += [other.header.synced_offset, _tail(fs, other, SEGMENT_HEADER_BYTES).synced_offset]
    synced_offset = max(mark for mark in marks if mark is not None)
    if synced_offset <= scan.end_offset:
        return None
    return Damage(segment.path, scan.stop.position, scan.end_offset, synced_offset, reason)


def _keep(fs: FileSystem, walked: list[tuple[_Found, SegmentScan]], synced_offset: int) -> None:
    """Make the good segments in front of the last one durable, where they reach beyond what was synced once."""
    for segment, scan in walked:
        if scan.end_offset > synced_offset:
            with closing(fs.open(segment.path)) as file:
                write_anew(file, segment.header, scan.synced_end, scan.end)
                file.datasync()


def _cut(fs: FileSystem, segment: _Found, scan: SegmentScan, later: list[_Found], *, is_new: bool) -> None:
    """Forget everything behind the good prefix, durably, and make durable what is kept, the names as well.

    Later segments go newest first, each durably, so that a crash in between leaves a log that is cut again.
    """
    directory = segment.path.parent
    for other in reversed(later):
        remove_segment(fs, other.path)
        fs.sync_dir(directory)
    has_changed = remove_made(fs, segment.path) or bool(later)
    with closing(fs.open(segment.path)) as file:
        is_dirty = bool(examine_tail(file, nonce=segment.header.nonce, position=scan.end_position).dirty)
        if is_dirty:
            file.truncate(scan.end_position)
        if is_dirty or scan.synced_end != scan.end:
            write_anew(file, segment.header, scan.synced_end, scan.end)
            file.datasync()
    if has_changed or not is_new:
        fs.sync_dir(directory)


def remove_segment(fs: FileSystem, segment: Path) -> None:
    """Unlink a segment's indexes and the segment itself, in this order."""
    remove_made(fs, segment)
    fs.unlink(segment)


def remove_made(fs: FileSystem, segment: Path) -> bool:
    """Unlink a segment's indexes; whether there were any."""
    paths = [path for path in made_paths(segment) if fs.exists(path)]
    for path in paths:
        fs.unlink(path)
    return bool(paths)


def remove_epoch_dir(fs: FileSystem, directory: Path) -> None:
    """Remove an epoch's directory, oldest segment first, each durably; a crash leaves a shorter log or an empty one."""
    names = fs.list_dir(directory)
    for name in [name for name in names if not name.endswith(SEGMENT_SUFFIX)]:
        fs.unlink(directory / name)
    for name in [name for name in names if name.endswith(SEGMENT_SUFFIX)]:
        fs.unlink(directory / name)
        fs.sync_dir(directory)
    fs.remove_dir(directory)
    fs.sync_dir(directory.parent)


def _scan(fs: FileSystem, segment: _Found) -> SegmentScan:
    with _reading(fs, segment.path) as file:
        return scan_segment(file, segment.header)


def _tail(fs: FileSystem, segment: _Found, position: int) -> Remainder:
    with _reading(fs, segment.path) as file:
        return examine_tail(file, nonce=segment.header.nonce, position=position)


def _reading(fs: FileSystem, path: Path) -> closing[File]:
    return closing(fs.open_readonly(path))


def reopen_last(disk: Disk, last: LastSegment, *, segment_bytes: int, writable: bool) -> ActiveSegment:
    """Open the segment in which the good prefix ends, with the index that recovery made of it."""
    scan = last.scan
    file = disk.open_to_append(last.path) if writable else disk.fs.open_readonly(last.path)
    opened = OpenSegment(file, scan.index, synced_bytes=scan.end.position)  # what was not is durable by now
    disk.open_segments.adopt(last.path, opened)
    return ActiveSegment(
        disk,
        last.path,
        scan.header,
        opened,
        scan.end,
        marked_offset=scan.synced_offset,
        segment_bytes=segment_bytes,
        is_named=writable,  # one that is only read stays as it is
    )
