from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_demo.stack import StackError, own_directory


def test_the_data_of_the_last_time_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "cluster" / "partitions").mkdir(parents=True)
    (tmp_path / "flights.png").write_bytes(b"a picture")
    with own_directory(tmp_path) as data:
        assert data == tmp_path / "cluster"
        assert not data.exists()
        assert (tmp_path / "flights.png").exists()


def test_two_demonstrations_do_not_share_a_directory(tmp_path: Path) -> None:
    with own_directory(tmp_path), pytest.raises(StackError, match="--data"), own_directory(tmp_path):
        pytest.fail("the directory is taken")
    with own_directory(tmp_path):
        pass
