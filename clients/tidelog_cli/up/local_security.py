"""Files of `tidelog up --secure`: certificates, the administrator's key, and the settings that use them.

    DIR/admin.key          the administrator's key
    DIR/certs/ca.pem …     a CA, and certificates for the nodes, the gateway's port, and the gateway as a client
    DIR/certs/NAME.toml    the settings of a node or the gateway

A directory with these files stays secure. All certificates except the CA are issued again at each start, so that none
expires.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidelog import Client
from tidelog.client_options import ClientOptions
from tidelog.cluster.contexts import Context, Contexts, change_contexts, with_context
from tidelog.security import AccessRule
from tidelog.testing.free_ports import HOST
from tidelog.tls import CA_FILE_VARIABLE, CERT_FILE_VARIABLE, KEY_FILE_VARIABLE
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.certs.command import CA_DAYS, DAYS, new_ca, new_certificate
from tidelog_cli.certs.files import CA, paths
from tidelog_proto.auth.api_key import new_key
from tidelog_proto.process.private_files import PRIVATE_DIR_MODE

HOSTS: Final = (HOST, "localhost", "::1")
_NODE: Final = "node"
_GATEWAY: Final = "gateway"
_HTTPS: Final = "https"
_PREFIX: Final = "TIDELOG_"
_FOR_OTHER_COMMANDS: Final = frozenset({"TIDELOG_BOOTSTRAP", "TIDELOG_CONTEXT", "TIDELOG_CONTEXTS"})

NODE_VARIABLES: Final = (
    *("io_workers", "segment_read", "segment_write", "group_bytes", "idle_poll_us", "stop_timeout_ms"),
    *("connections_max", "requests_in_flight", "subscriptions_max", "partitions_max", "groups_max", "followed_max"),
    *("node_in_flight_bytes", "connection_in_flight_bytes", "caller_in_flight_bytes", "partition_in_flight_bytes"),
    *("node_outgoing_bytes", "connection_outgoing_bytes", "peers_in_flight_bytes", "peer_queue_bytes"),
    *("push_windows_bytes", "ring_bytes", "rings_bytes", "indexes_bytes", "positions_bytes", "deduplication_bytes"),
    *("memory_engine_bytes", "rocksdb_preset"),
    *("fill_bytes_per_s", "compaction_bytes", "compaction_bytes_per_s", "scrub_bytes_per_s", "scrub_interval_s"),
    *("hello_timeout_ms", "write_stall_ms", "strangers_max", "group_positions_max", "retention_interval_ms"),
    *("calm_ms", "replica_lag_ms", "clock_settle_s", "metrics_partitions_max", "metrics_positions_max", "otel"),
)
"""Settings of a node that environment variables may change: resource use, but not identity, trust or addresses."""

NODE_REFUSED: Final = (
    *("data", "node_id", "bootstrap", "seeds", "secret_file", "zone", "roles", "weight"),
    *("host", "port", "gossip_port", "advertise_host", "advertise_port", "advertise_gossip_port"),
    *("management_host", "management_port", "management_token_file"),
    *("auth", "admin", "admin_key_file", "peer_auth", "cert_principals", "insecure"),
    *("tls_ca_file", "tls_cert_file", "tls_crl_file", "tls_key_file"),
    *("jwt_audience", "jwt_issuer", "jwt_jwks", "jwt_leeway_s", "jwt_principal_claim", "jwt_roles_claim"),
    *("audit_topic", "audit_retention_bytes", "audit_retention_ms"),
    *("group_retention_ms", "offsets_partitions", "replication_factor_default"),
    *("engine_default", "file_model_default"),
)
"""Settings of a node that environment variables do not change: identity, trust, addresses, and retention. A test checks
that each setting of a node is here or in `NODE_VARIABLES`."""

GATEWAY_VARIABLES: Final = (
    *("callers_max", "connections_max", "producers_max", "ws_connections_max", "ws_subscriptions_max"),
    *("ws_publishes_max", "body_bytes_max", "in_flight_bytes_max", "out_bytes_max", "connection_out_bytes_max"),
    *("records_per_request_max", "fetch_bytes_max", "request_timeout_s", "stop_timeout_s"),
    *("address_connections_max", "fetch_wait_ms_max", "head_timeout_s", "body_timeout_s", "keep_alive_timeout_s"),
    *("ws_batch_bytes_max", "ws_batch_records_max", "ws_message_bytes_max", "ws_member_idle_s", "ws_ping_interval_s"),
    *("ws_ping_timeout_s", "ws_slow_timeout_s", "stream_heartbeat_s", "access_log", "otel", "ui", "ui_interval_s"),
    "workers",
)
"""Settings of the gateway that environment variables may change."""

GATEWAY_REFUSED: Final = (
    *("bootstrap", "host", "http_port", "allowed_hosts", "allowed_origins"),
    *("auth", "insecure", "tls_cert_file", "tls_key_file", "wrong_credentials_max"),
)
"""Settings of the gateway that environment variables do not change."""


@dataclass(frozen=True, slots=True)
class LocalSecurity:
    """The security files of one directory."""

    data: Path

    @property
    def certs(self) -> Path:
        """Directory of the certificates."""
        return self.data.absolute() / "certs"

    @property
    def admin_key(self) -> Path:
        """File of the administrator's key."""
        return self.data.absolute() / "admin.key"

    def config(self, name: str = _GATEWAY) -> tuple[str, str]:
        """Return the option with the settings file of a node or the gateway."""
        return ("--config", str(self.certs / f"{name}.toml"))

    def node_environ(self) -> Mapping[str, str]:
        """Return the environment of a node, without variables of this process that could belong to another cluster."""
        return _allowed(_NODE, NODE_VARIABLES, os.environ)

    def gateway_environ(self) -> Mapping[str, str]:
        """Return the environment of the gateway, whose principal is `gateway`; see `let_gateway_ask`."""
        cert, key = paths(self.certs, _GATEWAY)
        kept = _allowed(_GATEWAY, GATEWAY_VARIABLES, os.environ)
        ca, _ = paths(self.certs, CA)
        return kept | {CA_FILE_VARIABLE: str(ca), CERT_FILE_VARIABLE: str(cert), KEY_FILE_VARIABLE: str(key)}

    def variables_not_passed_on(self) -> list[str]:
        """Return the names of this process's Tidelog variables that neither the nodes nor the gateway get.

        Those that select a cluster for other commands are left out.
        """
        passed_on = self.node_environ().keys() | self.gateway_environ().keys()
        return sorted(
            name
            for name in os.environ
            if name.startswith(_PREFIX) and name not in passed_on and name not in _FOR_OTHER_COMMANDS
        )

    def write_settings(self, node_ids: Iterable[str]) -> None:
        """Write the settings files of nodes and the gateway.

        Raises:
            OSError: a file cannot be written.
        """
        for node_id in node_ids:
            _write_settings(self.certs / f"{node_id}.toml", _NODE, self._node_settings(node_id))
        _write_settings(self.certs / f"{_GATEWAY}.toml", _GATEWAY, self._gateway_settings())

    def _node_settings(self, node_id: str) -> dict[str, str]:
        return _tls(self.certs, node_id) | {
            "tls_ca_file": str(paths(self.certs, CA)[0]),
            "peer_auth": "certificate",
            "auth": "required",
            "admin_key_file": str(self.admin_key),
        }

    def _gateway_settings(self) -> dict[str, str]:
        return _tls(self.certs, _HTTPS) | {"auth": "callers"}

    def context(self, bootstrap: str) -> Context:
        """Return the administrator's context for the cluster at these addresses."""
        ca, _ = paths(self.certs, CA)
        return Context(tuple(bootstrap.split(",")), api_key_file=str(self.admin_key), ca_file=str(ca))

    def client_options(self, bootstrap: str) -> ClientOptions:
        """Return the options of an administrator's client."""
        return self.context(bootstrap).with_options({})

    async def let_gateway_ask(self, bootstrap: str) -> None:
        """Grant the gateway the rights to send requests for its callers, and to sample figures for its page.

        Raises:
            TidelogError: the cluster refuses a rule.
        """
        wanted = (
            AccessRule(_GATEWAY, ("impersonate",), "cluster", ""),
            AccessRule(_GATEWAY, ("describe",), "cluster", ""),
            AccessRule(_GATEWAY, ("describe",), "topic", "", prefix=True),
        )
        async with Client(bootstrap.split(","), **self.client_options(bootstrap)) as client:
            there = {replace(rule, rule_id="") for rule in await client.security.rules()}
            for rule in wanted:
                if rule not in there:
                    await client.security.grant(rule)

    def keep_context(self, bootstrap: str) -> str:
        """Store the administrator's context under the name of the directory, and return that name.

        If another cluster has a context of that name, a number is appended.

        Raises:
            InvalidRequestError: contexts cannot be stored.
        """
        base = re.sub(r"[^A-Za-z0-9._-]|^[._-]+", "", self.data.resolve().name)[:60] or "local"
        name = base

        def with_this(contexts: Contexts) -> Contexts:
            nonlocal name
            number = 1
            while (existing := contexts.by_name.get(name)) and existing.api_key_file != str(self.admin_key):
                number += 1
                name = f"{base}-{number}"
            return with_context(contexts, name, self.context(bootstrap), instead=True, use=False)

        change_contexts(with_this)
        return name


