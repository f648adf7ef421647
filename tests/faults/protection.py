"""A run with encryption, certificates of nodes, and authentication of callers.

Clients get them from the environment, which all processes of a run inherit.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from tests.authority import Authority
from tests.faults.identities import CLIENTS, GATEWAY, WEB_CLIENTS, Identities
from tests.faults.protected_files import put

from tidelog.credentials import API_KEY_FILE_VARIABLE
from tidelog.tls import CA_FILE_VARIABLE
from tidelog_cli.certs.certificate_authority import issue

if TYPE_CHECKING:
    from tests.faults.stage import Stage


class Protection:
    """The certificates, the keys and the cluster's secret of one run, each replaced during the run.

    Args:
        base: the directory of the run.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self._authority = Authority(base / "ca")
        self._hosts: dict[str, str] = {}
        self.identities = Identities(base)
        os.environ[CA_FILE_VARIABLE] = str(self._authority.ca)

    def settings_of(self, name: str, host: str) -> Mapping[str, str]:
        """Issue a node's certificate, and return its additional settings."""
        self._hosts[name] = host
        self.renew(name, name)
        return {
            "tls_cert_file": str(self._cert(name)),
            "tls_ca_file": str(self._authority.ca),
            "peer_auth": "certificate",
            "auth": "required",
            "admin_key_file": str(self.identities.of_nodes),
        }

    def _cert(self, name: str) -> Path:
        return self._base / f"{name}.pem"

    def gateway_environment(self, host: str) -> Mapping[str, str]:
        """Issue the gateway's certificate, and return its settings; its own key only lets it act for callers."""
        made = issue(self._authority.made, "server", "gateway", [host], days=1)
        put(self._cert("gateway"), made.cert + made.key)
        return {
            "TIDELOG_GATEWAY_TLS_CERT_FILE": str(self._cert("gateway")),
            "TIDELOG_GATEWAY_AUTH": "callers",
            API_KEY_FILE_VARIABLE: str(self.identities.file_of(GATEWAY)),
        }

    def trust(self) -> ssl.SSLContext:
        """Return what trusts the run's certificates, for who connects to the gateway."""
        return ssl.create_default_context(cafile=self._authority.ca)

    def renew(self, name: str, node_id: str) -> None:
        """Issue the certificate of the node at a place again, with another key."""
        made = issue(self._authority.made, "node", node_id, [self._hosts[name]], days=1)
        put(self._cert(name), made.cert + made.key)

    def put_secrets(self, *secrets: str) -> None:
        """Let these be the cluster's."""
        put(self._base / "secret", "\n".join(secrets).encode())

    @property
    def secret(self) -> str:
        """The cluster's secret."""
        return (self._base / "secret").read_text().strip()


async def renew_certificates(stage: Stage) -> None:
    """Every node gets another certificate; one is killed, so that connections are made with them."""
    assert stage.protection is not None
    stage.tell("other certificates for all nodes, and kill -9 one")
    for node in stage.nodes:
        stage.protection.renew(node.name, node.node_id)
    await stage.hold(2.5, 3)
    (killed,) = stage.some(1)
    await killed.kill()
    await killed.start()


async def replace_secret(stage: Stage) -> None:
    """In three steps, as documented; the last one closes every connection between nodes."""
    protection = stage.protection
    assert protection is not None
    stage.tell("another secret for the cluster, in three steps")
    old, new = protection.secret, token_hex(16)
    for valid in ((old, new), (new, old), (new,)):
        protection.put_secrets(*valid)
        await stage.hold(2.5, 4)


async def replace_keys(stage: Stage) -> None:
    """The keys of all clients, the gateway and the administrator: for a while two are good, then the new one."""
    assert stage.protection is not None
    identities, operator = stage.protection.identities, stage.load.operator
    stage.tell("other API keys for clients, the gateway and the administrator; the old ones are revoked")
    before: list[str] = []

    async def another_key(who: str) -> None:
        before.append(await identities.another_key(operator, who))

    for who in (CLIENTS, WEB_CLIENTS, GATEWAY):
        await stage.insist(partial(another_key, who))
    identities.another_operators_key()
    await stage.hold(2.5, 4)
    for key_id in before:
        await stage.insist(partial(operator.security.revoke_key, key_id))
    identities.show_operators_key()
    await stage.hold(2.5, 4)
    identities.take_no_other_operators_key()
    await stage.hold(2.5, 4)
