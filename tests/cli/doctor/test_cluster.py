from __future__ import annotations

import asyncio
import time

from tidelog import ClusterStatus, Node, Partition, Topic
from tidelog.model import Replica
from tidelog_cli.doctor.cluster import check_network, check_status
from tidelog_cli.doctor.findings import Finding
from tidelog_proto.version import NODE_SOFTWARE

GIB = 1 << 30
SOFTWARE = NODE_SOFTWARE


def node(node_id: str, **changes: object) -> Node:
    told = {"zone": node_id, "software": SOFTWARE, "disk_free_bytes": 100 * GIB, "state": "running"} | changes
    return Node(node_id, "127.0.0.1", 1, **told)  # type: ignore[arg-type]  # the fields' types, by name


def found(nodes: tuple[Node, ...], *topics: Topic) -> dict[str, Finding]:
    return {each.check: each for each in check_status(ClusterStatus(bytes(16), nodes, topics))}


THREE = (node("a"), node("b"), node("c"))
WHOLE = Partition(0, "a", 0, ("a", "b", "c"), state="active")


def test_a_healthy_cluster_has_no_complaint() -> None:
    told = found(THREE, Topic("t", bytes(16), (WHOLE,), replication_factor=3))
    assert {each.verdict for each in told.values()} == {"ok"}


def test_faults_of_a_cluster_are_reported() -> None:
    away = (node("a"), node("b"), node("c", alive=False, state="no answer"))
    told = found(away, Topic("t", bytes(16), (WHOLE,), replication_factor=3))
    assert told["nodes"].verdict == "failure"
    assert told["nodes"].found == "1 of 3 nodes does not answer: c"
    assert found((node("a", alive=False), node("b", alive=False), node("c")))["nodes"].found == (
        "2 of 3 nodes do not answer: a, b"
    )
    assert told["copies"].verdict == "warning"
    lost = Partition(0, "a", 0, ("a", "b", "c"), state="no quorum")
    assert found(away, Topic("t", bytes(16), (lost,), replication_factor=3))["quorums"].verdict == "failure"
    copy = Replica("b", 0, 0, copy_fault="damaged")
    damaged = Partition(0, "a", 0, ("a", "b", "c"), state="active", replicas=(copy,))
    assert found(THREE, Topic("t", bytes(16), (damaged,), replication_factor=3))["copies"].verdict == "failure"
    single = Topic("t", bytes(16), (Partition(0, "a", 0, ("a",), state="active"),), replication_factor=1)
    assert "t" in found(THREE, single)["topics"].found


def test_a_partition_that_takes_no_records_is_a_failure() -> None:
    for state in ("limbo", "failed"):
        stopped = Partition(4, "b", 0, ("b",), state=state)
        told = found(THREE, Topic("t", bytes(16), (stopped,), replication_factor=1))
        assert told["partitions"].verdict == "failure"
        assert f"t/4 on b is {state}" in told["partitions"].found


def test_a_partition_without_a_living_owner_is_a_failure() -> None:
    away = (*THREE[:2], node("c", alive=False, state="no answer"))
    lost = Partition(2, "c", 0, ("c",), state="no owner")
    told = found(away, Topic("t", bytes(16), (lost,), replication_factor=1))["owners"]
    assert told.verdict == "failure"
    assert told.found.startswith("1 partition without a living owner (t/2): nothing can be read or written there")
    assert told.found.endswith("; start c")


def test_differing_versions_low_disks_and_ending_certificates_are_reported() -> None:
    assert found((*THREE[:2], node("c", software="tidelog-node/9")))["versions of nodes"].verdict == "warning"
    assert "c has" in found((*THREE[:2], node("c", disk_free_bytes=GIB)))["disk space of nodes"].found
    assert found(THREE[:2])["nodes"].verdict == "warning"
    ending = node("a", certificate_ends_us=int((time.time() + 86_400) * 1e6))
    assert found((ending,))["certificates"].verdict == "warning"


async def test_nodes_are_connected_to() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        (reached,) = await check_network([Node("a", "127.0.0.1", port)])
        assert reached.verdict == "ok"
        assert "connected in" in reached.found
    (away,) = await check_network([Node("a", "127.0.0.1", port)])
    assert away.verdict == "failure"


async def test_nodes_of_several_machines_that_tell_loopback_are_a_mistake() -> None:
    findings = await check_network([Node("a", "127.0.0.1", 1), Node("b", "192.0.2.1", 1)])
    assert any(each.check == "addresses" and "a advertise" in each.found for each in findings)
