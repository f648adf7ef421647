from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidelog.cluster.contexts import CONTEXTS_VARIABLE, find_context
from tidelog.errors import InvalidRequestError
from tidelog_demo.stack import StackError, own_context, own_directory


def test_only_the_data_of_the_previous_run_is_removed(tmp_path: Path) -> None:
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


def test_the_cluster_is_a_separate_context_and_user_contexts_are_unchanged(tmp_path: Path) -> None:
    before = os.environ.get(CONTEXTS_VARIABLE)
    for nodes in (("127.0.0.1:1", "127.0.0.1:2"), ("127.0.0.1:3",)):  # the second time it is another cluster
        with own_context(tmp_path, "mine", ",".join(nodes)) as path:
            assert path == tmp_path / "contexts.json"
            found = find_context("mine")
            assert found is not None
            assert found.bootstrap == nodes
        assert os.environ.get(CONTEXTS_VARIABLE) == before
    with pytest.raises(InvalidRequestError, match="name"), own_context(tmp_path, "no name", "127.0.0.1:1"):
        pytest.fail("it was taken")
    assert os.environ.get(CONTEXTS_VARIABLE) == before
