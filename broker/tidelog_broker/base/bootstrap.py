"""The bootstrap file that founds a cluster; every founder gets the same file.

Its format:

    {"format_version": 1, "cluster_id": "32 hex digits", "name": "orders", "nodes": [
        {"node_id": "log1", "host": "log1.example.org", "port": 7400, "gossip_port": 7400, "zone": "east",
         "roles": ["ingestion", "persistence"]}, ...]}

The file contains the facts on which nodes must agree before `__meta` exists: the nodes that store `__meta` first, and
the cluster's id, so that two clusters never mix. Nodes that join later use it only for the cluster id and for initial
addresses; once `__meta` has a record of a node, that record takes precedence.

Founders compare the SHA-256 of the file's canonical bytes when they connect, since founders with different files would
create two histories of `__meta` under one name. The canonical bytes omit irrelevant differences (order, white space,
explicit defaults), so a reformatted file is still the same file.

Epoch 0 of `__meta` is placed on the founders and has no owner: the first takeover, decided by a majority of them, ends
it at offset 0 and begins epoch 1. So no founder is special, and any majority can begin.

Rejected: naming the first owner in the file (that node may have lost its disk), and founding by the first node alone
(the cluster's metadata would have one copy for a while).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.core.placement.placement import BOTH_ROLES, WEIGHT_ORDINARY, Role, majority
from tidelog_broker.core.placement.registry import NODE_ID_CHARS_MAX, NODES_MAX, ZONE_CHARS_MAX, roles_to
from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.node.node_dir import NodeDir, is_new_dir, open_node_dir
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB

FILE_BYTES_MAX: Final = MIB
META_COPIES_MAX: Final = 5
"""Maximum number of initial copies of `__meta`: five tolerate two failures; more would slow down every decision."""

_Printable = StringConstraints(pattern=r"^[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$")
RoleName = Literal["ingestion", "persistence"]


class BootstrapError(ValueError):
    """Raised for an unusable bootstrap file; the message names the file or the cluster, and what is wrong."""


class Founder(BaseModel):
    """A founder's entry in the bootstrap file. Without `gossip_port`, gossip uses the UDP port numbered like `port`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node_id: Annotated[str, _Printable] = Field(max_length=NODE_ID_CHARS_MAX)
    host: Annotated[str, _Printable] = Field(max_length=253)
    port: int = Field(ge=1, le=65535)
    gossip_port: int = Field(default_factory=lambda data: data.get("port", 0), ge=1, le=65535)
    zone: Annotated[str, _Printable] = Field("default", max_length=ZONE_CHARS_MAX)
    roles: tuple[RoleName, ...] = Field(("ingestion", "persistence"), min_length=1, max_length=2)

    @field_validator("roles")
    @classmethod
    def _check_duplicate_roles(cls, value: tuple[RoleName, ...]) -> tuple[RoleName, ...]:
        if len(set(value)) != len(value):
            raise ValueError(f"a role must be listed only once, got {', '.join(value)}")
        return tuple(sorted(value))

    @property
    def node_roles(self) -> Role:
        """The roles as the flags that placement uses."""
        return roles_named(self.roles)


