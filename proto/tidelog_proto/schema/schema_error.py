"""The refusal of a schema, of a change of one, or of its encoding."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from tidelog_proto.printable import printable

FAULTS_MAX: Final = 20
"""Maximum number of faults that one error lists."""
_SHOWN_CHARS: Final = 60


class SchemaError(ValueError):
    """A schema, or a change of one, is refused.

    Attributes:
        faults: each fault by itself: the field, the value and the remedy; at most `FAULTS_MAX`.
    """

    def __init__(self, *faults: str) -> None:
        self.faults = faults[:FAULTS_MAX]
        listed = "; ".join(self.faults)
        super().__init__(listed if len(faults) == 1 else f"{len(self.faults)} faults: {listed}")


def refuse(faults: Iterable[str]) -> None:
    """Raise `SchemaError` with the first of the faults; return if `faults` is empty."""
    if listed := list(islice(faults, FAULTS_MAX)):
        raise SchemaError(*listed)


def shown(value: object) -> str:
    """Return a value of a caller for a message: in quotes, cut off, and with unprintable characters escaped."""
    text = repr(value)
    return printable(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")
