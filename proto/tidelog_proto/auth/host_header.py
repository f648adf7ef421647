"""Check of the `Host` header on plain HTTP servers, against DNS rebinding.

A page of `evil.example` may have that name resolve to this machine after it is loaded. The browser then treats its
requests as same-origin, so the page can read every answer. The page cannot change `Host`, which contains its own name.
A server that requires no credentials therefore accepts only names that an attacker cannot register: addresses,
`localhost`, the machine's name, and names in the settings.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Final

_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?", re.ASCII)


class HostNames:
    """Accepted host names of one server.

    Args:
        named: the names in the settings.
        machine: the host name of the machine; by default that of this machine.
    """

    def __init__(self, named: Iterable[str], machine: str | None = None) -> None:
        machine = socket.gethostname() if machine is None else machine
        self._names = {_plain(name) for name in ("localhost", machine, machine.partition(".")[0], *named)} - {""}

    def is_own(self, host: str) -> bool:
        """Return whether a `Host` header contains an accepted name or any IP address; the port is ignored."""
        parts = _HOST.fullmatch(host.strip())
        if parts is None:
            return False
        name = _plain(parts[1])
        return name in self._names or _is_address(name)


def _plain(name: str) -> str:
    """Return a name in canonical form: without brackets, in lower case, without a trailing dot."""
    return name.strip().strip("[]").lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
