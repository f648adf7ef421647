"""What makes values and keys out of a record's bytes: by name, or a function of the user's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from tidelog.errors import InvalidRequestError

Deserializer = Literal["json", "utf-8"] | Callable[[bytes], Any]
"""JSON values, text, or a function that is called with the bytes of each record that has some; it returns anything."""

OnUndecodable = Literal["error", "skip"]

_DECODER: Final = json.JSONDecoder()
_SCAN: Final[Any] = cast("Any", _DECODER).scan_once
"""The decoder without what it does about white space; the stubs lack it."""


def _json(content: bytes) -> Any:
    text = content.decode()
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:  # white space in front, or an error: the decoder tells which
        return _DECODER.decode(text)
    return value if end == len(text) else _DECODER.decode(text)


_BY_NAME: Final[dict[str, Callable[[bytes], Any]]] = {"json": _json, "utf-8": bytes.decode}


class Decoding(NamedTuple):
    """How a consumer decodes; None leaves bytes as they are.

    Attributes:
        value: of values.
        key: of keys.
        parks: whether what does not decode is for somebody else to take away before it is passed.
        skips: whether it is passed over and counted.
    """

    value: Callable[[bytes], Any] | None = None
    key: Callable[[bytes], Any] | None = None
    parks: bool = False
    skips: bool = False

    @classmethod
    def of(
        cls,
        *,
        value: Deserializer | None,
        key: Deserializer | None,
        on_undecodable: str,
        dead_letter: str | None,
    ) -> Decoding:
        """Check the arguments of `Client.consumer`.

        Raises:
            InvalidRequestError: one of them has no such value.
        """
        if on_undecodable not in get_args(OnUndecodable):
            raise InvalidRequestError(f"on_undecodable is one of {get_args(OnUndecodable)}, not {on_undecodable!r}")
        decoding = cls(_function(value), _function(key), dead_letter is not None, on_undecodable == "skip")
        if decoding.parks and decoding.skips:
            raise InvalidRequestError("records that do not decode are skipped, or go to a dead-letter topic; not both")
        if decoding.skips and value is None and key is None:
            raise InvalidRequestError("without a deserialiser there is nothing that does not decode")
        return decoding


def _function(chosen: Deserializer | None) -> Callable[[bytes], Any] | None:
    if isinstance(chosen, str):
        function = _BY_NAME.get(chosen)
        if function is None:
            raise InvalidRequestError(f"deserialisers are {sorted(_BY_NAME)} or functions, not {chosen!r}")
        return function
    if chosen is None:
        return None
    if not callable(chosen):
        raise InvalidRequestError(f"a deserialiser is a name or a function of bytes, not {chosen!r}")

    def guarded(content: bytes) -> Any:
        try:
            return chosen(content)
        except StopIteration as error:  # it would end the column, and with it the batch
            raise ValueError("the deserialiser raised StopIteration") from error

    return guarded


Decoder = Callable[[Iterable[Any]], Iterator[Any]]
"""Makes of some of a column's contents an iterator over what they decode to."""


def decoder_of(column: list[Any], function: Callable[[bytes], Any]) -> Decoder:
    """Return what has `function` decode the contents of a column; None stays None.

    Its iterators raise what `function` raises, and are of no use any more then.
    """
    if None not in column:
        return lambda contents: map(function, contents)
    return lambda contents: (None if content is None else function(content) for content in contents)
