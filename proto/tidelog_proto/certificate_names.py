"""Who somebody is, in a certificate: a name of the kind URI, `tidelog:node:NAME` or `tidelog:client:NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

_SCHEME: Final = "tidelog:"


def uri_of(kind: str, name: str) -> str:
    """Return what stands in the certificate of a node or a client."""
    return f"{_SCHEME}{kind}:{quote(name, safe='')}"


def names_in(peercert: Mapping[str, Any] | None, kind: str) -> list[str]:
    """Return the nodes (or clients) that a certificate vouches for.

    Args:
        peercert: as `ssl.SSLObject.getpeercert` returns it, verified; None: nobody has shown one.
        kind: "node" or "client".
    """
    begin = f"{_SCHEME}{kind}:"
    alternatives = (peercert or {}).get("subjectAltName", ())
    return [unquote(value.removeprefix(begin)) for of, value in alternatives if of == "URI" and value.startswith(begin)]
