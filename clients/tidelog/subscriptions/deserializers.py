"""Deserializers of record values and keys: by name, or a function of the application."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from tidelog.errors import InvalidRequestError

Deserializer = Literal["json", "utf-8"] | Callable[[bytes], Any]
"""JSON, text, or a function that is called with the bytes of each non-null value or key."""

OnUndecodable = Literal["error", "skip"]

_DECODER: Final = json.JSONDecoder()
_SCAN: Final[Any] = cast("Any", _DECODER).scan_once
"""The decoder without handling of whitespace; missing from the type stubs."""


def _json(content: bytes) -> Any:
    text = content.decode()
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:  # Leading whitespace, or invalid JSON: `decode` accepts the former and raises for the latter.
        return _DECODER.decode(text)
    return value if end == len(text) else _DECODER.decode(text)


_BY_NAME: Final[dict[str, Callable[[bytes], Any]]] = {"json": _json, "utf-8": bytes.decode}


class Decoding(NamedTuple):
    """The decoding of a consumer's records.

    Attributes:
        value, key: called with the bytes of each value or key; None leaves the bytes as they are.
        to_dead_letter: publish undecodable records to the dead-letter topic.
        skips: skip and count undecodable records.
    """

    value: Callable[[bytes], Any] | None = None
    key: Callable[[bytes], Any] | None = None
    to_dead_letter: bool = False
    skips: bool = False

    @classmethod
    def of(
        cls,
        *,
        value: Deserializer | None,
        key: Deserializer | None,
        on_undecodable: str,
        dead_letter: str | None,
        has_model: bool = False,
    ) -> Decoding:
        """Check the arguments of `Client.consumer` for decoding, and return the decoding.

        Args:
            has_model: whether rows of typed topics become instances of a class, which may fail, too.

        Raises:
            InvalidRequestError: an argument has an invalid value.
        """
        if on_undecodable not in get_args(OnUndecodable):
            raise InvalidRequestError(
                f"on_undecodable must be one of {get_args(OnUndecodable)}, got {on_undecodable!r}"
            )
        functions = _function("value_deserializer", value), _function("key_deserializer", key)
        decoding = cls(*functions, dead_letter is not None, on_undecodable == "skip")
        if decoding.to_dead_letter and decoding.skips:
            raise InvalidRequestError("on_undecodable='skip' and dead_letter exclude each other; pass one of them")
        if decoding.skips and value is None and key is None and not has_model:
            raise InvalidRequestError("on_undecodable='skip' needs value_deserializer, key_deserializer or rows")
        return decoding


def _function(option: str, chosen: Deserializer | None) -> Callable[[bytes], Any] | None:
    if isinstance(chosen, str):
        function = _BY_NAME.get(chosen)
        if function is None:
            raise InvalidRequestError(
                f"{option} must be one of {sorted(_BY_NAME)} or a function of bytes, got {chosen!r}"
            )
        return function
    if chosen is None:
        return None
    if not callable(chosen):
        raise InvalidRequestError(f"{option} must be one of {sorted(_BY_NAME)} or a function of bytes, got {chosen!r}")

    def guarded(content: bytes) -> Any:
        try:
            return chosen(content)
        except StopIteration as error:  # StopIteration would end the iteration over the column silently.
            raise ValueError(
                "the deserializer raised StopIteration; raise ValueError for contents that do not decode"
            ) from error

    return guarded


Decoder = Callable[[Iterable[Any]], Iterator[Any]]
"""Maps the contents of a column to an iterator over the decoded contents."""


def decoder_of(column: list[Any], function: Callable[[bytes], Any]) -> Decoder:
    """Return a decoder that applies `function` to the contents of a column; None stays None.

    An iterator must not be continued after `function` has raised.
    """
    if None not in column:
        return lambda contents: map(function, contents)
    return lambda contents: (None if content is None else function(content) for content in contents)
