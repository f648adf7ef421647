"""The end of a path that may hold every character: Starlette's own `path` stops at a line end, which a key may have."""

from __future__ import annotations

from typing import Final

from starlette.convertors import PathConvertor, register_url_convertor

ANY_TEXT: Final = "any_text"
"""How a route names it: `{key:any_text}`."""


class _AnyText(PathConvertor):
    regex = r"[\s\S]*"


register_url_convertor(ANY_TEXT, _AnyText())
