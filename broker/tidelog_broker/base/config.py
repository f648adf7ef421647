"""The node's settings: the `[node]` table of the configuration file, or `TIDELOG_NODE_…` variables.

Defaults suit a laptop. The limits of the node's memory are all here; their sum is the most that a node uses.
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
from tidelog_proto.limits import FRAME_BYTES_MAX, MIB, PRINCIPAL_CHARS_MAX, REPLICATION_FACTOR_MAX, RETENTION_MS_MAX
from tidelog_proto.process.busy_poll import POLL_US_DEFAULT, POLL_US_MAX

OFFSETS_PARTITIONS_MAX: Final = 1_024
SEEDS_MAX: Final = 64


class NodeSettings(BaseModel):
    """The settings of one node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Path = Field(description="The data directory. Only one node at a time may use it.")
    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(7400, ge=0, le=65535, description="The native protocol's port; 0 picks a free one.")
    advertise_host: str | None = Field(
        None,
        description="The address that clients and nodes connect to; default: `host`, or 127.0.0.1 if that is 0.0.0.0. "
        "Set it if other machines connect.",
    )
    advertise_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="The port in metadata that clients and nodes connect to; default: the listening port. Set it if "
        "that is mapped to another one.",
    )
    advertise_gossip_port: int | None = Field(
        None, ge=1, le=65535, description="The same for gossip (UDP); default: the listening port."
    )
    management_host: str = Field("127.0.0.1", description="The address on which health and metrics listen.")
    management_port: int = Field(7401, ge=0, le=65535, description="Health and metrics (HTTP); 0 picks a free one.")
    otel: bool = Field(
        False,
        description="Whether OpenTelemetry traces and metrics are exported (OTLP over HTTP), configured by OTEL_* "
        "variables; needs the extra `otel`.",
    )
    management_token_file: Path | None = Field(
        None,
        description="Holds tokens, one a line, not readable by all users: `/metrics` needs one of them as "
        "`Authorization: Bearer TOKEN`. Default: no token on loopback or with `insecure`, otherwise `/metrics` is "
        "closed. Health needs no token. The file is reloaded when it changes.",
    )
    metrics_partitions_max: int = Field(
        2000,
        ge=0,
        description="Partitions with their own series in `/metrics`, four each, the first by topic and number; "
        "`tidelog_metrics_omitted` counts the others. Figures of the whole node include all.",
    )
    metrics_positions_max: int = Field(
        5000,
        ge=0,
        description="Group positions with their own series in `/metrics`, of the groups that this node coordinates, "
        "the first by group; `tidelog_metrics_omitted` counts the others.",
    )
    zone: str = Field(
        "default",
        min_length=1,
        max_length=200,
        description="The failure zone of the machine; copies spread over zones.",
    )
    node_id: str | None = Field(
        None,
        min_length=1,
        max_length=NODE_ID_CHARS_MAX,
        description="The node's id. A founder sets its id of the bootstrap file; by default an id is generated.",
    )
    bootstrap: Path | None = Field(
        None, description="The bootstrap file of the cluster, the same on all founders; without it, see `seeds`."
    )
    seeds: list[str] = Field(
        [],
        max_length=SEEDS_MAX,
        description="Nodes of the cluster to join, HOST:PORT. Without bootstrap and seeds the node has no cluster.",
    )
    secret_file: Path | None = Field(
        None,
        description="Holds the secret with which the nodes of a cluster authenticate each other; two, one a line, "
        "during a replacement: the first signs, both verify. The file is reloaded when it changes.",
    )
    peer_auth: Literal["secret", "certificate"] = Field(
        "secret",
        description="certificate: other nodes need a certificate of tls_ca_file with their node id, in addition to "
        "the secret. The same on all nodes of a cluster.",
    )
    tls_cert_file: Path | None = Field(
        None,
        description="The node's certificate in PEM, with the chain to its CA: enables TLS on the native port, the "
        "management port and connections to other nodes. The file is reloaded when it changes, as are the next two.",
    )
    tls_key_file: Path | None = Field(
        None,
        description="The private key of tls_cert_file, not encrypted and readable only by the node; default: it is in "
        "tls_cert_file.",
    )
    tls_ca_file: Path | None = Field(
        None,
        description="The CAs in PEM that sign the certificates of other nodes and of clients; default: the system's "
        "CAs, for other nodes only.",
    )
    tls_crl_file: Path | None = Field(
        None,
        description="Certificate revocation lists (CRLs) of the CAs, in PEM: clients and nodes with a revoked "
        "certificate are refused, and their connections end within two seconds. Default: no check. The file is "
        "reloaded when it changes.",
    )
    insecure: bool = Field(
        False,
        description="Listen beyond loopback without TLS or `auth`; only for networks without untrusted hosts.",
    )
    auth: Literal["none", "required"] = Field(
        "none",
        description="required: every client authenticates, by an API key, a token, a password or a certificate, and "
        "may do what rules allow. none: every client may do everything. The same on all nodes of a cluster.",
    )
    cert_principals: list[str] = Field(
        ["uri:tidelog:client:*=*"],
        max_length=100,
        description="Principals of client certificates of tls_ca_file, for clients without other credentials: rules "
        "KIND:PATTERN=PRINCIPAL, the first match is used; KIND is cn, uri, dns or email, * matches any part. Never "
        "`admin`. Empty: no client is authenticated by certificate.",
    )
    admin: str = Field(
        "admin",
        min_length=1,
        max_length=PRINCIPAL_CHARS_MAX,
        description="The principal that may do everything, whatever the rules are.",
    )
    admin_key_file: Path | None = Field(
        None,
        description="Holds API keys of the principal `admin`, one a line, readable only by the node: for the time "
        "before other keys exist, and if they are lost.",
    )
    audit_topic: bool = Field(
        True, description="Whether the lines of the audit log are also written to the topic `__audit`."
    )
    audit_retention_ms: int = Field(
        30 * 24 * 3600 * 1000,
        ge=0,
        le=RETENTION_MS_MAX,
        description="Older lines of `__audit` are deleted; 0: never. Used when the topic is created.",
    )
    audit_retention_bytes: int = Field(
        1024 * MIB,
        ge=0,
        description="Approximate size limit of `__audit`, the oldest lines are deleted first; 0: none. Used when the "
        "topic is created.",
    )
    jwt_jwks: str | None = Field(
        None,
        description="The source of the public keys that verify tokens (JWT), a JSON Web Key Set: a file, or an https "
        "URL. Enables tokens of clients; needs `jwt_issuer` and `jwt_audience`.",
    )
    jwt_issuer: str | None = Field(None, min_length=1, description="The required issuer of tokens, their claim `iss`.")
    jwt_audience: str | None = Field(
        None, min_length=1, description="The required audience of tokens, one value of their claim `aud`."
    )
    jwt_leeway_s: int = Field(
        30, ge=0, le=600, description="The tolerated clock difference between the issuer of tokens and the node."
    )
    jwt_principal_claim: str = Field("sub", min_length=1, description="The claim of a token with the caller's name.")
    jwt_roles_claim: str = Field(
        "roles",
        min_length=1,
        description="The claim of a token with the caller's roles: a list, or text separated by spaces.",
    )
    gossip_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="The gossip port (UDP); default: the number of the native port; 0 picks a free one.",
    )
    roles: list[Literal["ingestion", "persistence"]] = Field(
        ["ingestion", "persistence"],
        min_length=1,
        max_length=2,
        description="persistence: stores copies. ingestion: owns partitions, of those that it stores; without "
        "persistence it only forwards requests. A node without a cluster needs both.",
    )
    weight: int = Field(
        WEIGHT_ORDINARY,
        ge=1,
        le=WEIGHT_MAX,
        description="The node's relative share of copies and ownership.",
    )
    replication_factor_default: int = Field(
        3, ge=1, le=REPLICATION_FACTOR_MAX, description="Copies of a new topic; at most one on each registered node."
    )
    io_workers: int = Field(2, ge=1, le=64, description="Threads that read, write and sync.")
    segment_read: Literal["file", "mapped"] = Field(
        "mapped",
        description="How full segments are sent: mapped, from the page cache to the socket; file, with a copy. With a "
        "kernel older than Linux 5.14 it is always file.",
    )
    segment_write: Literal["file", "mapped"] = Field(
        "file",
        description="How records are written to segments: file, by writes; mapped, by copies into a mapping, which "
        "costs more CPU.",
    )
    connections_max: int = Field(4096, ge=1, description="Client connections; more are refused.")
    node_in_flight_bytes: int = Field(
        512 * MIB,
        ge=FRAME_BYTES_MAX,
        description="Bytes of requests that are arriving or in progress, all connections together; beyond it slow "
        "senders are closed.",
    )
    connection_in_flight_bytes: int = Field(
        128 * MIB,
        ge=FRAME_BYTES_MAX,
        description="The same for one connection; beyond it the node stops reading from it.",
    )
    caller_in_flight_bytes: int = Field(
        32 * MIB,
        ge=MIB,
        description="The same for all connections of one caller, a principal or an address, without a quota; beyond "
        "it the node pauses reading from the last sender.",
    )
    node_outgoing_bytes: int = Field(
        256 * MIB,
        ge=FRAME_BYTES_MAX,
        description="Bytes of batches and answers that are waiting to be sent to clients, all connections together; "
        "one connection gets at most an eighth of the remainder.",
    )
    connection_outgoing_bytes: int = Field(
        8 * MIB, ge=MIB, description="With more unsent bytes, nothing more is read for a client, or from it."
    )
    partition_in_flight_bytes: int = Field(
        64 * MIB, ge=FRAME_BYTES_MAX, description="Bytes waiting to be appended to one partition; more are refused."
    )
    peers_in_flight_bytes: int = Field(
        256 * MIB, ge=FRAME_BYTES_MAX, description="Bytes of batches from other nodes that wait to be processed."
    )
    peer_queue_bytes: int = Field(
        64 * MIB, ge=FRAME_BYTES_MAX, description="Bytes waiting to be sent to one other node; more are dropped."
    )
    partitions_max: int = Field(
        20_000, ge=1, description="Partitions of all topics of the cluster; a topic that would add more is refused."
    )
    offsets_partitions: int = Field(
        16,
        ge=1,
        le=OFFSETS_PARTITIONS_MAX,
        description="Partitions of `__offsets`, whose owners coordinate groups; fixed when the cluster is founded.",
    )
    groups_max: int = Field(
        GROUPS_MAX,
        ge=1,
        description="Consumer groups with positions that a node knows; a commit of one more is refused.",
    )
    group_positions_max: int = Field(
        GROUP_POSITIONS_MAX, ge=1, description="Positions of one group; a commit of one more is refused."
    )
    positions_bytes: int = Field(
        POSITIONS_BYTES,
        ge=MIB,
        description="Approximate memory for the positions of all groups; beyond it no position is added.",
    )
    group_retention_ms: int = Field(
        7 * 24 * 3600 * 1000,
        ge=0,
        le=RETENTION_MS_MAX,
        description="A consumer group without members and without commits for this long is deleted with its "
        "positions; 0: never.",
    )
    requests_in_flight: int = Field(1024, ge=1, description="Unanswered requests of one connection.")
    subscriptions_max: int = Field(256, ge=1, description="Subscriptions of one connection.")
    followed_max: int = Field(
        100_000,
        ge=4,
        description="Partitions that the subscriptions of all connections follow, those of one connection at "
        "most a quarter; more are refused.",
    )
    push_windows_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Approximate memory for batches that replicas have not acknowledged, all partitions together; "
        "at most 128 MiB for one.",
    )
    ring_bytes: int = Field(16 * MIB, ge=0, description="The newest batches of a partition kept in memory.")
    rings_bytes: int = Field(256 * MIB, ge=0, description="The same for all partitions together.")
    indexes_bytes: int = Field(
        256 * MIB,
        ge=0,
        description="Approximate memory for the key and tag indexes of growing segments; beyond it, records outside of "
        "them are scanned until the segment is full.",
    )
    deduplication_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Memory for the content hashes of recent records, over all partitions with deduplication, 48 "
        "bytes a record; beyond it, records for further partitions are refused with a retry.",
    )
    group_bytes: int = Field(8 * MIB, ge=1, description="The most that is appended and synced at once.")
    write_stall_ms: int = Field(
        30_000,
        ge=100,
        description="A client that reads nothing for this long, with unsent replies, is closed; earlier if another "
        "client needs the memory.",
    )
    strangers_max: int = Field(
        1024,
        ge=1,
        description="Connections that are not authenticated yet; beyond it the oldest of the address that has most "
        "of them is closed.",
    )
    hello_timeout_ms: int = Field(10_000, ge=10, description="A new connection has to send HELLO within this time.")
    retention_interval_ms: int = Field(5_000, ge=10, description="How often retention checks for old segments.")
    clock_settle_s: int = Field(
        SETTLE_S_DEFAULT,
        ge=0,
        description="How long the wall clock must keep a new time after a jump before it is trusted; and after a "
        "start, before the downtime counts as an age of records.",
    )
    replica_lag_ms: int = Field(
        30_000,
        ge=1_000,
        description="A replica that lags this far behind its owner is replaced if a spare node can store the copy.",
    )
    calm_ms: int = Field(
        300_000,
        ge=0,
        description="After this long without a change in the cluster, ownership returns to the replicas that placement "
        "prefers; 0 leaves that to `tidelog cluster rebalance`.",
    )
    fill_bytes_per_s: int = Field(
        64 * MIB,
        ge=0,
        description="The rate at which a node fetches history that its copies lack, all partitions together; 0: "
        "unlimited. New records are never delayed by it.",
    )
    compaction_bytes: int = Field(
        64 * MIB,
        ge=MIB,
        description="Approximate memory for keys in a compaction pass; a smaller value reads the log more often.",
    )
    compaction_bytes_per_s: int = Field(
        64 * MIB, ge=0, description="The rate at which compaction passes read logs; 0: unlimited."
    )
    scrub_bytes_per_s: int = Field(
        8 * MIB,
        ge=0,
        description="The rate at which the node reads its logs again, to detect corruption while other nodes have the "
        "data; 0: never.",
    )
    scrub_interval_s: int = Field(
        7 * 24 * 3600, ge=1, description="How often a scrub begins; one scrub may take longer at that rate."
    )
    idle_poll_us: int = Field(
        POLL_US_DEFAULT,
        ge=0,
        le=POLL_US_MAX,
        description="While small messages arrive in quick succession, how long the node polls for the next one before "
        "it sleeps; 0: it sleeps at once.",
    )
    stop_timeout_ms: int = Field(10_000, ge=0, description="How long a graceful stop waits for work in progress.")

    @field_validator("fill_bytes_per_s")
    @classmethod
    def _fill_pace_is_sensible(cls, value: int) -> int:
        if 0 < value < MIB:
            raise ValueError(
                f"must be 0 (unlimited) or at least {MIB}, because a single range takes up to a second then"
            )
        return value

    @field_validator("advertise_host")
    @classmethod
    def _advertise_is_reachable(cls, value: str | None) -> str | None:
        if value is not None and _is_unspecified(value):
            raise ValueError(
                "clients cannot connect to an unspecified address; set a name or an address of this machine"
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
                raise ValueError(f"{seed!r} is not HOST:PORT, like log1.example.org:7400")
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
            raise ValueError(
                "jwt_jwks needs jwt_issuer and jwt_audience; otherwise tokens for other services would be valid"
            )
        return self

    @field_validator("roles")
    @classmethod
    def _roles_can_be(cls, value: list[str], info: ValidationInfo) -> list[str]:
        if len(set(value)) != len(value):
            raise ValueError("a role must be listed only once")
        is_alone = info.data.get("bootstrap", ...) is None and info.data.get("seeds", ...) == []
        if len(value) == 1 and is_alone:
            raise ValueError(
                f"a node without a cluster cannot have only the role {value[0]}; set `bootstrap` or `seeds`"
            )
        return sorted(value)

    @model_validator(mode="after")
    def _files_of_tls_belong_together(self) -> Self:
        if self.tls_cert_file is None and (self.tls_key_file or self.tls_ca_file):
            raise ValueError("tls_key_file and tls_ca_file need tls_cert_file; set it too")
        if self.tls_crl_file is not None and self.tls_ca_file is None:
            raise ValueError("tls_crl_file needs tls_ca_file, whose certificates it revokes; set both")
        if self.peer_auth == "certificate" and self.tls_ca_file is None:
            raise ValueError(
                "peer_auth = certificate needs tls_cert_file and tls_ca_file; nodes authenticate by certificates of "
                "that CA"
            )
        return self

    @property
    def advertises_loopback(self) -> bool:
        """Whether the node listens on every address but advertises 127.0.0.1."""
        return self.advertise_host is None and _is_unspecified(self.host)

    @property
    def advertised_host(self) -> str:
        """The host in metadata."""
        if self.advertise_host is not None:
            return self.advertise_host
        return "127.0.0.1" if _is_unspecified(self.host) else self.host


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