def secured(data: Path) -> LocalSecurity | None:
    """Return the security files of a directory; None if it has no security files."""
    security = LocalSecurity(data)
    return security if paths(security.certs, CA)[0].exists() else None


def secure(data: Path, node_ids: Sequence[str]) -> LocalSecurity:
    """Create missing files, and issue all certificates except the CA again.

    Raises:
        CommandFailed: a file cannot be written, or certificates cannot be created.
    """
    security = LocalSecurity(data)
    try:
        data.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
        security.certs.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
        if not security.admin_key.exists():
            _write_key(security.admin_key)
        ca, ca_key = paths(security.certs, CA)
        if not ca.exists():
            ca_key.unlink(missing_ok=True)  # Removes a key of a start that ended before the certificate was written.
            new_ca(security.certs, name="Tidelog on this machine", days=CA_DAYS)
        for node_id in node_ids:
            new_certificate(security.certs, "node", node_id, HOSTS, days=DAYS, replace=True)
        new_certificate(security.certs, "server", _HTTPS, HOSTS, days=DAYS, replace=True)
        new_certificate(security.certs, "client", _GATEWAY, (), days=DAYS, replace=True)
        security.write_settings(node_ids)
    except OSError as error:
        raise CommandFailed(f"{error.filename or data} cannot be written: {error.strerror}") from error
    return security


def _write_key(path: Path) -> None:
    """Write a new key atomically."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(new_key().text + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _tls(certs: Path, name: str) -> dict[str, str]:
    cert, key = paths(certs, name)
    return {"tls_cert_file": str(cert), "tls_key_file": str(key)}


def _allowed(section: str, settings: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without Tidelog's variables, except those of the given settings.

    Variables override the settings file, and the terminal may have some for another cluster.
    """
    kept = {f"{_PREFIX}{section}_{name}".upper() for name in settings}
    return {name: value for name, value in environ.items() if not name.startswith(_PREFIX) or name in kept}


def _write_settings(path: Path, table: str, settings: Mapping[str, str]) -> None:
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    path.write_text("\n".join([f"[{table}]", *lines]) + "\n", "utf-8")
