"""Cursors of paginated lists: the last name of a page, which may be deleted before the next one is requested."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final

from fastapi import Query

from tidelog_gateway.problems import invalid

_CHARS_MAX: Final = 400

CursorQuery = Annotated[str | None, Query(max_length=_CHARS_MAX, description="`next_cursor` of the previous page.")]


def cursor_of(name: str) -> str:
    """Return the cursor after a name."""
    return base64.urlsafe_b64encode(name.encode()).decode("ascii").rstrip("=")


def name_in(cursor: str) -> str:
    """Return the name in a cursor.

    Raises:
        Problem: 422, the cursor is malformed.
    """
    try:
        name = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise invalid(
            [{"parameter": "cursor", "detail": "is not a cursor of this list; request the first page without a cursor"}]
        ) from error
    return name
