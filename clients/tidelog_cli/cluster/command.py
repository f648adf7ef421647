"""`tidelog cluster`: status of nodes and partitions, and administration of nodes.

`init` (see `cluster.init`), `status`, `drain`, `undrain`, `remove`, `rebalance`, `finalize`, and `unsafe-recover` for a
permanently lost quorum.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import sys
import time
from typing import Annotated, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from tidelog import Client, ClusterStatus, Node, Partition
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import (
    ABSENT,
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    bytes_text,
    note,
    print_json,
    print_table,
)
from tidelog_cli.base.session import with_client
from tidelog_cli.cluster.drain_progress import LOOK_S, counted, drain_progress_of, fetch_progress_of, watch
from tidelog_cli.cluster.init import init
from tidelog_cli.topics.description import topic_document
from tidelog_cli.topics.replica_status import copies_text

WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until the operation is complete, and show progress.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", show_default=False)]

SHOWN_MAX = 8
"""Maximum number of partitions that a message lists by name."""
WARN_DAYS: Final = 30
"""Certificates that expire within this time cause a warning."""
DAY_S: Final = 24 * 3600
NO_ANSWER: Final = "no answer"
"""State of a node that did not answer and is known only from other nodes' reports."""
STOPPED_STATES: Final = frozenset({"limbo", "failed"})
"""States of a partition whose copy is damaged, or cannot be written, at its owner."""
_NOT_OPEN: Final = frozenset({"away", "no owner", "idle"})
"""States of a partition that no reachable node has opened."""

_IDENTITY: Final = (
    *("node_id", "host", "port", "zone", "roles", "incarnation", "alive", "membership", "draining", "state"),
    *("software", "level"),
)
_LOAD: Final = ("uptime_ms", "connections", "in_flight_bytes", "data_bytes", "disk_free_bytes")

NODE_COLUMNS = (
    "node",
    "version",
    "address",
    "zone",
    "roles",
    "state",
    "up",
    "connections",
    "in flight",
    "data",
    "disk free",
    "cert ends",
)
PARTITION_COLUMNS = ("topic", "partition", "owner", "epoch", "copies (records behind)", "records", "size", "state")


def register(app: typer.Typer) -> None:
    """Add `cluster` and its sub-commands to the command."""
    cluster_app = typer.Typer(help="Create, inspect and administer a cluster.", no_args_is_help=True)
    cluster_app.command("init")(init)
    cluster_app.command("status")(status)
    cluster_app.command("drain")(drain)
    cluster_app.command("undrain")(undrain)
    cluster_app.command("remove")(remove)
    cluster_app.command("rebalance")(rebalance)
    cluster_app.command("finalize")(finalize)
    cluster_app.command("unsafe-recover")(unsafe_recover)
    app.add_typer(cluster_app, name="cluster")


