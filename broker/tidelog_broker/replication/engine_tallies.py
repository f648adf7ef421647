"""Counts of a node's appends and syncs by storage engine."""

from __future__ import annotations

from typing import Final

ENGINES_COUNTED_MAX: Final = 32
"""Maximum number of engines with counts of their own; further ones share `OTHER_ENGINES`."""
OTHER_ENGINES: Final = "(other)"


class EngineTally:
    """The appends and syncs of one engine.

    Attributes:
        appends: groups of batches that were appended; one group is written at once.
        syncs: syncs that acknowledgements waited for. One sync of a shared log covers the groups of many partitions.
    """

    __slots__ = ("appends", "syncs")

    def __init__(self) -> None:
        self.appends = 0
        self.syncs = 0


class EngineTallies:
    """The tallies of a node by engine name. Only the event loop's thread adds to them; any thread may read."""

    def __init__(self) -> None:
        self._tallies: dict[str, EngineTally] = {}

    def of(self, engine: str) -> EngineTally:
        """Return the tally of an engine, creating it if necessary; beyond the limit, that of `OTHER_ENGINES`."""
        if engine not in self._tallies and len(self._tallies) >= ENGINES_COUNTED_MAX:
            engine = OTHER_ENGINES
        return self._tallies.setdefault(engine, EngineTally())

    def all(self) -> list[tuple[str, EngineTally]]:
        """Return the names of the engines with their tallies."""
        return list(self._tallies.items())
