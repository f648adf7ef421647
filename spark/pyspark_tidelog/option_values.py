"""Parsing of option values: numbers, lists and offsets by partition; `OptionError` for others, with a valid value."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, TypeGuard

from pyspark_tidelog.errors import OptionError
from tidelog_proto.limits import TIMESTAMP_MS_MAX
from tidelog_proto.process.epoch_units import EPOCH, wrong_unit, zoned_time

NUMBER_MAX: Final = (2**63 - 1) // 1000
"""Largest number of milliseconds that fits a long in microseconds; larger than all offsets in practice."""

_DURATION: Final = re.compile(r"(\d{1,9})\s*(ms|s|m|min|h)?", re.ASCII)
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def did_you_mean(name: str, known: Mapping[str, str]) -> str:
    """Return " Did you mean …?" for the closest name in `known` (lower case -> original spelling), or ""."""
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f" Did you mean {known[near[0]]!r}?" if near else ""


def numbers_per_partition(name: str, text: str, example: str, *, lowest: int) -> dict[str, dict[int, int]]:
    """Parse `{"topic": {"partition": number}}` with numbers of at least `lowest`."""

    def checked(number: object, place: str) -> int:
        if is_int(number) and lowest <= number <= NUMBER_MAX:
            return number
        raise OptionError(
            f"option {name!r}: {number!r} for {place} must be an integer from {lowest} to {NUMBER_MAX}; give {example}."
        )

    return _per_partition(name, text, example, checked)


def times_per_partition(name: str, text: str, example: str) -> dict[str, dict[int, int]]:
    """Parse `{"topic": {"partition": time}}`, each time an integer or text for `timestamp_us`; return microseconds."""

    def checked(time: object, place: str) -> int:
        return timestamp_us(name, time if isinstance(time, str) else repr(time), f" for {place}")

    return _per_partition(name, text, example, checked)


def _per_partition(
    name: str, text: str, example: str, checked: Callable[[object, str], int]
) -> dict[str, dict[int, int]]:
    result: dict[str, dict[int, int]] = {}
    for topic, partitions in json_object(name, text, example).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"option {name!r}: topic {topic!r} must be an object of partitions; give {example}.")
        numbers: dict[int, int] = {}
        for partition, number in partitions.items():
            if not partition.isdecimal() or len(partition) > len(str(NUMBER_MAX)):
                raise OptionError(
                    f"option {name!r}: the partitions of {topic!r} must be integers of at most "
                    f"{len(str(NUMBER_MAX))} digits, got {partition!r}; give {example}."
                )
            numbers[int(partition)] = checked(number, f"{topic!r} partition {partition}")
        result[topic] = numbers
    return result


def json_object(name: str, text: str, example: str) -> dict[str, object]:
    """Parse a non-empty JSON object; `example` is quoted by errors."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"option {name!r}: {text[:200]!r} is not JSON ({error}); give {example}.") from error
    if not isinstance(parsed, dict) or not parsed:
        raise OptionError(f"option {name!r}: {text[:200]!r} is not a JSON object with a topic; give {example}.")
    return parsed


def timestamp_us(name: str, text: str, place: str = "") -> int:
    """Parse milliseconds since 1970, or ISO 8601 with a time zone; return microseconds."""
    if text.isascii() and text.isdecimal() and len(text) <= len(str(NUMBER_MAX)):
        if reason := wrong_unit(int(text), "milliseconds", exact="the ISO 8601 text"):
            raise OptionError(f"option {name!r}{place}: {reason}.")
        if int(text) <= TIMESTAMP_MS_MAX:
            return int(text) * 1000
    moment = zoned_time(text)
    if moment is None:
        raise OptionError(
            f"option {name!r}{place} must be milliseconds since 1970, or ISO 8601 with a time zone such as "
            f"2013-01-01T00:00:00Z, of a time before the year 10000, got {text[:60]!r}."
        )
    return (moment - EPOCH) // timedelta(microseconds=1)


def count(options: Mapping[str, str], name: str, most: int) -> int | None:
    """Parse a number from 1 to `most`; return None if the option is not given."""
    if name not in options:
        return None
    text = options[name]
    if not text.isdecimal() or len(text) > len(str(most)) or not 1 <= int(text) <= most:
        raise OptionError(f"option {name!r} must be an integer from 1 to {most}, got {text[:60]!r}.")
    return int(text)


def duration_s(options: Mapping[str, str], name: str, default: float) -> float:
    """Parse a duration such as "15m" to seconds, or return `default`; a plain number is milliseconds, as in Spark."""
    if name not in options:
        return default
    match = _DURATION.fullmatch(options[name])
    if match is None:
        raise OptionError(f"option {name!r} must be a duration such as '500ms' or '15m', got {options[name][:60]!r}.")
    return int(match[1]) * _UNITS_S[match[2] or "ms"]


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Parse true or false; return `default` if the option is not given."""
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in {"true", "false"}:
        raise OptionError(f"option {name!r} must be 'true' or 'false', got {text[:60]!r}.")
    return text.lower() == "true"


def comma_list(text: str) -> tuple[str, ...]:
    """Split a text at commas, without blank parts."""
    return tuple(part for part in (item.strip() for item in text.split(",")) if part)


def is_int(value: object) -> TypeGuard[int]:
    """Return whether a JSON value is an integer, but not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)