def status(
    *,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Show every node's state and load, and every partition's owner, copies, records and size."""
    cluster = with_client(bootstrap, lambda client: client.cluster_status())
    if as_json:
        print_json(status_document(cluster))
    else:
        print_status(cluster, internal=internal)


def print_status(cluster: ClusterStatus, *, internal: bool) -> None:
    """Print the nodes and the partitions as tables, then warnings on standard error.

    Args:
        internal: whether to include the partitions of internal topics.
    """
    down = {node.node_id for node in cluster.nodes if not node.alive}
    print_table(NODE_COLUMNS, [_node_row(node) for node in cluster.nodes], title=f"cluster {cluster.cluster_id.hex()}")
    print_table(
        PARTITION_COLUMNS,
        [
            (
                topic.name,
                partition.partition,
                partition.owner,
                partition.epoch,
                copies_text(partition, down=down),
                ABSENT if has_unknown_offsets(partition) else partition.high_watermark - partition.log_start_offset,
                ABSENT if has_unknown_offsets(partition) else bytes_text(partition.size_bytes),
                partition.state,
            )
            for topic in cluster.topics
            if internal or not topic.name.startswith("__")
            for partition in topic.partitions
        ],
    )
    for text in (missing_text(cluster), ownerless_text(cluster), stopped_text(cluster), *down_texts(cluster)):
        if text:
            note(text)
    if unfinished := level_text(cluster):
        note(unfinished)
    for text in ending_texts(cluster, time.time()):
        note(text)


def ending_texts(cluster: ClusterStatus, now_s: float) -> list[str]:
    """Return a line for each certificate or CA of a node that has expired, or expires within 30 days."""
    texts: list[str] = []
    for node in cluster.nodes:
        for what, ends_us in (("certificate", node.certificate_ends_us), ("CA", node.ca_ends_us)):
            if ends_us is None or ends_us / 1e6 - now_s >= WARN_DAYS * DAY_S:
                continue
            verb = "expires" if ends_us / 1e6 > now_s else "expired"
            how = "tidelog certs issue … --replace" if what == "certificate" else "docs/tls.md, Renew certificates"
            texts.append(
                f"the {what} of {node.node_id} {verb} on {date_text(ends_us)}: replace it with a newer one ({how}); "
                "new connections to this node fail after the expiry"
            )
    return texts


def level_text(cluster: ClusterStatus) -> str:
    """Return the command that finalises an upgrade of all nodes; empty if there is nothing to finalise."""
    levels = [node.level or 1 for node in cluster.nodes]
    if cluster.level is None or not levels or min(levels) <= cluster.level:
        return ""
    return (
        f"the cluster is at feature level {cluster.level}, and every node supports level {min(levels)}: "
        "`tidelog cluster finalize` enables its features; nodes cannot be downgraded after that"
    )


def date_text(at_us: int | None) -> str:
    """Return a time (µs since 1970) as its date in UTC; a dash for None."""
    return ABSENT if at_us is None else f"{dt.datetime.fromtimestamp(at_us / 1e6, dt.UTC):%Y-%m-%d}"


def missing_text(cluster: ClusterStatus) -> str:
    """Return the effects of missing quorums, and the missing nodes; empty if all partitions have a quorum."""
    users_first = sorted(cluster.topics, key=lambda topic: topic.name.startswith("__"))
    names = [f"{t.name}/{p.partition}" for t in users_first for p in t.partitions if p.state == "no quorum"]
    if not names:
        return ""
    listing = ", ".join(names[:SHOWN_MAX]) + (", …" if len(names) > SHOWN_MAX else "")
    away = ", ".join(node.node_id for node in cluster.nodes if not node.alive) or "unknown, gossip reports all as alive"
    effects = {
        "__meta": "topics and nodes cannot be changed",
        "__offsets": "the positions of some groups are unavailable",
    }
    lacking = {name.rpartition("/")[0] for name in names}
    internal = [f"; {effect}" for name, effect in effects.items() if name in lacking]
    return (
        f"{counted(len(names), 'partition')} without a quorum ({listing}): writes fail, committed records can be "
        f"read{''.join(internal)}; missing nodes: {away}"
    )


def down_texts(cluster: ClusterStatus) -> list[str]:
    """Return a line for each node that is down and should store copies: how many are missing, and the remedy."""
    texts: list[str] = []
    for node in cluster.nodes:
        names = [f"{t.name}/{p.partition}" for t in cluster.topics for p in t.partitions if node.node_id in p.placement]
        if node.alive or not names:
            continue
        users_first = sorted(names, key=lambda name: name.startswith("__"))
        listing = ", ".join(users_first[:SHOWN_MAX]) + (", …" if len(names) > SHOWN_MAX else "")
        verb = "lacks" if len(names) == 1 else "lack"
        texts.append(
            f"node {node.node_id} is down: {counted(len(names), 'partition')} {verb} its copy ({listing}); start it, "
            "or if its disk is lost replace it (docs/clusters.md, Replace)"
        )
    return texts


def ownerless_text(cluster: ClusterStatus) -> str:
    """Return the partitions without a living owner, and the nodes to start, as text; "" without such partitions."""
    found = [(f"{t.name}/{p.partition}", p) for t in cluster.topics for p in t.partitions if p.state == "no owner"]
    if not found:
        return ""
    listing = ", ".join(name for name, _ in found[:SHOWN_MAX]) + (", …" if len(found) > SHOWN_MAX else "")
    owners = ", ".join(sorted({partition.owner for _, partition in found if partition.owner}))
    return (
        f"{counted(len(found), 'partition')} without a living owner ({listing}): nothing can be read or written there "
        f"unless another node has a copy and takes over; start {owners or 'the nodes that are down'}"
    )


def stopped_text(cluster: ClusterStatus) -> str:
    """Return the partitions that a damaged copy stops, and the remedy, as text; "" without such partitions."""
    found = [(f"{t.name}/{p.partition}", p) for t in cluster.topics for p in t.partitions if p.state in STOPPED_STATES]
    if not found:
        return ""
    listing = ", ".join(
        f"{name} on {partition.owner or ABSENT} is {partition.state}" for name, partition in found[:SHOWN_MAX]
    )
    more = ", …" if len(found) > SHOWN_MAX else ""
    verb = "takes" if len(found) == 1 else "take"
    return (
        f"{counted(len(found), 'partition')} {verb} no records ({listing}{more}): the copy is damaged, or its files "
        "cannot be written; run `tidelog log verify DATA` on that node, and see docs/damage.md"
    )


def drain(node: NodeArgument, *, wait: WaitOption = False, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """Move all replicas and ownership away from a node, and assign it no new ones."""

    async def work(client: Client) -> None:
        await client.drain_node(node)
        if wait:
            await watch(client, lambda cluster: drain_progress_of(node, cluster))
        else:
            sys.stdout.write(f"{drain_progress_of(node, await client.cluster_status()).text}\n")

    with_client(bootstrap, work)


def undrain(node: NodeArgument, *, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """Allow replicas and ownership on a drained node again."""
    with_client(bootstrap, lambda client: client.drain_node(node, draining=False))
    sys.stdout.write(f"{node} may store copies again; move some to it with `tidelog cluster rebalance`\n")


def remove(
    node: NodeArgument,
    *,
    accepted: Annotated[
        bool,
        typer.Option(
            "--yes-i-accept-data-loss",
            help="Remove the node even if it may have the only copy of records.",
            show_default=False,
        ),
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove a drained node permanently; its id cannot be used again."""
    with_client(bootstrap, lambda client: client.remove_node(node, accept_data_loss=accepted))
    sys.stdout.write(f"removed {node}\n")


def rebalance(*, wait: WaitOption = False, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """Move replicas and ownership to their preferred nodes, a few partitions at a time."""

    async def work(client: Client) -> None:
        moves = await client.rebalance()
        # Written to stderr while the command waits: a failed write to standard output would end it with exit code 0.
        (sys.stderr if wait else sys.stdout).write(f"{counted(moves, 'partition')} to move\n")
        if wait:
            while moves:
                await asyncio.sleep(LOOK_S)
                # Requests the rebalance again for partitions that could not move before.
                moves = await client.rebalance()
            await watch(client, fetch_progress_of)

    with_client(bootstrap, work)


def finalize(*, bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP) -> None:
    """Finish an upgrade: enable the features that all nodes support. Earlier builds are refused afterwards."""
    level = with_client(bootstrap, lambda client: client.finalize_level())
    sys.stdout.write(f"the cluster is at feature level {level}; nodes of builds that do not support it are refused\n")


def unsafe_recover(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, show_default=False)],
    *,
    node: Annotated[
        str,
        typer.Option(
            "--node", metavar="NODE", help="The node whose copy is kept; it becomes the owner.", show_default=False
        ),
    ],
    accepted: Annotated[
        bool, typer.Option("--yes-i-accept-data-loss", help="Recover without a warning.", show_default=False)
    ] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Recover a partition that has permanently lost its quorum. Acknowledged records may be lost."""
    if not accepted:
        sys.stderr.write(
            f"{topic}/{partition} would continue with the records of {node} and other live replicas. Acknowledged\n"
            "records that are only on missing nodes are LOST, and a missing node that returns must be replaced. Do\n"
            "this only if the quorum is permanently lost; otherwise wait for its nodes.\n"
        )
        raise CommandFailed("nothing was changed; confirm the recovery with --yes-i-accept-data-loss", EXIT_USAGE)
    recovery = with_client(bootstrap, lambda client: client.recover_unsafely(topic, partition, node))
    how = (
        f"without a quorum; {node} continues alone; create copies with `tidelog cluster rebalance`"
        if recovery.unsafe
        else "and nothing was lost: a quorum of its replicas answered"
    )
    sys.stdout.write(f"{topic}/{partition}: epoch {recovery.epoch} ends at offset {recovery.end_offset:,} {how}\n")


def nodes_table(cluster: ClusterStatus) -> Table:
    """Return the nodes as a table for a live view."""
    table = Table("node", "address", "state", "owns", "data", box=SIMPLE_HEAD, pad_edge=False)
    for node in cluster.nodes:
        owned = sum(p.owner == node.node_id for topic in cluster.topics for p in topic.partitions)
        address = f"{node.host}:{node.port}"
        data = ABSENT if node.state == NO_ANSWER else bytes_text(node.data_bytes)
        table.add_row(node.node_id, address, state_text(node), str(owned), data)
    return table


def state_text(node: Node) -> str:
    """Return a node's state: the one that it reports, or that of gossip if it is worse; and whether it is draining."""
    words = [node.state if node.alive else "dead"]
    if node.membership in {"suspect", "left", "unknown"}:
        words = [node.membership]
    if node.draining:
        words.append("draining")
    return ", ".join(words)


def _node_row(node: Node) -> tuple[object, ...]:
    load = (
        f"{node.uptime_ms // 1000:,} s",
        node.connections,
        bytes_text(node.in_flight_bytes),
        bytes_text(node.data_bytes),
        bytes_text(node.disk_free_bytes),
    )
    return (
        node.node_id,
        version_of(node),
        f"{node.host}:{node.port}",
        node.zone,
        ", ".join(node.roles),
        state_text(node),
        *(ABSENT if node.state == NO_ANSWER else each for each in load),
        date_text(node.certificate_ends_us),
    )


def version_of(node: Node) -> str:
    """Return the version of a node's build, or of the build that registered it; a dash if unknown."""
    return node.software.rpartition("/")[2] or ABSENT


def has_unknown_offsets(partition: Partition) -> bool:
    """Return whether no reachable node has opened the partition, so that its offsets are unknown."""
    return partition.state in _NOT_OPEN


def status_document(cluster: ClusterStatus) -> dict[str, Any]:
    """Return the status as the JSON object that `--json` prints."""
    return {
        "cluster_id": cluster.cluster_id.hex(),
        "level": cluster.level,
        "nodes": [
            {name: getattr(node, name) for name in _IDENTITY}
            | {"roles": list(node.roles)}
            | {"certificate_ends_ms": _ms(node.certificate_ends_us), "ca_ends_ms": _ms(node.ca_ends_us)}
            | {name: None if node.state == NO_ANSWER else getattr(node, name) for name in _LOAD}
            for node in cluster.nodes
        ],
        "topics": [topic_document(topic, copies=True) for topic in cluster.topics],
        "warnings": ending_texts(cluster, time.time()),
    }


def _ms(at_us: int | None) -> int | None:
    return None if at_us is None else at_us // 1000
