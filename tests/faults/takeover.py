"""Measures how long a partition cannot be published to when its owner is cut off by the network, and lives.

    python -m tests.faults.takeover --rounds 10

`tidelog bench failover --fault cut` stops the owner's process, which needs no privileges and is gentler than a network:
its kernel still answers, and everything else on the machine works. Here packets are lost without an
error (see `network.py`), in three ways:

- isolated: the owner reaches clients and they reach it, but it has no way to the other nodes, nor they to it;
- silent: no packet arrives, no packet leaves;
- mute: it receives everything, and its packets are lost.

The time runs from the moment before the cut is begun to the first acknowledgement, at the client, of records that were
appended after it; the same load as that of the benchmark runs meanwhile, over a connection to the owner. All that
was acknowledged is read back in the end. The exit code is 1 if a round took longer than `BOUND_S`, or a record is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.faults.namespaces import INSIDE, run_inside, way_in
from tests.faults.network import Network
from tests.faults.nodes import Node, make_nodes

from tidelog import Client
from tidelog_loadtest.cluster.acknowledgement_ledger import Audit, Ledger, audit
from tidelog_loadtest.cluster.paced_load import Load
from tidelog_loadtest.stand.cluster_view import settled_everywhere, view_of

BOUND_S: Final = 5.0
GIVE_UP_S: Final = 60.0
NODES: Final = 3
TOPIC: Final = "cut"
LEAD_S: Final = 0.5
"""How long there is load before the cut."""
RECORDS_PER_S: Final = 2000
SIZE_BYTES: Final = 100


def isolated(network: Network, node: int) -> None:
    network.isolate(node)


def silent(network: Network, node: int) -> None:
    network.isolate(node)
    network.cut_replies(node)
    network.cut_to(node)


def mute(network: Network, node: int) -> None:
    network.cut_from(node)


WAYS: Final[Mapping[str, Callable[[Network, int], None]]] = {
    "isolated": isolated,
    "silent": silent,
    "mute": mute,
}


async def measure(base: Path, rounds: int) -> tuple[dict[str, list[float]], Audit]:
    """Return the seconds of each round, by the way of the cut, and what reading everything back found.

    Raises:
        RuntimeError: a node did not start.
        TimeoutError: nothing was acknowledged for `GIVE_UP_S`.
        CommandFailed: the cluster did not become whole again.
        TidelogError: the cluster refused something.
    """
    network = Network(NODES)
    network.build()
    nodes = make_nodes(NODES, base, network, None)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    ledger = Ledger(SIZE_BYTES)
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        async with Client([node.address for node in nodes], client_id="takeover") as client:
            await client.create_topic(TOPIC, partitions=1, replication_factor=NODES, flush="always")
            for _ in range(rounds):
                for way in WAYS:
                    took_s = await _round(client, ledger, nodes, network, way)
                    print(f"{way:>10} {took_s * 1000:9,.0f} ms", flush=True)
                    seconds[way].append(took_s)
            await _whole(nodes)
            found, _ = await audit(client, TOPIC, ledger, {0: 0})
    finally:
        await asyncio.gather(*(node.kill() for node in nodes))
    return seconds, found


async def _round(client: Client, ledger: Ledger, nodes: list[Node], network: Network, way: str) -> float:
    """Cut the owner off, wait until another node serves, and heal; return the seconds without an acknowledgement."""
    await _whole(nodes)
    owner = await _owner(nodes)
    survivor = next(node for node in nodes if node is not owner)
    async with (
        asyncio.timeout(GIVE_UP_S),
        Load(client, TOPIC, ledger, partitions=1, records_per_s=RECORDS_PER_S) as load,
    ):
        await load.first_ack(0, 0)
        await asyncio.sleep(LEAD_S)
        began = time.perf_counter_ns()
        WAYS[way](network, owner.number)
        appended_after_us = time.time_ns() // 1_000
        acknowledged = await load.first_ack(0, appended_after_us)
        async with view_of((survivor.host, survivor.port)) as view:
            told = (await view.routes(TOPIC)).partitions[0].owner
        assert owner.running, "the node that was cut off runs"
        assert told not in {"", owner.node_id}, "another node has taken over"
        network.heal()
    return (acknowledged - began) / 1e9


async def _whole(nodes: list[Node]) -> None:
    await settled_everywhere([(node.host, node.port) for node in nodes], TOPIC, copies=NODES, partitions=1)


async def _owner(nodes: list[Node]) -> Node:
    async with view_of((nodes[0].host, nodes[0].port)) as view:
        told = (await view.routes(TOPIC)).partitions[0].owner
    return next(node for node in nodes if node.node_id == told)


def _report(seconds: Mapping[str, list[float]], found: Audit) -> bool:
    """Print the figures; return whether they are good."""
    print(f"\n{'the owner is':>14} {'rounds':>8} {'median':>10} {'worst':>10}")
    for way, each in seconds.items():
        print(f"{way:>14} {len(each):>8} {statistics.median(each) * 1000:>7,.0f} ms {max(each) * 1000:>7,.0f} ms")
    worst_s = max(max(each) for each in seconds.values())
    print(f"{found.lost} of {found.acked:,} acknowledged records are lost, {found.twice} are duplicate")
    if worst_s > BOUND_S:
        print(f"TOO LONG: {worst_s:.1f} s; {BOUND_S:g} s are allowed")
    return worst_s <= BOUND_S and found.acked > 0 and not found.lost and not found.twice


def main() -> int:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(description="Cut owners off and measure how long nothing can be published.")
    parser.add_argument("--rounds", type=int, default=10, help="of each way to cut")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside_namespaces:
        with tempfile.TemporaryDirectory(prefix="tidelog-takeover-") as base:
            return 0 if _report(*asyncio.run(measure(Path(base), given.rounds))) else 1
    way, reason = way_in()
    if not way:
        print(f"the network cannot be cut here: {reason}")
        return 2
    return run_inside(way, "tests.faults.takeover", sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
