"""What a benchmark with `--secure` has on: certificates, identities and permissions, on both sides of the comparison.

The node has what `tidelog up --secure` gives one. The client is a principal with a key of its own and one rule, not the
administrator, whom no rule is looked up for. The limit probe speaks TLS with the same certificate and settings of
OpenSSL, by the event loop's own layer: what it takes to encrypt the same bytes, and nothing else.
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
from tidelog_proto.tls.files import TlsFiles, client_context

_NODE: Final = "node"
_PRINCIPAL: Final = "bench"
_TOPICS: Final = "bench-"
"""What the names of its topics begin with."""


@dataclass(frozen=True, slots=True)
class Protected:
    """The files of one stand."""

    files: LocalSecurity

    @property
    def node_options(self) -> tuple[str, ...]:
        """What the node's command takes besides."""
        return self.files.config(_NODE)

    @property
    def probe_options(self) -> tuple[str, ...]:
        """What the probe's command takes besides."""
        cert, key = paths(self.files.certs, _NODE)
        return ("--tls-cert", str(cert), "--tls-key", str(key))

    @property
    def probe_tls(self) -> ssl.SSLContext:
        """How the probe is called."""
        return client_context(TlsFiles(ca=self._ca))

    @property
    def _ca(self) -> Path:
        return paths(self.files.certs, CA)[0]

    async def admit(self, bootstrap: str) -> ClientOptions:
        """Have the node know the benchmark's principal; return what its client is made with.

        Raises:
            TidelogError: the node refuses that.
        """
        async with Client(bootstrap, **self.files.client_options(bootstrap)) as admin:
            key = await admin.security.create_key(_PRINCIPAL)
            await admin.security.grant(AccessRule(_PRINCIPAL, ("all",), "topic", _TOPICS, prefix=True))
        return {"api_key": key.api_key, "tls": Tls(ca_file=str(self._ca))}


def protect(directory: Path) -> Protected:
    """Make certificates and the administrator's key in a directory.

    Raises:
        CommandFailed: certificates cannot be made here.
    """
    return Protected(secure(directory, [_NODE]))
