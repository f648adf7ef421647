"""A node that others than its machine can reach is encrypted and asks who they are, or is told that it need not."""

from __future__ import annotations

import logging

from tidelog_broker.base.config import NodeSettings
from tidelog_proto.process.settings import SettingsError
from tidelog_proto.wire.loopback import is_loopback

log = logging.getLogger(__name__)


def check_exposure(settings: NodeSettings) -> None:
    """Refuse to let strangers in.

    Where others reach the management port and no token is set, metrics are shown to nobody; the log says so.

    Raises:
        SettingsError: the node would listen elsewhere than on loopback without TLS or without asking who comes, and
            nobody has said `insecure`. The text has the lines that mend it.
    """
    exposed = sorted({host for host in (settings.host, settings.management_host) if not is_loopback(host)})
    lacks: list[str] = []
    if settings.tls_cert_file is None:
        lacks.append("without encryption")
    if settings.auth == "none" and not is_loopback(settings.host):
        lacks.append("without asking who comes")
    if not exposed or not lacks:
        _warn_of_closed_metrics(settings)
        return
    what = f"others reach this node at {', '.join(exposed)}, {' and '.join(lacks)}"
    if settings.insecure:
        log.warning("%s: it is insecure, as it was told to be", what)
        return
    node_id = settings.node_id or "NAME"
    raise SettingsError(
        f"{what}, so it does not start. Mend it with these lines (docs/security.md), or listen on 127.0.0.1, or say "
        "--insecure where strangers reach nothing:\n"
        f"  tidelog certs init certs && tidelog certs issue certs node {node_id} --host HOST\n"
        "  tidelog key new --out admin.key\n"
        f"  export TIDELOG_NODE_TLS_CERT_FILE=certs/{node_id}.pem TIDELOG_NODE_TLS_KEY_FILE=certs/{node_id}.key "
        "TIDELOG_NODE_TLS_CA_FILE=certs/ca.pem TIDELOG_NODE_AUTH=required TIDELOG_NODE_ADMIN_KEY_FILE=admin.key"
    )


def _warn_of_closed_metrics(settings: NodeSettings) -> None:
    if is_loopback(settings.management_host) or settings.insecure or settings.management_token_file is not None:
        return
    log.warning(
        "others reach the management port at %s, and management_token_file is not set: everybody gets /livez and "
        "/readyz, and nobody /metrics (403), which name topics and callers. To have them make a token "
        "(umask 077; openssl rand -hex 32 > metrics.token) and give the file to the node, as "
        "TIDELOG_NODE_MANAGEMENT_TOKEN_FILE, and to Prometheus, as authorization.credentials_file (docs/metrics.md); "
        "or set management_host to 127.0.0.1",
        settings.management_host,
    )
