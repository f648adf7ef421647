from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidelog_broker.base.bootstrap import load_bootstrap
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.local_cluster import nodes_in, prepare


def test_a_node_reads_what_is_written(tmp_path: Path) -> None:
    """The command and the node know the file's format each for itself."""
    nodes = prepare(tmp_path, nodes=3, port=None, first_port=7400, management_ports=[7401])
    bootstrap = load_bootstrap(tmp_path / "cluster.json")
    assert [(node.node_id, node.port) for node in bootstrap.nodes] == [
        ("node1", 7400),
        ("node2", 7410),
        ("node3", 7420),
    ]
    assert [node.port for node in nodes] == [7400, 7410, 7420]
    words = nodes[2].command
    assert words[words.index("--management-port") + 1] == "7421"
    assert len((tmp_path / "secret").read_text().strip()) == 64
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_cluster_stays_what_it_was(tmp_path: Path) -> None:
    assert nodes_in(tmp_path) is None
    first = prepare(tmp_path, nodes=2, port=0, first_port=7400, management_ports=[0])
    secret = (tmp_path / "secret").read_text()
    assert nodes_in(tmp_path) == 2
    assert prepare(tmp_path, nodes=2, port=None, first_port=9000, management_ports=[0, 0]) == first
    assert (tmp_path / "secret").read_text() == secret


def test_invalid_bootstrap_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps({"nodes": []}))
    with pytest.raises(CommandFailed, match="not a bootstrap file"):
        nodes_in(tmp_path)
