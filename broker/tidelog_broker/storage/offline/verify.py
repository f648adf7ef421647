"""An offline walk through data files, for `tidelog log inspect` and `verify`: reads everything, changes nothing.

Only what is in the log must be sound. A copy that is being filled or compacted is checked when it is complete, an older
version of an epoch is about to be removed, and one that was set aside has been given up already: what is wrong with
them is a note.

It needs no lock. On files that a node is writing to, the end of the newest segment may look torn because it is: run it
again, or on a stopped node, before worrying.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from tidelog_broker.storage.epoch.repair import has_note
from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.partition.partition_dirs import (
    FILL_SUFFIX,
    MAKING_SUFFIX,
    aside_dirs,
    epoch_dirs,
    fill_dirs,
    is_aside,
    making_dirs,
    missing_epoch,
    older_dirs,
    parse_partition_dir_name,
)
from tidelog_broker.storage.segment.hash_file import HashFile
from tidelog_broker.storage.segment.layout import (
    BEGUN_SUFFIX,
    HASH_SUFFIXES,
    SEGMENT_SUFFIX,
    LayoutError,
    begun_path,
    hash_path,
    index_path,
    segment_path,
)
from tidelog_broker.storage.segment.scan import SegmentScan, examine_tail, read_segment_header, scan_segment
from tidelog_broker.storage.segment.sealed_segment import try_load_index

Severity = Literal["damage", "torn", "note"]
"""Damage was synced once; what is torn was not, and the next start cuts it; a note asks for nothing."""

Role = Literal["log", "fill", "making", "old", "aside"]
"""Whether an epoch's directory is in the log, is being filled or compacted, is an older version, or was set aside."""

_ROLES: Final[Mapping[str, Role]] = {FILL_SUFFIX: "fill", MAKING_SUFFIX: "making"}
"""By the suffix of a directory's name."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        severity: what it means.
        path: the file or directory.
        position: where in it, in bytes.
        offset: the first record offset that is concerned, None when that cannot be told.
        message: for a person.
    """

    severity: Severity
    path: Path
    position: int
    offset: int | None
    message: str


@dataclass(slots=True)
class SegmentReport:
    """What one segment file holds. Offsets are records, lengths bytes; `used_bytes` ends behind the good prefix."""

    path: Path
    size_bytes: int
    role: Role = "log"
    topic: str | None = None
    partition: int | None = None
    epoch: int | None = None
    base_offset: int | None = None
    end_offset: int | None = None
    batches: int = 0
    records: int = 0
    marks: int = 0
    used_bytes: int = 0
    synced_offset: int | None = None
    start_digest: int | None = None
    end_digest: int | None = None
    max_timestamp_us: int | None = None
    indexes: list[str] = field(default_factory=list)
    """The columns of which there is an index that checks."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing that was synced is missing."""
        return all(finding.severity != "damage" for finding in self.findings)


def verify(fs: FileSystem, path: Path) -> Iterator[SegmentReport]:
    """Walk a data directory, `partitions`, a partition, an epoch or one segment; yield a report per segment.

    A directory with data directories in it, as `tidelog up --nodes` makes one, is walked node by node.

    Raises:
        NodeDirError: there is no such path, or nothing of Tidelog in it.
        OSError: the disk does not read.
    """
    if not fs.exists(path):
        raise NodeDirError(f"{path} does not exist")
    if not fs.is_dir(path):
        yield inspect_segment(fs, path)
        return
    names = fs.list_dir(path)
    if "partitions" in names:
        yield from verify(fs, path / "partitions")
    elif any(name.endswith(SEGMENT_SUFFIX) for name in names):
        yield from _verify_epoch(fs, path, None)
    elif parse_partition_dir_name(path.name) or epoch_dirs(fs, path):
        yield from _verify_partition(fs, path)
    elif path.name == "partitions" or any(parse_partition_dir_name(name) for name in names):
        for name in names:
            if parse_partition_dir_name(name):
                yield from _verify_partition(fs, path / name)
    elif homes := [path / name for name in names if fs.exists(path / name / "partitions")]:
        for home in homes:
            yield from verify(fs, home)
    else:
        raise NodeDirError(f"{path} holds no Tidelog data; give a data directory or something inside one")


def inspect_segment(fs: FileSystem, path: Path) -> SegmentReport:
    """Walk one segment file, whatever lies around it.

    Raises:
        OSError: the disk does not read.
    """
    is_begun = path.suffix == BEGUN_SUFFIX
    with closing(fs.open_readonly(path)) as file:
        report = SegmentReport(path, file.size(), role_of(path.parent))
        try:
            header = read_segment_header(file)
        except LayoutError as error:
            report.findings.append(_never_begun(path) if is_begun else Finding("damage", path, 0, None, str(error)))
            return report
        if is_begun and path != begun_path(segment_path(path.parent, header.base_offset)):
            report.findings.append(_never_begun(path))
            return report
        scan = scan_segment(file, header)
        tail = examine_tail(file, nonce=header.nonce, position=scan.end_position)
    _fill(report, scan)
    if not is_begun and path != segment_path(path.parent, header.base_offset):
        message = f"the header says base offset {header.base_offset}"
        report.findings.append(Finding("damage", path, 0, header.base_offset, message))
    if tail.synced_offset is not None and tail.synced_offset > scan.end_offset:
        message = f"synced to offset {tail.synced_offset} once: {scan.stop.reason or 'nothing is left of it'}"
        report.findings.append(Finding("damage", path, scan.stop.position, scan.end_offset, message))
    elif tail.dirty:
        message = scan.stop.reason or "something lies behind the end"
        report.findings.append(Finding("torn", path, scan.stop.position, scan.end_offset, message))
    _check_index(fs, report, scan)
    _check_hashes(fs, report, scan)
    return report


