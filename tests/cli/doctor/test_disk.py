from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidelog_cli.doctor.disk import check_data, file_system_finding, file_system_of, sync_finding

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /srv rw shared:2 - xfs /dev/vdb rw
31 30 0:27 / /srv/my\\040data rw - nfs4 host:/x rw
32 22 0:28 / /srvx rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/srv", "xfs"),
        ("/srv/a/b", "xfs"),
        ("/srv/my data/x", "nfs4"),
        ("/srvx", "tmpfs"),
        ("/srv-y", "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_innermost_mount(folder: str, kind: str) -> None:
    assert file_system_of(Path(folder), MOUNTS) == kind


@pytest.mark.parametrize("kind", ["tmpfs", "nfs4", "fuse.sshfs", "overlay"])
def test_file_systems_that_do_not_suit_a_log_are_warned_of(kind: str) -> None:
    finding = file_system_finding(kind)
    assert (finding.verdict, bool(finding.remedy)) == ("warning", True)
    assert file_system_finding("xfs").verdict == "ok"


@pytest.mark.parametrize(
    ("times_s", "verdict", "word"),
    [
        ([0.0004] * 10, "ok", "0.40 ms"),
        ([0.05] * 10, "warning", "flush=always"),
        ([0.0004] * 9 + [0.4], "warning", "slowest 400.0 ms"),
        ([0.000_002] * 10, "warning", "too fast for a disk"),
    ],
)
def test_syncs_are_judged_by_median_and_slowest(times_s: list[float], verdict: str, word: str) -> None:
    finding = sync_finding(times_s)
    assert finding.verdict == verdict
    assert word in finding.found


def test_a_directory_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    findings = {finding.check: finding for finding in check_data(tmp_path)}
    assert findings.keys() >= {"data directory", "file system", "disk space", "sync", "write"}
    assert findings["data directory"].verdict == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing_is_checked_at_the_one_above(tmp_path: Path) -> None:
    first = next(iter(check_data(tmp_path / "a" / "b")))
    assert first.verdict == "warning"
    assert str(tmp_path / "a" / "b") in first.found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_cannot_be_written_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert [finding.verdict for finding in check_data(tmp_path)] == ["failure"]
