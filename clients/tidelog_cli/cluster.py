"""`tidelog cluster status`: the nodes, their load and what they hold."""

from __future__ import annotations

from typing import Any

import typer

from tidelog import ClusterStatus
from tidelog_cli.output import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, bytes_text, print_json, print_table
from tidelog_cli.session import with_client
from tidelog_cli.topics import topic_document


def register(app: typer.Typer) -> None:
    """Add `cluster` and its sub-commands to the command."""
    cluster_app = typer.Typer(help="Look at the cluster.", no_args_is_help=True)
    # A callback keeps `cluster` a group while it has one sub-command.
    cluster_app.callback()(_group)
    cluster_app.command("status")(status)
    app.add_typer(cluster_app, name="cluster")


def _group() -> None:
    """Look at the cluster."""


def status(*, as_json: JsonOption = False, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """Show every node's state and load, and every topic's records and size."""
    cluster = with_client(bootstrap, lambda client: client.cluster_status())
    if as_json:
        print_json(status_document(cluster))
        return
    print_table(
        ("node", "address", "state", "up", "connections", "in flight", "data", "disk free"),
        [
            (
                node.node_id,
                f"{node.host}:{node.port}",
                node.state if node.alive else "dead",
                f"{node.uptime_ms // 1000:,} s",
                node.connections,
                bytes_text(node.in_flight_bytes),
                bytes_text(node.data_bytes),
                bytes_text(node.disk_free_bytes),
            )
            for node in cluster.nodes
        ],
        title=f"cluster {cluster.cluster_id.hex()}",
    )
    print_table(
        ("topic", "partitions", "records", "size"),
        [
            (
                topic.name,
                topic.partition_count,
                sum(p.high_watermark - p.log_start_offset for p in topic.partitions),
                bytes_text(sum(p.size_bytes for p in topic.partitions)),
            )
            for topic in cluster.topics
        ],
    )


def status_document(cluster: ClusterStatus) -> dict[str, Any]:
    """Return the status as the JSON object that `--json` prints."""
    return {
        "cluster_id": cluster.cluster_id.hex(),
        "nodes": [
            {
                "node_id": node.node_id,
                "host": node.host,
                "port": node.port,
                "zone": node.zone,
                "incarnation": node.incarnation,
                "alive": node.alive,
                "state": node.state,
                "software": node.software,
                "uptime_ms": node.uptime_ms,
                "connections": node.connections,
                "in_flight_bytes": node.in_flight_bytes,
                "data_bytes": node.data_bytes,
                "disk_free_bytes": node.disk_free_bytes,
            }
            for node in cluster.nodes
        ],
        "topics": [topic_document(topic) for topic in cluster.topics],
    }