class Bootstrap(BaseModel):
    """The validated content of a bootstrap file, with nodes in order of their ids."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1]
    cluster_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    name: Annotated[str, _Printable] = Field(max_length=200)
    nodes: tuple[Founder, ...] = Field(min_length=1, max_length=NODES_MAX)

    @field_validator("nodes")
    @classmethod
    def _check_unique_nodes(cls, value: tuple[Founder, ...]) -> tuple[Founder, ...]:
        _refuse_duplicates("node id", [node.node_id for node in value])
        _refuse_duplicates("address", [f"{node.host}:{node.port}" for node in value])
        _refuse_duplicates("gossip address", [f"{node.host}:{node.gossip_port}" for node in value])
        if not any("persistence" in node.roles for node in value):
            raise ValueError("at least one node must have the role persistence, which stores data, got none")
        return tuple(sorted(value, key=lambda node: node.node_id))

    @property
    def cluster_id_bytes(self) -> bytes:
        """The 16 bytes of the cluster id."""
        return bytes.fromhex(self.cluster_id)

    def canonical_bytes(self) -> bytes:
        """Return the content as UTF-8 JSON without white space, with sorted keys and nodes and explicit defaults."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    @property
    def hash(self) -> bytes:
        """The SHA-256 of the canonical bytes, with which founders verify that they have the same file."""
        return hashlib.sha256(self.canonical_bytes()).digest()

    def founder(self, node_id: str) -> Founder:
        """Return the founder with this id.

        Raises:
            BootstrapError: the file lists no founder with this id.
        """
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        raise BootstrapError(
            f"node {node_id!r} is not in the bootstrap file of cluster {self.name!r}, which lists "
            f"{', '.join(node.node_id for node in self.nodes)}; set --node-id to one of them, or join with --seeds "
            "instead of --bootstrap"
        )

    def genesis(self) -> pb.EpochDescriptor:
        """Return epoch 0 of `__meta`, stored by the first five founders that store copies, without an owner."""
        storing = [node.node_id for node in self.nodes if "persistence" in node.roles][:META_COPIES_MAX]
        return pb.EpochDescriptor(
            epoch=0,
            owner="",
            owner_incarnation=0,
            placement=storing,
            ack_quorum=majority(len(storing)),
            start_offset=0,
            flush=pb.ALWAYS,
        )

    def records(self) -> list[pb.NodeRecord]:
        """Return the founders' node records of revision 0, which are used until `__meta` has newer ones."""
        return [
            pb.NodeRecord(
                node_id=node.node_id,
                host=node.host,
                port=node.port,
                gossip_host=node.host,
                gossip_port=node.gossip_port,
                zone=node.zone,
                weight=WEIGHT_ORDINARY,
                roles=roles_to(node.node_roles),
            )
            for node in self.nodes
        ]


def load_bootstrap(path: Path) -> Bootstrap:
    """Read a bootstrap file.

    Raises:
        BootstrapError: the file cannot be read, is larger than 1 MiB, is not JSON, or has invalid content.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BootstrapError(f"cannot read the bootstrap file {path}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise BootstrapError(
            f"{path} is not a bootstrap file: it is larger than {FILE_BYTES_MAX} bytes; set --bootstrap to the file "
            "that `tidelog cluster init` wrote"
        )
    try:
        return Bootstrap.model_validate_json(data)
    except ValidationError as error:
        raise BootstrapError(_explain(str(path), error)) from error


def roles_named(names: Sequence[RoleName]) -> Role:
    """Return the placement flags of roles that settings and bootstrap files give by name."""
    roles = Role(0)
    for name in names:
        roles |= Role[name.upper()]
    assert roles in BOTH_ROLES
    return roles


def open_directory(
    settings: NodeSettings,
    bootstrap: Bootstrap | None,
    *,
    seeds_cluster_id: bytes | None = None,
    replaces: bool = False,
    fs: FileSystem | None = None,
) -> NodeDir:
    """Open the data directory of a founder, a joining node, a replacement or a node without a cluster.

    Args:
        bootstrap: the content of the file `settings.bootstrap`; None if that is not set.
        seeds_cluster_id: the cluster id that the seeds report; None without seeds, or if no seed answers. An existing
            directory contains the id itself.
        replaces: whether a new node with the id of one that has lost its data is started (`--replace`), see
            `open_node_dir`.

    Raises:
        BootstrapError: the node's id is set, the bootstrap file does not list it, and `replaces` is False.
        NodeDirError: see `open_node_dir`; or `settings.seeds` is used without a bootstrap file, the directory is new,
            and no seed has reported the cluster's id.
    """
    cluster_id = seeds_cluster_id
    if bootstrap is not None:
        if settings.node_id is not None and not replaces:
            bootstrap.founder(settings.node_id)
        cluster_id = bootstrap.cluster_id_bytes
    elif settings.seeds and cluster_id is None and is_new_dir(settings.data, fs=fs):
        raise NodeDirError(
            f"the data directory {settings.data} is new, and none of the seeds {', '.join(settings.seeds[:5])} has "
            "reported the cluster's id; start one of them, correct --seeds, or set --bootstrap",
        )
    return open_node_dir(settings.data, fs=fs, node_id=settings.node_id, cluster_id=cluster_id, replaces=replaces)


def _refuse_duplicates(what: str, values: Sequence[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"duplicate {what} {value!r}; each node needs its own")
        seen.add(value)


def _explain(source: str, error: ValidationError) -> str:
    lines: list[str] = []
    for fault in error.errors(include_url=False, include_input=False):
        place = ".".join(str(part) for part in fault["loc"])
        text = "unknown key" if fault["type"] == "extra_forbidden" else fault["msg"]
        lines.append(f"{source}: {place}: {text}" if place else f"{source}: {text}")
    return "\n".join(lines[:10])
