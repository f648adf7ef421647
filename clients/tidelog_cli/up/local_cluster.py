"""A cluster on this machine: its bootstrap file, its secret and its nodes' directories, all in one directory.

    DIR/cluster.json   the bootstrap file: the nodes and their ports, chosen once
    DIR/secret         the shared secret of the nodes
    DIR/node1, …       the nodes' data directories;  DIR/node1.log, …  their logs

`founding_files` writes the first two.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidelog.testing.free_ports import HOST, free_ports
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.cluster.founding_files import BOOTSTRAP, SECRET, bootstrap_document, write_bootstrap, write_secret
from tidelog_proto.process.private_files import PRIVATE_DIR_MODE

__all__ = ["HOST", "PORT_STEP", "LocalNode", "free_ports", "is_of_one_node", "nodes_in", "prepare"]

PORT_STEP: Final = 10
"""Difference between the ports of consecutive nodes; the management port follows the native port."""

_OF_ONE_NODE: Final = "node.json"


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node: its id, its native port, and the command that runs it."""

    node_id: str
    port: int
    command: tuple[str, ...]
    log: Path | None
    """Its log file; None for this command's stderr."""


def nodes_in(data: Path) -> int | None:
    """Return the number of nodes of the cluster in a directory; None if there is no cluster."""
    path = data / BOOTSTRAP
    return len(_read(path)["nodes"]) if path.exists() else None


def is_of_one_node(data: Path) -> bool:
    """Return whether a directory is the data directory of a single node."""
    return (data / _OF_ONE_NODE).exists()


def prepare(
    data: Path, *, nodes: int, port: int | None, first_port: int, management_ports: Sequence[int]
) -> list[LocalNode]:
    """Create a cluster in a directory, or open the existing one, whose ports are kept.

    Args:
        data: the directory; created if it does not exist.
        port: the first node's native port, as the user requested it; 0: free ports; None: `first_port`, or the ports of
            the existing cluster.
        first_port: the first node's native port in a new cluster if `port` is None.
        management_ports: management port of each node, or only of the first node; 0 lets each node pick a port.

    Raises:
        CommandFailed: the directory is a single node's, or has a cluster of another size or with other ports.
        OSError: there are not enough free ports.
    """
    if is_of_one_node(data):
        raise CommandFailed(
            f"{data} is the data directory of a single node; give another --data for a cluster", EXIT_USAGE
        )
    present = nodes_in(data)
    if present is None:
        _found(data, nodes, first_port if port is None else port)
    elif present != nodes:
        raise CommandFailed(
            f"{data} has a cluster of {present} nodes, not {nodes}; omit --nodes, or give another --data", EXIT_USAGE
        )
    founders = _read(data / BOOTSTRAP)["nodes"]
    if port and port != founders[0]["port"]:
        native = ", ".join(str(founder["port"]) for founder in founders)
        raise CommandFailed(
            f"the cluster in {data} has fixed ports {native}, got --port {port}: omit --port, or create another "
            "cluster with another --data",
            EXIT_USAGE,
        )
    if len(management_ports) < nodes:
        first = management_ports[0]
        management_ports = [first + index * PORT_STEP if first else 0 for index in range(nodes)]
    return [_node(data, founder, management) for founder, management in zip(founders, management_ports, strict=False)]


def _node(data: Path, founder: dict[str, Any], management_port: int) -> LocalNode:
    node_id = str(founder["node_id"])
    arguments = {
        "--bootstrap": data / BOOTSTRAP,
        "--secret-file": data / SECRET,
        "--node-id": node_id,
        "--data": data / node_id,
        "--management-port": management_port,
    }
    command = ["node", *(str(word) for pair in arguments.items() for word in pair)]
    return LocalNode(node_id, int(founder["port"]), tuple(command), data / f"{node_id}.log")


def _found(data: Path, nodes: int, port: int) -> None:
    """Write the secret, then the bootstrap file, so that both are complete once the latter exists."""
    data.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
    write_secret(data / SECRET, replace=True)
    ports = [port + index * PORT_STEP for index in range(nodes)] if port else free_ports(nodes)
    founders = [
        {"node_id": f"node{number}", "host": HOST, "port": chosen, "gossip_port": chosen}
        for number, chosen in enumerate(ports, 1)
    ]
    document = bootstrap_document(data.resolve().name or "local", founders)
    write_bootstrap(data / BOOTSTRAP, document, replace=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        document: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CommandFailed(
            f"{path} cannot be read as a bootstrap file: {error}; restore it, or give another --data", EXIT_USAGE
        ) from error
    if not isinstance(document, dict) or not document.get("nodes"):
        raise CommandFailed(
            f"{path} is not a bootstrap file: it names no nodes; restore it, or give another --data", EXIT_USAGE
        )
    return document
