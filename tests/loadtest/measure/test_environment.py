from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_loadtest.measure.environment import environment_of, file_system_of

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
/dev/vdb /srv/data xfs rw 0 0
/dev/vdc /srv/my\\040data btrfs rw 0 0
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/home/me", "ext4"),
        ("/tmp/bench", "tmpfs"),
        ("/tmpfoo", "ext4"),
        ("/srv/data/x", "xfs"),
        ("/srv/my data", "btrfs"),
    ],
)
def test_the_deepest_mount_point_determines_the_type(directory: str, kind: str) -> None:
    assert file_system_of(Path(directory), MOUNTS) == kind


def test_this_machine_can_be_described(tmp_path: Path) -> None:
    environment = environment_of(tmp_path)
    assert environment.cpu_count >= 1
    assert environment.file_system != "unknown"
