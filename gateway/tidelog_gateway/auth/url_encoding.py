"""Addresses that say what they mean: percent-encoded UTF-8, as URLs are (RFC 3986, 2.5).

The server and the framework read whatever is no UTF-8 as the replacement character, so `%ff` and `%fe` would be one and
the same key, and neither the one that was meant. A percent sign without two digits would be kept as it is, and `100%`
and `100%25` would be one and the same.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from tidelog_gateway.problems import Problem

_NOT_ENCODED: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})[\x21-\x7e]{0,2}")


def refuse_unreadable(scope: Scope) -> None:
    """Refuse an address that is no text.

    Raises:
        Problem: 400.
    """
    for what in (scope.get("raw_path") or b"", scope["query_string"]):
        if b"%" not in what:
            continue
        found = _NOT_ENCODED.search(what)
        if found is not None:
            given = found[0].decode("ascii")
            detail = f"{given!r} in the address is not percent-encoding: write %25 for a percent sign"
            raise Problem(400, "malformed_request", detail)
        try:
            unquote_to_bytes(what).decode()
        except UnicodeDecodeError as error:
            detail = "the address is no UTF-8, percent-encoded: give a key that is no text in base64 (key_encoding)"
            raise Problem(400, "malformed_request", detail) from error
