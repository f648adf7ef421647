"""Recovery of an epoch after any stop: find the valid prefix, and decide whether the rest may be dropped.

Segments that were synced as a whole are trusted by the headers around them. From the segment that holds the newest
known synced offset on, every batch is checked. At the first bad or zero block there are two cases:

- A sync mark covers the block (after it, or in a later segment): it was on the disk and is damaged now. The log enters
  LIMBO: nothing is changed, the valid prefix stays readable, and another replica or an operator repairs it.
- No mark covers it: the block belongs to the last unsynced writes. The page cache writes pages back in any order,
  so valid batches may follow; none of them was acknowledged. The file is truncated, durably, before the log
  continues: otherwise a stale batch that fits the later chain could reappear. Zeroes in its place could be lost in
  the same way.

The log is in LIMBO, too, if the header of a later segment is damaged: its sync marks cannot be read, so they may cover
the block. A segment that is missing between others is damage, because the name of a segment is durable before the next
one begins.

Damage in the last synced group looks like a torn write, because the mark that covers it is written with the next group:
the group is truncated. The kept part that no mark covers is rewritten and synced before it is read or appended to, and
the directory is synced: after a kill that part may be only in the page cache, and after a failed sync even another sync
would not write it, see `rewrite`.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from tidelog_broker.storage.directory.names import NEW_SUFFIX, SEGMENT_SUFFIX
from tidelog_broker.storage.engine.store import Damage
from tidelog_broker.storage.epoch.rewrite import rewrite_range
from tidelog_broker.storage.io.errors import DamagedError, LayoutError, unreadable
from tidelog_broker.storage.io.filesystem import File, FileSystem
from tidelog_broker.storage.segment.active_segment import ActiveSegment, SegmentStart, write_index
from tidelog_broker.storage.segment.disk import Disk, OpenSegment
from tidelog_broker.storage.segment.layout import (
    BEGUN_SUFFIX,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    made_paths,
    segment_path,
)
from tidelog_broker.storage.segment.scan import Remainder, SegmentScan, examine_tail, read_segment_header, scan_segment
from tidelog_broker.storage.segment.sealed_segment import SealedSegment, peek_index_end, try_load_index


@dataclass(frozen=True, slots=True)
class LastSegment:
    """The segment in which the valid prefix ends, with the result of its scan."""

    path: Path
    scan: SegmentScan


@dataclass(slots=True)
class Recovered:
    """The result of recovering an epoch's directory."""

    sealed: list[SealedSegment] = field(default_factory=list)
    last: LastSegment | None = None
    """The segment after `sealed` in which the valid prefix ends; None if the epoch is sealed, or none is readable."""
    damage: Damage | None = None


@dataclass(frozen=True, slots=True)
class _FoundSegment:
    path: Path
    header: SegmentHeader
    size_bytes: int


def recover_epoch(
    fs: FileSystem, directory: Path, *, sealed_end_offset: int | None = None, is_new: bool = False
) -> Recovered:
    """Recover an epoch, truncating an unsynced tail; in LIMBO no batch is removed.

    Args:
        sealed_end_offset: the decided end of the epoch, if there is one: the log is not truncated, and is in LIMBO if
            it ends elsewhere.
        is_new: whether this process has just created the directory, durably. Otherwise a killed process may have
            left names that were never synced.

    Raises:
        DamagedError: no segment has a valid header.
        StorageFailedError: the disk cannot be read or written.
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
    """Rename segments that have a temporary name; delete those whose header is invalid or of another segment.

    An invalid header was never synced, so nothing in the file was; the header of another segment means that the file
    was reused and the new header was not written. A file whose final name exists is deleted, too.
    """
    begun = [directory / name for name in fs.list_dir(directory) if name.endswith(BEGUN_SUFFIX)]
    for path in begun:
        segment = path.with_suffix(SEGMENT_SUFFIX)
        with closing(fs.open(path)) as file:
            try:
                header = read_segment_header(file)
                # A directory that was copied while the node renamed the segment may have it under both names.
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


def _read_headers(fs: FileSystem, directory: Path) -> tuple[list[_FoundSegment], Damage | None]:
    """Return the segments before the first one with a bad header, and that damage.

    A bad header is damage, because a segment gets its name only after its header is durable.

    Raises:
        DamagedError: the first segment has a bad header, or there is no segment.
    """
    found: list[_FoundSegment] = []
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
        found.append(_FoundSegment(path, header, size_bytes))
    if not found:
        raise DamagedError.at(directory, 0, "the directory has no segment file")
    return found, None


def _check_place(path: Path, header: SegmentHeader, before: list[_FoundSegment]) -> None:
    """Raise LayoutError if a segment's header does not match its path and directory."""
    if path != segment_path(path.parent, header.base_offset):
        raise LayoutError(f"its header has base offset {header.base_offset}, its name has {path.stem}")
    if before:
        first = before[0].header
        if (header.topic_id, header.partition, header.epoch) != (first.topic_id, first.partition, first.epoch):
            raise LayoutError(
                f"its header has topic id {header.topic_id.hex()}, partition {header.partition}, epoch {header.epoch}; "
                f"the first segment has {first.topic_id.hex()}, {first.partition}, {first.epoch}"
            )


