"""A run in which all is encrypted, nodes prove themselves by certificates, and callers say who they are.

Clients and the gateway are told by the environment, which everything that a run starts inherits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from tests.authority import Authority

from tidelog.credentials import API_KEY_FILE_VARIABLE
from tidelog.tls import CA_FILE_VARIABLE
from tidelog_cli.certificates import issue
from tidelog_proto.api_key import new_key

if TYPE_CHECKING:
    from tests.faults.stage import Stage


class Protection:
    """The CA, the administrator's key and the cluster's secret of one run, each replaced while it goes on.

    Args:
        base: the directory of the run.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self._authority = Authority(base / "ca")
        self._hosts: dict[str, str] = {}
        _put(base / "admin.key", new_key().text.encode())
        os.environ[CA_FILE_VARIABLE] = str(self._authority.ca)
        os.environ[API_KEY_FILE_VARIABLE] = str(base / "admin.key")

    def settings_of(self, name: str, host: str) -> Mapping[str, str]:
        """Issue a node's certificate, and return the settings that it has besides."""
        self._hosts[name] = host
        self.renew(name, name)
        return {
            "tls_cert_file": str(self._cert(name)),
            "tls_ca_file": str(self._authority.ca),
            "peer_auth": "certificate",
            "auth": "required",
            "admin_key_file": str(self._base / "admin.key"),
        }

    def _cert(self, name: str) -> Path:
        return self._base / f"{name}.pem"

    def renew(self, name: str, node_id: str) -> None:
        """Issue the certificate of the node at a place again, with another key."""
        made = issue(self._authority.made, "node", node_id, [self._hosts[name]], days=1)
        _put(self._cert(name), made.cert + made.key)

    def put_secrets(self, *secrets: str) -> None:
        """Let these be the cluster's."""
        _put(self._base / "secret", "\n".join(secrets).encode())

    @property
    def secret(self) -> str:
        """The cluster's secret."""
        return (self._base / "secret").read_text().strip()


def _put(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.touch(mode=0o600)
    new.write_bytes(content)
    new.replace(path)


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
    """In three steps, as the manual says; the last ends every connection between nodes."""
    protection = stage.protection
    assert protection is not None
    stage.tell("another secret for the cluster, in three steps")
    old, new = protection.secret, token_hex(16)
    for valid in ((old, new), (new, old), (new,)):
        protection.put_secrets(*valid)
        await stage.hold(2.5, 4)
