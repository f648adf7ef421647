"""Refusal of requests with a foreign `Host`, on a gateway without authentication: protects it from DNS rebinding.

`tidelog_proto.auth.host_header` lists the allowed names and the reasons. The check is off with `auth = "callers"`,
where a foreign page has no credentials, and with TLS, where the browser compares the name with the certificate.
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
"""Paths of health probes, which may use any host name; their answers reveal nothing to a page."""

_SHOWN_CHARS: Final = 200
_KNOWN_MAX: Final = 64


class HostCheck:
    """Checks the `Host` of requests to one gateway.

    Args:
        machine: the machine's name; None: ask the system.
    """

    def __init__(self, settings: GatewaySettings, machine: str | None = None) -> None:
        asks = settings.auth != "none" or settings.tls_cert_file is not None
        self._any = asks or ANY_HOST in settings.allowed_hosts or ANY_ORIGIN in settings.allowed_origins
        names = (*settings.allowed_hosts, *map(_host_of_origin, settings.allowed_origins))
        self._names = HostNames((settings.host, *names), machine)
        self._passed_hosts: set[bytes] = set()
        """Values of `Host` that have passed the check."""

    def is_known(self, host: bytes | None) -> bool:
        """Return whether `host`, the request's only `Host`, has passed `refuse_foreign_host`, or any is allowed."""
        return self._any or host in self._passed_hosts

    def refuse_foreign_host(self, headers: Headers, path: str) -> None:
        """Refuse a request whose `Host` is not one of this gateway's names.

        Raises:
            Problem: 421, the `Host` is not a name of this gateway.
        """
        if self._any or path in UNCHECKED_PATHS:
            return
        for host in headers.getlist("host"):  # HTTP/1.0 allows a request without `Host`; browsers always send it.
            if not self.is_allowed(host):
                raise Problem(
                    421,
                    "misdirected_request",
                    f"{host[:_SHOWN_CHARS]!r} is not a name of this gateway; the request may come from a foreign page. "
                    "Use the gateway's address, or add the host to the setting allowed_hosts "
                    "(TIDELOG_GATEWAY_ALLOWED_HOSTS, --allowed-hosts)",
                )
            if len(self._passed_hosts) < _KNOWN_MAX:
                self._passed_hosts.add(host.encode("latin-1"))

    def is_allowed(self, host: str) -> bool:
        """Return whether a `Host` names this gateway; its port does not matter."""
        return self._names.is_own(host)


def _host_of_origin(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
