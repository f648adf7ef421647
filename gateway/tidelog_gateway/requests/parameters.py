"""Parameters in paths and queries: keys, tags, integers, any text. A key that is not text is sent in base64."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from fastapi import Query
from starlette.convertors import PathConvertor, register_url_convertor

from tidelog_gateway.problems import invalid
from tidelog_proto.limits import KIB, TAG_BYTES_MAX
from tidelog_proto.text.base64_text import from_url_base64

KeyEncoding = Literal["utf8", "base64"]

KeyEncodingQuery = Annotated[
    KeyEncoding, Query(description="The encoding of the key; base64 may use - and _ for + and /.")
]
KEY_CHARS_MAX: Final = 32 * KIB
"""Maximum length of a key in a request, so that it fits into a URL."""

KeyQuery = Annotated[str | None, Query(max_length=KEY_CHARS_MAX, description="Only records with this key.")]
TagQuery = Annotated[
    str | None, Query(max_length=TAG_BYTES_MAX, description="Only records with this tag; with a key, both must match.")
]


_INTEGER: Final = re.compile(r"[0-9]+|-0*[1-9][0-9]*")
INTEGER_DETAIL: Final = "must be an integer in decimal digits, without a plus sign, spaces, underscores or a fraction"


def is_integer(text: str) -> bool:
    """Return whether a text is a plain decimal integer; Python and pydantic also accept `+0`, `0.0` and `1_000`."""
    return _INTEGER.fullmatch(text) is not None


def parse_key(text: str, encoding: KeyEncoding) -> bytes:
    """Decode a key.

    Raises:
        Problem: 422, the key is not canonical base64.
    """
    if encoding == "utf8":
        return text.encode()
    try:
        return from_url_base64(text)
    except ValueError as error:
        raise invalid([{"parameter": "key", "detail": str(error)}]) from error


ANY_TEXT: Final = "any_text"
"""The name of the path converter for any text in a route: `{key:any_text}`.

Starlette's own `path` stops at a line break, which a key may contain.
"""


class _AnyText(PathConvertor):
    regex = r"[\s\S]*"


register_url_convertor(ANY_TEXT, _AnyText())