def _never_begun(path: Path) -> Finding:
    return Finding(
        "torn", path, 0, None, "it has no header of its own, so nothing in it was synced: a start removes it"
    )


def _fill(report: SegmentReport, scan: SegmentScan) -> None:
    name = parse_partition_dir_name(report.path.parent.parent.name)
    report.topic = name.topic if name else None
    report.partition = scan.header.partition
    report.epoch = scan.header.epoch
    report.base_offset = scan.header.base_offset
    report.end_offset = scan.end_offset
    report.batches = len(scan.index)
    report.records = scan.records
    report.marks = scan.marks
    report.used_bytes = scan.end_position
    report.synced_offset = scan.synced_offset
    report.start_digest = scan.header.start_digest
    report.end_digest = scan.end_digest
    report.max_timestamp_us = scan.index.times_us[-1] if len(scan.index) else None


def _check_index(fs: FileSystem, report: SegmentReport, scan: SegmentScan) -> None:
    path = index_path(report.path)
    if not fs.exists(path):
        return
    loaded = try_load_index(fs, report.path, scan.header)
    if loaded is None:
        report.findings.append(Finding("note", path, 0, None, "the index does not check; it is rebuilt when needed"))
    elif loaded[1] != scan.end:
        message = f"the index ends at offset {loaded[1].offset}, the segment at {scan.end_offset}"
        report.findings.append(Finding("damage", report.path, scan.end_position, scan.end_offset, message))


def _check_hashes(fs: FileSystem, report: SegmentReport, scan: SegmentScan) -> None:
    for column in HASH_SUFFIXES:
        path = hash_path(report.path, column)
        if not fs.exists(path):
            continue
        with closing(fs.open_readonly(path)) as file:
            try:
                HashFile.load(file, column, nonce=scan.header.nonce, slots=len(scan.index), end=scan.end).check()
            except LayoutError as error:
                message = f"the index of {column}s does not count, and is made again when needed: {error}"
                report.findings.append(Finding("note", path, 0, None, message))
            else:
                report.indexes.append(column)


def role_of(directory: Path) -> Role:
    """Return the role of an epoch's directory, which its name tells unless a newer version lies beside it."""
    if is_aside(directory.name):
        return "aside"
    return _ROLES.get(directory.suffix, "log")


def _verify_partition(fs: FileSystem, path: Path) -> Iterator[SegmentReport]:
    name = parse_partition_dir_name(path.name)
    before: SegmentReport | None = None
    for directory in epoch_dirs(fs, path).values():
        continued, before = before, None  # nothing continues a directory that has gone meanwhile
        for report in _verify_epoch(fs, directory, continued):
            if name is not None and report.partition not in {None, name.partition}:
                message = f"it lies in the directory of partition {name.partition}"
                report.findings.append(Finding("damage", report.path, 0, report.base_offset, message))
            before = report
            yield report
    for directory in older_dirs(fs, path):
        yield from _verify_epoch(fs, directory, None, role="old")
    missing = missing_epoch(fs, path)
    for directory in (*making_dirs(fs, path).values(), *fill_dirs(fs, path).values(), *aside_dirs(fs, path)):
        for report in _verify_epoch(fs, directory, None):
            if missing is not None and report.epoch == missing and report.role == "aside":
                message = f"epoch {missing}, the newest, was set aside and nothing has replaced it yet"
                report.findings.append(Finding("damage", directory, 0, report.base_offset, message))
            yield report


def _verify_epoch(
    fs: FileSystem, directory: Path, before: SegmentReport | None, *, role: Role | None = None
) -> Iterator[SegmentReport]:
    """Yield an epoch's segments, each held against the one before it, which may be the last of another epoch."""
    try:
        names = [name for name in fs.list_dir(directory) if name.endswith((SEGMENT_SUFFIX, BEGUN_SUFFIX))]
    except FileNotFoundError:
        return  # the node runs, and has replaced it
    for name in names:
        try:
            report = inspect_segment(fs, directory / name)
        except FileNotFoundError:
            before = None  # the node runs, and has deleted it
            continue
        report.role = role or report.role
        fault = _seam(before, report)
        if fault:
            report.findings.append(Finding("damage", report.path, 0, report.base_offset, fault))
        if name == names[-1] and has_note(fs, directory):
            message = "the log was cut in front of damage or lost, and what is missing has not been fetched yet"
            report.findings.append(Finding("damage", report.path, report.used_bytes, report.end_offset, message))
        if report.role != "log":
            report.findings = [replace(finding, severity="note") for finding in report.findings]
        before = report
        yield report


def _seam(before: SegmentReport | None, report: SegmentReport) -> str:
    """Return how a segment fails to continue the one before it; empty when it does."""
    if report.base_offset is None or before is None or before.end_offset is None:
        return ""
    if report.base_offset != before.end_offset:
        return f"it begins at offset {report.base_offset}, the one before it ends at {before.end_offset}"
    expected = before.end_digest if report.epoch == before.epoch else 0
    if report.start_digest != expected:
        return "its start digest is not the end digest of the one before it"
    return ""
