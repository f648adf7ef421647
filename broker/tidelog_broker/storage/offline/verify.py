"""Offline verification of data files, for `tidelog log inspect` and `verify`: reads everything, changes nothing.

Only the log itself must be valid. Faults of other copies are notes: a copy that is being fetched or compacted is
checked when it is complete, an older version of an epoch is about to be removed, and a copy that was set aside is not
used any more.

Verification takes no lock. While a node is writing, the end of the newest segment may look torn: repeat the
verification, or stop the node before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from tidelog_broker.storage.directory.names import SEGMENT_SUFFIX
from tidelog_broker.storage.directory.repair_markers import has_marker
from tidelog_broker.storage.io.errors import LayoutError, NodeDirError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.node.node_dir import COMMIT_LOG
from tidelog_broker.storage.offline.verify_commit_log import verify_commit_log
from tidelog_broker.storage.partition.partition_dirs import (
    FILL_SUFFIX,
    MAKING_SUFFIX,
    aside_dirs,
    epoch_dirs,
    is_aside,
    making_dirs,
    missing_epoch,
    older_dirs,
    parse_partition_dir_name,
    partial_copy_dirs,
)
from tidelog_broker.storage.segment.hash_file import HashFile
from tidelog_broker.storage.segment.layout import (
    BEGUN_SUFFIX,
    HASH_SUFFIXES,
    begun_path,
    hash_path,
    index_path,
    segment_path,
)
from tidelog_broker.storage.segment.scan import SegmentScan, examine_tail, read_segment_header, scan_segment
from tidelog_broker.storage.segment.sealed_segment import try_load_index

Severity = Literal["damage", "torn", "note"]
"""`damage`: synced bytes are missing or wrong; `torn`: there are unsynced bytes at the end of the log, which the next
start truncates; `note`: no action is needed."""

Role = Literal["log", "fill", "making", "old", "aside"]
"""Roles of an epoch's directory: in the log, being fetched, being compacted, an older version, or set aside."""

_ROLES: Final[Mapping[str, Role]] = {FILL_SUFFIX: "fill", MAKING_SUFFIX: "making"}
"""Roles by the suffix of the directory's name."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault found by verification.

    Attributes:
        severity: the kind of fault, see `Severity`.
        path: the file or directory.
        position: byte position of the fault.
        offset: the first record offset affected, None if it is unknown.
        message: a text for the operator.
    """

    severity: Severity
    path: Path
    position: int
    offset: int | None
    message: str


@dataclass(slots=True)
class SegmentReport:
    """The contents and faults of one segment file. Fields are None if they are unknown.

    Attributes:
        topic: from the name of the partition's directory.
        used_bytes: position at which the valid prefix ends.
    """

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
    """The columns that have a valid index."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether no synced bytes are missing or damaged."""
        return all(finding.severity != "damage" for finding in self.findings)


def verify(fs: FileSystem, path: Path) -> Iterator[SegmentReport]:
    """Verify a data directory, `partitions`, a partition, an epoch or one segment; yield a report per segment.

    A directory that holds several data directories, as created by `tidelog up --nodes`, is verified node by node.

    Raises:
        NodeDirError: the path does not exist or holds no Tidelog data.
        OSError: the disk cannot be read.
    """
    if not fs.exists(path):
        raise NodeDirError(
            f"{path} does not exist; give a data directory, or a partition, an epoch or a segment in one"
        )
    if not fs.is_dir(path):
        yield inspect_segment(fs, path)
        return
    names = fs.list_dir(path)
    if "partitions" in names:
        yield from verify(fs, path / "partitions")
        if COMMIT_LOG in names:
            yield from _verify_commit_log(fs, path / COMMIT_LOG)
    elif any(name.endswith(SEGMENT_SUFFIX) for name in names):
        yield from _with_continued_tails(_verify_epoch(fs, path, None))
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
        raise NodeDirError(
            f"{path} holds no Tidelog data; give a data directory, or a partition, an epoch or a segment in one"
        )


def inspect_segment(fs: FileSystem, path: Path) -> SegmentReport:
    """Verify one segment file, without comparing it to the segments before and after it.

    Raises:
        OSError: the disk cannot be read.
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
        message = f"its header has base offset {header.base_offset}, which contradicts its name"
        report.findings.append(Finding("damage", path, 0, header.base_offset, message))
    if tail.synced_offset is not None and tail.synced_offset > scan.end_offset:
        message = (
            f"records below offset {tail.synced_offset} were synced, but only those below {scan.end_offset} are valid: "
            f"{scan.stop.reason or 'the bytes after them are missing'}"
        )
        report.findings.append(Finding("damage", path, scan.stop.position, scan.end_offset, message))
    elif tail.dirty:
        message = scan.stop.reason or "there are unsynced bytes after the end; the next start removes them"
        report.findings.append(Finding("torn", path, scan.stop.position, scan.end_offset, message))
    _check_index(fs, report, scan)
    _check_hashes(fs, report, scan)
    return report


def _never_begun(path: Path) -> Finding:
    return Finding(
        "torn", path, 0, None, "the file has no valid header, so nothing in it was synced; the next start removes it"
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
        report.findings.append(Finding("note", path, 0, None, "the index is corrupt; it is rebuilt when needed"))
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
                message = f"the index of {column}s is invalid and is rebuilt when needed: {error}"
                report.findings.append(Finding("note", path, 0, None, message))
            else:
                report.indexes.append(column)


def role_of(directory: Path) -> Role:
    """Return the role of an epoch's directory by its name; for an older version, whose name does not show it, "log"."""
    if is_aside(directory.name):
        return "aside"
    return _ROLES.get(directory.suffix, "log")


