"""Opening of a node's data directory as its settings say: for a founder, a joining node or a node without a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tidelog_broker.base.bootstrap import Bootstrap, load_bootstrap, open_directory
from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.node_tls import NodeTls
from tidelog_broker.base.secret_file import read_secrets
from tidelog_broker.node.directory_admission import Founding
from tidelog_broker.node.seeds import Seed, find_cluster
from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_broker.storage.node.node_dir import NodeDir, is_new_dir
from tidelog_proto.process.settings import SettingsError

log = logging.getLogger(__name__)

SEEDS_PATIENCE_S: Final = 30.0
"""How long a new node waits for a seed; a node that was in the cluster before knows other nodes itself."""


class OpenedNode(NamedTuple):
    """The arguments of a `Node`; `founding` is None for a node without a cluster."""

    settings: NodeSettings
    directory: NodeDir
    founding: Founding | None


async def open_founding(settings: NodeSettings, *, replaces: bool = False) -> OpenedNode:
    """Determine the kind of node from its settings, and open its directory.

    Args:
        replaces: whether `--replace` was given, see `open_node_dir`.

    Raises:
        SettingsError: settings of a cluster node are missing, or `replaces` is set for a node without a cluster.
        BootstrapError: the bootstrap file is invalid, or does not list this node.
        NodeDirError: the directory belongs to another node, no seed answers, the seeds belong to several clusters, or
            a seed has the id of this node.
    """
    if settings.bootstrap is None and not settings.seeds:
        if replaces:
            raise SettingsError("--replace needs a cluster; set --bootstrap or --seeds")
        return OpenedNode(settings, open_directory(settings, None), None)
    secrets = read_secrets(settings.secret_file)
    bootstrap = load_bootstrap(settings.bootstrap) if settings.bootstrap is not None else None
    seeds: list[Seed] = []
    if settings.seeds:
        patience_s = SEEDS_PATIENCE_S if bootstrap is None and is_new_dir(settings.data) else 0.0
        seeds = await find_cluster(settings.seeds, patience_s=patience_s, tls=NodeTls.of(settings))
    cluster_ids = {seed.cluster_id for seed in seeds}
    if len(cluster_ids) > 1:
        raise NodeDirError(
            f"the seeds {', '.join(settings.seeds)} belong to {len(cluster_ids)} clusters; use seeds of one cluster"
        )
    seeds_cluster_id = next(iter(cluster_ids), None)
    if settings.node_id is not None and not replaces:
        _refuse_taken(settings.node_id, seeds)
    directory = await asyncio.to_thread(
        open_directory, settings, bootstrap, seeds_cluster_id=seeds_cluster_id, replaces=replaces
    )
    if bootstrap is not None:
        settings = as_founded(settings, bootstrap, directory.node_id)
    return OpenedNode(settings, directory, Founding(secrets, bootstrap, tuple(seeds)))


def _refuse_taken(node_id: str, seeds: Sequence[Seed]) -> None:
    """Refuse the id of a running node: this node would otherwise ignore that seed as itself, and wait forever."""
    for seed in seeds:
        if seed.node_id == node_id:
            host, port = seed.address
            raise NodeDirError(
                f"node {node_id!r} is already running at {host}:{port}; choose another --node-id, or stop "
                "that node first if this is its data directory"
            )


def as_founded(settings: NodeSettings, bootstrap: Bootstrap, node_id: str) -> NodeSettings:
    """Return settings with defaults from the bootstrap file; unchanged for a node that is not a founder."""
    founder = next((node for node in bootstrap.nodes if node.node_id == node_id), None)
    if founder is None:
        return settings
    founded: dict[str, Any] = {
        "host": founder.host,
        "port": founder.port,
        "gossip_port": founder.gossip_port,
        "zone": founder.zone,
        "roles": sorted(founder.roles),
    }
    if settings.advertise_host is None and "host" in settings.model_fields_set:
        founded["advertise_host"] = founder.host
    # A founder that listens on another port than the file has is behind a port mapping, so it advertises the file's
    # port. Port 0 picks any free port, which is advertised itself.
    if settings.port and "port" in settings.model_fields_set:
        founded["advertise_port"] = founder.port
    if settings.gossip_port and "gossip_port" in settings.model_fields_set:
        founded["advertise_gossip_port"] = founder.gossip_port
    missing = {name: value for name, value in founded.items() if name not in settings.model_fields_set}
    return settings.model_copy(update=missing)
