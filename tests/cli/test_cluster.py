from __future__ import annotations

import json

from tests.cli.conftest import Cli


def test_the_status_shows_node_and_topics(cli: Cli, topic: str, node: str) -> None:
    assert cli("produce", topic, stdin=b"a\nb\n").code == 0
    status = json.loads(cli("cluster", "status", "--json").out)
    (only,) = status["nodes"]
    assert only["state"] == "running"
    assert f"{only['host']}:{only['port']}" == node
    (mine,) = [described for described in status["topics"] if described["name"] == topic]
    assert sum(p["high_watermark"] for p in mine["partitions"]) == 2
    shown = cli("cluster", "status").out
    assert only["node_id"] in shown
    assert topic in shown
