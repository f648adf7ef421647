"""Refusal of objects with a repeated member, wherever the gateway interprets the object itself.

Decoders keep the last of several members with one name and do not report the others, so the gateway would execute only
a part of a request with a repeated member and answer as if it had executed all of it. A record's JSON value is not
interpreted: it is stored as it was sent, repeats included.

The decoded object is encoded again and compared with the text: each member that the decoder dropped has a name, so the
text has more quotes (`may_repeat`). Only then is the text parsed again into lists of pairs, which keep every member.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np

from tidelog_gateway.problems import ERRORS_SHOWN_MAX, invalid, pointer

Path = tuple[str | int, ...]
"""The path of a value in a document."""
Opaque = tuple[str | int | None, ...]
"""The path of values that are not interpreted; None matches each element of a list."""

NOTHING: Final[Opaque] = ()
VALUES_OF_RECORDS: Final[Opaque] = ("records", None, "value")
VALUE_OF_RECORD: Final[Opaque] = ("value",)

_ENCODE: Final = msgspec.json.Encoder().encode
_ESCAPED_QUOTE: Final = b"\\u0022"


Members = tuple[tuple[str, Any], ...]
"""The members of an object in their order, repeats included."""


def may_repeat(text: bytes, decoded: object) -> bool:
    """Return whether a text may have a repeated member in one of the decoded objects.

    False is certain. True is possible without a repeated member: a quote may be written as an escape, and a value that
    is not interpreted may have a repeated member.

    Args:
        text: JSON.
        decoded: the decoded text, with the same members.
    """
    return _quotes(text) != _quotes(_ENCODE(decoded)) or (b"\\" in text and _ESCAPED_QUOTE in text)


def has_strings_alone(text: bytes, count: int) -> bool:
    """Return whether a text has exactly `count` strings, names included, and no escape: cheaper than `may_repeat`."""
    return b"\\" not in text and _quotes(text) == 2 * count


def _quotes(text: bytes) -> int:
    if len(text) < _LARGE_BYTES:
        return text.count(b'"')
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == _QUOTE))


_QUOTE: Final = ord('"')
_LARGE_BYTES: Final = 4_096
"""Size from which counting quotes with an array comparison is faster."""


def refuse_repeats_in(text: bytes, decoded: object, *, opaque: Opaque) -> None:
    """Refuse a text with a repeated member in an object that the gateway interprets.

    Args:
        text: JSON that was validated.
        decoded: the decoded text, with the same members.
        opaque: the path of values that are not interpreted.

    Raises:
        Problem: 422, with the first repeated members.
    """
    try:
        repeated = may_repeat(text, decoded)
    except (OverflowError, RecursionError, ValueError):  # msgspec cannot encode a JSON value
        repeated = True
    if repeated:
        refuse_repeats(text, opaque=opaque)


def refuse_repeats(text: bytes, *, opaque: Opaque, place: Callable[[Path], str] = pointer) -> None:
    """Refuse a text with a repeated member; as `refuse_repeats_in`, without the fast check first.

    Args:
        text: JSON that was validated.
        opaque: the path of values that are not interpreted.
        place: makes the pointer of an error from a path in the text.

    Raises:
        Problem: 422.
    """
    try:
        document = parse_pairs(text)
    except (ValueError, RecursionError) as error:
        raise invalid([{"pointer": "", "detail": f"the text is not JSON: {error}"}]) from error
    check_repeats(document, opaque=opaque, place=place)


def parse_pairs(text: bytes, members_of: Callable[[list[tuple[str, Any]]], Members] = Members) -> Any:
    """Return a JSON text with each object as `Members`, which is a tuple, and each number as a string.

    Args:
        text: JSON in UTF-8.
        members_of: converts the members of an object to `Members`.

    Raises:
        ValueError: the text is not JSON.
        RecursionError: the text is nested too deeply.
    """
    return json.loads(
        text, object_pairs_hook=members_of, parse_int=str, parse_float=str, parse_constant=str, strict=False
    )


def has_repeat(members: Sequence[tuple[str, Any]]) -> bool:
    """Return whether an object has a repeated member."""
    return len(members) > 1 and len({name for name, _ in members}) < len(members)


def check_repeats(document: Any, *, opaque: Opaque, place: Callable[[Path], str] = pointer) -> None:
    """Refuse a document of `parse_pairs` with a repeated member; see `refuse_repeats`.

    Raises:
        Problem: 422.
    """
    faults = [
        {"pointer": place(path), "detail": f"is given {count} times in one object; send it once"}
        for path, count in islice(_repeats(document, opaque), ERRORS_SHOWN_MAX)
    ]
    if faults:
        raise invalid(faults)


def _repeats(document: Any, opaque: Opaque) -> Iterator[tuple[Path, int]]:
    """Yield the path of each repeated member and its number of occurrences, in the order of the text."""
    waiting: list[tuple[Path, Any]] = [((), document)] if isinstance(document, tuple | list) else []
    while waiting:
        path, node = waiting.pop()
        parts: Iterable[tuple[str | int, Any]] = enumerate(node)
        if isinstance(node, tuple):
            parts = node
            if has_repeat(node):
                counts = Counter(name for name, _ in node)
                yield from (((*path, name), count) for name, count in counts.items() if count > 1)
        inner = [((*path, part), item) for part, item in parts if item and isinstance(item, tuple | list)]
        waiting += reversed([each for each in inner if not _is_opaque(each[0], opaque)])


def _is_opaque(path: Path, opaque: Opaque) -> bool:
    return len(path) == len(opaque) and all(
        expected is None or part == expected for part, expected in zip(path, opaque, strict=True)
    )
