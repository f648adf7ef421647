from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tidelog_proto.auth.secret_permissions import file_permission_fault, is_accessible_to_all_users

ETC, RUN = Path("/etc/tidelog/key"), Path("/run/secrets/key")


@pytest.mark.parametrize(
    ("mode", "owner", "path", "is_read_only", "expected"),
    [
        (0o600, 1000, ETC, False, False),
        (0o640, 1000, ETC, False, False),
        (0o660, 0, ETC, False, False),
        (0o644, 1000, ETC, False, True),
        (0o644, 0, ETC, False, True),
        (0o602, 1000, ETC, False, True),
        (0o444, 0, RUN, False, False),
        (0o444, 0, Path("/run/secrets-of-others/key"), False, True),
        (0o444, 1000, RUN, False, True),
        (0o644, 0, ETC, True, False),
        (0o644, 1000, ETC, True, True),
        (0o666, 0, RUN, True, True),
    ],
)
def test_modes_of_secret_files(mode: int, owner: int, path: Path, is_read_only: bool, expected: bool) -> None:
    assert is_accessible_to_all_users(stat.S_IFREG | mode, owner, path, is_read_only=is_read_only) is expected
    assert not is_accessible_to_all_users(stat.S_IFIFO | mode, owner, path, is_read_only=is_read_only), (
        "other users cannot open a pipe"
    )


def test_permission_fault_names_the_file_its_mode_and_the_remedy(tmp_path: Path) -> None:
    key = tmp_path / "my key"
    key.touch(mode=0o600)
    assert file_permission_fault(key, "the API key") == ""
    key.chmod(0o644)
    assert file_permission_fault(key, "the API key") == (
        f"every user of this machine may read the API key in {key} (mode 644): chmod 600 '{key}'"
    )
    assert file_permission_fault(tmp_path / "none", "the API key") == ""


@pytest.mark.timeout(20)
def test_a_pipe_is_not_opened_to_be_judged(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o666)
    assert file_permission_fault(tmp_path / "pipe", "it") == ""
    assert file_permission_fault(tmp_path / "none", "it") == ""
