"""Parsers of options for sizes and durations (`64MiB`, `7d`); invalid values are usage errors with examples."""

from __future__ import annotations

from collections.abc import Callable

import typer

from tidelog_proto.process.units import parse_duration_ms, parse_size


def size_bytes(text: str) -> int:
    """Return a size in bytes, for `typer.Option(parser=size_bytes)`.

    Raises:
        typer.BadParameter: the text is not a size.
    """
    return _parsed(parse_size, text)


def duration_ms(text: str) -> int:
    """Return a duration of at least one millisecond, for `typer.Option(parser=duration_ms)`.

    Raises:
        typer.BadParameter: the text is not a duration, or 0.
    """
    if (duration := _parsed(parse_duration_ms, text)) == 0:
        raise typer.BadParameter(f"{text} is too short; give at least 1ms")
    return duration


def duration_or_none_ms(text: str) -> int:
    """Return a duration in milliseconds, which may be 0, for `typer.Option(parser=duration_or_none_ms)`.

    Raises:
        typer.BadParameter: the text is not a duration.
    """
    return _parsed(parse_duration_ms, text)


def duration_or_none_s(text: str) -> int:
    """Return a duration in whole seconds, which may be 0, for `typer.Option(parser=duration_or_none_s)`.

    Raises:
        typer.BadParameter: the text is not a duration, or not a whole number of seconds.
    """
    seconds, rest = divmod(_parsed(parse_duration_ms, text), 1000)
    if rest:
        raise typer.BadParameter(f"{text} is not a whole number of seconds; give for example 30s, 10m or 1h")
    return seconds


def _parsed(parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(str(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
