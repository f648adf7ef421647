"""Topic patterns: regular expressions that must match whole topic names.

RE2 evaluates them in time linear in pattern and name, so a pattern cannot block the consumer. RE2 supports neither
look-around nor back-references.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.cluster.routing import Router
from tidelog.errors import InvalidRequestError
from tidelog.requests import paging
from tidelog_proto.names import INTERNAL_PREFIX

PATTERN_CHARS_MAX: Final = 4096
_PAGE: Final = 1000


class TopicPattern:
    """A regular expression that topic names must match entirely.

    Args:
        text: the expression, in RE2 syntax; at most `PATTERN_CHARS_MAX` characters.
        exclude: name of a topic that never matches; None: no such topic.

    Raises:
        InvalidRequestError: the pattern is invalid.
    """

    def __init__(self, text: str, *, exclude: str | None = None) -> None:
        if not isinstance(text, str):
            raise InvalidRequestError(f"pattern must be text in RE2 syntax, got {text!r}")
        self.text = text
        self._exclude = exclude
        if not 0 < len(text) <= PATTERN_CHARS_MAX:
            raise InvalidRequestError(f"pattern must have 1 to {PATTERN_CHARS_MAX} characters, got {len(text)}")
        self._whole = rf"\A(?:{text})\z"
        try:
            for each in (text, self._whole):  # Compiled alone first, because its parentheses must be balanced.
                _matches(each, [""])
        except pa.ArrowInvalid as error:
            raise InvalidRequestError(f"invalid topic pattern {text!r}: {error}") from error

    def matching(self, names: Sequence[str]) -> list[str]:
        """Return the names that match entirely, in order; internal topics never match."""
        is_match = _matches(self._whole, names)
        return [
            name
            for name, matches in zip(names, is_match, strict=True)
            if matches and name != self._exclude and not name.startswith(INTERNAL_PREFIX)
        ]

    async def topics(self, router: Router) -> list[str]:
        """Return the existing topics that match.

        Raises:
            TidelogError: no node answered.
        """
        matching: list[str] = []
        after, more = "", True
        while more:
            infos, more = await paging.list_topic_page(router, after=after, limit=_PAGE)
            names = [info.name for info in infos]
            matching += self.matching(names)
            more = more and bool(names) and names[-1] > after
            after = names[-1] if names else after
        return matching


def _matches(pattern: str, names: Sequence[str]) -> list[bool]:
    mask: Any = pc.match_substring_regex(pa.array(names, pa.string()), pattern)
    return mask.to_pylist()  # type: ignore[no-any-return]  # the stubs lack the type
