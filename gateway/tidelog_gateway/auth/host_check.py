"""By which names this gateway is asked, where it asks nobody who he is: what keeps rebound names out.

Which names those are, and why, is in `tidelog_proto.auth.host_header`. With `auth = "callers"` a page has nothing to
show, and with TLS the browser has compared the name with the certificate: neither looks at the name.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from tidelog_gateway.auth.origin_check import ANY_ORIGIN
from tidelog_gateway.problems import Problem
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.auth.host_header import HostNames

ANY_HOST: Final = "*"
UNCHECKED_PATHS: Final = frozenset({"/livez", "/readyz"})
"""What supervisors ask under whatever name; a page learns nothing from it."""

_SHOWN_CHARS: Final = 200
_KNOWN_MAX: Final = 64


class Hosts:
    """The names of one gateway.

    Args:
        settings: of the gateway.
        machine: what the machine is called.
    """

    def __init__(self, settings: GatewaySettings, machine: str | None = None) -> None:
        asks = settings.auth != "none" or settings.tls_cert_file is not None
        self._any = asks or ANY_HOST in settings.allowed_hosts or ANY_ORIGIN in settings.allowed_origins
        named = (*settings.allowed_hosts, *map(_host_of_origin, settings.allowed_origins))
        self._names = HostNames((settings.host, *named), machine)
        self._known: set[bytes] = set()
        """Values of `Host` that were looked at and are this gateway's."""

    def is_known(self, host: bytes | None) -> bool:
        """Say whether the only `Host` of a request is one that needs no look: `refuse_strange` takes the others."""
        return self._any or host in self._known

    def refuse_strange(self, headers: Headers, path: str) -> None:
        """Refuse a request that came by a name that is not the gateway's.

        Raises:
            Problem: 421.
        """
        if self._any or path in UNCHECKED_PATHS:
            return
        for host in headers.getlist("host"):  # HTTP/1.0 may have none; no browser speaks that
            if not self.is_own(host):
                raise Problem(
                    421,
                    "misdirected_request",
                    f"this gateway is not called {host[:_SHOWN_CHARS]!r}: a page of the web may have given it that "
                    "name. Ask by its address, or name the host in the setting allowed_hosts "
                    "(TIDELOG_GATEWAY_ALLOWED_HOSTS, --allowed-hosts)",
                )
            if len(self._known) < _KNOWN_MAX:
                self._known.add(host.encode("latin-1"))

    def is_own(self, host: str) -> bool:
        """Say whether a `Host` names this gateway; its port does not matter."""
        return self._names.is_own(host)


def _host_of_origin(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
