"""The node's settings: the `[node]` table of the configuration file, or `TIDELOG_NODE_…` variables.

Defaults suit a laptop; the bounds that protect memory are all here, and their sum is what a node may hold.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from tidelog_broker.base.http_get import checked_url
from tidelog_broker.base.steady_clock import SETTLE_S_DEFAULT
from tidelog_broker.core.groups.positions import GROUP_POSITIONS_MAX, GROUPS_MAX, POSITIONS_BYTES
from tidelog_broker.core.placement.placement import WEIGHT_MAX, WEIGHT_ORDINARY
from tidelog_broker.core.placement.registry import NODE_ID_CHARS_MAX
from tidelog_proto.auth.principal_names import principal_name_fault
from tidelog_proto.limits import FRAME_BYTES_MAX, MIB, PRINCIPAL_CHARS_MAX, RETENTION_MS_MAX
from tidelog_proto.process.busy_poll import POLL_US_DEFAULT, POLL_US_MAX

REPLICATION_FACTOR_MAX: Final = 9
OFFSETS_PARTITIONS_MAX: Final = 1_024
SEEDS_MAX: Final = 64


class NodeSettings(BaseModel):
    """What one node needs to know."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Path = Field(description="The data directory. One node at a time may use it.")
    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(7400, ge=0, le=65535, description="The native protocol's port; 0 picks a free one.")
    advertise_host: str | None = Field(
        None,
        description="The address that clients and nodes are told to use; `host` unless given, 127.0.0.1 where that is "
        "0.0.0.0: set it where others than this machine connect.",
    )
    advertise_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="The port that metadata names to clients and nodes; the one listened on unless given: set it where "
        "that one is mapped to another.",
    )
    advertise_gossip_port: int | None = Field(
        None, ge=1, le=65535, description="The same for gossip (UDP); the one listened on unless given."
    )
    management_host: str = Field("127.0.0.1", description="Where health and metrics listen.")
    management_port: int = Field(7401, ge=0, le=65535, description="Health and metrics (HTTP); 0 picks a free one.")
    otel: bool = Field(
        False,
        description="Whether OpenTelemetry traces and metrics are exported (OTLP over HTTP), as OTEL_* variables say; "
        "it needs the extra `otel`.",
    )
    management_token_file: Path | None = Field(
        None,
        description="Holds tokens, one a line, not for all users to read: `/metrics` is shown to who sends one as "
        "`Authorization: Bearer TOKEN`. Unless given, it is shown to everybody on loopback or with `insecure`, else to "
        "nobody. Who asks for health needs none. The file is followed.",
    )
    metrics_partitions_max: int = Field(
        2000,
        ge=0,
        description="Partitions that have series of their own in `/metrics`, four each, the first by topic and number; "
        "`tidelog_metrics_omitted` counts the others. Figures of the whole node cover all.",
    )
    metrics_positions_max: int = Field(
        5000,
        ge=0,
        description="Positions of groups that have a series in `/metrics`, of the groups that this node coordinates, "
        "the first by group; `tidelog_metrics_omitted` counts the others.",
    )
    zone: str = Field(
        "default", min_length=1, max_length=200, description="Where the machine stands; copies spread over zones."
    )
    node_id: str | None = Field(
        None,
        min_length=1,
        max_length=NODE_ID_CHARS_MAX,
        description="What the node is called. A founder gives its name in the bootstrap file; else one is made up.",
    )
    bootstrap: Path | None = Field(
        None, description="The file that founds the cluster, the same on all its nodes; without it, see `seeds`."
    )
    seeds: list[str] = Field(
        [], max_length=SEEDS_MAX, description="Nodes of the cluster to join, HOST:PORT. No bootstrap, no seeds: alone."
    )
    secret_file: Path | None = Field(
        None,
        description="Holds the secret by which the nodes of a cluster know each other; two, one a line, while it is "
        "replaced: the first signs, both verify. The file is followed.",
    )
    peer_auth: Literal["secret", "certificate"] = Field(
        "secret",
        description="certificate: other nodes show a certificate of tls_ca_file with their node id in it, as well as "
        "the secret. The same on all nodes of a cluster.",
    )
    tls_cert_file: Path | None = Field(
        None,
        description="The node's certificate in PEM, with those that lead to its CA: with it the native port and the "
        "management port speak TLS, and the node calls others in TLS. The file is followed, as the next two are.",
    )
    tls_key_file: Path | None = Field(
        None,
        description="The private key of that, not encrypted, readable by the node alone; it is in tls_cert_file unless "
        "given.",
    )
    tls_ca_file: Path | None = Field(
        None,
        description="The CAs in PEM whose certificates the node believes, of other nodes and of clients; unless given "
        "those of the system, of other nodes only.",
    )
    tls_crl_file: Path | None = Field(
        None,
        description="Lists of certificates that the CAs have revoked (CRLs), in PEM: who shows one, client or node, "
        "is refused, and its connections end within two seconds. Unless given nobody looks. The file is followed.",
    )
    insecure: bool = Field(
        False,
        description="Listen elsewhere than on loopback without TLS or `auth`: only where strangers reach nothing.",
    )
    auth: Literal["none", "required"] = Field(
        "none",
        description="required: every client says who it is, by an API key or a token, and may do what rules allow. "
        "none: everybody may do everything. The same on all nodes of a cluster.",
    )
    cert_principals: list[str] = Field(
        ["uri:tidelog:client:*=*"],
        max_length=100,
        description="Whom a client's certificate of tls_ca_file makes, where it shows nothing else: rules "
        "KIND:PATTERN=PRINCIPAL, the first that fits; KIND is cn, uri, dns or email, * any part. Never `admin`."
        " Empty: nobody.",
    )
    admin: str = Field(
        "admin",
        min_length=1,
        max_length=PRINCIPAL_CHARS_MAX,
        description="The principal that may do everything, whatever the rules say.",
    )
    admin_key_file: Path | None = Field(
        None,
        description="Holds API keys of the principal `admin`, one a line, readable by the node alone: the way in "
        "before there are others, and when they are lost.",
    )
    audit_topic: bool = Field(
        True, description="Whether the lines of the audit log are written to the topic `__audit`, too."
    )
    audit_retention_ms: int = Field(
        30 * 24 * 3600 * 1000,
        ge=0,
        le=RETENTION_MS_MAX,
        description="Older lines of `__audit` are deleted; 0: none. Counts when the topic is made.",
    )
    audit_retention_bytes: int = Field(
        1024 * MIB,
        ge=0,
        description="About what `__audit` may take, the oldest lines go first; 0: all. Counts when it is made.",
    )
    jwt_jwks: str | None = Field(
        None,
        description="Where the public keys of tokens (JWT) come from, a JSON Web Key Set: a file, or an https URL. "
        "Clients may show tokens then; needs `jwt_issuer` and `jwt_audience`.",
    )
    jwt_issuer: str | None = Field(None, min_length=1, description="Who has to have made a token: its claim `iss`.")
    jwt_audience: str | None = Field(
        None, min_length=1, description="For whom a token has to be made: one of its claim `aud`."
    )
    jwt_leeway_s: int = Field(
        30, ge=0, le=600, description="How far the clock of the issuer of tokens may be from the node's."
    )
    jwt_principal_claim: str = Field("sub", min_length=1, description="The claim of a token that names the caller.")
    jwt_roles_claim: str = Field(
        "roles", min_length=1, description="The claim of a token with the caller's roles: a list, or text with spaces."
    )
    gossip_port: int | None = Field(
        None, ge=0, le=65535, description="UDP; the number of the native port unless given, 0 picks a free one."
    )
    roles: list[Literal["ingestion", "persistence"]] = Field(
        ["ingestion", "persistence"],
        min_length=1,
        max_length=2,
        description="persistence: stores copies. ingestion: owns partitions, of those that it stores; without "
        "persistence it only hands requests on. A node on its own does both.",
    )
    weight: int = Field(
        WEIGHT_ORDINARY,
        ge=1,
        le=WEIGHT_MAX,
        description="The node's share of copies and ownership, beside the others'.",
    )
    replication_factor_default: int = Field(
        3, ge=1, le=REPLICATION_FACTOR_MAX, description="Copies of a new topic; at most one on each registered node."
    )
    io_workers: int = Field(2, ge=1, le=64, description="Threads that read, write and sync.")
    segment_read: Literal["file", "mapped"] = Field(
        "mapped",
        description="How full segments get to clients and nodes: mapped, from the page cache into the socket; file, "
        "through a copy. Where the kernel is older than Linux 5.14 it is always file.",
    )
    segment_write: Literal["file", "mapped"] = Field(
        "file",
        description="How records get into segments: written to the file, or copied into a mapping of it, which "
        "costs more CPU.",
    )
    connections_max: int = Field(4096, ge=1, description="Client connections; more are refused.")
    node_in_flight_bytes: int = Field(
        512 * MIB,
        ge=FRAME_BYTES_MAX,
        description="Bytes of requests being worked on or coming, all connections together; past it who sends slowly "
        "gives way.",
    )
    connection_in_flight_bytes: int = Field(
        128 * MIB,
        ge=FRAME_BYTES_MAX,
        description="The same for one connection; past it the node stops reading from it.",
    )
    caller_in_flight_bytes: int = Field(
        32 * MIB,
        ge=MIB,
        description="The same for all connections of one caller, a principal or an address, where no quota says; past "
        "it who sent last is not read from for a moment.",
    )
    node_outgoing_bytes: int = Field(
        256 * MIB,
        ge=FRAME_BYTES_MAX,
        description="Bytes of batches and answers that wait to be sent to clients, all connections together; one gets "
        "at most an eighth of what is left.",
    )
    connection_outgoing_bytes: int = Field(
        8 * MIB, ge=MIB, description="Nothing more is read for a client for which so much waits, or from it."
    )
    partition_in_flight_bytes: int = Field(
        64 * MIB, ge=FRAME_BYTES_MAX, description="Bytes waiting to be appended to one partition; more is refused."
    )
    peers_in_flight_bytes: int = Field(
        256 * MIB, ge=FRAME_BYTES_MAX, description="Bytes of batches from other nodes that wait to be worked on."
    )
    peer_queue_bytes: int = Field(
        64 * MIB, ge=FRAME_BYTES_MAX, description="Bytes waiting to be sent to one other node; more is dropped."
    )
    partitions_max: int = Field(
        20_000, ge=1, description="Partitions of all topics of the cluster; a topic that would add more is refused."
    )
    offsets_partitions: int = Field(
        16,
        ge=1,
        le=OFFSETS_PARTITIONS_MAX,
        description="Partitions of `__offsets`, whose owners coordinate groups; fixed when a cluster is founded.",
    )
    groups_max: int = Field(
        GROUPS_MAX,
        ge=1,
        description="Consumer groups that keep positions, of those that a node knows; a commit of one more is refused.",
    )
    group_positions_max: int = Field(
        GROUP_POSITIONS_MAX, ge=1, description="Positions of one group; a commit of one more is refused."
    )
    positions_bytes: int = Field(
        POSITIONS_BYTES,
        ge=MIB,
        description="About what the positions of all groups may take in memory; past it no position is added.",
    )
    group_retention_ms: int = Field(
        7 * 24 * 3600 * 1000,
        ge=0,
        le=RETENTION_MS_MAX,
        description="A consumer group without members that has committed nothing for so long is deleted with its "
        "positions; 0: never.",
    )
    requests_in_flight: int = Field(1024, ge=1, description="Unanswered requests of one connection.")
    subscriptions_max: int = Field(256, ge=1, description="Subscriptions of one connection.")
    followed_max: int = Field(
        100_000,
        ge=4,
        description="Partitions that the subscriptions of all connections follow together, those of one connection at "
        "most a quarter; more are refused.",
    )
    push_windows_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="About what is kept in memory for replicas that have not acknowledged it, all partitions together; "
        "at most 128 MiB for one.",
    )
    ring_bytes: int = Field(16 * MIB, ge=0, description="The newest batches of a partition kept in memory.")
    rings_bytes: int = Field(256 * MIB, ge=0, description="The same for all partitions together.")
    indexes_bytes: int = Field(
        256 * MIB,
        ge=0,
        description="About what the indexes of keys and tags of growing segments take in memory; past it, what is not "
        "in them is looked through until the segment is full.",
    )
    deduplication_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="What the contents of newest records may take in memory, of all partitions whose topics drop "
        "duplicates, 48 bytes a record; past it, records for one more are refused and may be sent again.",
    )
    group_bytes: int = Field(8 * MIB, ge=1, description="The most that is appended and synced in one go.")
    write_stall_ms: int = Field(
        30_000,
        ge=100,
        description="A client that reads nothing for this long, with replies waiting, is cut off; sooner where another "
        "one finds no room.",
    )
    strangers_max: int = Field(
        1024,
        ge=1,
        description="Connections that have not said who they are yet; past it the oldest of the address that has most "
        "of them is closed.",
    )
    hello_timeout_ms: int = Field(10_000, ge=10, description="A new connection says HELLO within this time.")
    retention_interval_ms: int = Field(5_000, ge=10, description="How often old segments are looked for.")
    clock_settle_s: int = Field(
        SETTLE_S_DEFAULT,
        ge=0,
        description="How long the wall clock must stand by a new time before it is believed, after it has jumped; and "
        "after a start, before the time that the node was off counts as an age of records.",
    )
    replica_lag_ms: int = Field(
        30_000,
        ge=1_000,
        description="A replica that lags so far behind its owner is replaced, where a spare node can store the copy.",
    )
    calm_ms: int = Field(
        300_000,
        ge=0,
        description="After so long without a change in the cluster, ownership goes back to the replicas that placement "
        "prefers; 0 leaves that to `tidelog cluster rebalance`.",
    )
    fill_bytes_per_s: int = Field(
        64 * MIB,
        ge=0,
        description="How fast a node fetches the history that its copies lack, all partitions together; 0: as fast as "
        "it goes. What is being written is never held back.",
    )
    compaction_bytes: int = Field(
        64 * MIB,
        ge=MIB,
        description="About what a pass of compaction keeps of keys in memory; with more it reads the log more often.",
    )
    compaction_bytes_per_s: int = Field(
        64 * MIB, ge=0, description="How fast passes of compaction read the logs; 0: as fast as it goes."
    )
    scrub_bytes_per_s: int = Field(
        8 * MIB,
        ge=0,
        description="How fast the node reads its logs again, to find what has rotted while other nodes still have it; "
        "0: never.",
    )
    scrub_interval_s: int = Field(
        7 * 24 * 3600, ge=1, description="How often it begins to; at that pace one reading may take longer."
    )
    idle_poll_us: int = Field(
        POLL_US_DEFAULT,
        ge=0,
        le=POLL_US_MAX,
        description="While small messages come in quick succession, how long the node looks for the next one before it "
        "sleeps; 0: it sleeps at once.",
    )
    stop_timeout_ms: int = Field(10_000, ge=0, description="How long a graceful stop waits for work in flight.")

    @field_validator("fill_bytes_per_s")
    @classmethod
    def _fill_pace_is_sensible(cls, value: int) -> int:
        if 0 < value < MIB:
            raise ValueError(f"0 for no bound, or at least {MIB}: a single range takes up to a second then")
        return value

    @field_validator("advertise_host")
    @classmethod
    def _advertise_is_reachable(cls, value: str | None) -> str | None:
        if value is not None and _is_unspecified(value):
            raise ValueError(
                "clients cannot connect to an unspecified address; give a name or an address of this machine"
            )
        return value

    @field_validator("admin")
    @classmethod
    def _admin_is_a_principal(cls, value: str) -> str:
        if (fault := principal_name_fault(value)) is not None:
            raise ValueError(fault)
        return value

    @field_validator("seeds")
    @classmethod
    def _seeds_are_addresses(cls, value: list[str]) -> list[str]:
        for seed in value:
            host, _, port = seed.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
                raise ValueError(f"{seed!r} is no HOST:PORT, like log1.example.org:7400")
        return value

    @field_validator("jwt_jwks")
    @classmethod
    def _key_set_may_be_asked(cls, value: str | None) -> str | None:
        if value is not None and "://" in value:
            checked_url(value)
        return value

    @model_validator(mode="after")
    def _tokens_are_for_somebody(self) -> Self:
        if self.jwt_jwks is not None and (self.jwt_issuer is None or self.jwt_audience is None):
            raise ValueError("jwt_jwks needs jwt_issuer and jwt_audience: else tokens for others would count here")
        return self

    @field_validator("roles")
    @classmethod
    def _roles_can_be(cls, value: list[str], info: ValidationInfo) -> list[str]:
        if len(set(value)) != len(value):
            raise ValueError("a role stands once")
        is_alone = info.data.get("bootstrap", ...) is None and info.data.get("seeds", ...) == []
        if len(value) == 1 and is_alone:
            raise ValueError(f"a node on its own does not only {value[0]}: name a cluster, by `bootstrap` or `seeds`")
        return sorted(value)

    @model_validator(mode="after")
    def _files_of_tls_belong_together(self) -> Self:
        if self.tls_cert_file is None and (self.tls_key_file or self.tls_ca_file):
            raise ValueError("tls_key_file and tls_ca_file are of no use without tls_cert_file: give that, too")
        if self.tls_crl_file is not None and self.tls_ca_file is None:
            raise ValueError("tls_crl_file is of no use without tls_ca_file, whose certificates it is about: give both")
        if self.peer_auth == "certificate" and self.tls_ca_file is None:
            raise ValueError(
                "peer_auth = certificate asks for tls_cert_file and tls_ca_file: nodes show certificates of it"
            )
        return self

    @property
    def advertises_loopback(self) -> bool:
        """Whether the node listens on every address and yet tells others to connect to 127.0.0.1."""
        return self.advertise_host is None and _is_unspecified(self.host)

    @property
    def advertised_host(self) -> str:
        """The host that metadata names."""
        if self.advertise_host is not None:
            return self.advertise_host
        return "127.0.0.1" if _is_unspecified(self.host) else self.host


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
