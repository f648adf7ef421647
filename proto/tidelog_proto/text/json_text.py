"""The definition of JSON, and the exact text of its parts, for producing, serving, sampling and SQL.

JSON is RFC 8259 in UTF-8, without the parts that parsers treat differently. The following are not JSON: NaN and
infinities, a byte order mark, an escaped surrogate without its pair, more than `JSON_DEPTH_MAX` levels of objects and
arrays, and a number of more than `JSON_NUMBER_CHARS_MAX` characters. Numbers of any magnitude and repeated members are
JSON; of repeated members the last one counts.

No function here converts a number: `number_text` keeps its text, and callers choose a type that can represent it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn, cast

from tidelog_proto.limits import JSON_DEPTH_MAX, JSON_NUMBER_CHARS_MAX

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark that some programs write at the start of a UTF-8 file; it is not part of the first line."""


class JsonNumber(str):
    """The text of a JSON number."""

    __slots__ = ()
    __repr__ = str.__str__


def number_text(text: str) -> JsonNumber:
    """Return a JSON number as text.

    Raises:
        ValueError: the number has too many characters.
    """
    if len(text) > JSON_NUMBER_CHARS_MAX:
        raise ValueError(f"a number has {len(text)} characters; at most {JSON_NUMBER_CHARS_MAX} are supported")
    return JsonNumber(text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_DECODER: Final = json.JSONDecoder(parse_float=number_text, parse_int=number_text, parse_constant=_no_constant)
_CHECKER: Final = json.JSONDecoder(parse_constant=_no_constant)
_SCAN: Final[Any] = cast("Any", _CHECKER).scan_once
_SCAN_STRING: Final[Any] = cast("Any", json.decoder).scanstring
"""`scan_once` and `scanstring` parse a value and a string at a position; the type stubs lack both."""
_BLANKS: Final = " \t\n\r"
_SPACE: Final = re.compile(f"[{_BLANKS}]*")
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_NO_BRACKET: Final = re.compile(r"[^][{}]+")
_LONG_NUMBER: Final = re.compile(rf"[-+.0-9eE]{{{JSON_NUMBER_CHARS_MAX + 1}}}")
_PAIR: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def exact_json(content: bytes | str, *, around: int = 0) -> Any:
    """Parse JSON, with each number as a `JsonNumber`.

    Args:
        content: text, or bytes in UTF-8.
        around: number of enclosing levels in `content` that do not count towards `JSON_DEPTH_MAX`.

    Raises:
        ValueError: the content is not JSON.
    """
    text = _text_of(content)
    document = _decoded(_DECODER, text)
    check_limits(text, around=around)
    return document


def checked_json(content: bytes | str, *, around: int = 0) -> tuple[str, Any]:
    """Return JSON as text, and parsed; numbers with a fraction or exponent may be rounded in the parsed value.

    Args:
        around: see `exact_json`.

    Raises:
        ValueError: it is not JSON.
    """
    text = _text_of(content)
    document = _decoded(_CHECKER, text)
    check_limits(text, around=around)
    return text, document


def json_text(content: bytes | str) -> str:
    """Return JSON as text.

    Raises:
        ValueError: it is not JSON.
    """
    return checked_json(content)[0]


def check_limits(text: str, *, around: int = 0) -> None:
    """Refuse well-formed JSON that exceeds a limit or contains an unpaired surrogate.

    Args:
        text: well-formed JSON.
        around: see `exact_json`.

    Raises:
        ValueError: with the violated limit.
    """
    levels = JSON_DEPTH_MAX + around
    if text.count("[") + text.count("{") > levels and _depth(text) > levels:
        raise ValueError(f"nested too deeply: at most {JSON_DEPTH_MAX} levels are supported")
    if len(text) > JSON_NUMBER_CHARS_MAX and _LONG_NUMBER.search(_STRING.sub('""', text)):
        raise ValueError(f"a number has more than {JSON_NUMBER_CHARS_MAX} characters")
    if "\\u" in text and _SURROGATE.search(text):
        # Escaped backslashes are removed first: they do not escape a `u` that follows.
        left = _PAIR.sub("", text.replace("\\\\", ""))
        if _SURROGATE.search(left):
            raise ValueError(
                "surrogates not allowed: an escape from \\ud800 to \\udfff lacks its other half; send both halves, or "
                "the character itself"
            )


def members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the exact text of the value of each member of an object, in order.

    Args:
        text: an object, as `json_text` returns it.
    """
    at = _after_space(text, _after_space(text, 0) + 1)
    while text[at] != "}":
        name, at = _SCAN_STRING(text, at + 1, True)
        start = _after_space(text, _after_space(text, at) + 1)
        _, end = _SCAN(text, start)
        yield name, text[start:end]
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)


def member_text(text: str, name: str) -> str:
    """Return the exact text of a member's value, or of the last one if the member is repeated.

    Args:
        text: an object, as `json_text` returns it.
        name: the name of an existing member; it consists of letters, digits and underscores.
    """
    quoted = f'"{name}"'
    if text.count(quoted) == 1 and "\\u" not in text:
        # If the text has no escapes, a single occurrence is the member's name.
        start = _after_space(text, _after_space(text, text.index(quoted) + len(quoted)) + 1)
        return text[start : _SCAN(text, start)[1]]
    return [value for member, value in members(text) if member == name][-1]


def _text_of(content: bytes | str) -> str:
    text = content if isinstance(content, str) else content.decode()
    if text.startswith("\ufeff"):
        raise ValueError("begins with a byte order mark; leave it out")
    return text


def _decoded(decoder: json.JSONDecoder, text: str) -> Any:
    try:
        return decoder.decode(text)
    except RecursionError as error:
        raise ValueError(f"nested too deeply: at most {JSON_DEPTH_MAX} levels are supported") from error


def _depth(text: str) -> int:
    import numpy as np  # noqa: PLC0415 - few texts have so many brackets

    brackets = np.frombuffer(_NO_BRACKET.sub("", _STRING.sub("", text)).encode(), np.uint8)
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1)
    return int(steps.cumsum().max(initial=0))


def _after_space(text: str, at: int) -> int:
    if text[at] not in _BLANKS:
        return at
    match = _SPACE.match(text, at)
    assert match is not None, "the pattern matches the empty string"
    return match.end()
