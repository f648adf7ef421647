"""The test stand of a cluster: its nodes, and a limit probe of the same topology, on one machine.

For a topic with three replicas the probe is an owner and two followers; a larger cluster has more nodes, but a
partition still uses three. Both sides share the cores and the disk of the machine, so a ratio shows the product's own
cost, without the influence of a network.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from tidelog_cli.up.child_processes import Child, running
from tidelog_loadtest.probe.owner import frames_held
from tidelog_loadtest.stand.nodes import Nodes, cluster_of
from tidelog_loadtest.stand.single_node import Stand

COPIES_MAX: Final = 3
"""Replication factor of the measured topic, if there are that many nodes."""


def copies_on(nodes: int) -> int:
    """Return the number of replicas of a measured partition."""
    return min(COPIES_MAX, nodes)


@contextlib.asynccontextmanager
async def own_cluster(count: int, data: Path | None) -> AsyncIterator[Nodes]:
    """Run a cluster in a temporary directory in `data` (default: the system's), deleted on exit.

    Raises:
        CommandFailed: a node did not start.
    """
    directory = Path(tempfile.mkdtemp(prefix="tidelog-bench-", dir=data))
    try:
        async with cluster_of(count, directory) as nodes:
            yield nodes
    finally:
        shutil.rmtree(directory)


@contextlib.asynccontextmanager
async def cluster_stand(
    *,
    nodes: int,
    data: Path | None,
    sync: bool,
    payload_bytes: int,
    window: int,
    keep_bytes: int | None = None,
) -> AsyncIterator[Stand]:
    """Start a cluster and a probe of its topology, like `stand` for one node.

    Args:
        nodes: number of nodes.
        data: parent of the temporary directory; default: the system's.
        sync: whether every copy of the probe syncs (flush=always).
        payload_bytes: maximum size of a payload of the probe.
        window: maximum number of payloads in flight.
        keep_bytes: length at which a copy's file wraps around; None: unlimited.

    Raises:
        CommandFailed: a child process did not start.
    """
    directory = Path(tempfile.mkdtemp(prefix="tidelog-bench-", dir=data))
    try:
        async with contextlib.AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(cluster_of(nodes, directory))
            common = ["--frame-bytes", str(payload_bytes), *(["--sync"] if sync else [])]
            if keep_bytes is not None:
                common += ["--keep-bytes", str(keep_bytes)]
            copies = copies_on(nodes)
            followers = [
                await _probe(
                    stack, directory, f"follower-{at}", "--window", str(frames_held(window, payload_bytes)), *common
                )
                for at in range(1, copies)
            ]
            options = ["--window", str(window), "--quorum", str(copies // 2 + 1), *common]
            for follower in followers:
                options += ["--follower", str(follower.ready["port"])]
            owner = await _probe(stack, directory, "owner", *options)
            probe_pids = {"client": os.getpid(), "owner": owner.process.pid}
            probe_pids |= {f"follower-{at}": each.process.pid for at, each in enumerate(followers, 1)}
            yield Stand(
                bootstrap=",".join(cluster.bootstrap),
                probe_port=owner.ready["port"],
                product_pids={"client": os.getpid(), **cluster.pids},
                probe_pids=probe_pids,
                directory=directory,
            )
    finally:
        shutil.rmtree(directory)


async def _probe(stack: contextlib.AsyncExitStack, directory: Path, name: str, *options: str) -> Child:
    place = directory / f"probe-{name}"
    place.mkdir()
    module = "tidelog_loadtest.probe.owner" if name == "owner" else "tidelog_loadtest.probe.server"
    arguments = ("--data", str(place), *options)
    return await stack.enter_async_context(running(f"limit probe's {name}", arguments, module=module))