def _sealed_by_next(segment: _FoundSegment, following: SegmentHeader) -> SealedSegment:
    return SealedSegment(
        segment.path, segment.header, following.base_offset, following.start_digest, segment.size_bytes
    )


def _trusted(fs: FileSystem, found: list[_FoundSegment]) -> Recovered:
    """Derive the end of each segment but the last from the header of the next one.

    If a segment's index file has another end, there is a gap: damage.
    """
    recovered = Recovered()
    for segment, following in pairwise(found):
        sealed = _sealed_by_next(segment, following.header)
        end = peek_index_end(fs, segment.path, segment.header)
        if end is not None and (end.offset, end.digest) != (sealed.end_offset, sealed.end_digest):
            reason = f"the segment ends at offset {end.offset}, but the next one begins at {sealed.end_offset}"
            synced_offset = found[-1].header.synced_offset
            recovered.sealed.append(replace(sealed, end_offset=end.offset, end_digest=end.digest))
            recovered.damage = Damage(segment.path, end.position, end.offset, synced_offset, reason)
            return recovered
        recovered.sealed.append(sealed)
    return recovered


def _recover_sealed(fs: FileSystem, found: list[_FoundSegment], end_offset: int) -> Recovered:
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
        reason = f"the epoch ends at offset {end_offset}, but this segment, its last one, at {scan.end_offset}"
        if scan.stop.reason:
            reason = f"{reason}: {scan.stop.reason}"
        recovered.last = LastSegment(last.path, scan)
        recovered.damage = Damage(last.path, scan.stop.position, scan.end_offset, end_offset, reason)
        return recovered
    write_index(fs, last.path, last.header, scan.index, scan.end)
    recovered.sealed.append(SealedSegment(last.path, last.header, end_offset, scan.end_digest, last.size_bytes))
    return recovered


def _recover_open(fs: FileSystem, found: list[_FoundSegment], damage: Damage | None, *, is_new: bool) -> Recovered:
    synced_offset = found[-1].header.synced_offset
    start = max((i for i, segment in enumerate(found) if segment.header.base_offset <= synced_offset), default=0)
    recovered = _trusted(fs, found[: start + 1])
    if recovered.damage is not None:
        return recovered
    walked: list[tuple[_FoundSegment, SegmentScan]] = []
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
        if damage is None:
            recovered.damage = _judge(fs, scan, segment, found[number + 1 :])
        else:
            recovered.damage = damage if following is None else _undecidable(damage, scan, segment)
        if recovered.damage is None:
            _keep(fs, walked, max(scan.synced_offset, synced_offset))
            _cut(fs, segment, scan, found[number + 1 :], is_new=is_new)
        return recovered
    raise AssertionError("the walk ends at the last segment at the latest")


def _undecidable(damage: Damage, scan: SegmentScan, segment: _FoundSegment) -> Damage:
    """Return the damage where the valid prefix ends, because the marks of a later, damaged segment cannot be read.

    Args:
        damage: the damaged header of the later segment.
        segment: the segment in which the valid prefix ends.
    """
    reason = (
        f"{_why_it_ends(scan)}; whether the records after it were synced is unknown, because {damage.path.name} is "
        f"damaged, too: {damage.reason}"
    )
    return Damage(segment.path, scan.stop.position, scan.end_offset, scan.synced_offset, reason)


def _why_it_ends(scan: SegmentScan, missing: str = "records are missing") -> str:
    where = "the file ends here" if scan.stop.kind == "end" else "the bytes here are zero"
    return scan.stop.reason or f"{missing}: {where}"


