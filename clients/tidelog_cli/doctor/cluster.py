"""Checks of a cluster: reachability and latency of its nodes, and its status."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Final

from tidelog import ClusterStatus, Node
from tidelog_cli.base.output import bytes_text
from tidelog_cli.cluster.command import NO_ANSWER, ending_texts, level_text, missing_text, ownerless_text, stopped_text
from tidelog_cli.doctor.disk import FREE_BYTES_MIN
from tidelog_cli.doctor.findings import Finding
from tidelog_proto.version import VERSION
from tidelog_proto.wire.loopback import is_loopback
from tidelog_proto.wire.name_resolution import connected_socket

TRIES: Final = 5
CONNECT_S: Final = 2.0
SLOW_S: Final = 0.05
"""Median time to connect to a node, in seconds, beyond which a warning is given."""
LISTED_MAX: Final = 8
AT_ONCE: Final = 16
"""Maximum number of nodes that are checked at once."""


async def check_network(nodes: Sequence[Node]) -> list[Finding]:
    """Check whether each node can be reached from this machine, at its advertised address."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def check(node: Node) -> Finding:
        async with turns:
            return await _reached(node)

    findings = list(await asyncio.gather(*map(check, nodes)))
    if len(nodes) > 1 and any(is_loopback(node.host) for node in nodes) and not all(is_loopback(n.host) for n in nodes):
        node_ids = ", ".join(node.node_id for node in nodes if is_loopback(node.host))
        fact = f"{node_ids} advertise a loopback address, which other machines cannot reach"
        findings.append(Finding("addresses", "failure", fact, "set advertise_host on these nodes"))
    return findings


async def _reached(node: Node) -> Finding:
    check, where = f"network to {node.node_id}", f"{node.host}:{node.port}"
    times_s: list[float] = []
    for _ in range(TRIES):
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(CONNECT_S):
                with contextlib.closing(await connected_socket(node.host, node.port)):
                    times_s.append(time.monotonic() - began_s)
        except (OSError, TimeoutError, UnicodeError) as error:
            why = str(error) or f"no answer within {CONNECT_S:g} s"
            remedy = "start the node; allow TCP and UDP of its port in firewalls; check its advertise_host"
            return Finding(check, "failure", f"cannot connect to {where}: {why}", remedy)
    median_s = statistics.median(times_s)
    fact = f"{where}, connected in {1000 * median_s:.2f} ms"
    if median_s > SLOW_S:
        return Finding(
            check,
            "warning",
            f"{fact}: each publish waits for replies of a quorum, which this latency delays",
            "reduce the network latency between nodes",
        )
    return Finding(check, "ok", fact)


def check_status(status: ClusterStatus) -> Iterator[Finding]:
    """Check the nodes, the partitions, the feature level and the certificates in a cluster's status."""
    yield from _nodes(status.nodes)
    yield from _partitions(status)
    if unfinished := level_text(status):
        yield Finding("feature level", "warning", unfinished)
    for text in ending_texts(status, time.time()):
        yield Finding("certificates", "warning", text)


def _nodes(nodes: Sequence[Node]) -> Iterator[Finding]:
    away = [node.node_id for node in nodes if not node.alive or node.state == NO_ANSWER]
    if away:
        fact = f"{len(away)} of {len(nodes)} nodes {'does' if len(away) == 1 else 'do'} not answer: {_named(away)}"
        yield Finding("nodes", "failure", fact, "start these nodes, or remove each with `tidelog cluster remove NODE`")
    else:
        yield Finding("nodes", "ok", f"all {len(nodes)} nodes answer" if len(nodes) > 1 else "the only node answers")
    if len(nodes) == 2:
        remedy = "add a third node: the loss of one stops writes to topics with two copies"
        yield Finding("nodes", "warning", "the cluster has two nodes", remedy)
    software = sorted({node.software for node in nodes if node.software})
    if len(software) > 1:
        yield Finding("versions of nodes", "warning", ", ".join(software), "finish the upgrade")
    elif software and software[0].rpartition("/")[2] != VERSION:
        fact = f"nodes run {software[0]}, this command is {VERSION}"
        yield Finding("versions of nodes", "warning", fact, "install the same version on all machines")
    elif software:
        yield Finding("versions of nodes", "ok", software[0])
    low = [node for node in nodes if node.alive and node.state != NO_ANSWER and node.disk_free_bytes < FREE_BYTES_MIN]
    for node in low:
        fact = f"{node.node_id} has {bytes_text(node.disk_free_bytes)} of free disk space"
        yield Finding("disk space of nodes", "warning", fact, "free space, shorten retention, or add a disk")
    zones = {node.zone for node in nodes}
    if len(nodes) >= 3 and len(zones) == 1:
        remedy = "set `zone` if machines can fail together"
        yield Finding("zones", "ok", f"all nodes are in zone {zones.pop()!r}; {remedy}")


def _partitions(status: ClusterStatus) -> Iterator[Finding]:
    if missing := missing_text(status):
        yield Finding("quorums", "failure", missing, "start the missing nodes")
    if ownerless := ownerless_text(status):
        yield Finding("owners", "failure", ownerless, "start these nodes")
    if stopped := stopped_text(status):
        yield Finding("partitions", "failure", stopped, "repair or replace the copy: see docs/damage.md")
    registered = len(status.nodes)
    alive = {node.node_id for node in status.nodes if node.alive}
    short, damaged, single = list[str](), list[str](), list[str]()
    for topic in status.topics:
        copies = min(topic.replication_factor, registered)
        for partition in topic.partitions:
            name = f"{topic.name}/{partition.partition}"
            if partition.placement and sum(node in alive for node in partition.placement) < copies:
                short.append(name)
            damaged += [name for replica in partition.replicas if replica.copy_fault]
        if registered > 1 and topic.replication_factor == 1:
            single.append(topic.name)
    if short:
        remedy = "start or add nodes; `tidelog cluster rebalance` creates copies"
        yield Finding("copies", "warning", f"{len(short)} partitions lack copies: {_named(short)}", remedy)
    if damaged:
        fact = f"{len(damaged)} copies are damaged: {_named(damaged)}"
        yield Finding("copies", "failure", fact, "see `tidelog cluster status` and docs/damage.md")
    if single:
        fact = f"{len(single)} topics have one copy: {_named(single)}"
        yield Finding("topics", "warning", fact, "add copies with `tidelog topic alter TOPIC --replication-factor 3`")
    if not (missing or ownerless or stopped or short or damaged or single):
        yield Finding("copies", "ok", "every partition has all copies and a quorum")


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:LISTED_MAX]) + (", …" if len(names) > LISTED_MAX else "")
