"""Normalisation of client addresses for limits per address."""

from __future__ import annotations

import ipaddress
from typing import Final

V6_PREFIX_BITS: Final = 64


def counted_address(host: str) -> str:
    """Return the network by which a limit counts an address: /32 for IPv4 (also mapped), /64 for IPv6; "" otherwise."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return f"{address.ipv4_mapped}/32"
        return str(ipaddress.ip_network((address, V6_PREFIX_BITS), strict=False))
    return f"{address}/32"
