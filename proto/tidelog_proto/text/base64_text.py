"""Decoding of base64 from users: only the canonical form of RFC 4648, so that no two texts decode to the same bytes.

Python's strict mode accepts `YR==`, whose unused bits are not zero, and `YWEx=`, whose padding is superfluous.
"""

from __future__ import annotations

import base64
import re
from binascii import a2b_base64
from typing import Final

_LAST_OF_ONE: Final = "AQgw"
"""Characters before `==` whose unused bits are zero."""
_LAST_OF_TWO: Final = "AEIMQUYcgkosw048"
"""Characters before a single `=` whose unused bits are zero."""
_SPACE: Final = re.compile(r"\s")
_OTHER: Final = re.compile(r"[^A-Za-z0-9+/]")
_URL_SAFE: Final = str.maketrans("-_", "+/")


def from_base64(text: str) -> bytes:
    """Decode canonical base64.

    Raises:
        ValueError: the text is not canonical base64; the message is a clause with the cause and the remedy, which the
            caller puts after the name of the field.
    """
    try:
        data = a2b_base64(text, strict_mode=True)
    except ValueError:  # also binascii.Error
        raise ValueError(_fault(text)) from None
    if text[-1:] == "=" and (
        len(text) % 4 or (text[-3] not in _LAST_OF_ONE if text[-2] == "=" else text[-2] not in _LAST_OF_TWO)
    ):
        raise ValueError(_fault(text))
    return data


def from_url_base64(text: str) -> bytes:
    """Decode canonical base64 of a URL, which may have `-` and `_` for `+` and `/`; see `from_base64`."""
    try:
        return from_base64(text.translate(_URL_SAFE))
    except ValueError as error:
        hint = "; a + in a query means a space: send -" if " " in text else ""
        raise ValueError(f"{error}{hint}") from None


def _fault(text: str) -> str:
    """Return why a text is not canonical base64, and the remedy."""
    digits = text.rstrip("=")
    padding = len(text) - len(digits)
    if (other := _SPACE.search(text) or _OTHER.search(digits)) is not None:
        return f"is not base64: {other[0]!r} at character {other.start() + 1} {_remedy(other[0])}"
    last = len(digits) % 4
    if last == 1:
        return f"is not base64: {len(digits)} characters before the padding end inside a byte; send all of the text"
    if padding != -len(digits) % 4:
        return (
            f"is not base64: {len(digits)} characters are followed by {padding} of padding; end the text with "
            f"{-len(digits) % 4} characters ="
        )
    group = text[-4:]
    canonical = base64.b64encode(base64.b64decode(group)).decode()
    return f"is not canonical base64: it ends with {group}, whose unused bits are not zero; end it with {canonical}"


def _remedy(character: str) -> str:
    """Return why a character is refused, and the remedy."""
    if character in "-_":
        return "is of the URL-safe alphabet; send + and / for - and _"
    if character.isspace():
        return "is white space; send the text without spaces and line breaks"
    if character == "=":
        return "is padding inside the text; encode all bytes together"
    return "is not of its alphabet; send A-Z, a-z, 0-9, + and /, and = only at the end"
