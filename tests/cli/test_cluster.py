from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Cli

from tidelog import Node
from tidelog_cli import failures
from tidelog_cli.cluster import state_text


def test_the_status_shows_node_and_topics(cli: Cli, topic: str, node: str) -> None:
    assert cli("produce", topic, stdin=b"a\nb\n").code == 0
    status = json.loads(cli("cluster", "status", "--json").out)
    (only,) = status["nodes"]
    assert only["state"] == "running"
    assert f"{only['host']}:{only['port']}" == node
    (mine,) = [described for described in status["topics"] if described["name"] == topic]
    assert sum(p["high_watermark"] for p in mine["partitions"]) == 2
    assert [copy["copy_fault"] for p in mine["partitions"] for copy in p["replicas"]] == [""] * len(mine["partitions"])
    shown = cli("cluster", "status").out
    assert only["node_id"] in shown
    assert topic in shown


@pytest.mark.parametrize("words", [("drain", "n"), ("undrain", "n"), ("remove", "n"), ("rebalance",)])
def test_a_node_on_its_own_has_nowhere_to_move_anything(cli: Cli, words: tuple[str, ...]) -> None:
    told = cli("cluster", *words)
    assert told.code == failures.EXIT_FAILED
    assert "stands alone" in told.err


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (Node("a", "h", 1, state="running"), "running"),
        (Node("a", "h", 1, state="running", membership="suspect", draining=True), "suspect, draining"),
        (Node("a", "h", 1, alive=False, state="no answer", membership="dead"), "dead"),
        (Node("a", "h", 1, alive=False, state="no answer", membership="left"), "left"),
    ],
)
def test_a_nodes_state_is_what_the_others_say_if_that_is_worse(node: Node, text: str) -> None:
    assert state_text(node) == text


def test_a_recovery_that_may_lose_records_warns_first(cli: Cli) -> None:
    told = cli("cluster", "unsafe-recover", "flights", "0", "--node", "log1")
    assert told.code == failures.EXIT_USAGE
    assert "are LOST" in told.err
    assert "--yes-i-accept-data-loss" in told.err


def test_a_node_on_its_own_has_no_quorum_to_lose(cli: Cli) -> None:
    told = cli("cluster", "unsafe-recover", "flights", "0", "--node", "log1", "--yes-i-accept-data-loss")
    assert told.code == failures.EXIT_FAILED
    assert "stands alone" in told.err
