"""A path converter for any text: Starlette's own `path` stops at a line break, which a key may contain."""

from __future__ import annotations

from typing import Final

from starlette.convertors import PathConvertor, register_url_convertor

ANY_TEXT: Final = "any_text"
"""The converter's name in a route: `{key:any_text}`."""


class _AnyText(PathConvertor):
    regex = r"[\s\S]*"


register_url_convertor(ANY_TEXT, _AnyText())
