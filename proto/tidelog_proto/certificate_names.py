"""Who somebody is, in a certificate: a name of the kind URI, `tidelog:node:NAME` or `tidelog:client:NAME`."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

_SCHEME: Final = "tidelog:"


def uri_of(kind: str, name: str) -> str:
    """Return what stands in the certificate of a node or a client."""
    return f"{_SCHEME}{kind}:{quote(name, safe='')}"
