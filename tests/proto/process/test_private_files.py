from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tidelog_proto.process.private_files import open_private_log


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("append", [False, True])
def test_a_log_is_for_its_owner_alone(tmp_path: Path, *, exists: bool, append: bool) -> None:
    path = tmp_path / "node.log"
    if exists:
        path.write_text("old ")
        path.chmod(0o644)
    with open_private_log(path, append=append) as log:
        log.write(b"new")
        assert log.name == str(path), "messages name the file"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == ("old new" if exists and append else "new")
