"""Which topics a pattern means: a regular expression over whole names.

RE2 evaluates it, which takes a time in proportion to pattern and name: whoever writes the pattern cannot make a
consumer stand still. It has no look-around and no back references.
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
    """A pattern of topic names.

    Args:
        text: in the syntax of RE2; at most `PATTERN_CHARS_MAX` characters.
        besides: the name of a topic that never matches; None: there is none.

    Raises:
        InvalidRequestError: it is none.
    """

    def __init__(self, text: str, *, besides: str | None = None) -> None:
        if not isinstance(text, str):
            raise InvalidRequestError(f"a pattern is text in the syntax of RE2, not {text!r}")
        self.text = text
        self._besides = besides
        if not 0 < len(text) <= PATTERN_CHARS_MAX:
            raise InvalidRequestError(f"a pattern has 1 to {PATTERN_CHARS_MAX} characters, this one {len(text)}")
        self._whole = rf"\A(?:{text})\z"
        try:
            for each in (text, self._whole):  # by itself first: parentheses must not pair with those around it
                _matches(each, [""])
        except pa.ArrowInvalid as error:
            raise InvalidRequestError(f"{text!r} is no pattern of topics: {error}") from error

    def matching(self, names: Sequence[str]) -> list[str]:
        """Return the names that match as a whole, in order; those of the broker's own topics never do."""
        found = _matches(self._whole, names)
        return [
            name
            for name, matches in zip(names, found, strict=True)
            if matches and name != self._besides and not name.startswith(INTERNAL_PREFIX)
        ]

    async def topics(self, router: Router) -> list[str]:
        """Return the topics that there are and that match.

        Raises:
            TidelogError: no node could tell.
        """
        found: list[str] = []
        after, more = "", True
        while more:
            infos, more = await paging.list_topic_page(router, after=after, limit=_PAGE)
            names = [info.name for info in infos]
            found += self.matching(names)
            more = more and bool(names) and names[-1] > after
            after = names[-1] if names else after
        return found


def _matches(pattern: str, names: Sequence[str]) -> list[bool]:
    found: Any = pc.match_substring_regex(pa.array(names, pa.string()), pattern)
    return found.to_pylist()  # type: ignore[no-any-return]  # the stubs lack the type
