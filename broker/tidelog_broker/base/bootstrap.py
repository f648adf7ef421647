"""The bootstrap file: the agreement that founds a cluster, made once and given to every founder.

    {"format_version": 1, "cluster_id": "32 hex digits", "name": "orders", "nodes": [
        {"node_id": "log1", "host": "log1.example.org", "port": 7400, "gossip_port": 7400, "zone": "east",
         "roles": ["ingestion", "persistence"]}, ...]}

Something must be agreed before `__meta` exists to agree in: which nodes store it first, and what the cluster is called
so that two clusters never mix. That is all it is for. Nodes that join later use the file only for the cluster id and
for addresses to begin with; once `__meta` has a record about a node, that record counts and the file does not.

Founders compare the SHA-256 of the file's canonical bytes when they connect: two that were given different files would
otherwise build two histories of `__meta` under one name. The canonical bytes leave out what does not matter (order,
white space, defaults spelt out or not), so a file that was formatted anew is still the same file.

Epoch 0 of `__meta` has the founders as its placement and nobody as its owner: the first takeover, decided by a majority
of them, ends it at offset 0 and opens epoch 1. So no founder is special, and any majority can begin.

Rejected: naming the first owner in the file (that node's disk may be the one that was wiped), and founding by the first
node alone with the others joining (for a while the cluster's metadata would have one copy).
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
"""Copies of `__meta` at the beginning: with five, two may fail; more would only make every decision slower."""

_Printable = StringConstraints(pattern=r"^[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$")
RoleName = Literal["ingestion", "persistence"]


class BootstrapError(ValueError):
    """The bootstrap file cannot be used; the message names the file, the place in it and what to do."""


class Founder(BaseModel):
    """One node of the first cluster. Without `gossip_port` gossip uses the UDP port with the number of `port`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node_id: Annotated[str, _Printable] = Field(max_length=NODE_ID_CHARS_MAX)
    host: Annotated[str, _Printable] = Field(max_length=253)
    port: int = Field(ge=1, le=65535)
    gossip_port: int = Field(default_factory=lambda data: data.get("port", 0), ge=1, le=65535)
    zone: Annotated[str, _Printable] = Field("default", max_length=ZONE_CHARS_MAX)
    roles: tuple[RoleName, ...] = Field(("ingestion", "persistence"), min_length=1, max_length=2)

    @field_validator("roles")
    @classmethod
    def _roles_stand_once(cls, value: tuple[RoleName, ...]) -> tuple[RoleName, ...]:
        if len(set(value)) != len(value):
            raise ValueError("a role stands once")
        return tuple(sorted(value))

    @property
    def node_roles(self) -> Role:
        """The roles as placement knows them."""
        return roles_named(self.roles)


class Bootstrap(BaseModel):
    """A bootstrap file's content, checked; nodes stand by id."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1]
    cluster_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    name: Annotated[str, _Printable] = Field(max_length=200)
    nodes: tuple[Founder, ...] = Field(min_length=1, max_length=NODES_MAX)

    @field_validator("nodes")
    @classmethod
    def _nodes_are_different(cls, value: tuple[Founder, ...]) -> tuple[Founder, ...]:
        _refuse_twice("node id", [node.node_id for node in value])
        _refuse_twice("address", [f"{node.host}:{node.port}" for node in value])
        _refuse_twice("gossip address", [f"{node.host}:{node.gossip_port}" for node in value])
        if not any("persistence" in node.roles for node in value):
            raise ValueError("no node has the role persistence: nobody would store anything")
        return tuple(sorted(value, key=lambda node: node.node_id))

    @property
    def cluster_id_bytes(self) -> bytes:
        """The 16 bytes of the cluster id."""
        return bytes.fromhex(self.cluster_id)

    def canonical_bytes(self) -> bytes:
        """Return the content as UTF-8 JSON without white space, keys and nodes sorted, defaults spelt out."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    @property
    def hash(self) -> bytes:
        """The SHA-256 of the canonical bytes, by which founders know that they were given the same file."""
        return hashlib.sha256(self.canonical_bytes()).digest()

    def founder(self, node_id: str) -> Founder:
        """Return the founder with this id.

        Raises:
            BootstrapError: there is none.
        """
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        raise BootstrapError(
            f"the node {node_id!r} is not in the bootstrap file of the cluster {self.name!r}, which lists "
            f"{', '.join(node.node_id for node in self.nodes)}; to join as another node, give seeds instead"
        )

    def genesis(self) -> pb.EpochDescriptor:
        """Return epoch 0 of `__meta`: stored by the first five founders that store copies, owned by nobody."""
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
        """Return the founders' records of revision 0: what a registry holds before `__meta` says more."""
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
        BootstrapError: it cannot be read, is larger than 1 MiB, is no JSON, or says something that cannot be.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BootstrapError(f"cannot read the bootstrap file {path}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise BootstrapError(f"{path} is no bootstrap file: it has more than {FILE_BYTES_MAX} bytes")
    try:
        return Bootstrap.model_validate_json(data)
    except ValidationError as error:
        raise BootstrapError(_explain(str(path), error)) from error


def roles_named(names: Sequence[RoleName]) -> Role:
    """Return roles by their names, as settings and bootstrap files spell them."""
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
    """Open the data directory of a founder, a joiner, a replacement or a node on its own, as the settings say.

    Args:
        settings: of the node.
        bootstrap: the content of `settings.bootstrap`, None without one.
        seeds_cluster_id: what the seeds say the cluster is; an existing directory knows it without them.
        replaces: `--replace`: a new node for one that has lost its data, see `open_node_dir`.
        fs: the files, the real ones unless given.

    Raises:
        BootstrapError: the node's id is given, and the bootstrap file does not list it.
        NodeDirError: as `open_node_dir`, or the directory is new and no seed has said which cluster it is to join.
    """
    cluster_id = seeds_cluster_id
    if bootstrap is not None:
        if settings.node_id is not None and not replaces:
            bootstrap.founder(settings.node_id)
        cluster_id = bootstrap.cluster_id_bytes
    elif settings.seeds and cluster_id is None and is_new_dir(settings.data, fs=fs):
        raise NodeDirError(
            f"{settings.data} is new and none of the seeds {', '.join(settings.seeds[:5])} has said which cluster it "
            "belongs to: start one of them first, or give the bootstrap file"
        )
    return open_node_dir(settings.data, fs=fs, node_id=settings.node_id, cluster_id=cluster_id, replaces=replaces)


def _refuse_twice(what: str, values: Sequence[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"the {what} {value!r} stands twice")
        seen.add(value)


def _explain(source: str, error: ValidationError) -> str:
    lines: list[str] = []
    for fault in error.errors(include_url=False, include_input=False):
        place = ".".join(str(part) for part in fault["loc"])
        text = "this key is unknown" if fault["type"] == "extra_forbidden" else fault["msg"]
        lines.append(f"{source}: {place}: {text}" if place else f"{source}: {text}")
    return "\n".join(lines[:10])
