"""Refusal to start a node that is reachable from other machines without TLS or authentication."""

from __future__ import annotations

import logging

from tidelog_broker.base.config import NodeSettings
from tidelog_proto.process.settings import SettingsError
from tidelog_proto.wire.loopback import is_loopback

log = logging.getLogger(__name__)


def check_exposure(settings: NodeSettings) -> None:
    """Refuse to listen beyond loopback without TLS and authentication.

    Logs a warning if `insecure` allows it nevertheless, or if the management port is reachable and `/metrics` is closed
    because no token is set.

    Raises:
        SettingsError: a port would listen beyond loopback without TLS, or the native port without authentication, and
            `insecure` is not set. The message contains the commands that fix it.
    """
    exposed = sorted({host for host in (settings.host, settings.management_host) if not is_loopback(host)})
    lacks: list[str] = []
    if settings.tls_cert_file is None:
        lacks.append("without encryption")
    if settings.auth == "none" and not is_loopback(settings.host):
        lacks.append("without authentication")
    if not exposed or not lacks:
        _warn_of_closed_metrics(settings)
        return
    what = f"this node is reachable from other machines at {', '.join(exposed)}, {' and '.join(lacks)}"
    if settings.insecure:
        log.warning("%s; the node starts anyway, because the setting insecure is on", what)
        return
    node_id = settings.node_id or "NAME"
    raise SettingsError(
        f"{what}, so it does not start. Fix it with these commands (docs/security.md), or listen on 127.0.0.1, or use "
        "--insecure in a network without untrusted hosts:\n"
        f"  tidelog certs init certs && tidelog certs issue certs node {node_id} --host HOST\n"
        "  tidelog key new --out admin.key\n"
        f"  export TIDELOG_NODE_TLS_CERT_FILE=certs/{node_id}.pem TIDELOG_NODE_TLS_KEY_FILE=certs/{node_id}.key "
        "TIDELOG_NODE_TLS_CA_FILE=certs/ca.pem TIDELOG_NODE_AUTH=required TIDELOG_NODE_ADMIN_KEY_FILE=admin.key"
    )


def _warn_of_closed_metrics(settings: NodeSettings) -> None:
    if is_loopback(settings.management_host) or settings.insecure or settings.management_token_file is not None:
        return
    log.warning(
        "the management port is reachable from other machines at %s, and management_token_file is not set: /livez and "
        "/readyz are open, and /metrics, which names topics and callers, is closed (403). To open it, make a token "
        "(umask 077; openssl rand -hex 32 > metrics.token) and set TIDELOG_NODE_MANAGEMENT_TOKEN_FILE to the file, "
        "and authorization.credentials_file of Prometheus (docs/metrics.md); or set management_host to 127.0.0.1",
        settings.management_host,
    )