def _verify_commit_log(fs: FileSystem, path: Path) -> Iterator[SegmentReport]:
    """Yield the files of the commit log; the last report has the stores that have lost synced records.

    Damaged bytes that cost no store anything are notes.
    """
    log = verify_commit_log(fs, path)
    reports: list[SegmentReport] = []
    for file in log.files:
        report = SegmentReport(file.path, file.size_bytes, used_bytes=file.used_bytes)
        report.batches, report.records, report.marks = file.batches, file.records, file.marks
        if file.fault:
            report.findings.append(Finding("note", file.path, 0, None, file.fault))
        report.findings += [
            Finding("note", file.path, bad.at, None, f"{bad.size_bytes} bytes do not contain a valid record")
            for bad in file.bad
        ]
        reports.append(report)
    if reports:
        last = reports[-1]
        last.findings += [Finding("damage", last.path, 0, bad.offset, bad.message) for bad in log.bad_tails]
    yield from reports


def _verify_partition(fs: FileSystem, path: Path) -> Iterator[SegmentReport]:
    yield from _with_continued_tails(_verify_log(fs, path))
    for directory in older_dirs(fs, path):
        yield from _verify_epoch(fs, directory, None, role="old")
    missing = missing_epoch(fs, path)
    for directory in (*making_dirs(fs, path).values(), *partial_copy_dirs(fs, path).values(), *aside_dirs(fs, path)):
        for report in _verify_epoch(fs, directory, None):
            if missing is not None and report.epoch == missing and report.role == "aside":
                message = f"epoch {missing}, the newest, was set aside and has not been replaced yet"
                report.findings.append(Finding("damage", directory, 0, report.base_offset, message))
            yield report


def _verify_log(fs: FileSystem, path: Path) -> Iterator[SegmentReport]:
    """Yield the segments of a partition's log, from its oldest epoch to its newest."""
    name = parse_partition_dir_name(path.name)
    before: SegmentReport | None = None
    for directory in epoch_dirs(fs, path).values():
        continued, before = before, None  # After a directory that was removed meanwhile, continuity is not checked.
        for report in _verify_epoch(fs, directory, continued):
            if name is not None and report.partition not in {None, name.partition}:
                message = f"it is in the directory of partition {name.partition}, but its header has {report.partition}"
                report.findings.append(Finding("damage", report.path, 0, report.base_offset, message))
            before = report
            yield report


def _with_continued_tails(reports: Iterator[SegmentReport]) -> Iterator[SegmentReport]:
    """Yield the reports; report a torn tail as damage if a crash cannot have caused it, see `_is_continued`."""
    before: SegmentReport | None = None
    for report in reports:
        if before is not None:
            if _is_continued(before, report):
                before.findings = [_as_damage(finding, report) for finding in before.findings]
            yield before
        before = report
    if before is not None:
        yield before


def _is_continued(before: SegmentReport, after: SegmentReport) -> bool:
    """Return whether the next segment shows that a crash cannot have torn the end of a segment.

    A crash tears unsynced bytes, which may be several segments of the open epoch. A crash cannot tear an earlier epoch;
    bytes after the end of such an epoch are harmless if the next epoch begins at its end.
    """
    if before.role != "log" or after.path.suffix == BEGUN_SUFFIX or before.end_offset is None:
        return False
    if after.epoch != before.epoch:
        return after.base_offset != before.end_offset
    return after.base_offset == before.end_offset or (after.synced_offset or 0) > before.end_offset


def _as_damage(finding: Finding, after: SegmentReport) -> Finding:
    if finding.severity != "torn":
        return finding
    message = f"{finding.message}; {after.path.name} of epoch {after.epoch} follows, so this is damage, not a torn end"
    return replace(finding, severity="damage", message=message)


def _verify_epoch(
    fs: FileSystem, directory: Path, before: SegmentReport | None, *, role: Role | None = None
) -> Iterator[SegmentReport]:
    """Yield an epoch's segments, each checked against the previous one, which may be of another epoch."""
    try:
        names = [name for name in fs.list_dir(directory) if name.endswith((SEGMENT_SUFFIX, BEGUN_SUFFIX))]
    except FileNotFoundError:
        return  # Nothing to verify: the node is running and has replaced the directory.
    for name in names:
        try:
            report = inspect_segment(fs, directory / name)
        except FileNotFoundError:
            before = None  # The node is running and has deleted the file.
            continue
        report.role = role or report.role
        fault = _seam(before, report)
        if fault:
            report.findings.append(Finding("damage", report.path, 0, report.base_offset, fault))
        if name == names[-1] and has_marker(fs, directory):
            message = "the log was truncated at damage or lost, and the missing records have not been fetched yet"
            report.findings.append(Finding("damage", report.path, report.used_bytes, report.end_offset, message))
        if report.role != "log":
            report.findings = [replace(finding, severity="note") for finding in report.findings]
        before = report
        yield report


def _seam(before: SegmentReport | None, report: SegmentReport) -> str:
    """Return how a segment fails to continue the one before it; empty if it does."""
    if report.base_offset is None or before is None or before.end_offset is None:
        return ""
    if report.base_offset != before.end_offset:
        return f"it begins at offset {report.base_offset}, but the previous segment ends at {before.end_offset}"
    expected = before.end_digest if report.epoch == before.epoch else 0
    if report.start_digest != expected:
        return f"it begins with digest {report.start_digest:#x}, but the previous segment ends with {expected:#x}"
    return ""
