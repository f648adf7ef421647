"""The problem statuses of each operation of the API, for its description.

The tests of bad requests and of the schema fail for a status that is missing here. 500 is not listed, because it is a
bug of the gateway.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tidelog_gateway.auth.authentication import OPEN_PATHS

_ANY: Final = frozenset({400, 408, 413, 421, 429, 503})
"""Statuses of any operation: faults of framing, incomplete bodies, limits of memory and connections, and a foreign
`Host`."""
_API: Final = frozenset({403, 406, 422, 504})
_CHANGING: Final = frozenset({"post", "put", "patch", "delete"})


def statuses_of(path: str, method: str, parameters: Collection[str], *, has_body: bool, has_auth: bool) -> list[int]:
    """Return the problem statuses of an operation in ascending order.

    Args:
        path: the template of the operation's path.
        method: the HTTP method in lower case.
        parameters: the names of the operation's parameters.
        has_body: whether the operation takes a body.
        has_auth: whether the gateway authenticates its callers.
    """
    statuses = set(_ANY)
    if path.startswith("/v1/"):
        statuses |= _API
    if has_auth and path not in OPEN_PATHS:
        statuses.add(401)
    if has_body:
        statuses.add(415)
    if path.startswith("/v1/") and method in _CHANGING:
        statuses |= {404, 409}
    if "{" in path or "topic" in parameters:
        statuses.add(404)
    if method == "get" and {"offset", "offsets"} & set(parameters):
        statuses.add(410)
    return sorted(statuses)
