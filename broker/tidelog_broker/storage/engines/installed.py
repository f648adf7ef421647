"""The storage engines of this node besides those that every node has, as they were when it started."""

from __future__ import annotations

from collections.abc import Callable

from tidelog_broker.storage.engine.store import SEGMENT, Engine
from tidelog_broker.storage.engines.stores import engine_names
from tidelog_broker.storage.io.errors import EngineMissingError
from tidelog_proto.topic_settings import MEMORY_ENGINE


class InstalledEngines:
    """Knows which engines of packages this node can load.

    Args:
        load: returns an engine by its name; raises EngineMissingError.
    """

    def __init__(self, load: Callable[[str], Engine]) -> None:
        self._load = load
        self.names = sorted(set(engine_names()) - {SEGMENT, MEMORY_ENGINE})
        """The installed engines, which this node announces; a package may still fail to load."""
        self._usable: dict[str, bool] = {}

    def has(self, name: str) -> bool:
        """Return whether an engine can be loaded; a failure is final, because a package needs a restart of the node."""
        usable = self._usable.get(name)
        if usable is None:
            try:
                self._load(name)
                usable = True
            except EngineMissingError:
                usable = False
            self._usable[name] = usable
        return usable
