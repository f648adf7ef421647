"""Who somebody is, in a certificate: a name of the kind URI, `tidelog:node:NAME` or `tidelog:client:NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

_SCHEME: Final = "tidelog:"


def uri_of(kind: str, name: str) -> str:
    """Return what stands in the certificate of a node or a client."""
    return f"{_SCHEME}{kind}:{quote(name, safe='')}"


def names_in(peercert: Mapping[str, Any] | None, kind: str) -> list[str]:
    """Return the nodes (or clients) that a certificate vouches for; names that are not UTF-8 are left out.

    Args:
        peercert: as `ssl.SSLObject.getpeercert` returns it, verified; None: nobody has shown one.
        kind: "node" or "client".
    """
    begin = f"{_SCHEME}{kind}:"
    alternatives = (peercert or {}).get("subjectAltName", ())
    uris = [value.removeprefix(begin) for of, value in alternatives if of == "URI" and value.startswith(begin)]
    return [name for uri in uris if (name := _decoded(uri)) is not None]


def _decoded(part: str) -> str | None:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:  # a replacement character would make one name of many
        return None
