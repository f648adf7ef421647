"""The security setup of a benchmark with `--secure`: TLS, authentication and permissions, on both sides.

The node has the configuration that `tidelog up --secure` creates. The client is a principal with its own API key and
one permission rule, not the administrator, who needs no rules. The limit probe uses TLS with the same certificate and
OpenSSL settings, in the event loop's implementation: the cost of encrypting the same bytes, and nothing else.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog import Client
from tidelog.client_options import ClientOptions
from tidelog.security import AccessRule
from tidelog.tls import Tls
from tidelog_cli.certs.files import CA, paths
from tidelog_cli.up.local_security import LocalSecurity, secure
from tidelog_proto.tls.reloaded_files import TlsFiles, client_context

_NODE: Final = "node"
_PRINCIPAL: Final = "bench"
_TOPICS: Final = "bench-"
"""Prefix of the names of the benchmark's topics."""


@dataclass(frozen=True, slots=True)
class Protected:
    """The security files of a stand."""

    files: LocalSecurity

    @property
    def node_options(self) -> tuple[str, ...]:
        """Options for the node's command."""
        return self.files.config(_NODE)

    @property
    def probe_options(self) -> tuple[str, ...]:
        """Options for the probe's command."""
        cert, key = paths(self.files.certs, _NODE)
        return ("--tls-cert", str(cert), "--tls-key", str(key))

    @property
    def probe_tls(self) -> ssl.SSLContext:
        """Return the TLS settings of clients of the probe."""
        return client_context(TlsFiles(ca=self._ca))

    @property
    def _ca(self) -> Path:
        return paths(self.files.certs, CA)[0]

    async def admit(self, bootstrap: str) -> ClientOptions:
        """Create the benchmark's principal on the node; return options for its client.

        Raises:
            TidelogError: the node rejects a request.
        """
        async with Client(bootstrap, **self.files.client_options(bootstrap)) as admin:
            key = await admin.security.create_key(_PRINCIPAL)
            await admin.security.grant(AccessRule(_PRINCIPAL, ("all",), "topic", _TOPICS, prefix=True))
        return {"api_key": key.api_key, "tls": Tls(ca_file=str(self._ca))}


def protect(directory: Path) -> Protected:
    """Create certificates and the administrator's key in a directory.

    Raises:
        CommandFailed: certificates cannot be created.
    """
    return Protected(secure(directory, [_NODE]))
