"""Addresses that say what they mean: percent-encoded UTF-8, as URLs are (RFC 3986, 2.5).

The server and the framework read whatever is no UTF-8 as the replacement character, so `%ff` and `%fe` would be one and
the same key, and neither the one that was meant.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from tidelog_gateway.problems import Problem


def refuse_unreadable(scope: Scope) -> None:
    """Refuse an address that is no text.

    Raises:
        Problem: 400.
    """
    for what in (scope.get("raw_path") or b"", scope["query_string"]):
        if b"%" not in what:
            continue
        try:
            unquote_to_bytes(what).decode()
        except UnicodeDecodeError as error:
            detail = "the address is no UTF-8, percent-encoded: give a key that is no text in base64 (key_encoding)"
            raise Problem(400, "malformed_request", detail) from error
