"""Refusal of URLs that are not percent-encoded UTF-8 (RFC 3986, 2.5).

The server and the framework decode invalid UTF-8 as the replacement character, which would map `%ff` and `%fe` to the
same key. They keep a percent sign without two hexadecimal digits, which would map `100%` and `100%25` to the same key.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from tidelog_gateway.problems import Problem

_NOT_ENCODED: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})[\x21-\x7e]{0,2}")


def check_url_encoding(scope: Scope) -> None:
    """Refuse a URL that is not percent-encoded UTF-8.

    Raises:
        Problem: 400.
    """
    for what in (scope.get("raw_path") or b"", scope["query_string"]):
        if b"%" not in what:
            continue
        match = _NOT_ENCODED.search(what)
        if match is not None:
            escape = match[0].decode("ascii")
            detail = f"{escape!r} in the URL is not percent-encoding; write %25 for a percent sign"
            raise Problem(400, "malformed_request", detail)
        try:
            unquote_to_bytes(what).decode()
        except UnicodeDecodeError as error:
            detail = (
                "the URL is not percent-encoded UTF-8; if a key is not text, send the key in base64 with "
                "key_encoding=base64"
            )
            raise Problem(400, "malformed_request", detail) from error
