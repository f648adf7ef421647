from __future__ import annotations

import pytest

from tidelog_broker.storage.engine.store import Engine
from tidelog_broker.storage.engines import installed
from tidelog_broker.storage.engines.installed import InstalledEngines
from tidelog_broker.storage.engines.stores import engine_named, new_volume
from tidelog_broker.storage.io.errors import EngineMissingError
from tidelog_broker.storage.io.filesystem import RealFileSystem


def test_engines_of_packages_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "engine_names", lambda: ["segment", "memory", "rocksdb", "another"])
    assert InstalledEngines(lambda name: engine_named(new_volume(RealFileSystem()), name)).names == [
        "another",
        "rocksdb",
    ]


def test_engine_that_cannot_be_loaded_is_tried_once() -> None:
    asked: list[str] = []

    def load(name: str) -> Engine:
        asked.append(name)
        if name == "broken":
            raise EngineMissingError(name, "its package cannot be imported")
        return engine_named(new_volume(RealFileSystem()), "memory")

    engines = InstalledEngines(load)
    assert [engines.has(name) for name in ("broken", "sound", "broken", "sound")] == [False, True, False, True]
    assert asked == ["broken", "sound"]
