from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tidelog_broker.base.bootstrap import load_bootstrap
from tidelog_cli.cluster.founding_files import bootstrap_document, write_bootstrap, write_secret

NODES = [{"node_id": "log1", "host": "h1", "port": 7400}]


def test_a_cluster_gets_an_id_that_no_other_has(tmp_path: Path) -> None:
    one, other = (bootstrap_document("orders", NODES) for _ in range(2))
    assert one["cluster_id"] != other["cluster_id"]
    write_bootstrap(tmp_path / "file", one, replace=False)
    read = load_bootstrap(tmp_path / "file")
    assert (read.cluster_id, read.name, [node.node_id for node in read.nodes]) == (
        one["cluster_id"],
        "orders",
        ["log1"],
    )


def test_a_secret_is_random_and_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_secret(tmp_path / "secret", replace=False)
    finally:
        os.umask(before)
    first = (tmp_path / "secret").read_text()
    assert len(bytes.fromhex(first)) == 32
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    write_secret(tmp_path / "secret", replace=True)
    assert (tmp_path / "secret").read_text() != first


def test_existing_file_is_kept_without_replace(tmp_path: Path) -> None:
    for name in ("secret", "cluster.json"):
        (tmp_path / name).write_text("old")
    with pytest.raises(FileExistsError):
        write_secret(tmp_path / "secret", replace=False)
    with pytest.raises(FileExistsError):
        write_bootstrap(tmp_path / "cluster.json", bootstrap_document("x", NODES), replace=False)
    assert [(tmp_path / name).read_text() for name in ("secret", "cluster.json")] == ["old", "old"]
    write_bootstrap(tmp_path / "cluster.json", bootstrap_document("x", NODES), replace=True)
    assert json.loads((tmp_path / "cluster.json").read_text())["name"] == "x"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.json", "secret"], "nothing is left beside them"
