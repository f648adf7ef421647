"""Node and client names in certificates: URIs `tidelog:node:NAME` and `tidelog:client:NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

_SCHEME: Final = "tidelog:"


def uri_of(kind: str, name: str) -> str:
    """Return the URI for the certificate of a node or a client."""
    return f"{_SCHEME}{kind}:{quote(name, safe='')}"


def names_in(peercert: Mapping[str, Any] | None, kind: str) -> list[str]:
    """Return the node or client names in a certificate, without those that are not UTF-8.

    Args:
        peercert: verified, from `ssl.SSLObject.getpeercert`; None if the peer has sent no certificate.
        kind: "node" or "client".
    """
    begin = f"{_SCHEME}{kind}:"
    alternatives = (peercert or {}).get("subjectAltName", ())
    uris = [value.removeprefix(begin) for of, value in alternatives if of == "URI" and value.startswith(begin)]
    return [name for uri in uris if (name := _decoded(uri)) is not None]


def _decoded(part: str) -> str | None:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:  # Decoding with replacement characters would make different names equal.
        return None
