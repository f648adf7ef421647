"""Parsing of options that name the first record to read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.offset_extents import Since
from tidelog_cli.base.times import ago, is_duration, moment_of

Start = Literal["earliest", "latest"] | int | datetime


def parse_start(text: str, option: str = "--from", *, offsets: bool = True) -> Start:
    """Parse the value of `--from` or a similar option; an integer is an offset.

    Args:
        option: name of the option, for the error.
        offsets: whether the error suggests an offset.

    Raises:
        CommandFailed: the text is not earliest, latest, an offset, an ISO 8601 time or a duration.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return ago(text, datetime.now(UTC)) if is_duration(text) else moment_of(text)
    except ValueError as error:
        raise CommandFailed(
            f"{option} {text!r}: give earliest, latest, {'an offset, ' if offsets else ''}a time like "
            "2013-01-01T05:00:00, or how long ago with a unit ms, s, m, h, d or w, like 30m, 12h or 7d",
            EXIT_USAGE,
        ) from error


def parse_since(text: str) -> Since:
    """Parse the value of `--since`: as `parse_start`, without offsets.

    Raises:
        CommandFailed: the text is not earliest, latest, an ISO 8601 time or a duration.
    """
    begin = parse_start(text, "--since", offsets=False)
    if isinstance(begin, int):
        raise CommandFailed(
            f"--since takes a time, got {text}: an integer would be an offset, which is a different record in each "
            "partition; give a time like 2013-01-01T05:00:00, or how long ago, like 30m, 12h or 7d",
            EXIT_USAGE,
        )
    return begin
