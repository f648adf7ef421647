from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.broker.stand import Stand

from tidelog_broker.base.node_tls import NodeTls
from tidelog_broker.node import seeds
from tidelog_broker.node.node import Node
from tidelog_broker.node.seeds import Seed, find_cluster

PLAIN = NodeTls(None)


async def test_seed_answers_with_its_id_and_cluster(stand: Stand, node: Node) -> None:
    del stand
    seed = f"127.0.0.1:{node.port}"
    assert await find_cluster([seed], patience_s=0, tls=PLAIN) == [
        Seed(node.node_id, ("127.0.0.1", node.port), node.broker.cluster_id)
    ]


async def test_seed_with_authentication_answers_a_node(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    (found,) = await find_cluster([f"127.0.0.1:{node.port}"], patience_s=0, tls=PLAIN)
    assert (found.node_id, found.cluster_id) == (node.node_id, node.broker.cluster_id)
    assert node.broker.bounds.open_clients == 0, "the probe does not count as a client"


async def test_unreachable_seeds_are_skipped(node: Node) -> None:
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as closing:
        port = closing.sockets[0].getsockname()[1]
        found = await find_cluster(
            ["127.0.0.1:1", f"127.0.0.1:{port}", f"127.0.0.1:{node.port}"], patience_s=0, tls=PLAIN
        )
    assert [seed.node_id for seed in found] == [node.node_id]


async def test_unreachable_seed_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seeds, "AGAIN_S", 0.01)
    assert await find_cluster(["127.0.0.1:1"], patience_s=0.2, tls=PLAIN) == []
    assert caplog.text.count("cannot ask the seed 127.0.0.1:1 for the id of its cluster") == 1


async def test_no_seed_is_found_at_a_closed_port() -> None:
    assert await find_cluster(["127.0.0.1:1", "no-such-host.invalid:7400"], patience_s=0, tls=PLAIN) == []
