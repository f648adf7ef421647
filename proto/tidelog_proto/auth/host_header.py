"""Host names of a server of plain HTTP, which keep out pages whose own name was rebound to it (DNS rebinding).

A page of `evil.example` may have that name resolve to this machine once it is loaded. For the browser
its requests are then of the page's own origin, so the page reads every answer. It cannot choose `Host`, which is the
name in its address. So a server that asks for no credentials accepts only names that no stranger can give to it:
addresses, `localhost`, the machine's own name, and those in its settings.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Final

_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?", re.ASCII)


class HostNames:
    """The names of one server.

    Args:
        named: names in the settings.
        machine: the name of the machine; of this one unless given.
    """

    def __init__(self, named: Iterable[str], machine: str | None = None) -> None:
        machine = socket.gethostname() if machine is None else machine
        self._names = {_plain(name) for name in ("localhost", machine, machine.partition(".")[0], *named)} - {""}

    def is_own(self, host: str) -> bool:
        """Say whether a header `Host` names this server; its port does not matter."""
        parts = _HOST.fullmatch(host.strip())
        if parts is None:
            return False
        name = _plain(parts[1])
        return name in self._names or _is_address(name)


def _plain(name: str) -> str:
    """Return a name as it is compared: without brackets, in lower case, and without the dot at the end."""
    return name.strip().strip("[]").lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
