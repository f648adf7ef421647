from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.local_cluster import LocalNode
from tidelog_loadtest.measure.footprint import rss_anon_bytes
from tidelog_loadtest.stand.nodes import NodeProcess, cluster_of

pytestmark = pytest.mark.e2e


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_nodes_are_killed_restarted_stopped_and_resumed(tmp_path: Path) -> None:
    async with cluster_of(3, tmp_path) as nodes:
        assert len(nodes.bootstrap) == len(nodes.pids) == 3
        victim, *others = nodes.by_id.values()
        assert nodes.others(victim.node_id) == others
        address, pid = victim.address, victim.pid
        await victim.kill()
        with pytest.raises((FileNotFoundError, ProcessLookupError)):
            rss_anon_bytes(pid)
        await victim.start()
        assert victim.address == address
        await victim.pause()
        assert _state(victim.pid) == "T"
        victim.resume()
        assert _state(victim.pid) != "T"
        await victim.pause()
        pids = list(nodes.pids.values())
    for pid in pids:
        with pytest.raises((FileNotFoundError, ProcessLookupError)):
            rss_anon_bytes(pid)


async def test_a_node_that_does_not_start_raises_an_error_with_its_log(tmp_path: Path) -> None:
    node = NodeProcess(LocalNode("lost", 0, ("node", "--data", "/dev/null/x"), tmp_path / "lost.log"))
    with pytest.raises(CommandFailed, match="/dev/null is not a directory"):
        await node.start()
    await node.stop()