def _judge(fs: FileSystem, scan: SegmentScan, segment: _FoundSegment, later: list[_FoundSegment]) -> Damage | None:
    """Return the damage after the valid prefix, which ends in `segment`; None if the rest is only a torn tail.

    Args:
        later: the segments after `segment`.
    """
    if later and (scan.end_offset >= later[0].header.base_offset or _is_whole(fs, scan, segment)):
        # A crash cannot cause this: a segment begins where the one before it ends.
        reason = (
            f"the segment ends at offset {scan.end_offset}, but the next one begins at {later[0].header.base_offset}"
        )
        return Damage(segment.path, scan.stop.position, scan.end_offset, scan.synced_offset, reason)
    marks = [scan.synced_offset, _tail(fs, segment, scan.end_position).synced_offset]
    for other in later:
        marks += [other.header.synced_offset, _tail(fs, other, SEGMENT_HEADER_BYTES).synced_offset]
    synced_offset = max(mark for mark in marks if mark is not None)
    if synced_offset <= scan.end_offset:
        return None
    reason = _why_it_ends(scan, "synced records are missing")
    return Damage(segment.path, scan.stop.position, scan.end_offset, synced_offset, reason)


def _is_whole(fs: FileSystem, scan: SegmentScan, segment: _FoundSegment) -> bool:
    """Return whether the segment's index file shows that the segment is full and ends where the scan does."""
    end = peek_index_end(fs, segment.path, segment.header)
    return end is not None and (end.offset, end.digest) == (scan.end_offset, scan.end_digest)


def _keep(fs: FileSystem, walked: list[tuple[_FoundSegment, SegmentScan]], synced_offset: int) -> None:
    """Make the valid segments before the last one durable where they reach beyond the synced offset."""
    for segment, scan in walked:
        if scan.end_offset > synced_offset:
            with closing(fs.open(segment.path)) as file:
                rewrite_range(file, segment.header, scan.synced_end, scan.end)
                file.datasync()


def _cut(
    fs: FileSystem, segment: _FoundSegment, scan: SegmentScan, later: list[_FoundSegment], *, is_new: bool
) -> None:
    """Drop everything after the valid prefix, durably, and make the kept part and its names durable.

    Later segments are removed newest first, each durably, so that after a crash recovery truncates at the same place
    again.
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
            rewrite_range(file, segment.header, scan.synced_end, scan.end)
            file.datasync()
    if has_changed or not is_new:
        fs.sync_dir(directory)


def remove_segment(fs: FileSystem, segment: Path) -> None:
    """Unlink a segment's indexes and the segment itself, in this order."""
    remove_made(fs, segment)
    fs.unlink(segment)


def remove_made(fs: FileSystem, segment: Path) -> bool:
    """Unlink a segment's indexes; return whether any existed."""
    paths = [path for path in made_paths(segment) if fs.exists(path)]
    for path in paths:
        fs.unlink(path)
    return bool(paths)


def _scan(fs: FileSystem, segment: _FoundSegment) -> SegmentScan:
    with _reading(fs, segment.path) as file:
        return scan_segment(file, segment.header)


def _tail(fs: FileSystem, segment: _FoundSegment, position: int) -> Remainder:
    with _reading(fs, segment.path) as file:
        return examine_tail(file, nonce=segment.header.nonce, position=position)


def _reading(fs: FileSystem, path: Path) -> closing[File]:
    return closing(fs.open_readonly(path))


def lay_out_segments(disk: Disk, directory: Path, start: SegmentStart, *, segment_bytes: int) -> None:
    """Create the first segment of an epoch in a new directory, which the caller syncs and renames.

    Raises:
        OSError: the disk failed or is full.
    """
    first = ActiveSegment.begin(disk, directory, start, segment_bytes=segment_bytes)
    try:
        first.take_name()
    finally:
        first.abandon()


def reopen_last(disk: Disk, last: LastSegment, *, segment_bytes: int, writable: bool) -> ActiveSegment:
    """Open the segment in which the valid prefix ends, with the index that recovery built."""
    scan = last.scan
    file = disk.open_to_append(last.path) if writable else disk.fs.open_readonly(last.path)
    # Recovery has made the valid prefix durable, unless the log is damaged and takes no appends.
    opened = OpenSegment(file, scan.index, synced_bytes=scan.end.position)
    disk.open_segments.adopt(last.path, opened)
    return ActiveSegment(
        disk,
        last.path,
        scan.header,
        opened,
        scan.end,
        marked_offset=scan.synced_offset,
        segment_bytes=segment_bytes,
        is_named=writable,  # A read-only segment keeps its name.
    )
