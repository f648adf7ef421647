from __future__ import annotations

import stat
from asyncio.subprocess import Process
from pathlib import Path
from typing import cast

import httpx
import pytest

from tidelog import Client
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.child_processes import Child
from tidelog_cli.up.local_cluster import LocalNode, prepare
from tidelog_cli.up.local_stack import LocalStack, running_stack


def child(**ready: object) -> Child:
    return Child("child", ready, cast("Process", None), "log")


def test_addresses() -> None:
    nodes = (child(port=1, management_port=2), child(port=11, management_port=12))
    stack = LocalStack(nodes, child(http_port=8080))
    assert stack.bootstrap == "127.0.0.1:1,127.0.0.1:11"
    assert stack.http_url == "http://127.0.0.1:8080"
    assert stack.websocket_url == "ws://127.0.0.1:8080/v1/ws"
    assert stack.management_url == "http://127.0.0.1:2"


@pytest.mark.e2e
async def test_three_nodes_and_a_gateway_run_and_end(tmp_path: Path) -> None:
    wanted = prepare(tmp_path / "data", nodes=3, port=0, first_port=0, management_ports=[0])
    async with running_stack(wanted, http_port=0, gateway_log=tmp_path / "gateway.log") as stack:
        async with Client(stack.bootstrap) as client:
            assert len((await client.cluster_status()).nodes) == 3
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{stack.http_url}/readyz")).json() == {"status": "ready", "nodes": 3}
        processes = [each.process for each in (*stack.nodes, stack.gateway)]
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    logs = [tmp_path / "gateway.log", *(one.log for one in wanted if one.log is not None)]
    assert [stat.S_IMODE(log.stat().st_mode) for log in logs] == [0o600] * 4
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


@pytest.mark.e2e
async def test_a_node_that_cannot_start_is_the_reason(tmp_path: Path) -> None:
    wanted = [LocalNode("node1", 0, ("node", "--data", str(tmp_path / "data"), "--port", "nowhere"), tmp_path / "log")]
    with pytest.raises(CommandFailed, match=r"^the node node1 did not start"):
        async with running_stack(wanted, http_port=0):
            pytest.fail("it does not start")
