"""From settings to a node: whose cluster it belongs to, its directory, and what the bootstrap file says of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tidelog_broker.base.bootstrap import Bootstrap, load_bootstrap, open_directory
from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.secret_file import read_secrets
from tidelog_broker.base.tls import NodeTls
from tidelog_broker.node.admitting import Founding
from tidelog_broker.node.seeds import Seed, find_cluster
from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_broker.storage.node.node_dir import NodeDir, is_new_dir
from tidelog_proto.process.settings import SettingsError

log = logging.getLogger(__name__)

SEEDS_PATIENCE_S: Final = 30.0
"""How long a new node looks for a seed; one that was in the cluster before knows other nodes itself."""


class Opened(NamedTuple):
    """All that a `Node` is made of."""

    settings: NodeSettings
    directory: NodeDir
    founding: Founding | None


async def open_founding(settings: NodeSettings, *, replaces: bool = False) -> Opened:
    """Find out what kind of node this is, and open its directory.

    Args:
        settings: of the node.
        replaces: `--replace`, see `open_node_dir`.

    Raises:
        SettingsError: the settings of a node of a cluster are not whole.
        BootstrapError: the bootstrap file cannot be used, or does not list this node.
        NodeDirError: the directory is not this node's, or no seed answers.
    """
    if settings.bootstrap is None and not settings.seeds:
        if replaces:
            raise SettingsError("--replace is for nodes of a cluster: give --bootstrap or --seeds")
        return Opened(settings, open_directory(settings, None), None)
    secrets = read_secrets(settings.secret_file)
    bootstrap = load_bootstrap(settings.bootstrap) if settings.bootstrap is not None else None
    seeds: list[Seed] = []
    if settings.seeds:
        patience_s = SEEDS_PATIENCE_S if bootstrap is None and is_new_dir(settings.data) else 0.0
        seeds = await find_cluster(settings.seeds, patience_s=patience_s, tls=NodeTls.of(settings))
    cluster_ids = {seed.cluster_id for seed in seeds}
    if len(cluster_ids) > 1:
        raise NodeDirError(f"the seeds belong to {len(cluster_ids)} clusters: {', '.join(settings.seeds)}")
    seeds_cluster_id = next(iter(cluster_ids), None)
    if settings.node_id is not None and not replaces:
        _refuse_taken(settings.node_id, seeds)
    directory = await asyncio.to_thread(
        open_directory, settings, bootstrap, seeds_cluster_id=seeds_cluster_id, replaces=replaces
    )
    if bootstrap is not None:
        settings = as_founded(settings, bootstrap, directory.node_id)
    return Opened(settings, directory, Founding(secrets, bootstrap, tuple(seeds)))


def _refuse_taken(node_id: str, seeds: Sequence[Seed]) -> None:
    """Refuse an id that a running node answers to; it would be waited for, for ever, because it is "this" node.

    Raises:
        NodeDirError: there is such a node.
    """
    for seed in seeds:
        if seed.node_id == node_id:
            host, port = seed.address
            raise NodeDirError(
                f"the node at {host}:{port} is {node_id!r} already and runs: give this one another --node-id, or stop "
                "that one first if this is its data directory"
            )


def as_founded(settings: NodeSettings, bootstrap: Bootstrap, node_id: str) -> NodeSettings:
    """Return settings in which the bootstrap file stands for what was not set; as they are for no founder."""
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
    # A founder that listens on another port than the file names is behind a mapped port; 0 picks any free port.
    if settings.port and "port" in settings.model_fields_set:
        founded["advertise_port"] = founder.port
    if settings.gossip_port and "gossip_port" in settings.model_fields_set:
        founded["advertise_gossip_port"] = founder.gossip_port
    missing = {name: value for name, value in founded.items() if name not in settings.model_fields_set}
    return settings.model_copy(update=missing)
