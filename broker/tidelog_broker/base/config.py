"""The node's settings: the `[node]` table of the configuration file, or `TIDELOG_NODE_…` variables.

Defaults suit a laptop. The settings contain all limits of the memory for requests, batches, caches and indexes; the
interpreter and the state of open partitions need additional memory.
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
from tidelog_proto.topic_settings import DEFAULT_ENGINE, MEMORY_ASYNC, OTHER_NAME_PATTERN, SHARED_FILES_ENGINE

OFFSETS_PARTITIONS_MAX: Final = 1_024
PARTITIONS_MAX_DEFAULT: Final = 120_000
"""A largest topic, the broker's own partitions, and some thousand others."""
SEEDS_MAX: Final = 64


class NodeSettings(BaseModel):
    """The settings of one node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Path = Field(description="The data directory. Only one node at a time may use it.")
    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(7400, ge=0, le=65535, description="The native protocol's port; 0 picks a free one.")
    advertise_host: str | None = Field(
        None,
        description="The address that nodes report to clients and other nodes; default: `host`, or 127.0.0.1 if "
        "that is 0.0.0.0. Set it if other machines connect.",
    )
    advertise_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="The port that nodes report to clients and other nodes; default: the listening port. Set it if "
        "a NAT or container maps the listening port to another one.",
    )
    advertise_gossip_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="The gossip port (UDP) that nodes report to other nodes; default: the listening port. Set it "
        "if a NAT or container maps the listening port to another one.",
    )
    management_host: str = Field("127.0.0.1", description="The address on which health and metrics (HTTP) listen.")
    management_port: int = Field(
        7401, ge=0, le=65535, description="The port of health and metrics (HTTP); 0 picks a free one."
    )
    otel: bool = Field(
        False,
        description="Whether OpenTelemetry traces and metrics are exported (OTLP over HTTP), configured by OTEL_* "
        "variables; needs the extra `otel`.",
    )
    management_token_file: Path | None = Field(
        None,
        description="File with tokens, one a line, not readable by all users: `/metrics` needs one of them as "
        "`Authorization: Bearer TOKEN`. Default: no token on loopback or with `insecure`, otherwise "
        "`/metrics` is closed. Health needs no token. The file is reloaded when it changes.",
    )
    metrics_partitions_max: int = Field(
        2000,
        ge=0,
        description="Maximum number of partitions with time series of their own (four each) in `/metrics`, by names "
        "of topics. A topic with more partitions than that leaves has sums of them (`tidelog_topic_…`), and as many "
        "topics have sums; `tidelog_metrics_omitted` counts the partitions of others. Metrics of the whole node "
        "cover all partitions.",
    )
    metrics_positions_max: int = Field(
        5000,
        ge=0,
        description="Maximum number of committed positions with a time series of their own in `/metrics`, of the "
        "groups that this node coordinates, in order of the groups' names; `tidelog_metrics_omitted` "
        "counts the others.",
    )
    zone: str = Field(
        "default",
        min_length=1,
        max_length=200,
        description="The failure zone of the machine; copies are spread over zones.",
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
        description="File with the secret with which the nodes of a cluster authenticate each other; two, one a "
        "line, during a replacement: the node signs with the first and accepts both. The file is "
        "reloaded when it changes.",
    )
    peer_auth: Literal["secret", "certificate"] = Field(
        "secret",
        description="How nodes authenticate each other. secret: with the cluster's secret. certificate: also with "
        "a certificate of tls_ca_file that contains the node id. The same on all nodes of a cluster.",
    )
    tls_cert_file: Path | None = Field(
        None,
        description="The node's certificate in PEM, with the chain to its CA: enables TLS on the native port, the "
        "management port and connections to other nodes. This file, tls_key_file and tls_ca_file are "
        "reloaded when they change.",
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
        description="File with API keys of the principal `admin`, one a line, readable only by the node: to "
        "administer the cluster before other keys exist, or if they are lost.",
    )
    audit_topic: bool = Field(
        True, description="Whether the lines of the audit log are also written to the topic `__audit`."
    )
    audit_retention_ms: int = Field(
        30 * 24 * 3600 * 1000,
        ge=0,
        le=RETENTION_MS_MAX,
        description="How long lines of `__audit` are kept; 0: for ever. Used when the topic is created.",
    )
    audit_retention_bytes: int = Field(
        1024 * MIB,
        ge=0,
        description="Approximate size limit of `__audit`, the oldest lines are deleted first; 0: unlimited. Used "
        "when the topic is created.",
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
    jwt_principal_claim: str = Field(
        "sub", min_length=1, description="The claim of a token that contains the caller's name."
    )
    jwt_roles_claim: str = Field(
        "roles",
        min_length=1,
        description="The claim of a token that contains the caller's roles: a list, or text separated by spaces.",
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
        description="persistence: the node stores copies. ingestion: the node may own partitions of which it stores a "
        "copy; without persistence it only forwards requests. A node without a cluster needs both.",
    )
    weight: int = Field(
        WEIGHT_ORDINARY,
        ge=1,
        le=WEIGHT_MAX,
        description="The node's relative share of copies and ownership.",
    )
    replication_factor_default: int = Field(
        3,
        ge=1,
        le=REPLICATION_FACTOR_MAX,
        description="Number of copies of each partition in new topics that do not set it; at most one copy is "
        "stored on each registered node.",
    )
    io_workers: int = Field(2, ge=1, le=64, description="Number of threads that read, write and sync log files.")
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
    connections_max: int = Field(
        4096, ge=1, description="Maximum number of client connections; further ones are refused."
    )
    node_in_flight_bytes: int = Field(
        512 * MIB,
        ge=FRAME_BYTES_MAX,
        description="Maximum bytes of requests that are arriving or in progress, on all connections together; "
        "beyond it connections of slow senders are closed.",
    )
    connection_in_flight_bytes: int = Field(
        128 * MIB,
        ge=FRAME_BYTES_MAX,
        description="Maximum bytes of requests that are arriving or in progress on one connection; beyond it the "
        "node stops reading from the connection.",
    )
    caller_in_flight_bytes: int = Field(
        32 * MIB,
        ge=MIB,
        description="Maximum bytes of requests that are arriving or in progress on all connections of one caller "
        "without a quota (a principal or an address); beyond it the node pauses reading from the "
        "connection that sent last.",
    )
    node_outgoing_bytes: int = Field(
        256 * MIB,
        ge=FRAME_BYTES_MAX,
        description="Maximum bytes of batches and answers that wait to be sent to clients, on all connections "
        "together; one connection gets at most an eighth of the remainder.",
    )
    connection_outgoing_bytes: int = Field(
        8 * MIB,
        ge=MIB,
        description="Maximum bytes that wait to be sent on one client connection; beyond it the node reads no "
        "further batches for the connection and no requests from it.",
    )
    partition_in_flight_bytes: int = Field(
        64 * MIB,
        ge=FRAME_BYTES_MAX,
        description="Maximum bytes of batches that wait to be appended to one partition; further ones are refused.",
    )
    peers_in_flight_bytes: int = Field(
        256 * MIB,
        ge=FRAME_BYTES_MAX,
        description="Maximum bytes of batches from other nodes that wait to be processed; further ones are dropped "
        "and requested again later.",
    )
    peer_queue_bytes: int = Field(
        64 * MIB,
        ge=FRAME_BYTES_MAX,
        description="Maximum bytes that wait to be sent to one other node; further messages are dropped.",
    )
    partitions_max: int = Field(
        PARTITIONS_MAX_DEFAULT,
        ge=1,
        description="Maximum number of partitions in all topics of the cluster; a topic that would exceed it is "
        "refused.",
    )
    offsets_partitions: int = Field(
        16,
        ge=1,
        le=OFFSETS_PARTITIONS_MAX,
        description="Number of partitions of `__offsets`, whose owners coordinate groups; fixed when the cluster "
        "is founded.",
    )
    groups_max: int = Field(
        GROUPS_MAX,
        ge=1,
        description="Maximum number of consumer groups with positions that a node stores; the first commit of a "
        "further group is refused.",
    )
    group_positions_max: int = Field(
        GROUP_POSITIONS_MAX,
        ge=1,
        description="Maximum number of positions of one group; a commit of a further one is refused.",
    )
    positions_bytes: int = Field(
        POSITIONS_BYTES,
        ge=MIB,
        description="Approximate maximum memory for the positions of all groups; beyond it commits of new "
        "positions are refused.",
    )
    group_retention_ms: int = Field(
        7 * 24 * 3600 * 1000,
        ge=0,
        le=RETENTION_MS_MAX,
        description="A consumer group without members and without commits for this long is deleted with its "
        "positions; 0: never.",
    )
    requests_in_flight: int = Field(1024, ge=1, description="Maximum number of unanswered requests of one connection.")
    subscriptions_max: int = Field(256, ge=1, description="Maximum number of subscriptions of one connection.")
    followed_max: int = Field(
        100_000,
        ge=4,
        description="Maximum number of partitions in the subscriptions of all connections; one connection may use "
        "at most a quarter. Further subscriptions are refused.",
    )
    push_windows_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Approximate maximum memory for batches that replicas have not acknowledged, all partitions "
        "together; at most 128 MiB for one, and at least 1 MiB, also if the sum is then larger.",
    )
    ring_bytes: int = Field(
        16 * MIB, ge=0, description="Maximum bytes of the newest batches of one partition that are cached in memory."
    )
    rings_bytes: int = Field(
        256 * MIB, ge=0, description="Maximum bytes of the newest batches of all partitions that are cached in memory."
    )
    indexes_bytes: int = Field(
        256 * MIB,
        ge=0,
        description="Approximate maximum memory for the key and tag indexes of growing segments; beyond it, "
        "records that are not indexed are scanned until the segment is full.",
    )
    memory_engine_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Maximum bytes of the records of topics with `engine` = memory; one topic gets at most half. "
        "Beyond it, records are refused with a retryable error.",
    )
    engine_default: str = Field(
        DEFAULT_ENGINE,
        pattern=f"^{OTHER_NAME_PATTERN}$",
        description="Engine of new topics that set none; the value of the node that owns `__meta` applies.",
    )
    file_model_default: Literal["per-partition", "shared"] = Field(
        "per-partition",
        description="File model of new topics that set none and have `engine` = segment; the value of the node that "
        "owns `__meta` applies.",
    )
    rocksdb_preset: Literal["small", "normal", "large"] = Field(
        "normal",
        description="Sizes of the engine rocksdb: `small` for devices, with about 5 MiB of memory for it, `normal` "
        "with 160 MiB, or `large` with 1280 MiB. It refuses records while less than 8, 64 or 256 MiB of disk space are "
        "free.",
    )
    deduplication_bytes: int = Field(
        256 * MIB,
        ge=MIB,
        description="Maximum memory for the content hashes of recent records, over all partitions with "
        "deduplication, 48 bytes a record; beyond it, records for further partitions are refused with "
        "a retryable error.",
    )
    group_bytes: int = Field(
        8 * MIB, ge=1, description="Maximum bytes of batches of one partition that are appended and synced together."
    )
    write_stall_ms: int = Field(
        30_000,
        ge=100,
        description="How long a client may leave unsent replies unread before its connection is closed; less if "
        "another client needs the memory.",
    )
    strangers_max: int = Field(
        1024,
        ge=1,
        description="Maximum number of connections that are not authenticated yet; beyond it the node closes the "
        "oldest one of the address that has most of them.",
    )
    hello_timeout_ms: int = Field(
        10_000, ge=10, description="How long a new connection may take to send HELLO before it is closed."
    )
    retention_interval_ms: int = Field(
        5_000, ge=10, description="Interval between two checks for segments that retention deletes."
    )
    clock_settle_s: int = Field(
        SETTLE_S_DEFAULT,
        ge=0,
        description="How long the wall clock must run steadily after a jump before retention by time uses it; "
        "after a start, also before the downtime counts towards the age of records.",
    )
    replica_lag_ms: int = Field(
        30_000,
        ge=1_000,
        description="How long a replica may lag behind its owner before it is replaced, if a spare node can store "
        "the copy.",
    )
    calm_ms: int = Field(
        300_000,
        ge=0,
        description="How long the cluster must be unchanged before ownership returns to the replicas that "
        "placement prefers; 0: ownership returns only by `tidelog cluster rebalance`.",
    )
    fill_bytes_per_s: int = Field(
        64 * MIB,
        ge=0,
        description="The maximum rate at which a node fetches history that its copies lack, all partitions together; "
        "0: unlimited. New records are never delayed by it.",
    )
    compaction_bytes: int = Field(
        64 * MIB,
        ge=MIB,
        description="Approximate maximum memory for keys in a compaction pass; a smaller value reads the log more "
        "often.",
    )
    compaction_bytes_per_s: int | None = Field(
        None,
        ge=0,
        description="The maximum rate at which a compaction pass reads a log. Below this rate, or if it is not set, a "
        "pass pauses while publishes and fetches are frequent or slow. 0: no maximum and no pauses.",
    )
    scrub_bytes_per_s: int = Field(
        8 * MIB,
        ge=0,
        description="The maximum rate at which the node reads its logs again, to detect corruption while other nodes "
        "have the data; 0: never.",
    )
    scrub_interval_s: int = Field(
        7 * 24 * 3600,
        ge=1,
        description="Interval between the starts of two scrubs, in seconds; a scrub that takes longer at "
        "`scrub_bytes_per_s` delays the next one.",
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
    def _check_backfill_rate(cls, value: int) -> int:
        if 0 < value < MIB:
            raise ValueError(
                f"must be 0 (unlimited) or at least {MIB} bytes per second, got {value}: at a lower rate, one fetch of "
                "missing records could take more than a second"
            )
        return value

    @model_validator(mode="after")
    def _check_storage_of_new_topics(self) -> Self:
        if self.engine_default in {SHARED_FILES_ENGINE, MEMORY_ASYNC}:
            how = (
                f"engine_default to {DEFAULT_ENGINE} and file_model_default to shared"
                if self.engine_default == SHARED_FILES_ENGINE
                else "engine_default to memory, and flush to async when a topic is created"
            )
            raise ValueError(f"engine_default is the name of an engine, got {self.engine_default}; set {how}")
        if self.file_model_default == "shared" and self.engine_default != DEFAULT_ENGINE:
            raise ValueError(
                f"file_model_default = shared needs engine_default = {DEFAULT_ENGINE}, got {self.engine_default}, "
                "which has no files of each partition; change one of them"
            )
        return self

    @field_validator("advertise_host")
    @classmethod
    def _check_advertised_host(cls, value: str | None) -> str | None:
        if value is not None and _is_unspecified(value):
            raise ValueError(
                f"clients cannot connect to {value}, the unspecified address; set a name or an address of this machine"
            )
        return value

    @field_validator("admin")
    @classmethod
    def _check_admin(cls, value: str) -> str:
        if (fault := principal_name_fault(value)) is not None:
            raise ValueError(fault)
        return value

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, value: list[str]) -> list[str]:
        for seed in value:
            host, _, port = seed.rpartition(":")
            if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
                raise ValueError(
                    f"must be HOST:PORT with a port from 1 to 65535, like log1.example.org:7400, got {seed!r}"
                )
        return value

    @field_validator("jwt_jwks")
    @classmethod
    def _check_jwks_source(cls, value: str | None) -> str | None:
        if value is not None and "://" in value:
            checked_url(value)
        return value

    @model_validator(mode="after")
    def _check_token_settings(self) -> Self:
        if self.jwt_jwks is not None and (self.jwt_issuer is None or self.jwt_audience is None):
            raise ValueError(
                "jwt_jwks needs jwt_issuer and jwt_audience, otherwise tokens for other services would "
                "be accepted; set both"
            )
        return self

    @field_validator("roles")
    @classmethod
    def _check_roles(cls, value: list[str], info: ValidationInfo) -> list[str]:
        if len(set(value)) != len(value):
            raise ValueError(f"a role must be listed only once, got {', '.join(value)}")
        is_alone = info.data.get("bootstrap", ...) is None and info.data.get("seeds", ...) == []
        if len(value) == 1 and is_alone:
            raise ValueError(
                f"a node without a cluster cannot have only the role {value[0]}; set `bootstrap` or `seeds`, "
                "or give it both roles"
            )
        return sorted(value)

    @model_validator(mode="after")
    def _check_tls_files(self) -> Self:
        if self.tls_cert_file is None and (self.tls_key_file or self.tls_ca_file):
            raise ValueError("tls_key_file and tls_ca_file need tls_cert_file; set it too")
        if self.tls_crl_file is not None and self.tls_ca_file is None:
            raise ValueError("tls_crl_file revokes certificates of tls_ca_file, which is not set; set it too")
        if self.peer_auth == "certificate" and self.tls_ca_file is None:
            raise ValueError(
                "peer_auth = certificate needs tls_cert_file and tls_ca_file, because nodes authenticate by "
                "certificates of that CA; set both, or set peer_auth to secret"
            )
        return self

    @property
    def advertises_loopback(self) -> bool:
        """Whether the node listens on every address but advertises 127.0.0.1."""
        return self.advertise_host is None and _is_unspecified(self.host)

    @property
    def advertised_host(self) -> str:
        """The host that metadata reports to clients and other nodes."""
        if self.advertise_host is not None:
            return self.advertise_host
        return "127.0.0.1" if _is_unspecified(self.host) else self.host


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
