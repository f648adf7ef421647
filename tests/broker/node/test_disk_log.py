"""The log lines of a node about a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_broker.node.disk_log import DiskLog


def test_full_disk_is_logged_once_and_summarised_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now_s = [100.0]
    disk_log = DiskLog(Path("/data"), lambda: now_s[0])
    disk_log.look(is_full=False, refused=0)
    assert not caplog.messages
    for refused in range(0, 5000, 50):
        now_s[0] += 0.5
        disk_log.look(is_full=True, refused=refused)
    (line,) = caplog.messages
    assert line.startswith("the disk of /data is full and publishes are refused; delete topics")
    disk_log.look(is_full=True, refused=40)  # a topic was deleted
    disk_log.look(is_full=False, refused=60)
    assert caplog.messages[1:] == ["the disk of /data has space again; 4970 publishes were refused in 50 s"]
    disk_log.look(is_full=False, refused=60)
    disk_log.look(is_full=True, refused=70)
    now_s[0] += 3
    disk_log.look(is_full=False, refused=71)
    assert caplog.messages[3:] == ["the disk of /data has space again; 11 publishes were refused in 3 s"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
