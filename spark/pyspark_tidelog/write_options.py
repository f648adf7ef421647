"""Options for writing, parsed and validated before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, get_args

from pyspark_tidelog.access import ACCESS_FOREIGN, ACCESS_OPTION_NAMES, Access, access_of
from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.option_values import flag
from pyspark_tidelog.options import known_only
from tidelog.model import Acks, Compression

T = TypeVar("T")

WRITE_OPTION_NAMES: Final = (*ACCESS_OPTION_NAMES, "topic", "acks", "compression", "failOnChangedRows")
_FOREIGN: Final = {
    **ACCESS_FOREIGN,
    "subscribe": "topic",
    "path": "topic",
}
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark itself that it passes to sinks."""
_NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Parsed options for writing.

    Attributes:
        topic: the topic of all rows; None if each row names its own.
        acks: the `acks` of the producers.
        compression: the codec of the producers; None for no compression.
        fail_on_changed_rows: whether a repeated batch fails if its rows have changed.
        is_typed: whether `topic` is typed, so that columns are the fields of its rows; known after a lookup.
    """

    access: Access
    topic: str | None
    acks: Acks
    compression: Compression | None
    fail_on_changed_rows: bool
    is_typed: bool = False


def parse_write_options(raw_options: Mapping[str, str]) -> WriteOptions:
    """Parse the writer's options (names in any case).

    Raises:
        OptionError: an option is unknown, missing, contradictory or malformed.
    """
    ours = {name: value for name, value in raw_options.items() if name.lower() not in _SPARKS_OWN}
    options = known_only(ours, WRITE_OPTION_NAMES, _FOREIGN, "writing")
    acks: dict[str, Acks] = {each: each for each in get_args(Acks)}
    codecs: dict[str, Compression | None] = {_NONE: None, **{each: each for each in get_args(Compression)}}
    return WriteOptions(
        access=access_of(options),
        topic=options.get("topic") or None,
        acks=_one_of(options, "acks", acks, "quorum"),
        compression=_one_of(options, "compression", codecs, _NONE),
        fail_on_changed_rows=flag(options, "failOnChangedRows", default=True),
    )


def _one_of(options: Mapping[str, str], name: str, known: Mapping[str, T], default: str) -> T:
    text = options.get(name, default).lower()
    if text not in known:
        raise OptionError(f"option {name!r} must be one of {', '.join(known)}, got {text[:60]!r}.")
    return known[text]
